/* The part of the view about speed: rates against the plan, which side waits for which, the table. */
#include <math.h>
#include <stdio.h>

#include "agent/launch/view/frame.h"

#define WAITS_LINES 2u /* for the sentence about what limits the run */

const char *view_number(char *out, double value)
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

void view_add_speed(struct frame *self)
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

void view_add_waits(struct frame *self)
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

void view_add_table(struct frame *self)
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
