/* The view of a run: the same status as lines of a terminal, or as one plain line. */
#include "agent/launch/view/view.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "agent/launch/view/plot.h"
#include "agent/look/look.h"

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
static struct line *frame_line(struct frame *self, enum rank rank)
{
    return sheet_line(&self->sheet, rank);
}

/* Adds a line that begins with a label. */
static struct line *frame_row(struct frame *self, enum rank rank, const char *label)
{
    return sheet_row(&self->sheet, rank, label);
}

/* Columns that the layout may use. */
static uint32_t frame_columns(const struct frame *self)
{
    return sheet_columns(&self->sheet);
}

/* True if the run has ended: no process runs, none waits. */
static bool view_over(const struct frame *self)
{
    return self->status->phase >= PHASE_DONE;
}

static uint32_t view_hosts_ready(const struct status *s)
{
    uint32_t ready = 0;
    for (uint32_t i = 0; s->hosts && i < s->n_hosts; i++)
        ready += s->hosts[i].ready;
    return ready;
}

/* The mean of the numbers among values[first, end); NAN: there are none. */
static double mean_of(const double *values, uint32_t first, uint32_t end)
{
    double sum = 0;
    uint32_t n = 0;
    for (uint32_t i = first; i < end; i++) {
        if (isfinite(values[i])) {
            sum += values[i];
            n++;
        }
    }
    return n ? sum / n : NAN;
}

void view_sparkline(struct text *out, const double *values, uint32_t n, uint32_t columns, bool utf8)
{
    static const char *const blocks[] = {"▁", "▂", "▃", "▄", "▅", "▆", "▇", "█"};
    static const char marks[] = ".:-=+*#";
    uint32_t cells = n < columns ? n : columns;
    double low = INFINITY, high = -INFINITY;
    for (uint32_t pass = 0; pass < 2; pass++) {
        for (uint32_t i = 0; i < cells; i++) {
            uint32_t first = (uint32_t)((uint64_t)n * i / cells), end = (uint32_t)((uint64_t)n * (i + 1) / cells);
            double mean = mean_of(values, first, end);
            if (pass == 0) {
                low = isfinite(mean) && mean < low ? mean : low;
                high = isfinite(mean) && mean > high ? mean : high;
                continue;
            }
            double share = high > low ? (mean / 2 - low / 2) / (high / 2 - low / 2) : 0.5;
            if (!isfinite(mean))
                text_add(out, " ");
            else if (utf8)
                text_add(out, "%s", blocks[(uint32_t)(share * 7 + 0.5)]);
            else
                text_add(out, "%c", marks[(uint32_t)(share * 6 + 0.5)]);
        }
    }
}

/* The hosts of a run in the view: a table with a row for each, or with those that need attention and a sum of the others. */

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

/* Lines that view_add_hosts will add at most. */
static uint32_t view_host_lines(const struct frame *self)
{
    uint32_t room = room_of(self), all = self->status->n_hosts + 1;
    uint32_t away = self->status->n_hosts - view_hosts_ready(self->status);
    return !has_table(self) ? 0 : (all < room ? all : room) + (away < URGENT_MOST ? away : URGENT_MOST);
}

/* Adds a table of the hosts, if there are several. */
static void view_add_hosts(struct frame *self)
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

/* Whether a host of this name is known and not ready. */
static bool view_host_away(const struct status *s, const char *name)
{
    for (uint32_t i = 0; name[0] && s->hosts && i < s->n_hosts; i++)
        if (strcmp(s->hosts[i].name, name) == 0)
            return !s->hosts[i].ready;
    return false;
}

/* The processes of a run as a list, which keys sort and scroll. */

static void cell_name(char *out, const void *row)
{
    const struct status_process *p = row;
    snprintf(out, FORMAT_SIZE, "%s", p->name);
}

static void cell_state(char *out, const void *row)
{
    const struct status_process *p = row;
    snprintf(out, FORMAT_SIZE, "%s", p->state);
}

static void list_cell_cores(char *out, const void *row)
{
    const struct status_process *p = row;
    snprintf(out, FORMAT_SIZE, "%.2f", p->cpu);
}

static void cell_memory(char *out, const void *row)
{
    const struct status_process *p = row;
    format_bytes(out, p->memory);
}

static void cell_restarts(char *out, const void *row)
{
    const struct status_process *p = row;
    snprintf(out, FORMAT_SIZE, "%u", p->restarts);
}

