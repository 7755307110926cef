/* The reference of `replay-bench tree`: a binary segment tree over float32, as most replay buffers have it. */
#ifndef BENCH_REF_TREE_H
#define BENCH_REF_TREE_H

#include <stdint.h>

#include "proto/base/rng.h"

struct ref_tree {
    float *sum; /* sum[1] is the root, the leaves begin at sum[leaves] */
    uint32_t leaves;
};

/* False if there is no memory. */
int ref_tree_init(struct ref_tree *self, uint32_t capacity);
void ref_tree_fini(struct ref_tree *self);
void ref_tree_set(struct ref_tree *self, uint32_t slot, float weight);
uint32_t ref_tree_pick(const struct ref_tree *self, struct rng *rng);

#endif
