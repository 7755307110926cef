/* Rows: how their dotted paths nest, what a value may be, how one is read from text, printed and freed. */
#include "proto/config/schema.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "proto/base/json.h"
#include "proto/base/need.h"
#include "proto/config/schema_row.h"

bool schema_row_below(const struct schema_row *row, const char *prefix, const char **name, size_t *length,
                      const char **rest)
{
    size_t n = strlen(prefix);
    if (strncmp(row->path, prefix, n) != 0)
        return false;
    const char *at = row->path + n;
    if (n > 0) {
        if (*at != '.')
            return false;
        at++;
    }
    *name = at;
    *length = strcspn(at, ".[");
    *rest = at + *length;
    return true;
}

bool schema_row_repeats(const struct schema *schema, uint32_t index, const char *prefix)
{
    const char *name, *other, *rest;
    size_t length, other_length;
    if (!schema_row_below(&schema->rows[index], prefix, &name, &length, &rest))
        return false;
    for (uint32_t i = 0; i < index; i++) {
        if (schema_row_below(&schema->rows[i], prefix, &other, &other_length, &rest) && other_length == length &&
            memcmp(name, other, length) == 0)
            return true;
    }
    return false;
}

void schema_join(char *out, size_t size, const char *parent, const char *name, size_t length)
{
    snprintf(out, size, "%s%s%.*s", parent, parent[0] ? "." : "", (int)(length < size ? length : size), name);
}

bool schema_row_required(const struct schema_row *row)
{
    bool may_be_empty = row->type == SCHEMA_STRING || row->type == SCHEMA_PATH || row->type > SCHEMA_ENUM;
    return !row->default_text && (!may_be_empty || row->min >= 1);
}

static void free_level(const struct schema *schema, const char *prefix, void *base);

static void free_options(struct schema_list *list)
{
    rp_option *options = list->data;
    for (uint32_t i = 0; i < list->count; i++) {
        free((char *)options[i].name);
        free((char *)options[i].value);
    }
    free(options);
    *list = (struct schema_list){0};
}

static void free_kind(struct schema_kind *kind)
{
    free(kind->kind);
    kind->kind = NULL;
    free_options(&kind->options);
}

static void free_list(const struct schema *schema, const struct schema_row *row, struct schema_list *list)
{
    for (uint32_t i = 0; i < list->count; i++) {
        if (row->type == SCHEMA_STRINGS || row->type == SCHEMA_PATHS || row->type == SCHEMA_COUNT) {
            free(((char **)list->data)[i]);
        } else if (row->type == SCHEMA_KINDS) {
            free_kind((struct schema_kind *)list->data + i);
        } else if (row->type == SCHEMA_LIST) {
            char prefix[SCHEMA_MAX_PATH];
            snprintf(prefix, sizeof prefix, "%s[]", row->path);
            free_level(schema, prefix, (char *)list->data + i * row->elem_size);
        }
    }
    free(list->data);
    *list = (struct schema_list){0};
}

static void free_value(const struct schema *schema, const struct schema_row *row, void *base)
{
    void *at = (char *)base + row->offset;
    if (row->type == SCHEMA_STRING || row->type == SCHEMA_PATH) {
        free(*(char **)at);
        *(char **)at = NULL;
    } else if (row->type == SCHEMA_KIND) {
        free_kind(at);
    } else if (row->type == SCHEMA_OPTIONS || row->type == SCHEMA_TUPLES) {
        free_options(at);
    } else if (row->type > SCHEMA_ENUM) {
        free_list(schema, row, at);
    }
}

/* Frees the values of all rows in the same struct: below prefix, and not inside a list below it. */
static void free_level(const struct schema *schema, const char *prefix, void *base)
{
    for (uint32_t i = 0; i < schema->n_rows; i++) {
        const char *name, *rest;
        size_t length;
        if (schema_row_below(&schema->rows[i], prefix, &name, &length, &rest) && !strchr(name, '['))
            free_value(schema, &schema->rows[i], base);
    }
}

void schema_free(const struct schema *schema, void *root)
{
    free_level(schema, "", root);
}

/* ---- one scalar, with a sentence for every mistake ---- */

#define SHOWN 64 /* bytes of a bad value in a message */

