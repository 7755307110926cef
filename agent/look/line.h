/* Lines of a terminal that know their width. */
#ifndef AGENT_LOOK_LINE_H
#define AGENT_LOOK_LINE_H

#include <stdbool.h>
#include <stdint.h>

#include "proto/base/format.h"

enum tint { TINT_NONE, TINT_BOLD, TINT_DIM, TINT_GOOD, TINT_WARN, TINT_BAD, TINT_BAR };

/* A line in the making. Whatever text is put into it, the line is never wider than its limit, and control characters of
 * the text do not reach the terminal. */
struct line {
    struct text text;
    uint32_t width, limit; /* columns; limit 0: any */
    bool utf8, colour;
};

void line_fini(struct line *self);
/* Cuts what does not fit and puts an ellipsis in its place. */
void line_put(struct line *self, enum tint tint, const char *format, ...) RP_PRINTF(3, 4);
/* Puts the whole text, or nothing if it does not fit. */
bool line_try(struct line *self, enum tint tint, const char *format, ...) RP_PRINTF(3, 4);
/* Puts blanks up to the column, at least one. */
void line_to(struct line *self, uint32_t column);
/* Puts a bar of this many columns, a share of them full. */
void line_bar(struct line *self, enum tint tint, uint32_t columns, double share);
/* Puts a mark between two ends, this many columns apart. */
void line_place(struct line *self, enum tint tint, uint32_t columns, double share);
/* Returns the columns that are left; a large number if there is no limit. */
uint32_t line_left(const struct line *self);

/* Returns the columns that the text takes on a terminal. Escape sequences of line_put count as none. */
uint32_t line_width(const char *text);
/* Returns the bytes of the text that fit into this many columns. */
size_t line_cut(const char *text, uint32_t columns);

#endif
