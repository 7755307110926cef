#include "agent/client/writer/structured.h"

#include <float.h>
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "proto/base/dtype.h"
#include "proto/base/error.h"

/* ---- comparing */

/* A long double holds every double and every whole number of 64 bits, so nothing is rounded. */
_Static_assert(LDBL_MANT_DIG >= 64, "a long double holds 64 bits");

static bool compare_holds(long double value, const rp_condition *condition)
{
    int order = (value > condition->number) - (value < condition->number);
    if (isnan(value))
        return condition->a == RP_COMPARE_NE;
    switch (condition->a) {
    case RP_COMPARE_EQ:
        return order == 0;
    case RP_COMPARE_NE:
        return order != 0;
    case RP_COMPARE_LT:
        return order < 0;
    case RP_COMPARE_LE:
        return order <= 0;
    case RP_COMPARE_GT:
        return order > 0;
    default:
        return order >= 0;
    }
}

static bool condition_value_holds(const rp_condition *condition, const struct step_stream *stream)
{
    const struct step_column *column = &stream->columns[condition->column];
    const void *data = step_stream_current(stream, condition->column);
    union {
        uint64_t whole; /* little-endian */
        float single;
        double real;
    } value = {0};
    if (!data)
        return false;
    memcpy(&value, data, column->elem_bytes);
    uint32_t unused = 64 - 8 * column->elem_bytes;
    bool is_signed = column->dtype >= RP_DTYPE_INT8 && column->dtype <= RP_DTYPE_INT64;
    return compare_holds(column->dtype == RP_DTYPE_FLOAT32   ? (long double)value.single
                         : column->dtype == RP_DTYPE_FLOAT64 ? (long double)value.real
                         : is_signed                         ? (long double)((int64_t)(value.whole << unused) >> unused)
                                                             : (long double)value.whole,
                         condition);
}

/* ---- checking */

static rp_status check_column(const rp_condition *condition, const struct step_stream *stream, rp_error *err)
{
    if (condition->column >= stream->n_columns)
        return err_set(err, RP_INVALID_ARGUMENT, "a condition names column %u, the stream has %u", condition->column,
                       stream->n_columns);
    const struct step_column *column = &stream->columns[condition->column];
    bool is_number = column->is_integer || column->dtype == RP_DTYPE_BOOL || column->dtype == RP_DTYPE_FLOAT32 ||
                     column->dtype == RP_DTYPE_FLOAT64;
    if (!is_number || column->row_bytes != column->elem_bytes)
        return err_set(err, RP_INVALID_ARGUMENT,
                       "a condition compares one number: column '%s' has %" PRIu64 " values of type %s per step",
                       column->name, column->row_bytes / column->elem_bytes, dtype_name(column->dtype));
    return RP_OK;
}

static rp_status condition_check(const rp_condition *condition, const struct step_stream *stream, rp_error *err)
{
    if (condition->kind < RP_WHEN_STEP_MODULO || condition->kind > RP_WHEN_STEPS)
        return err_set(err, RP_INVALID_ARGUMENT, "there is no condition of kind %" PRId32, condition->kind);
    if (condition->kind == RP_WHEN_STEP_MODULO && condition->b >= condition->a)
        return err_set(err, RP_INVALID_ARGUMENT,
                       "steps modulo %" PRIu64 " are never %" PRIu64 ": the pattern would make no item", condition->a,
                       condition->b);
    if (condition->kind != RP_WHEN_VALUE && condition->kind != RP_WHEN_STEPS)
        return RP_OK;
    if (condition->a < RP_COMPARE_EQ || condition->a > RP_COMPARE_GE)
        return err_set(err, RP_INVALID_ARGUMENT, "there is no comparison of kind %" PRIu64, condition->a);
    if (isnan(condition->number))
        return err_set(err, RP_INVALID_ARGUMENT, "a condition compares with a number, not with NaN");
    return condition->kind == RP_WHEN_VALUE ? check_column(condition, stream, err) : RP_OK;
}

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
        return compare_holds(steps, condition);
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

struct pattern *structured_next(struct structured *self, const struct step_stream *stream, bool end, uint32_t *at)
{
    uint64_t steps = step_stream_length(stream);
    while (*at < self->count) {
        struct pattern *pattern = &self->patterns[(*at)++];
        if (pattern->at_end != end || !fits(pattern, stream))
            continue;
        bool all = !pattern->has_values || pattern->values_hold;
        for (uint32_t c = 0; all && c < pattern->n_conditions; c++)
            all = holds(pattern, &pattern->conditions[c], steps);
        if (all)
            return pattern;
    }
    return NULL;
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

rp_status structured_check(const rp_pattern *in, const struct step_stream *stream, rp_error *err)
{
    for (uint32_t i = 0; i < in->n_slices; i++)
        RP_TRY(check_slice(&in->slices[i], stream, err));
    for (uint32_t i = 0; i < in->n_conditions; i++)
        RP_TRY(condition_check(&in->conditions[i], stream, err));
    return RP_OK;
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

rp_status structured_add(struct structured *self, const rp_pattern *in, uint32_t table, rp_error *err)
{
    struct pattern pattern = {.table = table, .priority = in->priority};
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