static const char *const type_names[] = {
    [SCHEMA_BOOL] = "bool",
    [SCHEMA_INT] = "integer",
    [SCHEMA_REAL] = "number",
    [SCHEMA_BYTES] = "size",
    [SCHEMA_TIME] = "time",
    [SCHEMA_STRING] = "string",
    [SCHEMA_PATH] = "path",
    [SCHEMA_ENUM] = "choice",
    [SCHEMA_LIST] = "list",
    [SCHEMA_STRINGS] = "list of strings",
    [SCHEMA_PATHS] = "list of paths",
    [SCHEMA_COUNT] = "integer or list of strings",
    [SCHEMA_INTS] = "list of integers",
    [SCHEMA_OPTIONS] = "map of options",
    [SCHEMA_TUPLES] = "map of lists",
    [SCHEMA_KIND] = "kind with options",
    [SCHEMA_KINDS] = "list of kinds",
};

bool schema_row_bounded(const struct schema_row *row)
{
    return row->min != 0 || row->max != 0;
}

/* Returns true if a bound is so large that it means "unlimited". */
static bool endless(enum schema_type type, double bound)
{
    return fabs(bound) >= (type == SCHEMA_REAL ? 1e18 : 0x1p62);
}

static void format_number(enum schema_type type, double value, char *out, size_t size)
{
    if (type == SCHEMA_REAL || endless(type, value))
        schema_format_real(value, out, size);
    else if (type == SCHEMA_BYTES)
        schema_format_bytes((int64_t)value, out, size);
    else if (type == SCHEMA_TIME)
        schema_format_time((int64_t)value, out, size);
    else
        snprintf(out, size, "%lld", (long long)value);
}

/* Returns the number of words of a row of numbers; word i stands for -1 - i. */
static uint32_t row_words(const struct schema_row *row)
{
    uint32_t n = 0;
    while (row->type != SCHEMA_ENUM && row->choices && row->choices[n])
        n++;
    return n;
}

/* Writes the row's words, "auto, or ", before a phrase about numbers. */
static void format_words(const struct schema_row *row, char *out, size_t size)
{
    size_t used = 0;
    uint32_t n = row_words(row);
    out[0] = '\0';
    for (uint32_t i = 0; i < n && used < size; i++)
        used += (size_t)snprintf(out + used, size - used, "%s, %s", row->choices[i], i + 1 == n ? "or " : "");
}

static void format_range(const struct schema_row *row, char *out, size_t size)
{
    char low[48], high[48];
    format_number(row->type, row->min, low, sizeof low);
    format_number(row->type, row->max, high, sizeof high);
    bool no_low = row->min < 0 && endless(row->type, row->min);
    bool no_high = row->max > 0 && endless(row->type, row->max);
    if (no_low && no_high)
        return;
    if (no_low)
        snprintf(out, size, "at most %s", high);
    else if (no_high)
        snprintf(out, size, "at least %s", low);
    else if (row->min == row->max)
        snprintf(out, size, "%s", low);
    else
        snprintf(out, size, "between %s and %s", low, high);
}

void schema_format_bounds(const struct schema_row *row, char *out, size_t size)
{
    out[0] = '\0';
    if (!schema_row_bounded(row))
        return;
    format_words(row, out, size);
    size_t used = strlen(out);
    format_range(row, out + used, size - used);
}

static bool in_bounds(const struct schema_row *row, double value, char *why, size_t size)
{
    if (!schema_row_bounded(row) || (value >= row->min && value <= row->max))
        return true;
    char bounds[128], shown[48];
    schema_format_bounds(row, bounds, sizeof bounds);
    format_number(row->type, value, shown, sizeof shown);
    if (bounds[0] == '\0')
        snprintf(why, size, "%s is out of range", shown);
    else if (row->type == SCHEMA_STRING || row->type == SCHEMA_PATH)
        snprintf(why, size, "must be %s bytes long, and has %s", bounds, shown);
    else
        snprintf(why, size, "must be %s, not %s", bounds, shown);
    return false;
}

/* Writes why a number could not be read. */
static void explain(enum schema_type type, enum schema_units result, const char *text, char *why, size_t size)
{
    static const char *const expected[] = {
        [SCHEMA_INT] = "a whole number such as 1000, 1_000, 2k or 1e6",
        [SCHEMA_REAL] = "a number such as 0.6 or 1e-3",
        [SCHEMA_BYTES] = "a size such as 65536, 500MB or 4GiB",
        [SCHEMA_TIME] = "a time such as 60s, 500ms or 1h",
    };
    switch (result) {
    case UNITS_MISSING:
        snprintf(why, size, "'%.*s' is a bare number and needs a unit: 60s, 500ms", SHOWN, text);
        break;
    case UNITS_NEGATIVE:
        snprintf(why, size, "'%.*s' is negative", SHOWN, text);
        break;
    case UNITS_FRACTION:
        snprintf(why, size, "'%.*s' is not a whole number", SHOWN, text);
        break;
    case UNITS_LARGE:
        snprintf(why, size, "'%.*s' is too large", SHOWN, text);
        break;
    case UNITS_UNKNOWN:
        snprintf(why, size, "'%.*s' has an unknown unit: expected %s", SHOWN, text, expected[type]);
        break;
    default:
        snprintf(why, size, "'%.*s' is not %s", SHOWN, text, expected[type]);
        break;
    }
}