static void cell_host(char *out, const void *row)
{
    const struct status_process *p = row;
    snprintf(out, FORMAT_SIZE, "%.40s", p->host);
}

/* "actor-2" is before "actor-10". */
static int by_name(const void *a, const void *b)
{
    const struct status_process *p = a, *q = b;
    return p->role != q->role ? (p->role > q->role) - (p->role < q->role) : strverscmp(p->name, q->name);
}

static int by_cores(const void *a, const void *b)
{
    const struct status_process *p = a, *q = b;
    return p->cpu != q->cpu ? (p->cpu < q->cpu) - (p->cpu > q->cpu) : by_name(a, b);
}

static int by_memory(const void *a, const void *b)
{
    const struct status_process *p = a, *q = b;
    return p->memory != q->memory ? (p->memory < q->memory) - (p->memory > q->memory) : by_name(a, b);
}

static int by_restarts(const void *a, const void *b)
{
    const struct status_process *p = a, *q = b;
    return p->restarts != q->restarts ? (p->restarts < q->restarts) - (p->restarts > q->restarts) : by_name(a, b);
}

static const struct list_column process_columns[] = {
    {"process", 14, true, cell_name, by_name},          {"state", 18, true, cell_state, NULL},
    {"cores", 6, false, list_cell_cores, by_cores},     {"memory", 9, false, cell_memory, by_memory},
    {"restarts", 9, false, cell_restarts, by_restarts}, {"host", 16, true, cell_host, NULL},
};

/* Adds the list of all processes, in at most this many lines. */
static void view_add_list(struct frame *self, uint32_t most)
{
    const struct status *s = self->status;
    size_t size = s->n_processes * sizeof *s->processes;
    void *rows = s->processes && size ? malloc(size) : NULL;
    if (!rows)
        return;
    memcpy(rows, s->processes, size);
    const struct list list = {.columns = process_columns,
                              .n_columns = sizeof process_columns / sizeof *process_columns - (s->n_hosts > 1 ? 0 : 1),
                              .rows = rows,
                              .n_rows = s->n_processes,
                              .size = sizeof *s->processes};
    list_add(&self->sheet, self->look->chosen ? RANK_HOSTS : RANK_LIST, &list, self->look, most);
    free(rows);
}

/* The part of the view about speed: rates against the plan, which side waits for which, the table. */

#define WAITS_LINES 2u /* for the sentence about what limits the run */

/* "412", "3.14", "1.2 M", "-". */
static const char *view_number(char *out, double value)
{
    if (!isfinite(value))
        snprintf(out, FORMAT_SIZE, "-");
    else if (fabs(value) >= 1e6)
        format_short(out, value);
    else
        snprintf(out, FORMAT_SIZE, fabs(value) >= 100 || value == round(value) ? "%.0f" : "%.3g", value);
    return out;
}

/* ---- speed ---- */

static void add_speed(struct frame *self)
{
    const struct status *s = self->status;
    format_buffer a, b;
    struct line *line = frame_row(self, RANK_SPEED, "speed");
    if (!line)
        return;
    line_put(line, TINT_BOLD, "%s", format_short(a, s->steps_rate));
    line_put(line, TINT_NONE, " steps/s");
    if (line_left(line) < 20)
        line_put(line, TINT_NONE, "  ");
    else
        line_to(line, COLUMN_2);
    line_try(line, TINT_NONE, "%s updates/s", format_short(b, s->updates_rate));
}

/* "plan 5.4 k/s  -4%"; the difference has a colour if it is large. */
static void put_plan(struct line *line, const char *word, const char *planned, double now, double plan)
{
    line_to(line, line->limit && line->limit < NARROW ? COLUMN_1 + 9 : COLUMN_2);
    if (!line_try(line, TINT_DIM, "%s %s", word, planned))
        return;
    double off = now / plan - 1;
    if (!isfinite(off))
        return;
    if (!line->limit || line->limit >= NARROW)
        line_to(line, COLUMN_3);
    if (fabs(off) > 9.99)
        line_try(line, TINT_WARN, off > 0 ? " >+999%%" : " <-999%%");
    else
        line_try(line, fabs(off) > FAR_OFF ? TINT_WARN : TINT_DIM, " %+4.0f%%", 100 * off);
}

