/* Lines that know their width: clean text, tints, bars. */
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "agent/look/line.h"

#define LINE_ANY 10000u

static const char *const tints[] = {
    [TINT_NONE] = "",         [TINT_BOLD] = "\x1b[1m",   [TINT_DIM] = "\x1b[2m",  [TINT_GOOD] = "\x1b[32m",
    [TINT_WARN] = "\x1b[33m", [TINT_BAD] = "\x1b[1;31m", [TINT_BAR] = "\x1b[36m",
};

void line_fini(struct line *self)
{
    text_fini(&self->text);
    self->width = 0;
}

uint32_t line_left(const struct line *self)
{
    uint32_t limit = self->limit ? self->limit : LINE_ANY;
    return self->width < limit ? limit - self->width : 0;
}

/* Reads one code point of s: returns its bytes and sets *point; 0: not UTF-8. */
static uint32_t decode(const unsigned char *s, uint32_t *point)
{
    uint32_t n = s[0] < 0x80 ? 1 : s[0] < 0xc2 ? 0 : s[0] < 0xe0 ? 2 : s[0] < 0xf0 ? 3 : s[0] < 0xf5 ? 4 : 0;
    if (n <= 1) {
        *point = s[0];
        return n;
    }
    *point = s[0] & (0x7fu >> n);
    for (uint32_t i = 1; i < n; i++) {
        if ((s[i] & 0xc0) != 0x80)
            return 0;
        *point = *point << 6 | (s[i] & 0x3fu);
    }
    return n;
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

/* Adds as much of s as fits into `most` columns. Returns the columns used, and sets *rest if something is left. */
static uint32_t add_clean(struct text *out, const char *s, uint32_t most, bool utf8, bool *rest)
{
    uint32_t width = 0;
    const unsigned char *at = (const unsigned char *)s, *from = at; /* from: start of what is not added yet */
    *rest = false;
    while (*at) {
        uint32_t point, bytes = decode(at, &point);
        int columns = bytes ? point_width(point) : -1;
        bool shown = columns > 0 && (utf8 || point < 0x80);
        uint32_t own = shown ? (uint32_t)columns : 1;
        if (width + own > most) {
            *rest = true;
            break;
        }
        if (!shown) {
            text_add(out, "%.*s?", (int)(at - from), (const char *)from);
            from = at + (bytes ? bytes : 1);
        }
        width += own;
        at += bytes ? bytes : 1;
    }
    text_add(out, "%.*s", (int)(at - from), (const char *)from);
    return width;
}

/* Returns the columns that the character at s takes, and sets its bytes. A question mark stands for what must not be shown. */
static uint32_t character(const unsigned char *s, uint32_t *bytes)
{
    uint32_t point, n = decode(s, &point);
    int columns = n ? point_width(point) : -1;
    *bytes = n ? n : 1;
    return columns > 0 ? (uint32_t)columns : 1;
}

size_t line_cut(const char *text, uint32_t columns)
{
    size_t size = 0;
    for (uint32_t bytes, width = 0; text[size]; size += bytes) {
        width += character((const unsigned char *)text + size, &bytes);
        if (width > columns)
            break;
    }
    return size;
}

uint32_t line_width(const char *text)
{
    uint32_t width = 0;
    for (const unsigned char *at = (const unsigned char *)text; *at;) {
        if (at[0] == 0x1b && at[1] == '[') {
            at += strcspn((const char *)at, "m");
            at += *at == 'm';
            continue;
        }
        uint32_t bytes;
        width += character(at, &bytes);
        at += bytes;
    }
    return width;
}

/* Adds the text, cut to what is left; with `whole`, all of it or nothing. */
static bool put(struct line *self, enum tint tint, bool whole, const char *s)
{
    struct text clean = {0};
    bool rest, ok = true;
    uint32_t left = line_left(self), width = add_clean(&clean, s, left, self->utf8, &rest);
    if (rest && whole) {
        ok = false;
    } else if (rest && left > 0) {
        text_fini(&clean);
        width = add_clean(&clean, s, left - 1, self->utf8, &rest) + 1;
        text_add(&clean, self->utf8 ? "…" : "~");
    }
    if (ok && width) {
        bool coloured = self->colour && tint != TINT_NONE;
        text_add(&self->text, "%s%s%s", coloured ? tints[tint] : "", text_get(&clean), coloured ? "\x1b[0m" : "");
        self->width += width;
    }
    text_fini(&clean);
    return ok;
}

/* Formats text of any length; NULL: out of memory, and nothing is shown. */
static char *formatted(const char *format, va_list args)
{
    char *out = NULL;
    return vasprintf(&out, format, args) < 0 ? NULL : out;
}

void line_put(struct line *self, enum tint tint, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    char *s = formatted(format, args);
    va_end(args);
    if (s)
        put(self, tint, false, s);
    free(s);
}

bool line_try(struct line *self, enum tint tint, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    char *s = formatted(format, args);
    va_end(args);
    bool ok = s && put(self, tint, true, s);
    free(s);
    return ok;
}

void line_to(struct line *self, uint32_t column)
{
    uint32_t blanks = self->width < column ? column - self->width : 1;
    if (blanks > line_left(self))
        blanks = line_left(self);
    text_add(&self->text, "%*s", (int)blanks, "");
    self->width += blanks;
}

void line_bar(struct line *self, enum tint tint, uint32_t columns, double share)
{
    static const char *const eighths[] = {"", "▏", "▎", "▍", "▌", "▋", "▊", "▉"};
    if (columns > line_left(self))
        columns = line_left(self);
    if (!columns)
        return;
    share = share > 1 ? 1 : share > 0 ? share : 0; /* NaN: empty */
    uint32_t units = (uint32_t)(share * columns * 8 + 0.5);
    if (share > 0 && units == 0)
        units = 1;
    struct text full = {0}, rest = {0};
    uint32_t at = units / 8;
    for (uint32_t i = 0; i < at; i++)
        text_add(&full, self->utf8 ? "█" : "#");
    if (at < columns && units % 8 && self->utf8) {
        text_add(&full, "%s", eighths[units % 8]);
        at++;
    }
    for (; at < columns; at++)
        text_add(&rest, self->utf8 ? "·" : ".");
    line_put(self, tint, "%s", text_get(&full));
    line_put(self, TINT_DIM, "%s", text_get(&rest));
    text_fini(&full);
    text_fini(&rest);
}

/* Puts n times the same character. */
static void put_many(struct line *self, enum tint tint, const char *one, uint32_t n)
{
    struct text text = {0};
    for (uint32_t i = 0; i < n; i++)
        text_add(&text, "%s", one);
    line_put(self, tint, "%s", text_get(&text));
    text_fini(&text);
}

void line_place(struct line *self, enum tint tint, uint32_t columns, double share)
{
    if (columns > line_left(self))
        columns = line_left(self);
    if (!columns)
        return;
    share = share > 1 ? 1 : share > 0 ? share : 0; /* NaN: at the low end */
    uint32_t at = (uint32_t)(share * (columns - 1) + 0.5);
    put_many(self, TINT_DIM, self->utf8 ? "·" : ".", at);
    line_put(self, tint, self->utf8 ? "◆" : "o");
    put_many(self, TINT_DIM, self->utf8 ? "·" : ".", columns - 1 - at);
}