/* Writes that the text is neither a number nor one of the row's words. */
static void explain_word(const struct schema_row *row, const char *text, char *why, size_t size)
{
    char words[128];
    const char *near = schema_nearest(text, row->choices, row_words(row));
    format_words(row, words, sizeof words);
    const char *number = row->type == SCHEMA_TIME ? "a time" : "a whole number";
    if (near)
        snprintf(why, size, "'%.*s' is not %s%s (did you mean '%s'?)", SHOWN, text, words, number, near);
    else
        snprintf(why, size, "'%.*s' is not %s%s", SHOWN, text, words, number);
}

/* True if the text is one of the row's words. */
static bool set_word(const struct schema_row *row, const char *text, void *at)
{
    uint32_t n = row_words(row);
    for (uint32_t i = 0; i < n; i++) {
        if (strcmp(row->choices[i], text) == 0) {
            memcpy(at, &(int64_t){-1 - (int64_t)i}, sizeof(int64_t));
            return true;
        }
    }
    return false;
}

static bool set_number(const struct schema_row *row, const char *text, void *at, char *why, size_t size)
{
    if (set_word(row, text, at))
        return true;
    union {
        int64_t whole;
        double real;
    } value;
    enum schema_units result = schema_units_read(row->type, text, &value);
    if (result != UNITS_OK) {
        if (result == UNITS_BAD && row_words(row) > 0)
            explain_word(row, text, why, size);
        else
            explain(row->type, result, text, why, size);
        return false;
    }
    if (!in_bounds(row, row->type == SCHEMA_REAL ? value.real : (double)value.whole, why, size))
        return false;
    memcpy(at, &value, sizeof value);
    return true;
}

static bool set_bool(const char *text, bool *out, char *why, size_t size)
{
    static const char *const words[] = {"false", "true", "no", "yes", "off", "on"};
    for (int i = 0; i < 6; i++) {
        if (strcasecmp(text, words[i]) == 0) {
            *out = i % 2 == 1;
            return true;
        }
    }
    snprintf(why, size, "'%.*s' is not true or false", SHOWN, text);
    return false;
}

static bool set_enum(const struct schema_row *row, const char *text, int32_t *out, char *why, size_t size)
{
    uint32_t n = 0;
    for (; row->choices[n]; n++) {
        if (strcmp(row->choices[n], text) == 0) {
            *out = (int32_t)n;
            return true;
        }
    }
    size_t used = (size_t)snprintf(why, size, "'%.*s' is not one of", SHOWN, text);
    for (uint32_t i = 0; i < n && used < size; i++)
        used += (size_t)snprintf(why + used, size - used, "%s%s", i ? ", " : " ", row->choices[i]);
    const char *near = schema_nearest(text, row->choices, n);
    if (near && used < size)
        snprintf(why + used, size - used, " (did you mean '%s'?)", near);
    return false;
}

bool schema_set_scalar(const struct schema_row *row, const char *text, void *base, char *why, size_t size)
{
    void *at = (char *)base + row->offset;
    switch (row->type) {
    case SCHEMA_BOOL:
        return set_bool(text, at, why, size);
    case SCHEMA_ENUM:
        return set_enum(row, text, at, why, size);
    case SCHEMA_STRING:
    case SCHEMA_PATH: {
        if (!in_bounds(row, (double)strlen(text), why, size))
            return false;
        free(*(char **)at);
        *(char **)at = need_text(text);
        return true;
    }
    case SCHEMA_INT:
    case SCHEMA_REAL:
    case SCHEMA_BYTES:
    case SCHEMA_TIME:
        return set_number(row, text, at, why, size);
    default:
        snprintf(why, size, "must be a %s", type_names[row->type]);
        return false;
    }
}

/* ---- printing: YAML that reads back to the same values, and the reference of all keys ---- */

struct printer {
    const struct schema *schema;
    FILE *out;
    int indent;
    bool dash;     /* the next key is the first of a list element */
    bool comments; /* only the first element of a list explains its keys */
};

/* ---------------------------------------------------------------------------------------------------------- scalars */

