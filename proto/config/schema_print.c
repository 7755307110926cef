/* Prints a filled struct as YAML that reads back to the same values, and the reference of all keys as Markdown. */
#include <string.h>
#include <strings.h>

#include "proto/config/schema_impl.h"

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

/* Reads one code point of UTF-8; a damaged byte stands for itself. Returns the number of bytes. */
static size_t decode(const unsigned char *at, uint32_t *code)
{
    size_t n = at[0] >= 0xf0 ? 4 : at[0] >= 0xe0 ? 3 : at[0] >= 0xc0 ? 2 : 1;
    *code = n == 1 ? at[0] : at[0] & (0x7fu >> n);
    for (size_t i = 1; i < n; i++) {
        if ((at[i] & 0xc0) != 0x80) {
            *code = at[0];
            return 1;
        }
        *code = *code << 6 | (at[i] & 0x3fu);
    }
    return n;
}

static void print_quoted(FILE *out, const char *text)
{
    fputc('"', out);
    for (const unsigned char *at = (const unsigned char *)text; *at;) {
        uint32_t code;
        size_t n = decode(at, &code);
        if (code == '"' || code == '\\')
            fprintf(out, "\\%c", (int)code);
        else if (code == '\n')
            fputs("\\n", out);
        else if (code == '\t')
            fputs("\\t", out);
        else if (code < 0x20 || (code >= 0x7f && code < 0xa0))
            fprintf(out, "\\x%02x", code);
        else if (code == 0x2028 || code == 0x2029 || code == 0xfeff || code == 0xfffe || code == 0xffff)
            fprintf(out, "\\u%04x", code);
        else
            fwrite(at, 1, n, out);
        at += n;
    }
    fputc('"', out);
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
        if (whole >= 0 && whole < schema_row_words(row)) {
            print_string(out, row->choices[whole]);
            return;
        }
        snprintf(text, sizeof text, "%lld", (long long)whole);
        break;
    }
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
    fprintf(p->out, "%*s# %s", indent, "", row->help ? row->help : schema_type_name(row->type));
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

static void print_flow(struct printer *p, const struct schema_row *row, const struct schema_list *list)
{
    bool map = row->type == SCHEMA_OPTIONS;
    if (is_count(row, list)) {
        fprintf(p->out, " %u\n", list->count);
        return;
    }
    if (row->type == SCHEMA_COUNT && list->count == 0 && schema_row_words(row) > 0) {
        fprintf(p->out, " %s\n", row->choices[0]);
        return;
    }
    fputs(map ? " {" : " [", p->out);
    for (uint32_t i = 0; i < list->count; i++) {
        if (i > 0)
            fputs(", ", p->out);
        if (row->type == SCHEMA_INTS) {
            fprintf(p->out, "%lld", (long long)((const int64_t *)list->data)[i]);
        } else if (row->type == SCHEMA_REALS) {
            char text[64];
            schema_format_real(((const double *)list->data)[i], text, sizeof text);
            fputs(text, p->out);
        } else if (row->type == SCHEMA_STRINGS || row->type == SCHEMA_PATHS || row->type == SCHEMA_COUNT) {
            print_quoted(p->out, ((char *const *)list->data)[i]);
        } else {
            const rp_option *option = (const rp_option *)list->data + i;
            print_string(p->out, option->name);
            fputs(": ", p->out);
            print_quoted(p->out, option->value);
        }
    }
    fputs(map ? "}\n" : "]\n", p->out);
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
    } else if (row->type > SCHEMA_LIST) {
        print_flow(p, row, at);
    } else {
        fputc(' ', p->out);
        print_scalar(p->out, row, base);
        fputc('\n', p->out);
    }
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
        fprintf(out, "| `%s` | %s | ", row->path, schema_type_name(row->type));
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
