/* Reads one scalar of the configuration from text into the struct, with a sentence for every mistake. */
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "proto/config/schema_impl.h"

#define SHOWN 64 /* bytes of a bad value in a message */

const char *schema_type_name(enum schema_type type)
{
    static const char *const names[] = {
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
        [SCHEMA_REALS] = "list of numbers",
        [SCHEMA_OPTIONS] = "map of options",
    };
    return names[type];
}

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

uint32_t schema_row_words(const struct schema_row *row)
{
    uint32_t n = 0;
    while ((row->type == SCHEMA_INT || row->type == SCHEMA_COUNT) && row->choices && row->choices[n])
        n++;
    return n;
}

/* Returns the least number that may be written as a number: smaller ones have words. */
static double least_number(const struct schema_row *row)
{
    double n = schema_row_words(row);
    return n > 0 && row->min < n ? n : row->min;
}

/* Writes the row's words, "auto, or ", before a phrase about numbers. */
static void format_words(const struct schema_row *row, char *out, size_t size)
{
    size_t used = 0;
    uint32_t n = schema_row_words(row);
    out[0] = '\0';
    for (uint32_t i = 0; i < n && used < size; i++)
        used += (size_t)snprintf(out + used, size - used, "%s, %s", row->choices[i], i + 1 == n ? "or " : "");
}

static void format_range(const struct schema_row *row, char *out, size_t size)
{
    char low[48], high[48];
    double min = least_number(row);
    format_number(row->type, min, low, sizeof low);
    format_number(row->type, row->max, high, sizeof high);
    bool no_low = row->min < 0 && endless(row->type, row->min);
    bool no_high = row->max > 0 && endless(row->type, row->max);
    if (no_low && no_high)
        return;
    if (no_low)
        snprintf(out, size, "at most %s", high);
    else if (no_high)
        snprintf(out, size, "at least %s", low);
    else if (min == row->max)
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
    double min = least_number(row);
    if (!schema_row_bounded(row) || (value >= min && value <= row->max))
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
    const char *near = schema_nearest(text, row->choices, schema_row_words(row));
    format_words(row, words, sizeof words);
    if (near)
        snprintf(why, size, "'%.*s' is not %sa whole number (did you mean '%s'?)", SHOWN, text, words, near);
    else
        snprintf(why, size, "'%.*s' is not %sa whole number", SHOWN, text, words);
}

/* True if the text is one of the row's words. */
static bool set_word(const struct schema_row *row, const char *text, void *at)
{
    uint32_t n = schema_row_words(row);
    for (uint32_t i = 0; i < n; i++) {
        if (strcmp(row->choices[i], text) == 0) {
            memcpy(at, &(int64_t){i}, sizeof(int64_t));
            return true;
        }
    }
    return false;
}

static bool set_number(const struct schema_row *row, const char *text, void *at, char *why, size_t size)
{
    if (set_word(row, text, at))
        return true;
    int64_t whole = 0;
    double real = 0;
    enum schema_units result = UNITS_BAD;
    if (row->type == SCHEMA_INT)
        result = schema_units_int(text, &whole);
    else if (row->type == SCHEMA_BYTES)
        result = schema_units_bytes(text, &whole);
    else if (row->type == SCHEMA_TIME)
        result = schema_units_time(text, &whole);
    else
        result = schema_units_real(text, &real);
    if (result != UNITS_OK) {
        if (result == UNITS_BAD && schema_row_words(row) > 0)
            explain_word(row, text, why, size);
        else
            explain(row->type, result, text, why, size);
        return false;
    }
    if (!in_bounds(row, row->type == SCHEMA_REAL ? real : (double)whole, why, size))
        return false;
    if (row->type == SCHEMA_REAL)
        memcpy(at, &real, sizeof real);
    else
        memcpy(at, &whole, sizeof whole);
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
        char *copy = strdup(text);
        if (!copy) {
            snprintf(why, size, "out of memory");
            return false;
        }
        free(*(char **)at);
        *(char **)at = copy;
        return true;
    }
    case SCHEMA_INT:
    case SCHEMA_REAL:
    case SCHEMA_BYTES:
    case SCHEMA_TIME:
        return set_number(row, text, at, why, size);
    default:
        snprintf(why, size, "must be a %s", schema_type_name(row->type));
        return false;
    }
}