static void add_rate(struct frame *self, const char *label, double rate, double plan)
{
    format_buffer now, planned;
    struct line *line = frame_row(self, RANK_RATES, label);
    if (!line)
        return;
    line_put(line, TINT_NONE, "%s", format_rate(now, rate));
    if (isfinite(plan))
        put_plan(line, "plan", format_rate(planned, plan), self->status->phase == PHASE_RUNNING ? rate : NAN, plan);
}

static void add_ratio(struct frame *self)
{
    const struct status *s = self->status;
    format_buffer now, target;
    struct line *line = frame_row(self, RANK_SPI, "SPI");
    if (!line)
        return;
    line_put(line, TINT_NONE, "%s", view_number(now, s->spi));
    if (s->spi_target > 0)
        put_plan(line, "target", view_number(target, s->spi_target), s->phase == PHASE_RUNNING ? s->spi : NAN,
                 s->spi_target);
}

static void view_add_speed(struct frame *self)
{
    const struct status *s = self->status;
    add_speed(self);
    add_rate(self, "inserts", s->inserts_rate, s->planned_inserts);
    add_rate(self, "samples", s->samples_rate, s->planned_samples);
    add_ratio(self);
}

/* ---- who waits ---- */

static void add_idle(struct frame *self, const char *label, double idle, double plan, const double by[IDLE_CAUSES])
{
    char causes[128];
    struct line *line = isfinite(idle) ? frame_row(self, RANK_IDLE, label) : NULL;
    if (!line)
        return;
    uint32_t wide = frame_columns(self);
    line_bar(line, idle > (isfinite(plan) ? plan : 0) + FAR_OFF ? TINT_WARN : TINT_BAR, sheet_bar(&self->sheet), idle);
    line_put(line, TINT_NONE, "%4.0f%% idle", 100 * idle);
    if (isfinite(plan)) {
        if (wide >= NARROW)
            line_to(line, COLUMN_3 - 2);
        line_try(line, TINT_DIM, "  plan %.0f%%", 100 * plan);
    }
    if (idle_words(by, causes, sizeof causes)[0])
        line_try(line, TINT_DIM, "  %s", causes);
}

static void view_add_waits(struct frame *self)
{
    const struct status *s = self->status;
    add_idle(self, "actors", s->actor_idle, s->planned_actor_idle, s->idle_by.actor);
    add_idle(self, "learners", s->learner_idle, s->planned_learner_idle, s->idle_by.learner);
    if (view_over(self))
        return;
    bool limited = status_is_limited(s);
    sheet_wrapped(&self->sheet, RANK_WAITS, "waits", limited ? TINT_NONE : TINT_DIM, limited ? s->waits : "nobody",
                  WAITS_LINES);
    sheet_wrapped(&self->sheet, RANK_IDLE, "advice", TINT_DIM, s->advice, 1);
}

static void view_add_table(struct frame *self)
{
    const struct status *s = self->status;
    struct line *line = s->max_size ? frame_row(self, RANK_TABLE, "table") : NULL;
    format_buffer size, most, least;
    if (!line)
        return;
    line_bar(line, TINT_BAR, sheet_bar(&self->sheet), (double)s->size / (double)s->max_size);
    line_put(line, TINT_NONE, " %s", format_count(size, s->size));
    line_try(line, TINT_NONE, " of %s items", format_count(most, s->max_size));
    if (s->min_size > 0 && s->min_size < 1e15 && (double)s->size < s->min_size)
        line_try(line, TINT_WARN, "  %s before the first sample", format_count(least, (uint64_t)s->min_size));
    if (!view_over(self))
        sheet_cursor(&self->sheet, RANK_TABLE, "cursor", s->cursor, s->cursor_low, s->cursor_high);
}

/* The view of a run: its lines, and which of them are dropped first when there is little room. */

#define LIST_LEAST 6u    /* lines of the list of processes that a key has asked for */
#define MESSAGES_ROOM 6u /* lines */

/* ---- head and progress ---- */

static enum tint phase_tint(enum phase phase)
{
    return phase == PHASE_FAILED ? TINT_BAD : phase == PHASE_RUNNING || phase == PHASE_DONE ? TINT_GOOD : TINT_WARN;
}

