/* Reads and writes numbers with units, and finds the nearest name for "did you mean". No YAML here, so that the client library
 * and command lines can use it. */
#include <float.h>
#include <locale.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "proto/base/clock.h"
#include "proto/config/schema_row.h"

#define NUMBER_BYTES 64

struct unit {
    const char *name;
    int64_t factor;
};

static const struct unit count_units[] = {
    {"", 1}, {"k", 1000}, {"M", 1000000}, {"G", 1000000000}, {"T", INT64_C(1000000000000)}, {NULL, 0},
};
static const struct unit byte_units[] = {
    {"", 1},
    {"B", 1},
    {"KiB", INT64_C(1) << 10},
    {"MiB", INT64_C(1) << 20},
    {"GiB", INT64_C(1) << 30},
    {"TiB", INT64_C(1) << 40},
    {"kB", 1000},
    {"MB", 1000000},
    {"GB", 1000000000},
    {"TB", INT64_C(1000000000000)},
    {NULL, 0},
};
static const struct unit time_units[] = {
    {"ns", 1},
    {"us", NS_PER_US},
    {"\xc2\xb5s", NS_PER_US}, /* the micro sign */
    {"ms", NS_PER_MS},
    {"s", NS_PER_S},
    {"min", 60 * NS_PER_S},
    {"m", 60 * NS_PER_S},
    {"h", 3600 * NS_PER_S},
    {"d", 24 * 3600 * NS_PER_S},
    {NULL, 0},
};

/* A decimal number, and the text after it. */
struct amount {
    char plain[NUMBER_BYTES]; /* without underscores */
    long double value;        /* has 64 bits or more, so that whole numbers are exact */
    const char *unit;
};

static bool is_digit(char c)
{
    return c >= '0' && c <= '9';
}

/* Numbers are written in the C locale, whatever the locale of the program is. The C library has it without memory. */
static locale_t c_locale(void)
{
    return newlocale(LC_ALL_MASK, "C", (locale_t)0);
}

/* Allows "1_000", but not "1__0" and "1_". */
static enum schema_units take_amount(const char *text, struct amount *out)
{
    size_t n = 0;
    char *end;
    for (const char *p = text; *p && strchr("+-.0123456789eE_", *p); p++) {
        if (n + 1 == sizeof out->plain)
            return UNITS_LARGE;
        if (*p != '_')
            out->plain[n++] = *p;
        else if (p == text || !is_digit(p[-1]) || !is_digit(p[1]))
            break;
    }
    out->plain[n] = '\0';
    out->value = strtold_l(out->plain, &end, c_locale());
    if (end == out->plain)
        return UNITS_BAD;
    out->unit = text;
    for (size_t left = (size_t)(end - out->plain); left > 0; out->unit++)
        left -= *out->unit != '_';
    out->unit += strspn(out->unit, " ");
    return UNITS_OK;
}

/* Computes value * factor as an integer; a fraction is rounded, or an error. Multiplied decimal fractions have a rounding error of
 * their own. */
static enum schema_units to_integer(const struct amount *amount, int64_t factor, bool exact, int64_t *out)
{
    long double value = amount->value * (long double)factor, whole = roundl(value);
    if (!(whole >= -9223372036854775808.0L && whole < 9223372036854775808.0L))
        return UNITS_LARGE;
    if (exact && fabsl(value - whole) > 2 * LDBL_EPSILON * fabsl(value))
        return UNITS_FRACTION;
    *out = (int64_t)whole;
    return UNITS_OK;
}

static const struct unit *unit_by_name(const struct unit *units, const char *name, bool fold)
{
    for (; units->name; units++) {
        if (fold ? strcasecmp(units->name, name) == 0 : strcmp(units->name, name) == 0)
            return units;
    }
    return NULL;
}

/* Bytes and times are not negative; a fraction of their smallest unit is rounded. */
static enum schema_units whole_of(const char *text, enum schema_type type, int64_t *out)
{
    static const struct unit *const units[] = {
        [SCHEMA_INT] = count_units, [SCHEMA_BYTES] = byte_units, [SCHEMA_TIME] = time_units};
    bool quantity = type != SCHEMA_INT;
    struct amount amount;
    enum schema_units result = take_amount(text, &amount);
    if (result != UNITS_OK)
        return result;
    const struct unit *unit = unit_by_name(units[type], amount.unit, type == SCHEMA_BYTES);
    if (!unit)
        return amount.unit[0] == '\0' ? UNITS_MISSING : UNITS_UNKNOWN;
    return quantity && amount.value < 0 ? UNITS_NEGATIVE : to_integer(&amount, unit->factor, !quantity, out);
}

