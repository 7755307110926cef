/* See format.h. */
#include "proto/base/format.h"

#include <inttypes.h>
#include <langinfo.h>
#include <locale.h>
#include <math.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include "proto/base/need.h"
#include "proto/base/utf8.h"

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

const char *format_measured(char *out, double value)
{
    if (!isfinite(value))
        snprintf(out, FORMAT_SIZE, "-");
    else if (fabs(value) >= 1e6)
        format_short(out, value);
    else
        snprintf(out, FORMAT_SIZE, fabs(value) >= 1000 || value == round(value) ? "%.0f" : "%.4g", value);
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

/* Columns of a code point: 2 for ideographs and pictures. -1: it must not reach a terminal, because it has no width
 * or changes the order of the text. */
static int point_width(uint32_t p)
{
    if (p < 0x20 || (p >= 0x7f && p < 0xa0) || (p >= 0x300 && p < 0x370) || (p >= 0x200b && p <= 0x200f) ||
        (p >= 0x2028 && p <= 0x202e) || (p >= 0x2060 && p <= 0x206f) || (p >= 0xfe00 && p <= 0xfe0f) || p == 0xfeff ||
        p == 0x61c || p >= 0xe0000)
        return -1;
    bool wide = (p >= 0x1100 && p < 0x1160) || (p >= 0x2e80 && p < 0xa4d0) || (p >= 0xac00 && p < 0xd7a4) ||
                (p >= 0xf900 && p < 0xfb00) || (p >= 0xfe30 && p < 0xfe70) || (p >= 0xff00 && p < 0xff61) ||
                (p >= 0xffe0 && p < 0xffe7) || (p >= 0x1f300 && p < 0x1f650) || (p >= 0x1f680 && p < 0x1fb00) ||
                (p >= 0x20000 && p < 0x40000);
    return wide ? 2 : 1;
}

uint32_t format_character(const char *text, size_t *bytes)
{
    uint32_t point = utf8_point(text, bytes);
    int columns = *bytes ? point_width(point) : -1;
    *bytes = *bytes ? *bytes : 1;
    return columns > 0 ? (uint32_t)columns : 0;
}

uint32_t format_width(const char *text)
{
    uint32_t width = 0;
    for (size_t bytes; *text; text += bytes) {
        if (text[0] == '\x1b' && text[1] == '[') {
            bytes = strcspn(text, "m");
            bytes += text[bytes] == 'm';
            continue;
        }
        uint32_t columns = format_character(text, &bytes);
        width += columns ? columns : 1;
    }
    return width;
}

size_t format_cut(const char *text, uint32_t columns)
{
    size_t size = 0;
    for (size_t bytes; text[size]; size += bytes) {
        uint32_t own = format_character(text + size, &bytes);
        own = own ? own : 1;
        if (own > columns)
            break;
        columns -= own;
    }
    return size;
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
    self->cells = need_room(self->cells, self->n_cells, &self->capacity, sizeof(*self->cells));
    size_t size = strlen(cell) + 1;
    char *copy = need_alloc(size);
    format_clean(copy, size, cell);
    self->cells[self->n_cells++] = copy;
}

void grid_addf(struct grid *self, const char *format, ...)
{
    char *cell = NULL;
    va_list args;
    va_start(args, format);
    if (vasprintf(&cell, format, args) < 0)
        need_fail(strlen(format));
    va_end(args);
    grid_add(self, cell);
    free(cell);
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

void grid_print(struct grid *self, FILE *out)
{
    if (self->columns == 0)
        return;
    size_t *widths = need_alloc(self->columns * sizeof *widths);
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
    grid_fini(self);
}

/* ---- terminals ---- */

void terminal_size(uint32_t *columns, uint32_t *rows)
{
    struct winsize size;
    *columns = 80;
    *rows = 24;
    if (ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col && size.ws_row) {
        *columns = size.ws_col;
        *rows = size.ws_row;
    }
}

bool terminal_has_utf8(void)
{
    locale_t locale = newlocale(LC_CTYPE_MASK, "", (locale_t)0);
    if (!locale)
        return false;
    bool utf8 = strcmp(nl_langinfo_l(CODESET, locale), "UTF-8") == 0;
    freelocale(locale);
    return utf8;
}

void terminal_add_frame(struct text *out, const char *frame)
{
    for (const char *at = frame; *at;) {
        size_t size = strcspn(at, "\n");
        text_add(out, "%.*s\x1b[K\n", (int)size, at);
        at += size + (at[size] == '\n');
    }
    text_add(out, "\x1b[J");
}
