#include "bench/ref_tree.h"

#include <stdlib.h>

int ref_tree_init(struct ref_tree *self, uint32_t capacity)
{
    self->leaves = 1;
    while (self->leaves < capacity)
        self->leaves *= 2;
    self->sum = calloc(2 * (size_t)self->leaves, sizeof *self->sum);
    return self->sum != NULL;
}

void ref_tree_fini(struct ref_tree *self)
{
    free(self->sum);
    self->sum = NULL;
}

void ref_tree_set(struct ref_tree *self, uint32_t slot, float weight)
{
    size_t i = (size_t)self->leaves + slot;
    self->sum[i] = weight;
    while (i > 1) {
        i /= 2;
        self->sum[i] = self->sum[2 * i] + self->sum[2 * i + 1];
    }
}

uint32_t ref_tree_pick(const struct ref_tree *self, struct rng *rng)
{
    float point = (float)rng_unit(rng) * self->sum[1];
    size_t i = 1;
    while (i < self->leaves) {
        i *= 2;
        if (point >= self->sum[i]) {
            point -= self->sum[i];
            i++;
        }
    }
    return (uint32_t)(i - self->leaves);
}
