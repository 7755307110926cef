/* See structured.h. */
#include "agent/client/writer/structured.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "agent/client/writer/condition.h"
#include "agent/client/writer/lane.h"
#include "proto/base/error.h"

static void pattern_fini(struct pattern *self)
{
    for (uint32_t i = 0; self->slices && i < self->n_slices; i++)
        free((char *)(uintptr_t)self->slices[i].field);
    free(self->slices);
    free(self->conditions);
}

void structured_fini(struct structured *self)
{
    for (uint32_t i = 0; i < self->count; i++)
        pattern_fini(&self->patterns[i]);
    free(self->patterns);
    *self = (struct structured){0};
}

void structured_drop_newest(struct structured *self)
{
    struct pattern *pattern = &self->patterns[--self->count];
    self->at_end -= pattern->at_end;
    self->with_values -= pattern->has_values;
    pattern_fini(pattern);
}

void structured_reset(struct structured *self)
{
    for (uint32_t i = 0; i < self->count; i++)
        self->patterns[i].made = false;
}

/* ---- applying */

static bool holds(const struct pattern *pattern, const rp_condition *condition, uint64_t steps)
{
    switch (condition->kind) {
    case RP_WHEN_STEP_MODULO:
        return steps % condition->a == condition->b;
    case RP_WHEN_MIN_STEPS:
        return steps >= condition->a;
    case RP_WHEN_EVERY:
        return !pattern->made || steps - pattern->last_step >= condition->a;
    case RP_WHEN_STEPS:
        return condition_steps_hold(condition, steps);
    default:
        return true; /* the caller has checked at_end and values_hold */
    }
}

void structured_look(struct structured *self, const struct step_stream *stream)
{
    for (uint32_t i = 0; i < self->count; i++) {
        struct pattern *pattern = &self->patterns[i];
        pattern->values_hold = true;
        for (uint32_t c = 0; pattern->values_hold && c < pattern->n_conditions; c++)
            pattern->values_hold =
                pattern->conditions[c].kind != RP_WHEN_VALUE || condition_value_holds(&pattern->conditions[c], stream);
    }
}

/* Returns true if the stream has all values that the slices name. */
static bool fits(const struct pattern *pattern, const struct step_stream *stream)
{
    uint64_t length = step_stream_length(stream);
    for (uint32_t i = 0; i < pattern->n_slices; i++) {
        const rp_slice *slice = &pattern->slices[i];
        uint64_t back = (uint64_t)-slice->start, stride = slice->stride ? slice->stride : 1;
        if (back > length)
            return false;
        uint64_t step = stream->steps - back, left = slice->squeeze ? 1 : slice->count ? slice->count : UINT64_MAX;
        for (; step < stream->steps && step < stream->absent_step && left > 0; step += stride, left--)
            if (step_stream_is_absent(stream, slice->column, step))
                return false;
    }
    return true;
}

rp_status structured_apply(struct lane *writer, bool end, rp_error *err)
{
    uint64_t steps = step_stream_length(&writer->stream);
    for (uint32_t i = 0; i < writer->structured.count; i++) {
        struct pattern *pattern = &writer->structured.patterns[i];
        if (pattern->at_end != end || !fits(pattern, &writer->stream))
            continue;
        bool all = !pattern->has_values || pattern->values_hold;
        for (uint32_t c = 0; all && c < pattern->n_conditions; c++)
            all = holds(pattern, &pattern->conditions[c], steps);
        if (!all)
            continue;
        struct item_slices item = lane_slices(writer, pattern->table, pattern->slices, pattern->n_slices);
        RP_TRY(lane_make_item(writer, &item, pattern->priority, NULL, err));
        pattern->made = true;
        pattern->last_step = steps;
    }
    return RP_OK;
}

/* ---- adding */

static rp_status check_slice(const rp_slice *slice, const struct step_stream *stream, rp_error *err)
{
    if (slice->start >= 0)
        return err_set(err, RP_INVALID_ARGUMENT,
                       "slices of patterns are counted back from the newest step: start is %" PRId64
                       ", it must be negative",
                       slice->start);
    if ((uint64_t)-slice->start > stream->keep_alive)
        return err_set(err, RP_INVALID_ARGUMENT, "a slice starts %" PRIu64 " steps back, but keep_alive is %" PRIu64,
                       (uint64_t)-slice->start, stream->keep_alive);
    return RP_OK;
}

/* Runs the checks of an item on a full window, so that mistakes show now and not at the first item. */
static rp_status check_pattern(struct lane *writer, uint32_t table, const rp_pattern *in, rp_error *err)
{
    struct step_stream full = writer->stream;
    struct item_layout *layout;
    struct item_steps span;
    full.episode_start = 0;
    full.steps = full.keep_alive;
    full.absent_step = 0;
    for (uint32_t i = 0; i < in->n_slices; i++)
        RP_TRY(check_slice(&in->slices[i], &full, err));
    for (uint32_t i = 0; i < in->n_conditions; i++)
        RP_TRY(condition_check(&in->conditions[i], &full, err));
    struct item_slices item = {&full, &writer->hello->tables[table], in->slices, in->n_slices};
    return item_layouts_get(&writer->layouts, &item, table, &layout, &span, err);
}

static bool pattern_copy(struct pattern *self, const rp_pattern *in)
{
    self->slices = calloc(in->n_slices, sizeof *self->slices);
    self->conditions = calloc(in->n_conditions ? in->n_conditions : 1, sizeof *self->conditions);
    if (!self->slices || !self->conditions)
        return false;
    for (uint32_t i = 0; i < in->n_slices; i++) {
        self->slices[i] = in->slices[i];
        self->slices[i].field = NULL;
        self->n_slices = i + 1;
        if (in->slices[i].field && !(self->slices[i].field = strdup(in->slices[i].field)))
            return false;
    }
    for (uint32_t i = 0; i < in->n_conditions; i++) {
        self->conditions[self->n_conditions++] = in->conditions[i];
        self->at_end |= in->conditions[i].kind == RP_WHEN_END_OF_EPISODE;
        self->has_values |= in->conditions[i].kind == RP_WHEN_VALUE;
    }
    return true;
}

rp_status lane_add_pattern(struct lane *writer, const rp_pattern *in, rp_error *err)
{
    struct structured *self = &writer->structured;
    struct pattern pattern = {.priority = in->priority};
    RP_TRY(lane_check_process(writer, err));
    RP_TRY(lane_table(writer, in->table, &pattern.table, err));
    RP_TRY(lane_check_priority(in->priority, err));
    RP_TRY(check_pattern(writer, pattern.table, in, err));
    struct pattern *grown = realloc(self->patterns, (self->count + 1) * sizeof *grown);
    if (grown)
        self->patterns = grown;
    if (!grown || !pattern_copy(&pattern, in)) {
        pattern_fini(&pattern);
        return err_set(err, RP_NO_MEMORY, "no memory for a pattern");
    }
    self->patterns[self->count++] = pattern;
    self->at_end += pattern.at_end;
    self->with_values += pattern.has_values;
    return RP_OK;
}