static void add_head(struct frame *self)
{
    const struct status *s = self->status;
    struct line *line = frame_line(self, RANK_HEAD);
    format_buffer time;
    if (!line)
        return;
    line_put(line, TINT_BOLD, " %s", s->name);
    line_put(line, phase_tint(s->phase), "  %s", phase_name(s->phase));
    line_try(line, TINT_NONE, "  %s", format_seconds(time, s->elapsed_s));
    if (self->look->paused)
        line_try(line, TINT_WARN, "  [paused]");
    uint32_t folder = line_width(s->folder) + 1, wide = frame_columns(self);
    if (s->folder[0] && folder + 2 <= line_left(line)) {
        line_to(line, wide > folder ? wide - folder : 1);
        line_put(line, TINT_DIM, "%s", s->folder);
    }
}

struct end {
    const char *what;
    double at, to; /* to: the end; not finite or 0 means none */
};

/* Finds the stop condition that progress counts towards: the one that is nearest to being met. */
static const struct end *nearest_end(const struct end *ends, uint32_t n, double progress)
{
    const struct end *found = NULL;
    double distance = INFINITY;
    for (uint32_t i = 0; i < n; i++) {
        if (!isfinite(ends[i].to) || ends[i].to == 0)
            continue;
        double share = ends[i].at / ends[i].to;
        double own = fabs((isfinite(share) ? fmin(share, 1) : 0) - progress);
        if (!found || own < distance) {
            found = &ends[i];
            distance = isfinite(own) ? own : INFINITY;
        }
    }
    return found;
}

/* "steps 31,200 of 100,000"; "" without a stop condition. */
static void describe_end(const struct status *s, char *out, size_t size, const char *of)
{
    const struct end ends[] = {
        {"steps", (double)s->steps, (double)s->stop_steps},
        {"updates", (double)s->learner_steps, (double)s->stop_learner_steps},
        {"return", s->value, s->stop_value},
        {"time", s->elapsed_s, s->stop_time_s},
    };
    const struct end *end = nearest_end(ends, 4, isfinite(s->progress) ? s->progress : 0);
    format_buffer at, to;
    out[0] = '\0';
    if (end == &ends[0])
        snprintf(out, size, "steps %s%s%s", format_count(at, s->steps), of, format_count(to, s->stop_steps));
    else if (end == &ends[1])
        snprintf(out, size, "updates %s%s%s", format_count(at, s->learner_steps), of,
                 format_count(to, s->stop_learner_steps));
    else if (end == &ends[2])
        snprintf(out, size, "return %s%s%s", view_number(at, s->value), of, view_number(to, s->stop_value));
    else if (end == &ends[3])
        snprintf(out, size, "%s%s%s", format_seconds(at, s->elapsed_s), of, format_seconds(to, s->stop_time_s));
}

static void add_progress(struct frame *self)
{
    const struct status *s = self->status;
    struct line *line = frame_line(self, RANK_PROGRESS);
    char end[128];
    format_buffer eta, at;
    if (!line)
        return;
    bool reached = s->phase == PHASE_DONE && isfinite(s->stop_value) && s->best >= s->stop_value;
    double progress = reached ? 1 : s->progress;
    if (reached)
        snprintf(end, sizeof end, "return %s of %s", view_number(at, s->best), view_number(eta, s->stop_value));
    else
        describe_end(s, end, sizeof end, " of ");
    uint32_t wide = frame_columns(self), bar = wide > 75 ? wide / 2 - 8 : wide / 3;
    line_to(line, 1);
    line_bar(line,
             s->phase == PHASE_DONE     ? TINT_GOOD
             : s->phase == PHASE_FAILED ? TINT_BAD
                                        : TINT_BAR,
             bar < 60 ? bar : 60, progress);
    if (isfinite(progress))
        line_put(line, TINT_BOLD, " %3.0f%%", 100 * (progress > 1 ? 1 : progress > 0 ? progress : 0));
    line_try(line, TINT_NONE, "  %s", end);
    if (isfinite(s->eta_s) && s->eta_s > 0 && !view_over(self))
        line_try(line, TINT_DIM, "  %s left", format_seconds(eta, s->eta_s));
    if (s->reason[0] && (line = frame_line(self, RANK_ABNORMAL)))
        line_put(line, s->phase == PHASE_FAILED ? TINT_BAD : TINT_NONE, " %s", s->reason);
}

/* ---- returns ---- */

