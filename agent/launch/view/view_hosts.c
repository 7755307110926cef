/* The hosts of a run in the view: a table with a row for each, or with those that need attention and a sum of the others. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "agent/launch/view/frame.h"

#define ROWS_MOST 40u     /* of the table, title and sum included */
#define ROWS_LEAST 3u     /* title, one host, the sum of the others */
#define URGENT_MOST 3u    /* rows of hosts that are not ready stay even in a very small terminal */
#define NAME_LEAST 4u     /* columns */
#define NAME_MOST 24u     /* columns; a longer name is cut */
#define STATE_COLUMNS 10u /* of a host that is ready, "state     "; other states take the rest of the line */
#define GAP 2u
#define REASON_INDENT 4

/* ---- cells ---- */

static void cell_pair(char *out, uint32_t running, uint32_t wanted)
{
    if (running || wanted)
        snprintf(out, FORMAT_SIZE, "%u/%u", running, wanted);
}

static void cell_actors(char *out, const struct status_host *host)
{
    cell_pair(out, host->actors, host->actors_wanted);
}

static void cell_learners(char *out, const struct status_host *host)
{
    cell_pair(out, host->learners, host->learners_wanted);
}

static void cell_cores(char *out, const struct status_host *host)
{
    if (host->cores > 0)
        snprintf(out, FORMAT_SIZE, "%.1f of %.4g", host->cpu, host->cores);
    else
        snprintf(out, FORMAT_SIZE, "%.1f", host->cpu);
}

static void cell_load(char *out, const struct status_host *host)
{
    if (isfinite(host->machine_cpu))
        snprintf(out, FORMAT_SIZE, "%.1f", host->machine_cpu);
}

static void cell_round_trip(char *out, const struct status_host *host)
{
    if (host->round_trip_ms >= 0 && host->round_trip_ms < 1e9)
        format_seconds(out, host->round_trip_ms * 1e-3);
}

static void cell_times(char *out, const struct status_host *host)
{
    if (host->times)
        snprintf(out, FORMAT_SIZE, "%u", host->times);
}

/* In the order in which they get room. The state stands between the first two, which a lost host has, too, and the others. */
static const struct column {
    const char *title;
    uint32_t columns;
    void (*cell)(char *out, const struct status_host *host); /* leaves out as it is if there is nothing to say: "-" */
} table[] = {
    {"actors", 7, cell_actors}, {"learners", 8, cell_learners},      {"cores used", 11, cell_cores},
    {"load", 5, cell_load},     {"round trip", 10, cell_round_trip}, {"taken in", 8, cell_times},
};
#define COLUMNS_MOST (sizeof table / sizeof *table)
#define BEFORE_STATE 2u

/* ---- which hosts, which columns ---- */

struct choice {
    uint32_t rows[ROWS_MOST], n; /* indices of the hosts that get a row */
    uint32_t name;               /* columns of the names */
    uint32_t columns;            /* of the table, that fit */
};

enum need { NEED_AWAY, NEED_INCOMPLETE, NEED_NOTHING, NEEDS };

static enum need need_of(const struct status_host *host)
{
    bool complete = host->actors >= host->actors_wanted && host->learners >= host->learners_wanted;
    return !host->ready ? NEED_AWAY : !complete ? NEED_INCOMPLETE : NEED_NOTHING;
}

/* All hosts in their order if they fit, else those with a problem first. */
static void choose_rows(struct choice *self, const struct status *s, uint32_t room)
{
    bool all = s->n_hosts <= room - 1;
    uint32_t most = all ? s->n_hosts : room - 2;
    for (uint32_t need = 0; need < (all ? 1u : NEEDS); need++)
        for (uint32_t i = 0; i < s->n_hosts && self->n < most; i++)
            if (all || need_of(&s->hosts[i]) == (enum need)need)
                self->rows[self->n++] = i;
}

static void choose_columns(struct choice *self, const struct status *s, uint32_t wide)
{
    uint32_t longest = NAME_LEAST;
    for (uint32_t i = 0; i < self->n; i++) {
        uint32_t own = line_width(s->hosts[self->rows[i]].name);
        longest = own > longest ? own : longest;
    }
    uint32_t most = wide < NARROW ? wide / 4 : NAME_MOST, least = wide < NARROW ? NAME_LEAST : COLUMN_1 - 2;
    self->name = longest > most ? most : longest < least ? least : longest;
    uint32_t used = 1 + self->name + GAP + STATE_COLUMNS;
    while (self->columns < COLUMNS_MOST && used + GAP + table[self->columns].columns <= wide)
        used += GAP + table[self->columns++].columns;
}

/* ---- rows ---- */

/* Fills the columns up to `end` with text, cut if it is longer. */
static void put_within(struct line *line, enum tint tint, uint32_t end, const char *text)
{
    uint32_t limit = line->limit;
    line->limit = limit && limit < end ? limit : end;
    line_put(line, tint, "%s", text);
    if (line_left(line) > 0)
        line_to(line, end);
    line->limit = limit;
}

/* Puts cells to the right of their columns. host NULL: the titles. */
static void put_columns(struct line *line, uint32_t from, uint32_t to, const struct status_host *host)
{
    for (uint32_t i = from; i < to; i++) {
        format_buffer cell = "-";
        if (host)
            table[i].cell(cell, host);
        else
            snprintf(cell, sizeof cell, "%s", table[i].title);
        uint32_t own = line_width(cell), end = line->width + GAP + table[i].columns;
        line_to(line, end > own ? end - own : 0);
        line_put(line, host ? TINT_NONE : TINT_DIM, "%s", cell);
    }
}

