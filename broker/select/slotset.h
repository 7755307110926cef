/* A set of slots from which the k-th can be taken: a bit for each slot, a count for each 4,096 of them, and the sum of
 * each 64 counts. Adding and removing is three memory accesses; finding the k-th takes well under a microsecond at tens
 * of millions of slots. */
#ifndef BROKER_SLOTSET_H
#define BROKER_SLOTSET_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct slotset {
    uint64_t *bits;
    uint32_t *counts, *sums;
    uint32_t count;
    size_t bytes;
};

/* Empty. False if there is no memory. capacity > 0. */
bool slotset_init(struct slotset *self, uint32_t capacity);
void slotset_fini(struct slotset *self);

/* The slot is not there yet. */
void slotset_add(struct slotset *self, uint32_t slot);
/* The slot is there. */
void slotset_remove(struct slotset *self, uint32_t slot);
/* The k-th slot in increasing order, k < count. */
uint32_t slotset_nth(const struct slotset *self, uint32_t k);

static inline bool slotset_has(const struct slotset *self, uint32_t slot)
{
    return self->bits[slot / 64] >> (slot % 64) & 1;
}

#endif
