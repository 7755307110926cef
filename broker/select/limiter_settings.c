/* The settings of a limiter: their names, what is allowed, and changes while it runs. */
#include "broker/select/limiter.h"

#include <float.h>
#include <inttypes.h>
#include <math.h>
#include <string.h>

#include "proto/base/crc32c.h"
#include "proto/base/error.h"

static const char *const kind_names[] = {
    [LIMITER_NONE] = "none",   [LIMITER_MIN_SIZE] = "min_size", [LIMITER_RATIO] = "sample_to_insert_ratio",
    [LIMITER_QUEUE] = "queue", [LIMITER_STACK] = "stack",
};

#define N_KINDS ((int)(sizeof kind_names / sizeof kind_names[0]))

int limiter_kind_by_name(const char *name)
{
    for (int i = 0; i < N_KINDS; i++) {
        if (strcmp(kind_names[i], name) == 0)
            return i;
    }
    return -1;
}

const char *limiter_kind_name(enum limiter_kind kind)
{
    return (int)kind >= 0 && (int)kind < N_KINDS ? kind_names[kind] : "unknown";
}

/* ---- checks */

static rp_status check_count(const char *name, double value, rp_error *err)
{
    if (!(value >= 1.0))
        return err_set(err, RP_INVALID_ARGUMENT, "%s is %g; write a whole number of at least 1", name, value);
    if (value > (double)LIMITER_MOST_COUNT)
        return err_set(err, RP_INVALID_ARGUMENT, "%s is %g; write at most %" PRIu64, name, value, LIMITER_MOST_COUNT);
    if (value != floor(value))
        return err_set(err, RP_INVALID_ARGUMENT, "%s is %g, not a whole number; write %.0f", name, value, ceil(value));
    return RP_OK;
}

static rp_status set_min_size(struct limiter *self, double value, rp_error *err)
{
    if (!self->part || value != 0.0)
        RP_TRY(check_count("min_size", value, err));
    self->min_size_part = value;
    self->min_size = fmax(1.0, value);
    return RP_OK;
}

static rp_status check_speed(const struct limiter *self, rp_error *err)
{
    double spi = self->samples_per_insert;
    if (!(spi > 0.0) || !isfinite(spi))
        return err_set(err, RP_INVALID_ARGUMENT,
                       "samples_per_insert is %g; write a number above 0, such as 8 (use limiter min_size if inserts "
                       "and samples need no ratio)",
                       spi);
    return RP_OK;
}

/* A width of 2 * max(1, samples_per_insert) >= 1 + samples_per_insert leaves no cursor at which both an insert and a
 * sample are blocked. */
static rp_status check_bounds(const struct limiter *self, rp_error *err)
{
    double spi = self->samples_per_insert;
    if (isnan(self->min_diff) || isnan(self->max_diff))
        return err_set(err, RP_INVALID_ARGUMENT,
                       "min_diff and max_diff are both needed; write them, or error_buffer alone");
    double least = 2.0 * fmax(1.0, spi);
    if (!(self->max_diff - self->min_diff >= least))
        return err_set(err, RP_INVALID_ARGUMENT,
                       "max_diff %g less min_diff %g is below 2 * max(1, samples_per_insert) = %g, so inserts and "
                       "samples could block each other; write max_diff of at least %g",
                       self->max_diff, self->min_diff, least, self->min_diff + least);
    if (self->min_diff > spi * self->min_size)
        return err_set(err, RP_INVALID_ARGUMENT,
                       "min_diff %g is above samples_per_insert * min_size = %g, so a table of min_size items could "
                       "not be sampled; write min_diff of at most %g",
                       self->min_diff, spi * self->min_size, spi * self->min_size);
    return RP_OK;
}

/* Sets both bounds around the cursor that a table has when it reaches min_size. */
static rp_status set_buffer(struct limiter *self, double error_buffer, rp_error *err)
{
    double least = fmax(1.0, self->samples_per_insert);
    if (!(error_buffer >= least))
        return err_set(err, RP_INVALID_ARGUMENT,
                       "error_buffer %g is too small: with samples_per_insert %g inserts and samples could block each "
                       "other; write at least %g",
                       error_buffer, self->samples_per_insert, least);
    double centre = self->samples_per_insert * self->min_size_part;
    self->min_diff = centre - error_buffer;
    self->max_diff = centre + error_buffer;
    return RP_OK;
}

/* The bounds come from error_buffer, unless it is NaN. */
static rp_status check_ratio(struct limiter *self, double error_buffer, rp_error *err)
{
    RP_TRY(check_speed(self, err));
    return isnan(error_buffer) ? check_bounds(self, err) : set_buffer(self, error_buffer, err);
}

static uint32_t hash_of(const struct limiter *self)
{
    const double settings[] = {(double)self->kind, self->samples_per_insert, self->min_size_part, self->min_diff,
                               self->max_diff};
    uint32_t hash = crc32c(0, settings, sizeof settings);
    return hash ? hash : 1;
}

