#include "agent/look/sheet.h"

#include <math.h>
#include <string.h>

#define COLUMNS 100u   /* where there is no limit */
#define NO_BOUND 1e300 /* a limiter's bound so large means that there is none */

struct sheet_style sheet_fit(const struct sheet_style *style)
{
    struct sheet_style fit = *style;
    fit.rows = fit.rows > SHEET_MAX ? SHEET_MAX : fit.rows;
    return fit;
}

struct line *sheet_line(struct sheet *self, uint32_t rank)
{
    if (self->n == SHEET_MAX)
        return NULL;
    struct line *line = &self->lines[self->n];
    *line = (struct line){.limit = self->style->columns, .utf8 = self->style->utf8, .colour = self->style->colour};
    self->ranks[self->n++] = (uint8_t)(rank < SHEET_RANKS ? rank : SHEET_RANKS - 1);
    return line;
}

struct line *sheet_row(struct sheet *self, uint32_t rank, const char *label)
{
    struct line *line = sheet_line(self, rank);
    if (line) {
        line_put(line, TINT_DIM, " %s", label);
        line_to(line, SHEET_LABEL);
    }
    return line;
}

void sheet_wrapped(struct sheet *self, uint32_t rank, const char *label, enum tint tint, const char *text,
                   uint32_t most)
{
    uint32_t wide = sheet_columns(self) > SHEET_LABEL + 20 ? sheet_columns(self) - SHEET_LABEL : 20;
    for (uint32_t i = 0; i < most && *text; i++) {
        struct line *line = sheet_row(self, rank, i ? "" : label);
        size_t size = line_cut(text, wide), blank = size;
        bool last = i + 1 == most || !text[size];
        while (!last && blank > 0 && text[blank] != ' ')
            blank--;
        size = last ? strlen(text) : blank ? blank : size;
        if (line)
            line_put(line, tint, "%.*s", (int)size, text);
        text += size;
        text += strspn(text, " ");
    }
}

struct line *sheet_cursor(struct sheet *self, uint32_t rank, const char *label, double at, double low, double high)
{
    bool bounded = fabs(low) < NO_BOUND && fabs(high) < NO_BOUND && high > low;
    struct line *line = bounded ? sheet_row(self, rank, label) : NULL;
    format_buffer a, b, c;
    if (!line)
        return NULL;
    line_place(line, TINT_BAR, sheet_bar(self), (at - low) / (high - low));
    line_put(line, TINT_NONE, " %s in %s..%s", format_short(a, at), format_short(b, low), format_short(c, high));
    return line;
}

uint32_t sheet_columns(const struct sheet *self)
{
    return self->style->columns ? self->style->columns : COLUMNS;
}

uint32_t sheet_bar(const struct sheet *self)
{
    uint32_t wide = sheet_columns(self);
    return wide < SHEET_NARROW ? wide / 6 : SHEET_BAR;
}

/* The highest rank that still fits, and how many lines of that rank fit. */
static uint32_t choose(const struct sheet *self, uint32_t *last)
{
    uint32_t counts[SHEET_RANKS] = {0}, left = self->style->rows ? self->style->rows : SHEET_MAX;
    for (uint32_t i = 0; i < self->n; i++)
        counts[self->ranks[i]]++;
    uint32_t rank = 0;
    while (rank < SHEET_RANKS - 1 && counts[rank] <= left)
        left -= counts[rank++];
    *last = rank;
    return left;
}

void sheet_write(struct sheet *self, struct text *out)
{
    uint32_t last, left = choose(self, &last);
    for (uint32_t i = 0; i < self->n; i++) {
        bool shown = self->ranks[i] < last || (self->ranks[i] == last && left > 0);
        left -= shown && self->ranks[i] == last;
        if (shown)
            text_add(out, "%s\n", text_get(&self->lines[i].text));
        line_fini(&self->lines[i]);
    }
    self->n = 0;
}
