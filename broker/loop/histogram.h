/* Histograms of whole numbers (nanoseconds, versions) in buckets that double: to add a value is a count of leading zeros and two
 * additions, and memory is never allocated. Not for several threads. */
#pragma once

#include <stdint.h>

/* Bucket b counts the values of b significant bits: 0, then 1, 2 to 3, 4 to 7 and so on. */
#define HISTOGRAM_BUCKETS 65u

struct histogram {
    uint64_t counts[HISTOGRAM_BUCKETS];
    double sum; /* of all values */
};

static inline uint32_t histogram_bucket(uint64_t value)
{
    return value ? 64u - (uint32_t)__builtin_clzll(value) : 0;
}

/* Adds a value n times. */
static inline void histogram_add(struct histogram *self, uint64_t value, uint64_t n)
{
    self->counts[histogram_bucket(value)] += n;
    self->sum += (double)value * (double)n;
}

/* Adds a time; a clock that went backwards counts as 0. */
static inline void histogram_add_ns(struct histogram *self, int64_t ns, uint64_t n)
{
    histogram_add(self, ns > 0 ? (uint64_t)ns : 0, n);
}

/* The largest value of a bucket: 2^bucket - 1. */
static inline uint64_t histogram_bound(uint32_t bucket)
{
    return bucket < 64 ? (UINT64_C(1) << bucket) - 1 : UINT64_MAX;
}

/* Returns the number of buckets up to the last that is not empty. */
uint32_t histogram_used(const struct histogram *self);
/* Returns how many values were added. */
uint64_t histogram_count(const struct histogram *self);
/* Returns an upper bound of the smallest value that is at least as large as this share (0 to 1) of all values; 0: there are none. */
uint64_t histogram_quantile(const struct histogram *self, double share);
