/* Models that are too simple to be wrong, against which property tests hold the real parts. */
#pragma once

#include "proto/base/rng.h"
#include "tests/support/test.h"

/* RP_TEST_SEED, or a new seed. Printed with the name of the test, so that a failure can be repeated. */
uint64_t naive_seed(const char *test);
/* Random numbers of such a seed. */
struct rng naive_rng(const char *test);
/* Random numbers of this seed. */
struct rng rng_of(uint64_t seed);

/* The limiter's two rules, one operation at a time. */
struct naive_limiter {
    double samples_per_insert;
    double min_size;
    double min_diff;
    double max_diff;
    uint64_t inserts;
    uint64_t samples;
    uint64_t deletes;
    double offset; /* of the cursor */
    bool lag;      /* samples do not move the cursor, and few items are no reason to insert */
};

double naive_cursor(const struct naive_limiter *self);
bool naive_may_insert(const struct naive_limiter *self);
bool naive_may_sample(const struct naive_limiter *self);

#define NAIVE_SLOTS 256u

enum naive_order { NAIVE_FIFO, NAIVE_LIFO, NAIVE_MIN, NAIVE_MAX, NAIVE_WEIGHTED };

/* What a selector holds, by slot. */
struct naive_selector {
    bool present[NAIVE_SLOTS];
    double priority[NAIVE_SLOTS];
    uint64_t inserted[NAIVE_SLOTS];
    uint64_t touched[NAIVE_SLOTS];
    uint64_t sequence;
    double exponent;
    bool uniform; /* priorities mean nothing */
};

void naive_insert(struct naive_selector *self, uint32_t slot, double priority);
void naive_update(struct naive_selector *self, uint32_t slot, double priority);
void naive_remove(struct naive_selector *self, uint32_t slot);
uint32_t naive_count(const struct naive_selector *self);
/* The slot that comes first in a fixed order; NAIVE_SLOTS if there is none. */
uint32_t naive_first(const struct naive_selector *self, enum naive_order order);
/* The probability of a slot in the next pick. */
double naive_probability(const struct naive_selector *self, uint32_t slot);

/* The chi-square statistic of n draws over k cells, less its mean, in standard deviations. Cells of probability 0 must
 * not have been drawn: that gives infinity. */
double naive_chi_square(const uint64_t *observed, const double *probability, uint32_t k, uint64_t n);
