/* The view of a run: its lines, and which of them are dropped first when there is little room. */
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "agent/launch/plot/plot.h"
#include "agent/launch/view/frame.h"

#define LIST_LEAST 6u    /* lines of the list of processes that a key has asked for */
#define MESSAGES_ROOM 6u /* lines */

struct line *frame_line(struct frame *self, enum rank rank)
{
    return sheet_line(&self->sheet, rank);
}

struct line *frame_row(struct frame *self, enum rank rank, const char *label)
{
    return sheet_row(&self->sheet, rank, label);
}

uint32_t frame_columns(const struct frame *self)
{
    return sheet_columns(&self->sheet);
}

bool view_over(const struct frame *self)
{
    return self->status->phase >= PHASE_DONE;
}

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
