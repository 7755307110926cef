/* The view of a run: the same status as lines of a terminal, or as one plain line. */
#include "agent/launch/view.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "agent/view/tui.h"
#include "proto/base/need.h"

#define COLUMN_1 CANVAS_LABEL
#define COLUMN_2 32u
#define COLUMN_3 48u
#define NARROW CANVAS_NARROW
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
    struct tui *tui;
    struct canvas canvas;
};

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
static double view_mean_of(const double *values, uint32_t first, uint32_t end)
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
            double mean = view_mean_of(values, first, end);
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

/* ---- hosts: a table with those that need attention first, and the number of those that do not fit ---- */

#define ROWS_MOST 40u  /* of the table, without a terminal */
#define ROWS_LEAST 2u  /* titles and one host */
#define NAME_MOST 24u  /* columns; a longer name is cut */
#define URGENT_MOST 3u /* hosts that are not ready have a line even in a very small terminal */

static void put_pair(char *out, uint32_t running, uint32_t wanted)
{
    snprintf(out, FORMAT_SIZE, running || wanted ? "%u/%u" : "-", running, wanted);
}

/* Without the reason of its absence, which has a line of its own. */
static void put_state(char *out, const struct status_host *host)
{
    const char *state = host->state[0] ? host->state : host->ready ? "ready" : "not ready";
    snprintf(out, FORMAT_SIZE, "%.*s", (int)(strcspn(state, ":") < 40 ? strcspn(state, ":") : 40), state);
}

LIST_CELL(host_name, status_host, h, snprintf(out, FORMAT_SIZE, "%.40s", h->name))
LIST_CELL(host_actors, status_host, h, put_pair(out, h->actors, h->actors_wanted))
LIST_CELL(host_learners, status_host, h, put_pair(out, h->learners, h->learners_wanted))
LIST_CELL(host_state, status_host, h, put_state(out, h))
LIST_CELL(host_cores, status_host, h,
          snprintf(out, FORMAT_SIZE, h->cores > 0 ? "%.1f of %.4g" : "%.1f", h->cpu, h->cores))
LIST_CELL(host_load, status_host, h,
          snprintf(out, FORMAT_SIZE, isfinite(h->machine_cpu) ? "%.1f" : "-", h->machine_cpu))
LIST_CELL(host_round_trip, status_host, h, format_seconds(out, h->round_trip_ms < 1e9 ? h->round_trip_ms * 1e-3 : NAN))
LIST_CELL(host_times, status_host, h, snprintf(out, FORMAT_SIZE, h->times ? "%u" : "-", h->times))

/* Orders hosts: those that are away, those with too few processes, the others. */
static uint32_t host_need(const struct status_host *host)
{
    bool complete = host->actors >= host->actors_wanted && host->learners >= host->learners_wanted;
    return !host->ready ? 0 : !complete ? 1 : 2;
}

/* Adds a table of the hosts, if there are several, in a third of the terminal, and why hosts are away. */
static void view_add_hosts(struct frame *self)
{
    struct list_column columns[] = {
        {"host", CANVAS_LABEL - 2, true, host_name, NULL}, {"actors", 7, false, host_actors, NULL},
        {"learners", 8, false, host_learners, NULL},       {"state", 14, true, host_state, NULL},
        {"cores used", 11, false, host_cores, NULL},       {"load", 5, false, host_load, NULL},
        {"round trip", 10, false, host_round_trip, NULL},  {"taken in", 8, false, host_times, NULL},
    };
    const struct status *s = self->status;
    if (s->n_hosts < 2 || !s->hosts || view_over(self))
        return;
    uint32_t room = self->canvas.style->rows ? self->canvas.style->rows / 3 : ROWS_MOST, n = 0, urgent = 0;
    struct tui tui = {0};
    struct status_host *rows = need_alloc(s->n_hosts * sizeof *rows);
    for (uint32_t need = 0; need < 3; need++)
        for (uint32_t i = 0; i < s->n_hosts; i++)
            if (host_need(&s->hosts[i]) == need)
                rows[n++] = s->hosts[i];
    for (uint32_t i = 0; i < n; i++) {
        uint32_t width = format_width(rows[i].name),
                 most = canvas_columns(&self->canvas) < CANVAS_NARROW ? 9 : NAME_MOST;
        width = width < most ? width : most;
        columns[0].width = width > columns[0].width ? width : columns[0].width;
    }
    const struct list list = {.columns = columns,
                              .n_columns = sizeof columns / sizeof *columns,
                              .rows = rows,
                              .n_rows = s->n_hosts,
                              .size = sizeof *rows};
    canvas_line(&self->canvas, RANK_BLANK);
    list_add(&self->canvas, RANK_HOSTS, &list, &tui, room < ROWS_LEAST ? ROWS_LEAST : room);
    if (tui.page < s->n_hosts)
        line_put(canvas_line(&self->canvas, RANK_HOSTS), TINT_DIM, " and %u more", s->n_hosts - tui.page);
    for (uint32_t i = 0; i < s->n_hosts && !rows[i].ready && urgent < URGENT_MOST; i++, urgent++) {
        char text[sizeof rows->name + sizeof rows->state];
        snprintf(text, sizeof text, "%s %s", rows[i].name, rows[i].state[0] ? rows[i].state : "not ready");
        canvas_wrapped(&self->canvas, RANK_ABNORMAL, "", TINT_BAD, text, 2);
    }
    free(rows);
}