/* With room to spare the curve is a chart, otherwise one line. */
static void add_curve(struct frame *self, uint32_t rows)
{
    const struct status *s = self->status;
    struct text text = {0};
    uint32_t wide = frame_columns(self);
    if (rows >= 8 && s->n_values >= 3 && wide >= 60) {
        struct plot plot = {
            .x_label = "steps", .n_lines = 1, .lines = {{.x = s->value_steps, .y = s->values, .n = s->n_values}}};
        plot_text(&text, &plot, wide < 110 ? wide - 2 : 108, rows < 12 ? rows : 12, self->sheet.style->utf8);
    } else {
        view_sparkline(&text, s->values, s->n_values, wide > COLUMN_1 + 1 ? wide - COLUMN_1 - 1 : 1,
                       self->sheet.style->utf8);
        struct line *line = frame_row(self, RANK_CURVE, "");
        if (line)
            line_put(line, TINT_BAR, "%s", text_get(&text));
        text_fini(&text);
        return;
    }
    for (const char *at = text_get(&text); *at;) {
        size_t size = strcspn(at, "\n");
        struct line *line = frame_line(self, RANK_CURVE);
        if (line)
            line_put(line, TINT_NONE, " %.*s", (int)size, at);
        at += size + (at[size] == '\n');
    }
    text_fini(&text);
}

static void add_return(struct frame *self, uint32_t rows)
{
    const struct status *s = self->status;
    struct line *line = frame_row(self, RANK_RETURN, "return");
    format_buffer newest, best, target, actors;
    if (!line)
        return;
    if (isfinite(s->value)) {
        line_put(line, TINT_BOLD, "%s", view_number(newest, s->value));
        line_try(line, TINT_NONE, "   best %s", view_number(best, s->best));
    } else {
        line_put(line, TINT_DIM, "none yet");
    }
    if (isfinite(s->stop_value))
        line_try(line, s->value >= s->stop_value ? TINT_GOOD : TINT_DIM, "   target %s",
                 view_number(target, s->stop_value));
    if (isfinite(s->actor_value))
        line_try(line, TINT_DIM, "   exploring %s", view_number(actors, s->actor_value));
    if (s->n_values && s->values && s->value_steps)
        add_curve(self, rows);
}

/* ---- processes ---- */

static void add_shards(struct frame *self)
{
    const struct status *s = self->status;
    struct line *line = s->shards > 1 ? frame_row(self, RANK_PROCESSES, "broker") : NULL;
    if (!line)
        return;
    line_put(line, TINT_NONE, "%u shards", s->shards);
    if (s->shards_reason[0])
        line_try(line, TINT_DIM, "   %s", s->shards_reason);
}

static void add_processes(struct frame *self)
{
    const struct status *s = self->status;
    format_buffer used, limit;
    struct line *line = frame_row(self, RANK_PROCESSES, "processes");
    if (line) {
        bool settled = s->phase == PHASE_RUNNING;
        line_put(line, settled && s->actors < s->actors_wanted ? TINT_WARN : TINT_NONE, "actors %u/%u", s->actors,
                 s->actors_wanted);
        line_try(line, settled && s->learners < s->learners_wanted ? TINT_WARN : TINT_NONE, "   learners %u/%u",
                 s->learners, s->learners_wanted);
        line_try(line, s->restarts ? TINT_WARN : TINT_DIM, "   restarts %u", s->restarts);
        if (s->n_hosts > 1) {
            uint32_t ready = view_hosts_ready(s);
            line_try(line, ready < s->n_hosts ? TINT_WARN : TINT_NONE, "   hosts %u/%u", ready, s->n_hosts);
        }
    }
    add_shards(self);
    line = frame_row(self, RANK_MEMORY, "memory");
    if (!line)
        return;
    line_put(line, s->memory_limit && (double)s->memory > 0.9 * (double)s->memory_limit ? TINT_WARN : TINT_NONE, "%s",
             format_bytes(used, s->memory));
    if (s->memory_limit)
        line_try(line, TINT_NONE, " of %s", format_bytes(limit, s->memory_limit));
    line_try(line, TINT_NONE, "   cores %.1f", s->cpu);
    if (s->cores > 0)
        line_try(line, TINT_NONE, " of %.4g", s->cores);
    if (s->others > 0 && !view_over(self))
        line_try(line, TINT_WARN, "   other programs take %.1f", s->others);
}

/* Lists processes that do not run as they should or were restarted: at most four, and how many more there are. Processes of a
 * host that is away are left out: the host has a row. */