rp_status limiter_init(struct limiter *self, const struct limiter_config *config, rp_error *err)
{
    struct limiter made = {
        .kind = config->kind,
        .part = config->part,
        .samples_per_insert = 1.0,
        .min_size = 1.0,
        .min_size_part = config->part ? 0.0 : 1.0,
        .min_diff = -DBL_MAX,
        .max_diff = DBL_MAX,
    };
    switch (config->kind) {
    case LIMITER_NONE:
        break;
    case LIMITER_MIN_SIZE:
        RP_TRY(set_min_size(&made, config->min_size, err));
        break;
    case LIMITER_RATIO:
        made.samples_per_insert = config->samples_per_insert;
        RP_TRY(set_min_size(&made, config->min_size, err));
        made.min_diff = config->min_diff;
        made.max_diff = config->max_diff;
        RP_TRY(check_ratio(&made, config->error_buffer >= 0.0 ? config->error_buffer : (double)NAN, err));
        break;
    case LIMITER_QUEUE:
    case LIMITER_STACK:
        RP_TRY(check_count("size", config->size, err));
        made.min_diff = 0.0;
        made.max_diff = config->size;
        break;
    default:
        return err_set(err, RP_INVALID_ARGUMENT,
                       "no such rate limiter; write none, min_size, sample_to_insert_ratio, queue or stack");
    }
    made.configured = hash_of(&made);
    *self = made;
    return RP_OK;
}

/* ---- changes */

static rp_status refuse_change(const struct limiter *self, const struct limiter_change *change, rp_error *err)
{
    bool size = !isnan(change->min_size);
    bool upper = !isnan(change->max_diff);
    bool others = !isnan(change->samples_per_insert) || !isnan(change->min_diff) || !isnan(change->error_buffer);
    const char *name = limiter_kind_name(self->kind);
    switch (self->kind) {
    case LIMITER_NONE:
        if (size || upper || others)
            return err_set(err, RP_FAILED_PRECONDITION, "limiter %s has no value that could be changed", name);
        break;
    case LIMITER_MIN_SIZE:
        if (upper || others)
            return err_set(err, RP_FAILED_PRECONDITION,
                           "limiter %s has only min_size; the others belong to sample_to_insert_ratio", name);
        break;
    case LIMITER_QUEUE:
    case LIMITER_STACK:
        if (size || others)
            return err_set(err, RP_FAILED_PRECONDITION, "limiter %s has only max_diff, which is its size", name);
        break;
    case LIMITER_RATIO:
        if (!isnan(change->error_buffer) && (upper || !isnan(change->min_diff)))
            return err_set(err, RP_INVALID_ARGUMENT,
                           "error_buffer sets min_diff and max_diff; write either it or them, not both");
        break;
    }
    return RP_OK;
}

static void assign(double *value, double change)
{
    if (!isnan(change))
        *value = change;
}

/* The error_buffer that gives these bounds; NaN: they do not lie around the cursor of a table that reaches min_size. */
static double buffer_of(const struct limiter *self)
{
    double centre = self->samples_per_insert * self->min_size_part, buffer = limiter_span(self) / 2.0;
    double off = fabs((self->min_diff + self->max_diff) / 2.0 - centre);
    return buffer > 0.0 && off <= 1e-9 * (buffer + fabs(centre)) ? buffer : (double)NAN;
}

/* How far the cursor is from the centre of the bounds that error_buffer sets; below min_size, how far it will be there. */
static double off_centre(const struct limiter *self)
{
    double missing = fmax(0.0, self->min_size_part - (double)limiter_size(self));
    return limiter_cursor(self) + self->samples_per_insert * (missing - self->min_size_part);
}

/* A new ratio applies to future inserts, not to past ones. */
void limiter_place(struct limiter *self, const struct limiter *from)
{
    bool follows = !isnan(buffer_of(self)) && !isnan(buffer_of(from));
    self->offset += follows ? off_centre(from) - off_centre(self) : limiter_cursor(from) - limiter_cursor(self);
}

rp_status limiter_change(struct limiter *self, const struct limiter_change *change, rp_error *err)
{
    struct limiter made = *self;
    double buffer = change->error_buffer;
    RP_TRY(refuse_change(self, change, err));
    assign(&made.samples_per_insert, change->samples_per_insert);
    if (!isnan(change->min_size))
        RP_TRY(set_min_size(&made, change->min_size, err));
    assign(&made.min_diff, change->min_diff);
    assign(&made.max_diff, change->max_diff);
    if (isnan(buffer) && isnan(change->min_diff) && isnan(change->max_diff))
        buffer = buffer_of(self);
    if (self->kind == LIMITER_RATIO) {
        RP_TRY(check_ratio(&made, buffer, err));
        limiter_place(&made, self);
    }
    if (self->kind == LIMITER_QUEUE || self->kind == LIMITER_STACK)
        RP_TRY(check_count("max_diff", made.max_diff, err));
    made.changed_from = made.configured;
    *self = made;
    return RP_OK;
}

rp_status limiter_keep(struct limiter *self, uint32_t changed_from, const struct limiter_change *settings,
                       rp_error *err)
{
    struct limiter_change change = *settings;
    if (changed_from != self->configured)
        return RP_OK;
    if (self->kind != LIMITER_RATIO)
        change.samples_per_insert = change.min_diff = NAN;
    if (self->kind == LIMITER_QUEUE || self->kind == LIMITER_STACK || change.min_size == self->min_size)
        change.min_size = NAN; /* a part of 0 items counts as 1 */
    if (self->kind == LIMITER_MIN_SIZE)
        change.max_diff = NAN;
    return limiter_change(self, &change, err);
}