/* Whether a host of this name is known and not ready. */
static bool view_host_away(const struct status *s, const char *name)
{
    for (uint32_t i = 0; name[0] && s->hosts && i < s->n_hosts; i++)
        if (strcmp(s->hosts[i].name, name) == 0)
            return !s->hosts[i].ready;
    return false;
}

/* ---- processes: a list, which keys sort and scroll ---- */

LIST_CELL(cell_name, status_process, p, snprintf(out, FORMAT_SIZE, "%s", p->name))
LIST_CELL(cell_state, status_process, p, snprintf(out, FORMAT_SIZE, "%s", p->state))
LIST_CELL(cell_cores, status_process, p, snprintf(out, FORMAT_SIZE, "%.2f", p->cpu))
LIST_CELL(cell_memory, status_process, p, format_bytes(out, p->memory))
LIST_CELL(cell_restarts, status_process, p, snprintf(out, FORMAT_SIZE, "%u", p->restarts))
LIST_CELL(cell_host, status_process, p, snprintf(out, FORMAT_SIZE, "%.40s", p->host))

/* "actor-2" is before "actor-10". */
static int view_by_name(const void *a, const void *b)
{
    const struct status_process *p = a, *q = b;
    return p->role != q->role ? (p->role > q->role) - (p->role < q->role) : strverscmp(p->name, q->name);
}

LIST_ORDER(by_cores, status_process, cpu, view_by_name)
LIST_ORDER(by_memory, status_process, memory, view_by_name)
LIST_ORDER(by_restarts, status_process, restarts, view_by_name)

static const struct list_column process_columns[] = {
    {"process", 14, true, cell_name, view_by_name},     {"state", 18, true, cell_state, NULL},
    {"cores", 6, false, cell_cores, by_cores},          {"memory", 9, false, cell_memory, by_memory},
    {"restarts", 9, false, cell_restarts, by_restarts}, {"host", 16, true, cell_host, NULL},
};

/* The part of the view about speed: rates against the plan, which side waits for which, the table. */

#define WAITS_LINES 2u /* for the sentence about what limits the run */

/* ---- speed ---- */

static void add_speed(struct frame *self)
{
    const struct status *s = self->status;
    format_buffer a, b;
    struct line *line = canvas_row(&self->canvas, RANK_SPEED, "speed");
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
    struct line *line = canvas_row(&self->canvas, RANK_RATES, label);
    line_put(line, TINT_NONE, "%s", format_rate(now, rate));
    if (isfinite(plan))
        put_plan(line, "plan", format_rate(planned, plan), self->status->phase == PHASE_RUNNING ? rate : NAN, plan);
}

static void add_ratio(struct frame *self)
{
    const struct status *s = self->status;
    format_buffer now, target;
    struct line *line = canvas_row(&self->canvas, RANK_SPI, "SPI");
    line_put(line, TINT_NONE, "%s", format_measured(now, s->spi));
    if (s->spi_target > 0)
        put_plan(line, "target", format_measured(target, s->spi_target), s->phase == PHASE_RUNNING ? s->spi : NAN,
                 s->spi_target);
}

/* ---- who waits ---- */

