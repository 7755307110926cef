/* Reads and writes numbers with units, and finds the nearest name for "did you mean". No YAML here, so that the client library
 * and command lines can use it. */
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

/* A decimal number in parts: digits * 10^exponent, and the text after it. */
struct decimal {
    bool negative;
    bool many; /* more digits than an integer can have */
    uint64_t digits;
    int exponent;
    char text[NUMBER_BYTES]; /* without underscores, for strtod */
    const char *unit;
};

static bool is_digit(char c)
{
    return c >= '0' && c <= '9';
}

/* Copies digits to d->text and adds their value. Allows "1_000", but not "1__0" and "1_". */
static enum schema_units take_digits(const char **at, struct decimal *d, size_t *n, int *count)
{
    const char *p = *at;
    *count = 0;
    while (is_digit(*p) || (*p == '_' && *count > 0 && is_digit(p[1]))) {
        if (*p != '_') {
            if (*n + 16 >= sizeof d->text)
                return UNITS_LARGE;
            uint64_t digit = (uint64_t)(*p - '0');
            if (d->digits > (UINT64_MAX - digit) / 10)
                d->many = true;
            else
                d->digits = d->digits * 10 + digit;
            d->text[(*n)++] = *p;
            (*count)++;
        }
        p++;
    }
    *at = p;
    return UNITS_OK;
}

static void take_exponent(const char **at, struct decimal *d, size_t *n)
{
    const char *p = *at;
    if (*p != 'e' && *p != 'E')
        return;
    const char *q = p + 1;
    bool negative = *q == '-';
    if (*q == '-' || *q == '+')
        q++;
    if (!is_digit(*q))
        return;
    int value = 0;
    for (; is_digit(*q); q++)
        value = value < 1000 ? value * 10 + (*q - '0') : value;
    *n += (size_t)snprintf(d->text + *n, sizeof d->text - *n, "e%d", negative ? -value : value);
    d->exponent += negative ? -value : value;
    *at = q;
}

static enum schema_units take_decimal(const char *text, struct decimal *d)
{
    *d = (struct decimal){.negative = *text == '-'};
    size_t n = 0;
    int whole, fraction = 0;
    const char *p = text;
    if (d->negative)
        d->text[n++] = '-';
    if (*p == '-' || *p == '+')
        p++;
    enum schema_units result = take_digits(&p, d, &n, &whole);
    if (result == UNITS_OK && *p == '.') {
        p++;
        d->text[n++] = '.';
        result = take_digits(&p, d, &n, &fraction);
        d->exponent = -fraction;
    }
    if (result != UNITS_OK)
        return result;
    if (whole + fraction == 0)
        return UNITS_BAD;
    take_exponent(&p, d, &n);
    d->text[n] = '\0';
    while (*p == ' ')
        p++;
    d->unit = p;
    return UNITS_OK;
}

/* Computes digits * factor * 10^exponent as an integer; a fraction is rounded, or an error. */
static enum schema_units to_integer(const struct decimal *d, int64_t factor, bool exact, int64_t *out)
{
    __extension__ typedef unsigned __int128 wide;
    wide value = (wide)d->digits * (uint64_t)factor;
    if (d->many)
        return UNITS_LARGE;
    for (int e = d->exponent; e > 0 && value != 0; e--) {
        if (value > (wide)INT64_MAX)
            return UNITS_LARGE;
        value *= 10;
    }
    wide divisor = 1;
    for (int e = d->exponent; e < 0 && divisor <= value * 10 + 1; e++)
        divisor *= 10;
    if (exact && value % divisor != 0)
        return UNITS_FRACTION;
    value = (value + divisor / 2) / divisor;
    if (value > (wide)INT64_MAX + d->negative)
        return UNITS_LARGE;
    *out = (int64_t)(d->negative ? -(uint64_t)value : (uint64_t)value);
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

enum schema_units schema_units_int(const char *text, int64_t *out)
{
    struct decimal d;
    enum schema_units result = take_decimal(text, &d);
    if (result != UNITS_OK)
        return result;
    const struct unit *unit = unit_by_name(count_units, d.unit, false);
    return unit ? to_integer(&d, unit->factor, true, out) : UNITS_UNKNOWN;
}

/* Reads bytes or a time: not negative; a fraction of the smallest unit is rounded. */
static enum schema_units quantity(const char *text, const struct unit *units, bool fold, int64_t *out)
{
    struct decimal d;
    enum schema_units result = take_decimal(text, &d);
    if (result != UNITS_OK)
        return result;
    const struct unit *unit = unit_by_name(units, d.unit, fold);
    if (!unit)
        return d.unit[0] == '\0' ? UNITS_MISSING : UNITS_UNKNOWN;
    if (d.negative && d.digits != 0)
        return UNITS_NEGATIVE;
    d.negative = false;
    return to_integer(&d, unit->factor, false, out);
}

enum schema_units schema_units_bytes(const char *text, int64_t *out)
{
    return quantity(text, byte_units, true, out);
}

enum schema_units schema_units_time(const char *text, int64_t *out_ns)
{
    return quantity(text, time_units, false, out_ns);
}

/* strtod in the C locale, whatever the locale of the program is. */
static double decimal_value(const char *text)
{
    locale_t plain = newlocale(LC_ALL_MASK, "C", (locale_t)0);
    if (plain == (locale_t)0)
        return strtod(text, NULL);
    double value = strtod_l(text, NULL, plain);
    freelocale(plain);
    return value;
}

enum schema_units schema_units_real(const char *text, double *out)
{
    const char *p = text + (*text == '-' || *text == '+');
    if (strcasecmp(p, ".inf") == 0 || strcasecmp(p, "inf") == 0) {
        *out = *text == '-' ? -INFINITY : INFINITY;
        return UNITS_OK;
    }
    struct decimal d;
    enum schema_units result = take_decimal(text, &d);
    if (result != UNITS_OK)
        return result;
    const struct unit *unit = unit_by_name(count_units, d.unit, false);
    if (!unit)
        return UNITS_UNKNOWN;
    double value = decimal_value(d.text) * (double)unit->factor;
    if (isinf(value))
        return UNITS_LARGE;
    *out = value;
    return UNITS_OK;
}

bool schema_parse_int(const char *text, int64_t *out)
{
    return schema_units_int(text, out) == UNITS_OK;
}

bool schema_parse_real(const char *text, double *out)
{
    return schema_units_real(text, out) == UNITS_OK;
}

bool schema_parse_bytes(const char *text, int64_t *out)
{
    return schema_units_bytes(text, out) == UNITS_OK;
}

bool schema_parse_time(const char *text, int64_t *out_ns)
{
    return schema_units_time(text, out_ns) == UNITS_OK;
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
        if (decimal_value(out) == value)
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