static void add_abnormal(struct frame *self)
{
    const struct status *s = self->status;
    uint32_t shown = 0, more = 0;
    bool over = s->phase >= PHASE_STOPPING && s->phase != PHASE_FAILED;
    for (uint32_t i = 0; s->processes && i < s->n_processes; i++) {
        const struct status_process *p = &s->processes[i];
        bool away = !over && strcmp(p->state, "runs") != 0 && strcmp(p->state, "ended") != 0;
        if ((!away && !p->restarts) || (away && view_host_away(s, p->host)))
            continue;
        if (shown == 4) {
            more++;
            continue;
        }
        struct line *line = frame_row(self, away ? RANK_ABNORMAL : RANK_PROCESSES, "");
        if (!line)
            return;
        line_put(line, away ? TINT_BAD : TINT_WARN, "%s%s%s %s", p->name, p->host[0] ? " on " : "", p->host, p->state);
        if (p->restarts)
            line_try(line, TINT_DIM, "   %u restart%s", p->restarts, p->restarts > 1 ? "s" : "");
        shown++;
    }
    struct line *line = more ? frame_row(self, RANK_PROCESSES, "") : NULL;
    if (line)
        line_put(line, TINT_DIM, "and %u more", more);
}

static void add_event(struct frame *self)
{
    const struct status *s = self->status;
    bool told = s->reason[0] && strstr(s->event, s->reason); /* shown above already */
    struct line *line = s->event[0] && !told ? frame_row(self, RANK_EVENT, "event") : NULL;
    format_buffer ago;
    if (!line)
        return;
    double age = s->unix_s - s->event_unix_s;
    if (s->event_unix_s > 0 && age >= 1)
        line_put(line, TINT_DIM, "%s ago  ", format_seconds(ago, floor(age)));
    line_put(line, TINT_NONE, "%s", s->event);
}

/* ---- all of it ---- */

/* The list of processes takes the room that is left, but for a few lines in which messages stand above the view. Once a key has
 * asked for the list, it takes all the room, and that of the curve. */
static void add_list(struct frame *self)
{
    const struct look *look = self->look;
    uint32_t rows = self->sheet.style->rows, used = self->sheet.n + 2 + (look->chosen ? 0 : MESSAGES_ROOM);
    uint32_t left = rows > used ? rows - used : 0;
    if (view_over(self) || !rows || !look->keys)
        return;
    frame_line(self, RANK_BLANK);
    view_add_list(self, look->chosen && left < LIST_LEAST ? LIST_LEAST : left);
}

static void build(struct frame *self)
{
    uint32_t rows = self->sheet.style->rows, others = 24 + view_host_lines(self); /* lines without the curve */
    if (self->look->chosen)
        rows = 0;
    add_head(self);
    if (self->look->help) {
        frame_line(self, RANK_BLANK);
        look_add_help(&self->sheet, RANK_PROGRESS, self->look, "processes");
        return;
    }
    add_progress(self);
    frame_line(self, RANK_BLANK);
    view_add_speed(self);
    frame_line(self, RANK_BLANK);
    view_add_waits(self);
    view_add_table(self);
    frame_line(self, RANK_BLANK);
    add_return(self, rows > others ? rows - others : 0);
    frame_line(self, RANK_BLANK);
    if (!view_over(self))
        add_processes(self);
    view_add_hosts(self);
    add_abnormal(self);
    add_event(self);
    add_list(self);
}

void view_draw(struct text *out, const struct status *status, const struct sheet_style *style, struct look *look)
{
    struct sheet_style fit = sheet_fit(style);
    struct frame frame = {.status = status, .look = look, .sheet = {.style = &fit}};
    build(&frame);
    bool used = look->chosen || look->paused || look->help; /* who has used keys wants to see them */
    if (!view_over(&frame))
        look_add_footer(&frame.sheet, used ? RANK_PROGRESS : RANK_FOOTER, look);
    sheet_write(&frame.sheet, out);
}

void view_render(struct text *out, const struct status *status, uint32_t columns, uint32_t rows, bool utf8)
{
    struct look look = {0};
    view_draw(out, status, &(struct sheet_style){.columns = columns, .rows = rows, .utf8 = utf8}, &look);
}

/* One plain line about a run, for logs and pipes. */

#define HOSTS_NAMED 3u /* hosts that are not ready, in a line */

