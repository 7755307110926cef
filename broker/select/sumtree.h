/* A 16-ary tree of sums over float32 weights, one leaf for each slot: it sets weights, and picks slots in proportion to them.
 *
 * A 64-byte line has 16 leaves; all sums above are float64. A change adds its difference to one sum per level, up to a level with
 * few nodes. Differences alone would drift: a large weight swallows small ones, and leaves rounding errors behind when it goes. So
 * sums are recomputed from the leaf upwards when more than half of a line's sum goes at once, and along the path of every 127th
 * change. A pick that still ends at an empty leaf repairs that path and is drawn again. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "proto/base/rng.h"

#define SUMTREE_LEVELS 8

struct sumtree {
    float *leaves;
    double *level[SUMTREE_LEVELS]; /* level[0]: a sum for each 16 leaves; level[levels - 1]: the total */
    uint32_t levels;
    uint32_t kept; /* levels that every change updates */
    bool stale;    /* the levels above these are out of date, and recomputed before they are used */
    uint32_t capacity;
    uint32_t nonzero;     /* leaves that are not zero: the only safe test for "all zero" */
    uint32_t until_exact; /* changes until the next path is recomputed */
    size_t bytes;
};

/* Makes a tree with all weights zero. capacity > 0. */
void sumtree_init(struct sumtree *self, uint32_t capacity);
void sumtree_fini(struct sumtree *self);

/* weight is finite and not negative. */
void sumtree_set(struct sumtree *self, uint32_t slot, float weight);
/* Sets n weights, one after another: prefetched before, their cache misses overlap. */
void sumtree_set_many(struct sumtree *self, uint32_t n, const uint32_t *slots, const float *weights);
/* Prefetches the memory that sumtree_set of this slot will touch. */
void sumtree_prefetch(const struct sumtree *self, uint32_t slot);
/* Picks n slots with replacement. At least one weight must not be zero. */
void sumtree_pick(struct sumtree *self, struct rng *rng, uint32_t n, uint32_t *slots);
/* For a tree that is to continue exactly as another would. False: no such number of changes. */
bool sumtree_set_until_exact(struct sumtree *self, uint32_t changes);
/* Recomputes all sums. */
void sumtree_rebuild(struct sumtree *self);
double sumtree_total(struct sumtree *self);

static inline float sumtree_get(const struct sumtree *self, uint32_t slot)
{
    return self->leaves[slot];
}