static bool is_plain(const char *text)
{
    static const char safe[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_/.";
    if (text[0] == '\0' || !strchr(safe, text[0]) || strcasecmp(text, "null") == 0)
        return false;
    size_t n = strspn(text, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_/.-+");
    return n < 512 && text[n] == '\0';
}

static void print_quoted(FILE *out, const char *text)
{
    struct json quoted = {0};
    json_string(&quoted, text);
    char *taken = json_take(&quoted);
    fputs(taken ? taken : "", out);
    free(taken);
}

static void print_string(FILE *out, const char *text)
{
    if (!text)
        text = "";
    if (is_plain(text))
        fputs(text, out);
    else
        print_quoted(out, text);
}

static void print_scalar(FILE *out, const struct schema_row *row, const void *base)
{
    const void *at = (const char *)base + row->offset;
    char text[64] = "";
    int64_t whole = 0;
    double real;
    switch (row->type) {
    case SCHEMA_BOOL:
        fputs(*(const bool *)at ? "true" : "false", out);
        return;
    case SCHEMA_STRING:
    case SCHEMA_PATH:
        print_string(out, *(char *const *)at);
        return;
    case SCHEMA_ENUM:
        print_string(out, row->choices[*(const int32_t *)at]);
        return;
    case SCHEMA_REAL:
        memcpy(&real, at, sizeof real);
        schema_format_real(real, text, sizeof text);
        break;
    case SCHEMA_BYTES:
        memcpy(&whole, at, sizeof whole);
        schema_format_bytes(whole, text, sizeof text);
        break;
    case SCHEMA_TIME:
        memcpy(&whole, at, sizeof whole);
        schema_format_time(whole, text, sizeof text);
        break;
    default:
        memcpy(&whole, at, sizeof whole);
        snprintf(text, sizeof text, "%lld", (long long)whole);
        break;
    }
    if (whole < 0 && -whole <= row_words(row))
        print_string(out, row->choices[-1 - whole]);
    else
        fputs(text, out);
}

/* ------------------------------------------------------------------------------------------------------------- tree */

static void print_level(struct printer *p, const char *prefix, const void *base);

static void start_line(struct printer *p)
{
    fprintf(p->out, "%*s%s", p->dash ? p->indent - 2 : p->indent, "", p->dash ? "- " : "");
    p->dash = false;
}

static void print_help(struct printer *p, const struct schema_row *row)
{
    char bounds[128];
    if (!p->comments)
        return;
    schema_format_bounds(row, bounds, sizeof bounds);
    int indent = p->dash ? p->indent - 2 : p->indent;
    fprintf(p->out, "%*s# %s", indent, "", row->help ? row->help : type_names[row->type]);
    if (row->type == SCHEMA_ENUM && !(row->help && strstr(row->help, row->choices[0]))) {
        for (uint32_t i = 0; row->choices[i]; i++)
            fprintf(p->out, "%s%s", i ? ", " : " (", row->choices[i]);
        fputc(')', p->out);
    } else if (bounds[0] && row->type != SCHEMA_STRING && row->type != SCHEMA_ENUM) {
        fprintf(p->out, " (%s)", bounds);
    }
    fputc('\n', p->out);
}

/* True if the strings stand for a number. */
static bool is_count(const struct schema_row *row, const struct schema_list *list)
{
    bool count = row->type == SCHEMA_COUNT && list->count > 0;
    for (uint32_t i = 0; count && i < list->count; i++)
        count = !((char *const *)list->data)[i][0];
    return count;
}

/* Prints "{a: \"1\"}", after the kind if there is one. */
static void print_options(FILE *out, const char *kind, const struct schema_list *list)
{
    const rp_option *options = list->data;
    fputs(kind ? "{kind: " : "{", out);
    if (kind)
        print_string(out, kind);
    for (uint32_t i = 0; i < list->count; i++) {
        fputs(kind || i > 0 ? ", " : "", out);
        print_string(out, options[i].name);
        fputs(": ", out);
        print_quoted(out, options[i].value);
    }
    fputc('}', out);
}

static void print_kind(FILE *out, const struct schema_kind *kind)
{
    if (kind->options.count > 0)
        print_options(out, kind->kind, &kind->options);
    else
        print_string(out, kind->kind);
}

static void print_flow(struct printer *p, const struct schema_row *row, const struct schema_list *list)
{
    if (is_count(row, list)) {
        fprintf(p->out, " %u\n", list->count);
        return;
    }
    if (row->type == SCHEMA_COUNT && list->count == 0 && row_words(row) > 0) {
        fprintf(p->out, " %s\n", row->choices[0]);
        return;
    }
    fputs(" [", p->out);
    for (uint32_t i = 0; i < list->count; i++) {
        if (i > 0)
            fputs(", ", p->out);
        if (row->type == SCHEMA_INTS) {
            fprintf(p->out, "%lld", (long long)((const int64_t *)list->data)[i]);
        } else if (row->type == SCHEMA_STRINGS || row->type == SCHEMA_PATHS || row->type == SCHEMA_COUNT) {
            print_quoted(p->out, ((char *const *)list->data)[i]);
        } else {
            print_kind(p->out, (const struct schema_kind *)list->data + i);
        }
    }
    fputs("]\n", p->out);
}

static void print_list(struct printer *p, const struct schema_row *row, const struct schema_list *list)
{
    char prefix[SCHEMA_MAX_PATH];
    snprintf(prefix, sizeof prefix, "%s[]", row->path);
    fputs(list->count == 0 ? " []\n" : "\n", p->out);
    bool comments = p->comments;
    p->indent += 4;
    for (uint32_t i = 0; i < list->count; i++) {
        p->dash = true;
        p->comments = comments && i == 0;
        print_level(p, prefix, (const char *)list->data + i * row->elem_size);
    }
    p->indent -= 4;
    p->comments = comments;
}

static void print_leaf(struct printer *p, const struct schema_row *row, const char *name, int length, const void *base)
{
    const void *at = (const char *)base + row->offset;
    print_help(p, row);
    start_line(p);
    fprintf(p->out, "%.*s:", length, name);
    if (row->type == SCHEMA_LIST) {
        print_list(p, row, at);
        return;
    }
    bool map = row->type == SCHEMA_OPTIONS || row->type == SCHEMA_TUPLES;
    if (row->type > SCHEMA_LIST && !map && row->type != SCHEMA_KIND) {
        print_flow(p, row, at);
        return;
    }
    fputc(' ', p->out);
    if (map)
        print_options(p->out, NULL, at);
    else if (row->type == SCHEMA_KIND)
        print_kind(p->out, at);
    else
        print_scalar(p->out, row, base);
    fputc('\n', p->out);
}

static void print_level(struct printer *p, const char *prefix, const void *base)
{
    for (uint32_t i = 0; i < p->schema->n_rows; i++) {
        const struct schema_row *row = &p->schema->rows[i];
        const char *name, *rest;
        size_t length;
        if (!schema_row_below(row, prefix, &name, &length, &rest) || schema_row_repeats(p->schema, i, prefix))
            continue;
        if (*rest == '\0') {
            print_leaf(p, row, name, (int)length, base);
        } else if (*rest == '.') {
            char below[SCHEMA_MAX_PATH];
            schema_join(below, sizeof below, prefix, name, length);
            start_line(p);
            fprintf(p->out, "%.*s:\n", (int)length, name);
            p->indent += 2;
            print_level(p, below, base);
            p->indent -= 2;
        }
    }
}

void schema_print(const struct schema *schema, const void *root, FILE *out)
{
    struct printer p = {.schema = schema, .out = out, .comments = true};
    print_level(&p, "", root);
}

/* -------------------------------------------------------------------------------------------------------- reference */

/* Escapes bars, which would end the cell. */
static void print_cell(FILE *out, const char *text)
{
    for (; *text; text++) {
        if (*text == '|')
            fputc('\\', out);
        fputc(*text == '\n' ? ' ' : *text, out);
    }
}

void schema_print_reference(const struct schema *schema, FILE *out)
{
    fputs("| key | type | default | allowed | meaning |\n|---|---|---|---|---|\n", out);
    for (uint32_t i = 0; i < schema->n_rows; i++) {
        const struct schema_row *row = &schema->rows[i];
        char bounds[128];
        schema_format_bounds(row, bounds, sizeof bounds);
        fprintf(out, "| `%s` | %s | ", row->path, type_names[row->type]);
        if (schema_row_required(row)) {
            fputs("required", out);
        } else {
            const char *text = row->default_text && row->default_text[0] ? row->default_text : "empty";
            bool code = row->default_text && row->default_text[0];
            fputs(code ? "`" : "", out);
            print_cell(out, text);
            fputs(code ? "`" : "", out);
        }
        fputs(" | ", out);
        for (uint32_t c = 0; row->type == SCHEMA_ENUM && row->choices[c]; c++)
            fprintf(out, "%s`%s`", c ? ", " : "", row->choices[c]);
        if (row->type != SCHEMA_ENUM)
            print_cell(out, bounds);
        fputs(" | ", out);
        print_cell(out, row->help ? row->help : "");
        fputs(" |\n", out);
    }
}
