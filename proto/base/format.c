/* See format.h. */
#include "proto/base/format.h"

#include <inttypes.h>
#include <math.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

/* ---- text ---- */

void text_fini(struct text *self)
{
    free(self->data);
    *self = (struct text){0};
}

static void text_vadd(struct text *self, const char *format, va_list args)
{
    va_list again;
    va_copy(again, args);
    int n = vsnprintf(NULL, 0, format, again);
    va_end(again);
    if (n < 0)
        return;
    size_t need = self->size + (size_t)n + 1;
    if (need > self->capacity) {
        char *data = realloc(self->data, need * 2);
        if (!data)
            return;
        self->data = data;
        self->capacity = need * 2;
    }
    vsnprintf(self->data + self->size, (size_t)n + 1, format, args);
    self->size += (size_t)n;
}

void text_add(struct text *self, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    text_vadd(self, format, args);
    va_end(args);
}

const char *text_get(const struct text *self)
{
    return self->data ? self->data : "";
}

/* ---- numbers ---- */

/* Writes at most three digits after scaling: "1.2", "12", "123". */
static int scaled(char *out, double value, const char *unit)
{
    return snprintf(out, FORMAT_SIZE, value < 9.95 && value != floor(value) ? "%.1f%s" : "%.0f%s", value, unit);
}

const char *format_bytes(char *out, uint64_t bytes)
{
    static const char *const units[] = {" B", " KiB", " MiB", " GiB", " TiB", " PiB", " EiB"};
    double value = (double)bytes;
    uint32_t i = 0;
    while (value >= 999.5 && i < 6) {
        value /= 1024;
        i++;
    }
    scaled(out, value, units[i]);
    return out;
}

const char *format_count(char *out, uint64_t count)
{
    char digits[24];
    int n = snprintf(digits, sizeof digits, "%" PRIu64, count);
    char *at = out;
    for (int i = 0; i < n; i++) {
        if (i && (n - i) % 3 == 0)
            *at++ = ',';
        *at++ = digits[i];
    }
    *at = '\0';
    return out;
}

const char *format_short(char *out, double value)
{
    static const char *const units[] = {"", " k", " M", " G", " T"};
    double size = fabs(value);
    uint32_t i = 0;
    if (!isfinite(value)) {
        snprintf(out, FORMAT_SIZE, "%s", isnan(value) ? "?" : value > 0 ? "inf" : "-inf");
        return out;
    }
    while (size >= 999.5 && i < 4) {
        size /= 1000;
        i++;
    }
    char *at = out;
    if (value < 0 && size >= 0.05)
        *at++ = '-';
    if (size < 0.05)
        size = 0;
    char digits[FORMAT_SIZE];
    scaled(digits, size, units[i]);
    snprintf(at, FORMAT_SIZE - 1, "%.40s", digits);
    return out;
}

const char *format_rate(char *out, double per_second)
{
    format_buffer value;
    snprintf(out, FORMAT_SIZE, "%.40s/s", format_short(value, per_second));
    return out;
}

const char *format_time(char *out, uint64_t ns)
{
    double seconds = (double)ns / 1e9;
    if (ns < 1000)
        snprintf(out, FORMAT_SIZE, "%" PRIu64 " ns", ns);
    else if (ns < 1000000)
        scaled(out, (double)ns / 1e3, " us");
    else if (ns < 999500000)
        scaled(out, (double)ns / 1e6, " ms");
    else if (seconds < 59.5)
        scaled(out, seconds, " s");
    else {
        static const struct {
            const char *big, *small;
            uint64_t big_s, small_s;
        } steps[] = {{"min", "s", 60, 1}, {"h", "min", 3600, 60}, {"d", "h", 86400, 3600}};
        uint64_t whole = (uint64_t)(seconds + 0.5);
        uint32_t i = whole < 3600 ? 0 : whole < 86400 ? 1 : 2;
        uint64_t big = whole / steps[i].big_s, small = whole % steps[i].big_s / steps[i].small_s;
        if (small)
            snprintf(out, FORMAT_SIZE, "%" PRIu64 " %s %" PRIu64 " %s", big, steps[i].big, small, steps[i].small);
        else
            snprintf(out, FORMAT_SIZE, "%" PRIu64 " %s", big, steps[i].big);
    }
    return out;
}

const char *format_seconds(char *out, double seconds)
{
    if (seconds > 0 && seconds < 1e9)
        return format_time(out, (uint64_t)(seconds * 1e9));
    snprintf(out, FORMAT_SIZE, "-");
    return out;
}

const char *format_bound(char *out, double value)
{
    if (!isfinite(value) || fabs(value) > 1e300)
        snprintf(out, FORMAT_SIZE, "none");
    else
        snprintf(out, FORMAT_SIZE, "%.10g", value);
    return out;
}

