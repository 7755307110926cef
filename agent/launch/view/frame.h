/* A view in the making: its lines, and which of them stay in a small terminal. */
#ifndef AGENT_LAUNCH_FRAME_H
#define AGENT_LAUNCH_FRAME_H

#include "agent/launch/view/view.h"
#include "agent/look/look.h"

/* The same as view_render, with colours, and with what keys have chosen. */
void view_draw(struct text *out, const struct status *status, const struct sheet_style *style, struct look *look);

#define COLUMN_1 SHEET_LABEL
#define COLUMN_2 32u
#define COLUMN_3 48u
#define NARROW SHEET_NARROW
#define FAR_OFF 0.2 /* of the plan: worth a colour */

/* In a small terminal, lines of low rank stay. */
enum rank {
    RANK_HEAD,
    RANK_PROGRESS,
    RANK_ABNORMAL,
    RANK_RETURN,
    RANK_SPEED,
    RANK_WAITS,
    RANK_EVENT,
    RANK_HOSTS,
    RANK_CURVE,
    RANK_IDLE,
    RANK_SPI,
    RANK_RATES,
    RANK_PROCESSES,
    RANK_TABLE,
    RANK_MEMORY,
    RANK_LIST,
    RANK_FOOTER,
    RANK_BLANK
};

struct frame {
    const struct status *status;
    struct look *look;
    struct sheet sheet;
};

/* Adds a line; NULL: the frame is full. */
struct line *frame_line(struct frame *self, enum rank rank);
/* Adds a line that begins with a label. */
struct line *frame_row(struct frame *self, enum rank rank, const char *label);
/* Columns that the layout may use. */
uint32_t frame_columns(const struct frame *self);

/* True if the run has ended: no process runs, none waits. */
bool view_over(const struct frame *self);
/* "412", "3.14", "1.2 M", "-". */
const char *view_number(char *out, double value);
void view_add_speed(struct frame *self);
void view_add_waits(struct frame *self);
void view_add_table(struct frame *self);

/* Adds the list of all processes, in at most this many lines. */
void view_add_list(struct frame *self, uint32_t most);
/* Adds a table of the hosts, if there are several. */
void view_add_hosts(struct frame *self);
/* Lines that view_add_hosts will add at most. */
uint32_t view_host_lines(const struct frame *self);
uint32_t view_hosts_ready(const struct status *status);
/* Whether a host of this name is known and not ready. */
bool view_host_away(const struct status *status, const char *name);

#endif