static void add_idle(struct frame *self, const char *label, double idle, double plan, const double by[IDLE_CAUSES])
{
    char causes[128];
    struct line *line = isfinite(idle) ? canvas_row(&self->canvas, RANK_IDLE, label) : NULL;
    if (!line)
        return;
    uint32_t wide = canvas_columns(&self->canvas);
    line_bar(line, idle > (isfinite(plan) ? plan : 0) + FAR_OFF ? TINT_WARN : TINT_BAR, canvas_bar(&self->canvas),
             idle);
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
    bool limited = why_limits(s->why.cause);
    canvas_wrapped(&self->canvas, RANK_WAITS, "waits", limited ? TINT_NONE : TINT_DIM, limited ? s->why.text : "nobody",
                   WAITS_LINES);
    canvas_wrapped(&self->canvas, RANK_IDLE, "advice", TINT_DIM, s->why.advice, 1);
}

static void view_add_table(struct frame *self)
{
    const struct status *s = self->status;
    struct line *line = s->max_size ? canvas_row(&self->canvas, RANK_TABLE, "table") : NULL;
    format_buffer size, most, least;
    if (!line)
        return;
    line_bar(line, TINT_BAR, canvas_bar(&self->canvas), (double)s->size / (double)s->max_size);
    line_put(line, TINT_NONE, " %s", format_count(size, s->size));
    line_try(line, TINT_NONE, " of %s items", format_count(most, s->max_size));
    if (s->min_size > 0 && s->min_size < 1e15 && (double)s->size < s->min_size)
        line_try(line, TINT_WARN, "  %s before the first sample", format_count(least, (uint64_t)s->min_size));
    if (!view_over(self))
        canvas_cursor(&self->canvas, RANK_TABLE, "cursor", s->cursor, s->cursor_low, s->cursor_high);
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
    struct line *line = canvas_line(&self->canvas, RANK_HEAD);
    format_buffer time;
    line_put(line, TINT_BOLD, " %s", s->name);
    line_put(line, phase_tint(s->phase), "  %s", phase_name(s->phase));
    line_try(line, TINT_NONE, "  %s", format_seconds(time, s->elapsed_s));
    if (self->tui->paused)
        line_try(line, TINT_WARN, "  [paused]");
    uint32_t folder = format_width(s->folder) + 1, wide = canvas_columns(&self->canvas);
    if (s->folder[0] && folder + 2 <= line_left(line)) {
        line_to(line, wide > folder ? wide - folder : 1);
        line_put(line, TINT_DIM, "%s", s->folder);
    }
}

/* "steps 31,200 of 100,000": the stop condition that is nearest to being met, which progress counts; "" without one. */
static void describe_end(const struct status *s, char *out, size_t size)
{
    format_buffer at[4], to[4];
    const struct {
        const char *what, *at_text, *to_text;
        double at, to; /* to: not finite or 0 means that there is no such condition */
    } ends[] = {
        {"steps ", format_count(at[0], s->steps), format_count(to[0], s->stop_steps), (double)s->steps,
         (double)s->stop_steps},
        {"updates ", format_count(at[1], s->learner_steps), format_count(to[1], s->stop_learner_steps),
         (double)s->learner_steps, (double)s->stop_learner_steps},
        {"return ", format_measured(at[2], s->value), format_measured(to[2], s->stop_value), s->value, s->stop_value},
        {"", format_seconds(at[3], s->elapsed_s), format_seconds(to[3], s->stop_time_s), s->elapsed_s, s->stop_time_s},
    };
    double progress = isfinite(s->progress) ? s->progress : 0, nearest = INFINITY;
    out[0] = '\0';
    for (uint32_t i = 0; i < 4; i++) {
        double share = ends[i].at / ends[i].to, off = fabs((isfinite(share) ? fmin(share, 1) : 0) - progress);
        if (!isfinite(ends[i].to) || ends[i].to == 0 || !(off < nearest))
            continue;
        nearest = off;
        snprintf(out, size, "%s%s of %s", ends[i].what, ends[i].at_text, ends[i].to_text);
    }
}

static void add_progress(struct frame *self)
{
    const struct status *s = self->status;
    struct line *line = canvas_line(&self->canvas, RANK_PROGRESS);
    char end[128];
    format_buffer eta, at;
    bool reached = s->phase == PHASE_DONE && isfinite(s->stop_value) && s->best >= s->stop_value;
    double progress = reached ? 1 : s->progress;
    if (reached)
        snprintf(end, sizeof end, "return %s of %s", format_measured(at, s->best), format_measured(eta, s->stop_value));
    else
        describe_end(s, end, sizeof end);
    uint32_t wide = canvas_columns(&self->canvas), bar = wide > 75 ? wide / 2 - 8 : wide / 3;
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
    if (s->reason[0])
        line_put(canvas_line(&self->canvas, RANK_ABNORMAL), s->phase == PHASE_FAILED ? TINT_BAD : TINT_NONE, " %s",
                 s->reason);
}