static enum schema_units real_of(const char *text, double *out)
{
    const char *p = text + (*text == '-' || *text == '+');
    if (strcasecmp(p, ".inf") == 0 || strcasecmp(p, "inf") == 0) {
        *out = *text == '-' ? -INFINITY : INFINITY;
        return UNITS_OK;
    }
    struct amount amount;
    enum schema_units result = take_amount(text, &amount);
    if (result != UNITS_OK)
        return result;
    const struct unit *unit = unit_by_name(count_units, amount.unit, false);
    if (!unit)
        return UNITS_UNKNOWN;
    double value = strtod_l(amount.plain, NULL, c_locale()) * (double)unit->factor;
    if (isinf(value))
        return UNITS_LARGE;
    *out = value;
    return UNITS_OK;
}

enum schema_units schema_units_read(enum schema_type type, const char *text, void *out)
{
    return type == SCHEMA_REAL ? real_of(text, out) : whole_of(text, type, out);
}

bool schema_parse(enum schema_type type, const char *text, void *out)
{
    return schema_units_read(type, text, out) == UNITS_OK;
}

void schema_format_bytes(int64_t bytes, char *out, size_t size)
{
    static const char *const names[] = {"TiB", "GiB", "MiB", "KiB"};
    for (int i = 0; i < 4; i++) {
        int64_t factor = INT64_C(1) << (40 - 10 * i);
        if (bytes > 0 && bytes % factor == 0) {
            snprintf(out, size, "%lld%s", (long long)(bytes / factor), names[i]);
            return;
        }
    }
    snprintf(out, size, "%lld", (long long)bytes);
}

void schema_format_time(int64_t ns, char *out, size_t size)
{
    static const char *const names[] = {"h", "min", "s", "ms", "us"};
    for (int i = 0; i < 5; i++) {
        int64_t factor = unit_by_name(time_units, names[i], false)->factor;
        if (ns != 0 && ns % factor == 0) {
            snprintf(out, size, "%lld%s", (long long)(ns / factor), names[i]);
            return;
        }
    }
    snprintf(out, size, "%lld%s", (long long)ns, ns == 0 ? "s" : "ns");
}

void schema_format_real(double value, char *out, size_t size)
{
    if (isinf(value)) {
        snprintf(out, size, value < 0 ? "-.inf" : ".inf");
        return;
    }
    for (int digits = 6; digits <= 17; digits++) {
        snprintf(out, size, "%.*g", digits, value);
        char *comma = strchr(out, ',');
        if (comma)
            *comma = '.';
        if (strtod_l(out, NULL, c_locale()) == value)
            return;
    }
}

static char fold(char c)
{
    return c >= 'A' && c <= 'Z' ? (char)(c - 'A' + 'a') : c == '-' ? '_' : c;
}

static uint32_t least(uint32_t a, uint32_t b)
{
    return a < b ? a : b;
}

#define NEAREST_MAX 48u

/* Returns the number of edits (insert, delete or replace a letter, swap two neighbours) between the names. */
static uint32_t edit_distance(const char *a, uint32_t n_a, const char *b, uint32_t n_b)
{
    uint32_t rows[3][NEAREST_MAX + 1];
    uint32_t *before = rows[0], *last = rows[1], *row = rows[2];
    for (uint32_t j = 0; j <= n_b; j++)
        last[j] = before[j] = j;
    for (uint32_t i = 1; i <= n_a; i++) {
        row[0] = i;
        for (uint32_t j = 1; j <= n_b; j++) {
            char x = fold(a[i - 1]), y = fold(b[j - 1]);
            row[j] = least(least(last[j], row[j - 1]) + 1, last[j - 1] + (x != y));
            if (i > 1 && j > 1 && x == fold(b[j - 2]) && y == fold(a[i - 2]))
                row[j] = least(row[j], before[j - 2] + 1);
        }
        uint32_t *free_row = before;
        before = last;
        last = row;
        row = free_row;
    }
    return last[n_b];
}

const char *schema_nearest(const char *name, const char *const *names, uint32_t n)
{
    size_t length = strnlen(name, NEAREST_MAX + 1);
    const char *best = NULL;
    uint32_t best_distance = UINT32_MAX;
    if (length == 0 || length > NEAREST_MAX)
        return NULL;
    for (uint32_t i = 0; i < n; i++) {
        size_t other = strnlen(names[i], NEAREST_MAX + 1);
        if (other == 0 || other > NEAREST_MAX)
            continue;
        uint32_t distance = edit_distance(name, (uint32_t)length, names[i], (uint32_t)other);
        size_t longer = length > other ? length : other;
        if (distance <= (longer + 2) / 4 + (longer > 2) && distance < longer && distance < best_distance) {
            best = names[i];
            best_distance = distance;
        }
    }
    return best;
}