/* "12s", "2m05s", "3h20m". */
static const char *short_time(char *out, double seconds)
{
    double whole = seconds > 0 && seconds < 1e12 ? floor(seconds) : 0;
    uint64_t s = (uint64_t)whole;
    if (s < 60)
        snprintf(out, FORMAT_SIZE, "%us", (unsigned)s);
    else if (s < 3600)
        snprintf(out, FORMAT_SIZE, "%um%02us", (unsigned)(s / 60), (unsigned)(s % 60));
    else
        snprintf(out, FORMAT_SIZE, "%lluh%02um", (unsigned long long)(s / 3600), (unsigned)(s / 60 % 60));
    return out;
}

/* "5.2k": format_short without its blank. */
static const char *tight(char *out, double value)
{
    format_short(out, value);
    char *blank = strchr(out, ' ');
    if (blank)
        memmove(blank, blank + 1, strlen(blank));
    return out;
}

static void add_count(struct line *line, const char *what, uint64_t at, uint64_t to)
{
    format_buffer a, b;
    line_put(line, TINT_NONE, " %s %s", what, format_count(a, at));
    if (to)
        line_put(line, TINT_NONE, "/%s", format_count(b, to));
}

static void add_percent(struct line *line, const char *what, double share, const double by[IDLE_CAUSES])
{
    char causes[128];
    if (!isfinite(share))
        return;
    line_put(line, TINT_NONE, " %s %.0f%%", what, 100 * share);
    if (idle_words(by, causes, sizeof causes)[0])
        line_put(line, TINT_NONE, " (%s)", causes);
}

/* "hosts 2/4 (cpu3 lost for 12 s: Connection refused; cpu4 connecting)" */
static void add_hosts(struct line *line, const struct status *s)
{
    uint32_t ready = view_hosts_ready(s), named = 0;
    if (s->n_hosts < 2 || s->phase >= PHASE_DONE)
        return;
    line_put(line, TINT_NONE, " hosts %u/%u", ready, s->n_hosts);
    for (uint32_t i = 0; s->hosts && i < s->n_hosts && named < HOSTS_NAMED; i++)
        if (!s->hosts[i].ready)
            line_put(line, TINT_NONE, "%s%s %s", named++ ? "; " : " (", s->hosts[i].name, s->hosts[i].state);
    if (s->n_hosts - ready > named)
        line_put(line, TINT_NONE, "; %u more", s->n_hosts - ready - named);
    if (named)
        line_put(line, TINT_NONE, ")");
}

void view_line(struct text *out, const struct status *s)
{
    struct line line = {.utf8 = true};
    format_buffer a, b;
    line_put(&line, TINT_NONE, "%s %s", short_time(a, s->elapsed_s), phase_name(s->phase));
    add_count(&line, "steps", s->steps, s->stop_steps);
    if (s->stop_learner_steps)
        add_count(&line, "updates", s->learner_steps, s->stop_learner_steps);
    if (isfinite(s->progress))
        line_put(&line, TINT_NONE, " progress %.0f%%", 100 * s->progress);
    line_put(&line, TINT_NONE, " %s steps/s %s updates/s", tight(a, s->steps_rate), tight(b, s->updates_rate));
    if (isfinite(s->spi)) {
        line_put(&line, TINT_NONE, " spi %.3g", s->spi);
        if (s->spi_target > 0)
            line_put(&line, TINT_NONE, "/%.4g", s->spi_target);
    }
    if (isfinite(s->value))
        line_put(&line, TINT_NONE, " return %.4g (best %.4g)", s->value, s->best);
    add_percent(&line, "learners wait", s->learner_idle, s->idle_by.learner);
    add_percent(&line, "actors wait", s->actor_idle, s->idle_by.actor);
    if (status_is_limited(s) && s->cause[0] && s->phase < PHASE_DONE)
        line_put(&line, TINT_NONE, " limited by %s", s->cause);
    if (s->others > 0)
        line_put(&line, TINT_NONE, " other programs take %.1f cores", s->others);
    add_hosts(&line, s);
    if (s->restarts)
        line_put(&line, TINT_NONE, " restarts %u", s->restarts);
    if (s->reason[0] && s->phase != PHASE_FAILED)
        line_put(&line, TINT_NONE, " (%s)", s->reason);
    text_add(out, "%s", text_get(&line.text));
    line_fini(&line);
}