/* ---- returns ---- */

static void add_return(struct frame *self)
{
    const struct status *s = self->status;
    struct line *line = canvas_row(&self->canvas, RANK_RETURN, "return");
    format_buffer newest, best, target, actors;
    if (isfinite(s->value)) {
        line_put(line, TINT_BOLD, "%s", format_measured(newest, s->value));
        line_try(line, TINT_NONE, "   best %s", format_measured(best, s->best));
    } else {
        line_put(line, TINT_DIM, "none yet");
    }
    if (isfinite(s->stop_value))
        line_try(line, s->value >= s->stop_value ? TINT_GOOD : TINT_DIM, "   target %s",
                 format_measured(target, s->stop_value));
    if (isfinite(s->actor_value))
        line_try(line, TINT_DIM, "   actors %s", format_measured(actors, s->actor_value));
    line = s->n_values && s->values ? canvas_row(&self->canvas, RANK_CURVE, "") : NULL;
    if (!line)
        return;
    struct text curve = {0};
    uint32_t wide = canvas_columns(&self->canvas);
    view_sparkline(&curve, s->values, s->n_values, wide > COLUMN_1 + 1 ? wide - COLUMN_1 - 1 : 1,
                   self->canvas.style->utf8);
    line_put(line, TINT_BAR, "%s", text_get(&curve));
    text_fini(&curve);
}

/* ---- processes ---- */

static void view_add_processes(struct frame *self)
{
    const struct status *s = self->status;
    format_buffer used, limit;
    struct line *line = canvas_row(&self->canvas, RANK_PROCESSES, "processes");
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
    if (s->shards > 1) {
        line = canvas_row(&self->canvas, RANK_PROCESSES, "broker");
        line_put(line, TINT_NONE, "%u shards", s->shards);
        if (s->shards_reason[0])
            line_try(line, TINT_DIM, "   %s", s->shards_reason);
    }
    line = canvas_row(&self->canvas, RANK_MEMORY, "memory");
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
        struct line *line = canvas_row(&self->canvas, away ? RANK_ABNORMAL : RANK_PROCESSES, "");
        line_put(line, away ? TINT_BAD : TINT_WARN, "%s%s%s %s", p->name, p->host[0] ? " on " : "", p->host, p->state);
        if (p->restarts)
            line_try(line, TINT_DIM, "   %u restart%s", p->restarts, p->restarts > 1 ? "s" : "");
        shown++;
    }
    if (more)
        line_put(canvas_row(&self->canvas, RANK_PROCESSES, ""), TINT_DIM, "and %u more", more);
}

