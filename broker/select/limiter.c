#include "broker/select/limiter.h"

#include <assert.h>
#include <float.h>
#include <inttypes.h>
#include <math.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>

#include "proto/base/crc32c.h"
#include "proto/base/error.h"

/* More than this in a row is never asked for; sums with it cannot wrap around. */
#define MOST_ASKED (UINT64_C(1) << 62)

/* ---- the rules */

static double cursor_at(const struct limiter *self, uint64_t inserts, uint64_t samples)
{
    return self->offset + (double)inserts * self->samples_per_insert -
           (self->kind == LIMITER_LAG ? 0.0 : (double)samples);
}

static double size_after(const struct limiter *self, uint64_t more)
{
    return (double)(self->inserts - self->deletes + more);
}

/* True if the last of n inserts in a row is allowed. Rounding keeps sums in order, so the inserts before it are allowed, too. */
static bool may_insert(const struct limiter *self, uint64_t n)
{
    if (self->paused)
        return false;
    return (size_after(self, n) <= self->min_size && self->kind != LIMITER_LAG) ||
           cursor_at(self, self->inserts + n, self->samples) <= self->max_diff;
}

/* True if the last of n samples in a row is allowed after `more` further inserts. */
static bool may_sample(const struct limiter *self, uint64_t n, uint64_t more)
{
    return !self->paused && size_after(self, more) >= self->min_size &&
           cursor_at(self, self->inserts + more, self->samples + n) >= self->min_diff;
}

/* Makes a count of an estimate that may be negative, huge or infinite. */
static uint64_t to_count(double estimate, uint64_t most)
{
    if (!(estimate > 0.0))
        return 0;
    return estimate < (double)LIMITER_MOST_COUNT && (uint64_t)estimate < most ? (uint64_t)estimate : most;
}

/* Returns the largest k <= most for which the rule holds. A rule that holds for k + 1 holds for k. The estimate is off by at most
 * one, unless the counts are so large that doubles have gaps; then bisection finds k. */
static uint64_t largest(const struct limiter *self, bool (*rule)(const struct limiter *self, uint64_t k),
                        double estimate, uint64_t most)
{
    most = most < MOST_ASKED ? most : MOST_ASKED;
    if (most == 0 || rule(self, most))
        return most;
    uint64_t guess = to_count(estimate, most);
    uint64_t low = guess > 0 ? guess - 1 : 0;
    uint64_t high = guess < most ? guess + 1 : most;
    if (low > 0 && !rule(self, low))
        low = 0;
    if (high < most && rule(self, high + 1))
        high = most;
    while (low < high) {
        uint64_t middle = high - (high - low) / 2;
        if (rule(self, middle))
            low = middle;
        else
            high = middle - 1;
    }
    return low;
}

static bool may_sample_now(const struct limiter *self, uint64_t n)
{
    return may_sample(self, n, 0);
}

uint64_t limiter_insertable(const struct limiter *self, uint64_t most)
{
    double room = (self->max_diff - limiter_cursor(self)) / self->samples_per_insert;
    double small = self->kind == LIMITER_LAG ? 0.0 : self->min_size - size_after(self, 0);
    return largest(self, may_insert, fmax(room, small), most);
}

uint64_t limiter_sampleable(const struct limiter *self, uint64_t most)
{
    return largest(self, may_sample_now, limiter_cursor(self) - self->min_diff, most);
}

void limiter_inserted(struct limiter *self, uint64_t n)
{
    self->inserts += n;
}

void limiter_refund(struct limiter *self, uint64_t n)
{
    assert(n <= self->samples);
    self->samples -= n;
}

void limiter_deleted(struct limiter *self, uint64_t n)
{
    assert(self->deletes + n <= self->inserts);
    self->deletes += n;
}

/* The cursor never falls below the balance. Otherwise a version would give back what it has paid for once more, and the items that
 * were sampled more often than the ratio asks for would not make up for those that were sampled less often. */
void limiter_forgot(struct limiter *self, uint32_t times_sampled, uint64_t unseen)
{
    double owed = self->samples_per_insert - (double)times_sampled;
    double balance = self->kind == LIMITER_LAG     ? (double)unseen
                     : self->kind == LIMITER_RATIO ? self->samples_per_insert * self->min_size_part
                                                   : 0.0;
    owed = fmin(owed, limiter_cursor(self) - balance);
    if (limiter_counts(self) && owed > 0.0)
        self->offset -= owed;
}

bool limiter_moved(struct limiter *self, uint64_t version)
{
    double moves = version < self->version ? 0.0 : (double)(version - self->version);
    double back = fmin(limiter_cursor(self), moves * self->batch);
    self->version = version;
    if (self->kind != LIMITER_LAG || !(back > 0.0))
        return false;
    self->offset -= back;
    return true;
}

