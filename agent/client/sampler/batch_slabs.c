#include "agent/client/sampler/batch_slabs.h"

#include <stdint.h>
#include <stdlib.h>

#define SLAB_BYTES ((size_t)1 << 20)

struct batch_slab {
    struct batch_slab *next;
    size_t size, used;
    _Alignas(16) uint8_t data[];
};

void batch_slabs_reset(struct batch_slab **self, size_t keep)
{
    struct batch_slab *kept = NULL;
    while (*self) {
        struct batch_slab *slab = *self, *drop = slab;
        *self = slab->next;
        if (slab->size <= keep && (!kept || slab->size > kept->size)) {
            drop = kept;
            kept = slab;
        }
        free(drop);
    }
    if (kept) {
        kept->next = NULL;
        kept->used = 0;
    }
    *self = kept;
}

void *batch_slabs_take(struct batch_slab **self, size_t bytes)
{
    bytes = (bytes + 15) & ~(size_t)15;
    if (!*self || (*self)->size - (*self)->used < bytes) {
        size_t size = bytes > SLAB_BYTES ? bytes : SLAB_BYTES;
        struct batch_slab *slab = malloc(sizeof *slab + size);
        if (!slab)
            return NULL;
        *slab = (struct batch_slab){.next = *self, .size = size};
        *self = slab;
    }
    void *out = (*self)->data + (*self)->used;
    (*self)->used += bytes;
    return out;
}