static void add_event(struct frame *self)
{
    const struct status *s = self->status;
    bool told = s->reason[0] && strstr(s->event, s->reason); /* shown above already */
    struct line *line = s->event[0] && !told ? canvas_row(&self->canvas, RANK_EVENT, "event") : NULL;
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
 * asked for the list, it takes all the room. */
static void add_list(struct frame *self)
{
    const struct status *s = self->status;
    struct tui *tui = self->tui;
    size_t size = s->n_processes * sizeof *s->processes;
    uint32_t rows = self->canvas.style->rows, used = self->canvas.n + 2 + (tui->chosen ? 0 : MESSAGES_ROOM);
    uint32_t left = rows > used ? rows - used : 0;
    if (view_over(self) || !rows || !tui->keys)
        return;
    canvas_line(&self->canvas, RANK_BLANK);
    if (!s->processes || size == 0)
        return;
    void *sorted = need_alloc(size);
    memcpy(sorted, s->processes, size);
    const struct list list = {.columns = process_columns,
                              .n_columns = sizeof process_columns / sizeof *process_columns - (s->n_hosts > 1 ? 0 : 1),
                              .rows = sorted,
                              .n_rows = s->n_processes,
                              .size = sizeof *s->processes};
    list_add(&self->canvas, tui->chosen ? RANK_HOSTS : RANK_LIST, &list, tui,
             tui->chosen && left < LIST_LEAST ? LIST_LEAST : left);
    free(sorted);
}

static void build(struct frame *self)
{
    const struct status *s = self->status;
    add_head(self);
    if (self->tui->help) {
        canvas_line(&self->canvas, RANK_BLANK);
        tui_add_help(&self->canvas, RANK_PROGRESS, self->tui, "processes");
        return;
    }
    add_progress(self);
    canvas_line(&self->canvas, RANK_BLANK);
    add_speed(self);
    add_rate(self, "inserts", s->inserts_rate, s->planned_inserts);
    add_rate(self, "samples", s->samples_rate, s->planned_samples);
    add_ratio(self);
    canvas_line(&self->canvas, RANK_BLANK);
    view_add_waits(self);
    view_add_table(self);
    canvas_line(&self->canvas, RANK_BLANK);
    add_return(self);
    canvas_line(&self->canvas, RANK_BLANK);
    if (!view_over(self))
        view_add_processes(self);
    view_add_hosts(self);
    add_abnormal(self);
    add_event(self);
    add_list(self);
}

void view_draw(struct text *out, const struct status *status, const struct canvas_style *style, struct tui *tui)
{
    struct canvas_style fit = canvas_fit(style);
    struct frame frame = {.status = status, .tui = tui, .canvas = {.style = &fit}};
    build(&frame);
    bool used = tui->chosen || tui->paused || tui->help; /* who has used keys wants to see them */
    if (!view_over(&frame))
        tui_add_footer(&frame.canvas, used ? RANK_PROGRESS : RANK_FOOTER, tui);
    canvas_write(&frame.canvas, out);
}

void view_render(struct text *out, const struct status *status, uint32_t columns, uint32_t rows, bool utf8)
{
    struct tui tui = {0};
    view_draw(out, status, &(struct canvas_style){.columns = columns, .rows = rows, .utf8 = utf8}, &tui);
}

/* One plain line about a run, for logs and pipes. */

static void add_count(struct line *line, const char *what, uint64_t at, uint64_t to)
{
    format_buffer a, b;
    line_put(line, TINT_NONE, " %s %s", what, format_count(a, at));
    if (to)
        line_put(line, TINT_NONE, "/%s", format_count(b, to));
}

void view_line(struct text *out, const struct status *s)
{
    struct line line = {.utf8 = true};
    format_buffer a, b;
    line_put(&line, TINT_NONE, "%s %s", format_seconds(a, s->elapsed_s), phase_name(s->phase));
    add_count(&line, "steps", s->steps, s->stop_steps);
    if (s->stop_learner_steps)
        add_count(&line, "updates", s->learner_steps, s->stop_learner_steps);
    if (isfinite(s->progress))
        line_put(&line, TINT_NONE, " progress %.0f%%", 100 * s->progress);
    line_put(&line, TINT_NONE, " %s steps/s %s updates/s", format_short(a, s->steps_rate),
             format_short(b, s->updates_rate));
    if (isfinite(s->spi)) {
        line_put(&line, TINT_NONE, " spi %.3g", s->spi);
        if (s->spi_target > 0)
            line_put(&line, TINT_NONE, "/%.4g", s->spi_target);
    }
    if (isfinite(s->value))
        line_put(&line, TINT_NONE, " return %.4g (best %.4g)", s->value, s->best);
    if (isfinite(s->learner_idle))
        line_put(&line, TINT_NONE, " learners wait %.0f%%", 100 * s->learner_idle);
    if (isfinite(s->actor_idle))
        line_put(&line, TINT_NONE, " actors wait %.0f%%", 100 * s->actor_idle);
    if (why_limits(s->why.cause) && s->phase < PHASE_DONE)
        line_put(&line, TINT_NONE, " limited by %s", why_cause_names[s->why.cause]);
    if (s->others > 0)
        line_put(&line, TINT_NONE, " other programs take %.1f cores", s->others);
    if (s->n_hosts > 1 && s->phase < PHASE_DONE)
        line_put(&line, TINT_NONE, " hosts %u/%u", view_hosts_ready(s), s->n_hosts);
    if (s->restarts)
        line_put(&line, TINT_NONE, " restarts %u", s->restarts);
    if (s->reason[0] && s->phase != PHASE_FAILED)
        line_put(&line, TINT_NONE, " (%s)", s->reason);
    text_add(out, "%s", text_get(&line.text));
    line_fini(&line);
}