uint64_t limiter_move(struct limiter *self, int64_t n, uint64_t unseen)
{
    uint64_t moved = n < 0 ? limiter_insertable(self, 0 - (uint64_t)n)
                           : to_count(limiter_cursor(self) - (double)unseen, (uint64_t)n);
    self->offset += n < 0 ? (double)moved : -(double)moved;
    return moved;
}

void limiter_reset(struct limiter *self)
{
    self->inserts = 0;
    self->samples = 0;
    self->deletes = 0;
    self->offset = 0;
}

bool limiter_takes_permits(const struct limiter *self)
{
    return self->kind == LIMITER_RATIO;
}

bool limiter_counts(const struct limiter *self)
{
    return self->max_diff < (double)LIMITER_MOST_COUNT;
}

double limiter_cursor(const struct limiter *self)
{
    return cursor_at(self, self->inserts, self->samples);
}

double limiter_span(const struct limiter *self)
{
    double width = self->max_diff - self->min_diff;
    return width < (double)LIMITER_MOST_COUNT ? width : 0.0;
}

/* Inserts go on until the next one would exceed the upper bound. */
uint64_t limiter_most_at_once(const struct limiter *self, uint64_t most)
{
    double span = limiter_span(self);
    return span > 0.0 ? to_count(fmax(1.0, span - self->samples_per_insert), most) : most;
}

uint64_t limiter_size(const struct limiter *self)
{
    return self->inserts - self->deletes;
}

/* ---- explanations */

/* Returns the smallest k > 0 for which the rule holds, or LIMITER_MOST_COUNT. A rule that holds for k holds for k + 1. */
static uint64_t smallest(const struct limiter *self, uint64_t want,
                         bool (*rule)(const struct limiter *self, uint64_t want, uint64_t k))
{
    uint64_t low = 0;
    uint64_t high = 1;
    while (high < LIMITER_MOST_COUNT && !rule(self, want, high)) {
        low = high;
        high *= 2;
    }
    while (high - low > 1) {
        uint64_t middle = low + (high - low) / 2;
        if (rule(self, want, middle))
            high = middle;
        else
            low = middle;
    }
    return high;
}

static bool may_insert_after_samples(const struct limiter *self, uint64_t want, uint64_t samples)
{
    struct limiter later = *self;
    later.samples += samples;
    return may_insert(&later, want);
}

/* "12.0", "12.25", "-1e+20" */
static const char *limiter_number(char *text, size_t size, double value)
{
    snprintf(text, size, "%.10g", value);
    if (!strpbrk(text, ".en"))
        snprintf(text, size, "%.1f", value);
    return text;
}

static const char *plural(uint64_t n)
{
    return n == 1 ? "" : "s";
}

/* A pause has no number after which it ends. */
static bool explain_pause(const struct limiter *self, char *text, size_t size)
{
    if (self->paused)
        snprintf(text, size, "the table is paused: 'replay-ctl limiter TABLE go' ends that");
    return self->paused;
}

double limiter_max_lag(const struct limiter *self)
{
    return self->kind == LIMITER_LAG ? round(self->max_diff / self->batch) - 1.0 : -1.0;
}

void limiter_explain_insert(const struct limiter *self, char *text, size_t size)
{
    char cursor[40];
    char bound[40];
    if (size > 0)
        text[0] = '\0';
    if (explain_pause(self, text, size) || may_insert(self, 1))
        return;
    if (self->kind == LIMITER_LAG) {
        double ahead = limiter_cursor(self), versions = ceil((ahead + 1.0 - self->max_diff) / self->batch);
        char part[64] = "";
        if (self->part)
            snprintf(part, sizeof part, " (this shard's part of %.0f)", self->whole);
        snprintf(text, size,
                 "needs version %" PRIu64
                 " of the parameters%s: %.0f item%s, %.3g batches of %.0f%s, are ahead, and max_lag is %.0f",
                 self->version + (uint64_t)versions,
                 self->part ? ", or a sampler that waits and brings room of another shard" : "", ahead,
                 plural((uint64_t)ahead), ahead / self->batch, self->batch, part, limiter_max_lag(self));
        return;
    }
    uint64_t missing = smallest(self, 1, may_insert_after_samples);
    snprintf(text, size,
             "needs %" PRIu64 " more sample%s: one more insert would take the cursor to %s, above max_diff %s "
             "(samples_per_insert %g)",
             missing, plural(missing),
             limiter_number(cursor, sizeof cursor, cursor_at(self, self->inserts + 1, self->samples)),
             limiter_number(bound, sizeof bound, self->max_diff), self->samples_per_insert);
}

