#include "tests/support/naive.h"

#include <inttypes.h>

#include "proto/base/rng.h"

uint64_t naive_seed(const char *test)
{
    uint64_t seed;
    const char *given = getenv("RP_TEST_SEED");
    if (given)
        seed = strtoull(given, NULL, 0);
    else
        rng_system(&seed, sizeof seed);
    printf("%s: RP_TEST_SEED=%" PRIu64 "\n", test, seed);
    fflush(stdout);
    return seed;
}

struct rng rng_of(uint64_t seed)
{
    struct rng rng;
    rng_seed(&rng, seed);
    return rng;
}

struct rng naive_rng(const char *test)
{
    return rng_of(naive_seed(test));
}

static double cursor_at(const struct naive_limiter *self, uint64_t inserts, uint64_t samples)
{
    return self->offset + (double)inserts * self->samples_per_insert - (self->lag ? 0 : (double)samples);
}

double naive_cursor(const struct naive_limiter *self)
{
    return cursor_at(self, self->inserts, self->samples);
}

bool naive_may_insert(const struct naive_limiter *self)
{
    return ((double)(self->inserts + 1 - self->deletes) <= self->min_size && !self->lag) ||
           cursor_at(self, self->inserts + 1, self->samples) <= self->max_diff;
}

bool naive_may_sample(const struct naive_limiter *self)
{
    return (double)(self->inserts - self->deletes) >= self->min_size &&
           cursor_at(self, self->inserts, self->samples + 1) >= self->min_diff;
}

void naive_insert(struct naive_selector *self, uint32_t slot, double priority)
{
    self->present[slot] = true;
    self->priority[slot] = priority;
    self->inserted[slot] = self->touched[slot] = self->sequence++;
}

void naive_update(struct naive_selector *self, uint32_t slot, double priority)
{
    self->priority[slot] = priority;
    self->touched[slot] = self->sequence++;
}

void naive_remove(struct naive_selector *self, uint32_t slot)
{
    self->present[slot] = false;
}

uint32_t naive_count(const struct naive_selector *self)
{
    uint32_t count = 0;
    for (uint32_t i = 0; i < NAIVE_SLOTS; i++)
        count += self->present[i];
    return count;
}

static bool comes_before(const struct naive_selector *self, enum naive_order order, uint32_t a, uint32_t b)
{
    double pa = self->priority[a];
    double pb = self->priority[b];
    switch (order) {
    case NAIVE_FIFO:
        return self->inserted[a] < self->inserted[b];
    case NAIVE_LIFO:
        return self->inserted[a] > self->inserted[b];
    case NAIVE_MIN:
        return pa < pb || (pa == pb && self->touched[a] < self->touched[b]);
    case NAIVE_MAX:
        return pa > pb || (pa == pb && self->touched[a] < self->touched[b]);
    default:
        return false;
    }
}

uint32_t naive_first(const struct naive_selector *self, enum naive_order order)
{
    uint32_t first = NAIVE_SLOTS;
    for (uint32_t i = 0; i < NAIVE_SLOTS; i++) {
        if (self->present[i] && (first == NAIVE_SLOTS || comes_before(self, order, i, first)))
            first = i;
    }
    return first;
}

static double weight(const struct naive_selector *self, uint32_t slot)
{
    double priority = self->priority[slot];
    if (!self->present[slot])
        return 0.0;
    if (self->uniform)
        return 1.0;
    if (self->exponent < 0.0)
        return pow(priority < 1e-9 ? 1e-9 : priority, self->exponent);
    return priority == 0.0 ? 0.0 : pow(priority, self->exponent);
}

double naive_probability(const struct naive_selector *self, uint32_t slot)
{
    double total = 0.0;
    for (uint32_t i = 0; i < NAIVE_SLOTS; i++)
        total += weight(self, i);
    if (total == 0.0)
        return self->present[slot] ? 1.0 / naive_count(self) : 0.0;
    return weight(self, slot) / total;
}

double naive_chi_square(const uint64_t *observed, const double *probability, uint32_t k, uint64_t n)
{
    double sum = 0.0;
    double freedom = -1.0;
    for (uint32_t i = 0; i < k; i++) {
        double expected = probability[i] * (double)n;
        double off = (double)observed[i] - expected;
        if (expected > 0.0) {
            sum += off * off / expected;
            freedom += 1.0;
        } else if (observed[i] > 0) {
            return (double)INFINITY;
        }
    }
    return freedom > 0.0 ? (sum - freedom) / sqrt(2.0 * freedom) : 0.0;
}
