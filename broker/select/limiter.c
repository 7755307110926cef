/* The rules of a limiter, and what it says about them. */
#include "broker/select/limiter.h"

#include <assert.h>
#include <inttypes.h>
#include <math.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>

/* More than this in a row is never asked for; sums with it cannot wrap around. */
#define MOST_ASKED (UINT64_C(1) << 62)

/* ---- the rules */

static double cursor_at(const struct limiter *self, uint64_t inserts, uint64_t samples)
{
    return self->offset + (double)inserts * self->samples_per_insert - (double)samples;
}

static double size_after(const struct limiter *self, uint64_t more)
{
    return (double)(self->inserts - self->deletes + more);
}

/* True if the last of n inserts in a row is allowed. Rounding keeps sums in order, so the inserts before it are allowed, too. */
static bool may_insert(const struct limiter *self, uint64_t n)
{
    return size_after(self, n) <= self->min_size || cursor_at(self, self->inserts + n, self->samples) <= self->max_diff;
}

/* True if the last of n samples in a row is allowed after `more` further inserts. */
static bool may_sample(const struct limiter *self, uint64_t n, uint64_t more)
{
    return size_after(self, more) >= self->min_size &&
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
    return largest(self, may_insert, fmax(room, self->min_size - size_after(self, 0)), most);
}

uint64_t limiter_sampleable(const struct limiter *self, uint64_t most)
{
    return largest(self, may_sample_now, limiter_cursor(self) - self->min_diff, most);
}

void limiter_inserted(struct limiter *self, uint64_t n)
{
    self->inserts += n;
}

void limiter_sampled(struct limiter *self, uint64_t n)
{
    self->samples += n;
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

/* Returns the smallest number of further inserts after which `want` samples are allowed. */
static uint64_t inserts_missing(const struct limiter *self, uint64_t want)
{
    uint64_t low = 0;
    uint64_t high = 1;
    while (high < LIMITER_MOST_COUNT && !may_sample(self, want, high)) {
        low = high;
        high *= 2;
    }
    while (high - low > 1) {
        uint64_t middle = low + (high - low) / 2;
        if (may_sample(self, want, middle))
            high = middle;
        else
            low = middle;
    }
    return high;
}

/* Returns the smallest number of further samples after which an insert is allowed. */
static uint64_t samples_missing(const struct limiter *self)
{
    struct limiter later = *self;
    uint64_t low = 0;
    uint64_t high = 1;
    for (; high < LIMITER_MOST_COUNT; high *= 2) {
        later.samples = self->samples + high;
        if (may_insert(&later, 1))
            break;
        low = high;
    }
    while (high - low > 1) {
        uint64_t middle = low + (high - low) / 2;
        later.samples = self->samples + middle;
        if (may_insert(&later, 1))
            high = middle;
        else
            low = middle;
    }
    return high;
}

/* "12.0", "12.25", "-1e+20" */
static const char *number(char *text, size_t size, double value)
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

void limiter_explain_insert(const struct limiter *self, char *text, size_t size)
{
    char cursor[40];
    char bound[40];
    if (size > 0)
        text[0] = '\0';
    if (may_insert(self, 1))
        return;
    uint64_t missing = samples_missing(self);
    snprintf(text, size,
             "needs %" PRIu64 " more sample%s: one more insert would take the cursor to %s, above max_diff %s "
             "(samples_per_insert %g)",
             missing, plural(missing), number(cursor, sizeof cursor, cursor_at(self, self->inserts + 1, self->samples)),
             number(bound, sizeof bound, self->max_diff), self->samples_per_insert);
}

void limiter_explain_sample(const struct limiter *self, uint64_t want, char *text, size_t size)
{
    char cursor[40];
    char bound[40];
    if (size > 0)
        text[0] = '\0';
    if (want == 0 || may_sample(self, want, 0))
        return;
    uint64_t missing = inserts_missing(self, want);
    /* Of two reasons, the text names the one that holds longer. */
    if (size_after(self, missing - 1) < self->min_size) {
        snprintf(text, size, "needs %" PRIu64 " more insert%s: the table has %" PRIu64 " item%s, min_size is %.0f",
                 missing, plural(missing), limiter_size(self), plural(limiter_size(self)), self->min_size);
        return;
    }
    snprintf(text, size,
             "needs %" PRIu64 " more insert%s: after %" PRIu64 " more sample%s the cursor, now %s, would be below "
             "min_diff %s (samples_per_insert %g)",
             missing, plural(missing), want, plural(want), number(cursor, sizeof cursor, limiter_cursor(self)),
             number(bound, sizeof bound, self->min_diff), self->samples_per_insert);
}