const char *format_percent(char *out, double part, double whole)
{
    if (whole > 0)
        snprintf(out, FORMAT_SIZE, "%.0f%%", part / whole * 100);
    else
        snprintf(out, FORMAT_SIZE, "-");
    return out;
}

/* ---- text from elsewhere ---- */

const char *format_clean(char *out, size_t size, const char *text)
{
    size_t n = 0;
    for (const unsigned char *s = (const unsigned char *)(text ? text : ""); *s && n + 1 < size; s++) {
        /* C1 control characters are c2 80 to c2 9f in UTF-8. */
        if (*s == 0xc2 && s[1] >= 0x80 && s[1] < 0xa0) {
            out[n++] = '?';
            s++;
        } else {
            out[n++] = *s < 0x20 || *s == 0x7f ? '?' : (char)*s;
        }
    }
    out[n] = '\0';
    return out;
}

size_t format_width(const char *text)
{
    size_t width = 0;
    for (; *text; text++)
        width += ((unsigned char)*text & 0xc0) != 0x80;
    return width;
}

size_t format_cut(const char *text, size_t width)
{
    size_t i = 0;
    for (; text[i]; i++) {
        if (((unsigned char)text[i] & 0xc0) != 0x80 && width-- == 0)
            break;
    }
    return i;
}

static double clamp(double share)
{
    return share > 1 ? 1 : share > 0 ? share : 0; /* NaN gives 0 */
}

const char *format_bar(char *out, size_t size, uint32_t width, double share)
{
    uint32_t inside = width < 3 ? 1 : width - 2;
    if (inside + 3 > size)
        inside = (uint32_t)size - 3;
    uint32_t full = (uint32_t)(clamp(share) * inside + 0.5);
    out[0] = '[';
    memset(out + 1, '#', full);
    memset(out + 1 + full, '.', inside - full);
    memcpy(out + 1 + inside, "]", 2);
    return out;
}

const char *format_place(char *out, size_t size, uint32_t width, double share)
{
    uint32_t inside = width < 3 ? 1 : width - 2;
    if (inside + 3 > size)
        inside = (uint32_t)size - 3;
    format_bar(out, size, inside + 2, 0);
    out[1 + (uint32_t)(clamp(share) * (inside - 1) + 0.5)] = 'o';
    return out;
}

/* ---- grid ---- */

void grid_init(struct grid *self, const char *const *titles, uint32_t columns)
{
    *self = (struct grid){.columns = columns, .titles = titles};
}

void grid_fini(struct grid *self)
{
    for (uint32_t i = 0; i < self->n_cells; i++)
        free(self->cells[i]);
    free(self->cells);
    *self = (struct grid){0};
}

void grid_add(struct grid *self, const char *cell)
{
    if (self->n_cells == self->capacity) {
        uint32_t capacity = self->capacity ? self->capacity * 2 : 64;
        char **cells = realloc(self->cells, capacity * sizeof *cells);
        if (!cells)
            return;
        self->cells = cells;
        self->capacity = capacity;
    }
    size_t size = strlen(cell) + 1;
    char *copy = malloc(size);
    if (!copy)
        return;
    format_clean(copy, size, cell);
    self->cells[self->n_cells++] = copy;
}

void grid_addf(struct grid *self, const char *format, ...)
{
    struct text text = {0};
    va_list args;
    va_start(args, format);
    text_vadd(&text, format, args);
    va_end(args);
    grid_add(self, text_get(&text));
    text_fini(&text);
}

static const char *title_of(const struct grid *self, uint32_t column, bool *right)
{
    const char *title = self->titles[column];
    *right = title[0] == '>';
    return title + *right;
}

static void print_cell(FILE *out, const char *cell, size_t width, bool right, bool last)
{
    size_t own = format_width(cell);
    int pad = width > own ? (int)(width - own) : 0;
    if (right)
        fprintf(out, "%*s%s", pad, "", cell);
    else
        fprintf(out, "%s%*s", cell, last ? 0 : pad, "");
    fputs(last ? "\n" : "  ", out);
}

void grid_print(const struct grid *self, FILE *out)
{
    size_t *widths = calloc(self->columns, sizeof *widths);
    if (!widths)
        return;
    bool right;
    for (uint32_t c = 0; c < self->columns; c++)
        widths[c] = format_width(title_of(self, c, &right));
    for (uint32_t i = 0; i < self->n_cells; i++) {
        size_t width = format_width(self->cells[i]);
        if (width > widths[i % self->columns])
            widths[i % self->columns] = width;
    }
    for (uint32_t c = 0; c < self->columns; c++) {
        const char *title = title_of(self, c, &right);
        print_cell(out, title, widths[c], right, c + 1 == self->columns);
    }
    for (uint32_t i = 0; i < self->n_cells; i++) {
        uint32_t c = i % self->columns;
        title_of(self, c, &right);
        print_cell(out, self->cells[i], widths[c], right, c + 1 == self->columns);
    }
    free(widths);
}
