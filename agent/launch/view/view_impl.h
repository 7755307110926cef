/* What view.c and screen.c are made of: lines that know their width. */
#ifndef AGENT_LAUNCH_VIEW_IMPL_H
#define AGENT_LAUNCH_VIEW_IMPL_H

#include "agent/launch/view/view.h"

struct view_style {
    uint32_t columns, rows; /* 0: any */
    bool utf8, colour;
};

/* The same as view_render, with colours. */
void view_draw(struct text *out, const struct status *status, const struct view_style *style);

enum tint { TINT_NONE, TINT_BOLD, TINT_DIM, TINT_GOOD, TINT_WARN, TINT_BAD, TINT_BAR };

/* One line in the making. Whatever is put into it, it is never wider than its limit and does nothing to the terminal. */
struct line {
    struct text text;
    uint32_t width, limit; /* columns; limit 0: any */
    bool utf8, colour;
};

void line_fini(struct line *self);
/* What does not fit is cut, and an ellipsis stands for it. */
void line_put(struct line *self, enum tint tint, const char *format, ...) RP_PRINTF(3, 4);
/* All of it, or nothing if it does not fit. */
bool line_try(struct line *self, enum tint tint, const char *format, ...) RP_PRINTF(3, 4);
/* Blanks up to the column, at least one. */
void line_to(struct line *self, uint32_t column);
/* So many columns, share of them full. */
void line_bar(struct line *self, enum tint tint, uint32_t columns, double share);
/* Columns that are left; many if there is no limit. */
uint32_t line_left(const struct line *self);

/* Columns that the text takes on a terminal, escape sequences of line_put apart. */
uint32_t line_width(const char *text);

/* ---- the lines of a view ---- */

#define FRAME_MAX 64u
#define COLUMN_1 11u
#define COLUMN_2 32u
#define COLUMN_3 48u
#define NARROW 60u  /* below, columns stand closer together */
#define FAR_OFF 0.2 /* of the plan: worth a colour */

/* Which lines stay in a small terminal: low ranks. */
enum rank {
    RANK_HEAD,
    RANK_PROGRESS,
    RANK_ABNORMAL,
    RANK_RETURN,
    RANK_SPEED,
    RANK_WAITS,
    RANK_EVENT,
    RANK_CURVE,
    RANK_IDLE,
    RANK_SPI,
    RANK_RATES,
    RANK_PROCESSES,
    RANK_TABLE,
    RANK_MEMORY,
    RANK_BLANK
};

struct frame {
    const struct status *status;
    const struct view_style *style;
    struct line lines[FRAME_MAX];
    enum rank ranks[FRAME_MAX];
    uint32_t n;
};

/* A new line; NULL: the frame is full. */
struct line *frame_line(struct frame *self, enum rank rank);
/* The same, and it begins with what it is about. */
struct line *frame_row(struct frame *self, enum rank rank, const char *label);
/* Columns to lay out for. */
uint32_t frame_columns(const struct frame *self);

/* The run has ended: nobody runs, nobody waits. */
bool view_over(const struct frame *self);
/* "412", "3.14", "1.2 M", "-". */
const char *view_number(char *out, double value);
void view_add_speed(struct frame *self);
void view_add_waits(struct frame *self);
void view_add_table(struct frame *self);

#endif