void limiter_explain_sample(const struct limiter *self, uint64_t want, char *text, size_t size)
{
    char cursor[40];
    char bound[40];
    if (size > 0)
        text[0] = '\0';
    if (want == 0 || explain_pause(self, text, size) || may_sample(self, want, 0))
        return;
    uint64_t missing = smallest(self, want, may_sample);
    /* Of two reasons, the text names the one that holds longer. */
    if (size_after(self, missing - 1) < self->min_size) {
        snprintf(text, size, "needs %" PRIu64 " more insert%s: the table has %" PRIu64 " item%s, min_size is %.0f",
                 missing, plural(missing), limiter_size(self), plural(limiter_size(self)), self->min_size);
        return;
    }
    snprintf(text, size,
             "needs %" PRIu64 " more insert%s: after %" PRIu64 " more sample%s the cursor, now %s, would be below "
             "min_diff %s (samples_per_insert %g)",
             missing, plural(missing), want, plural(want), limiter_number(cursor, sizeof cursor, limiter_cursor(self)),
             limiter_number(bound, sizeof bound, self->min_diff), self->samples_per_insert);
}

/* ---- settings */

static const char *const kind_names[] = {
    [LIMITER_NONE] = "none",   [LIMITER_MIN_SIZE] = "min_size", [LIMITER_RATIO] = "sample_to_insert_ratio",
    [LIMITER_QUEUE] = "queue", [LIMITER_STACK] = "stack",       [LIMITER_LAG] = "lag",
};

const char *limiter_kind_name(enum limiter_kind kind)
{
    return (uint32_t)kind < LIMITER_KINDS ? kind_names[kind] : "unknown";
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
    double spi = self->samples_per_insert;
    if (!(spi > 0.0) || !isfinite(spi))
        return err_set(err, RP_INVALID_ARGUMENT,
                       "samples_per_insert is %g; write a number above 0, such as 8 (use limiter min_size if inserts "
                       "and samples need no ratio)",
                       spi);
    return isnan(error_buffer) ? check_bounds(self, err) : set_buffer(self, error_buffer, err);
}

rp_status limiter_check_lag(double lag, rp_error *err)
{
    return lag >= 0.0 && lag == floor(lag) && lag <= (double)LIMITER_MOST_LAG
               ? RP_OK
               : err_set(err, RP_INVALID_ARGUMENT, "max_lag is %g; write a whole number from 0 to %u", lag,
                         LIMITER_MOST_LAG);
}

static rp_status set_max_lag(struct limiter *self, double lag, rp_error *err)
{
    RP_TRY(limiter_check_lag(lag, err));
    self->max_diff = (lag + 1.0) * self->batch;
    if (self->min_size > self->max_diff)
        return err_set(err, RP_INVALID_ARGUMENT,
                       "min_size %.0f can never be reached: (max_lag + 1) * batch = %.0f items may be ahead",
                       self->min_size, self->max_diff);
    return RP_OK;
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
    case LIMITER_LAG:
        RP_TRY(check_count("batch", config->batch, err));
        RP_TRY(set_min_size(&made, config->min_size, err));
        made.batch = config->batch;
        made.whole = config->whole;
        if (config->max_lag < 0.0)
            return err_set(
                err, RP_INVALID_ARGUMENT,
                "limiter lag holds writers back at the table's max_lag, which is not given; write max_lag: 1");
        RP_TRY(set_max_lag(&made, config->max_lag, err));
        break;
    default:
        return err_set(err, RP_INVALID_ARGUMENT,
                       "no such rate limiter; write none, min_size, sample_to_insert_ratio, queue, stack or lag");
    }
    const double settings[] = {(double)made.kind, made.samples_per_insert, made.min_size_part,
                               made.min_diff,     made.max_diff,           made.batch};
    uint32_t hash = crc32c(0, settings, sizeof settings);
    made.configured = hash ? hash : 1;
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
    if (!isnan(change->max_lag) && self->kind != LIMITER_LAG)
        return err_set(err, RP_FAILED_PRECONDITION, "limiter %s has no max_lag", name);
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
    case LIMITER_LAG:
        if (size || upper || others)
            return err_set(err, RP_FAILED_PRECONDITION, "limiter %s has only max_lag", name);
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
    if (!isnan(change->max_lag))
        RP_TRY(set_max_lag(&made, change->max_lag, err));
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
    if (self->kind == LIMITER_LAG)
        change = (struct limiter_change){NAN, NAN, NAN, NAN, NAN, round(settings->max_diff / self->batch) - 1.0};
    return limiter_change(self, &change, err);
}