/* "lost for 12 s: why"; where that is too long for the rest of the row, the reason has a line of its own. */
static void put_absence(struct frame *self, struct line *line, const struct status_host *host, enum rank rank)
{
    const char *state = host->state[0] ? host->state : "not ready", *reason = strstr(state, ": ");
    bool split = reason && rank == RANK_ABNORMAL && line_width(state) > line_left(line);
    struct line *below = split ? frame_line(self, rank) : NULL;
    if (!below) {
        line_put(line, TINT_BAD, "%s", state);
        return;
    }
    line_put(line, TINT_BAD, "%.*s", (int)(reason - state), state);
    line_put(below, TINT_NONE, "%*s%s", REASON_INDENT, "", reason + 2);
}

static void put_row(struct frame *self, const struct choice *choice, const struct status_host *host, enum rank rank)
{
    struct line *line = frame_line(self, rank);
    uint32_t before = choice->columns < BEFORE_STATE ? choice->columns : BEFORE_STATE;
    if (!line)
        return;
    line_to(line, 1);
    put_within(line, TINT_NONE, 1 + choice->name, host->name);
    put_columns(line, 0, before, host);
    line_put(line, TINT_NONE, "%*s", (int)GAP, "");
    if (!host->ready) {
        put_absence(self, line, host, rank);
        return;
    }
    put_within(line, TINT_NONE, line->width + STATE_COLUMNS, host->state[0] ? host->state : "ready");
    put_columns(line, before, choice->columns, host);
}

static void put_titles(struct frame *self, const struct choice *choice)
{
    struct line *line = frame_line(self, RANK_HOSTS);
    uint32_t before = choice->columns < BEFORE_STATE ? choice->columns : BEFORE_STATE;
    if (!line)
        return;
    put_within(line, TINT_DIM, 1 + choice->name, " host");
    put_columns(line, 0, before, NULL);
    line_put(line, TINT_DIM, "%*sstate     ", (int)GAP, "");
    put_columns(line, before, choice->columns, NULL);
}

static bool is_shown(const struct choice *self, uint32_t index)
{
    for (uint32_t i = 0; i < self->n; i++)
        if (self->rows[i] == index)
            return true;
    return false;
}

/* "and 57 more, all ready   actors 912/912   learners 0/0   cores 880.3 of 912" */
static void put_sum(struct frame *self, const struct choice *choice)
{
    const struct status *s = self->status;
    struct status_host sum = {0};
    uint32_t more = s->n_hosts - choice->n, away = 0;
    for (uint32_t i = 0; i < s->n_hosts; i++) {
        if (is_shown(choice, i))
            continue;
        away += !s->hosts[i].ready;
        sum.actors += s->hosts[i].actors;
        sum.actors_wanted += s->hosts[i].actors_wanted;
        sum.learners += s->hosts[i].learners;
        sum.learners_wanted += s->hosts[i].learners_wanted;
        sum.cpu += s->hosts[i].cpu;
        sum.cores += s->hosts[i].cores;
    }
    struct line *line = frame_line(self, RANK_HOSTS);
    if (!line)
        return;
    if (away)
        line_put(line, TINT_BAD, " and %u more, %u of them not ready", more, away);
    else
        line_put(line, TINT_DIM, " and %u more, all ready", more);
    line_try(line, TINT_NONE, "   actors %u/%u", sum.actors, sum.actors_wanted);
    if (sum.learners_wanted)
        line_try(line, TINT_NONE, "   learners %u/%u", sum.learners, sum.learners_wanted);
    line_try(line, TINT_NONE, "   cores %.1f of %.4g", sum.cpu, sum.cores);
}

/* ---- for the view ---- */

/* Lines that the table may take: a third of the terminal. */
static uint32_t room_of(const struct frame *self)
{
    uint32_t rows = self->sheet.style->rows;
    uint32_t room = rows ? rows / 3 : ROWS_MOST;
    return room < ROWS_LEAST ? ROWS_LEAST : room > ROWS_MOST ? ROWS_MOST : room;
}

static bool has_table(const struct frame *self)
{
    return self->status->n_hosts > 1 && self->status->hosts && !view_over(self);
}

uint32_t view_host_lines(const struct frame *self)
{
    uint32_t room = room_of(self), all = self->status->n_hosts + 1;
    uint32_t away = self->status->n_hosts - view_hosts_ready(self->status);
    return !has_table(self) ? 0 : (all < room ? all : room) + (away < URGENT_MOST ? away : URGENT_MOST);
}

void view_add_hosts(struct frame *self)
{
    const struct status *s = self->status;
    struct choice choice = {0};
    uint32_t urgent = 0;
    if (!has_table(self))
        return;
    choose_rows(&choice, s, room_of(self));
    choose_columns(&choice, s, frame_columns(self));
    frame_line(self, RANK_BLANK);
    put_titles(self, &choice);
    for (uint32_t i = 0; i < choice.n; i++) {
        const struct status_host *host = &s->hosts[choice.rows[i]];
        bool now = !host->ready && urgent < URGENT_MOST;
        urgent += now;
        put_row(self, &choice, host, now ? RANK_ABNORMAL : RANK_HOSTS);
    }
    if (choice.n < s->n_hosts)
        put_sum(self, &choice);
}

uint32_t view_hosts_ready(const struct status *s)
{
    uint32_t ready = 0;
    for (uint32_t i = 0; s->hosts && i < s->n_hosts; i++)
        ready += s->hosts[i].ready;
    return ready;
}

bool view_host_away(const struct status *s, const char *name)
{
    for (uint32_t i = 0; name[0] && s->hosts && i < s->n_hosts; i++)
        if (strcmp(s->hosts[i].name, name) == 0)
            return !s->hosts[i].ready;
    return false;
}
