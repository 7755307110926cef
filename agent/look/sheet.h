/* The look room: what replay-ctl top and the view of replay-launch have in common. It owns lines that know their width (line.h),
 * sheets of such lines of which the important ones stay in a small terminal (this header), lists that can be sorted and
 * scrolled (list.h), and keys with what they mean (look.h). It may use proto/base, and knows neither brokers nor runs. */
#ifndef AGENT_LOOK_SHEET_H
#define AGENT_LOOK_SHEET_H

#include "agent/look/line.h"

#define SHEET_MAX 128u   /* lines */
#define SHEET_RANKS 32u  /* ranks are below it */
#define SHEET_LABEL 11u  /* column after the label of a row */
#define SHEET_NARROW 60u /* below, columns stand closer together */
#define SHEET_BAR 20u    /* columns of a bar, in a terminal that is not narrow */

struct sheet_style {
    uint32_t columns, rows; /* 0: any */
    bool utf8, colour;
};

/* Lines in their order, each with a rank: in a small terminal, lines of low rank stay. Zero-initialised but for style. */
struct sheet {
    const struct sheet_style *style;
    struct line lines[SHEET_MAX];
    uint8_t ranks[SHEET_MAX];
    uint32_t n;
};

/* Returns the style with no more rows than a sheet has lines. */
struct sheet_style sheet_fit(const struct sheet_style *style);
/* Adds a line; NULL: the sheet is full. */
struct line *sheet_line(struct sheet *self, uint32_t rank);
/* Adds a line that begins with a label. */
struct line *sheet_row(struct sheet *self, uint32_t rank, const char *label);
/* Adds a row with a text that may be long: it goes on below, in at most `most` lines. */
void sheet_wrapped(struct sheet *self, uint32_t rank, const char *label, enum tint tint, const char *text,
                   uint32_t most);
/* Adds a row with a limiter's cursor between its bounds; NULL: there are no two bounds, or there is no room. */
struct line *sheet_cursor(struct sheet *self, uint32_t rank, const char *label, double at, double low, double high);
/* Columns that the layout may use. */
uint32_t sheet_columns(const struct sheet *self);
/* Columns for a bar. */
uint32_t sheet_bar(const struct sheet *self);
/* Adds the lines that fit to out, each with its end, and empties the sheet. */
void sheet_write(struct sheet *self, struct text *out);

#endif
