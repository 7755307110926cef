/* A span: the chunks that an item runs over. */
#ifndef BROKER_SPAN_H
#define BROKER_SPAN_H

#include <stdbool.h>
#include <stdint.h>

#include "broker/store/layout.h"
#include "broker/store/store.h"

struct span {
    union {
        struct chunk *one;
        struct chunk **many; /* n > 1: owned array */
    };
    uint32_t n;
    uint32_t offset; /* first step, in the first chunk */
    uint32_t length; /* steps */
    uint32_t layout; /* index in struct layouts; a span holds a reference to its layout, too */
};

static inline struct chunk *const *span_chunks(const struct span *self)
{
    return self->n > 1 ? (struct chunk *const *)self->many : &self->one;
}
/* Bytes of the array, which the store counts outside of its slabs. */
static inline uint64_t span_list_bytes(uint32_t n)
{
    return store_block_bytes(n * sizeof(struct chunk *));
}
/* Releases all chunks, the array, and the layout. */
void span_release(struct span *self, struct store *store, struct layouts *layouts);
/* Makes `to` a second span over the same chunks and the same layout. False: no memory, and nothing has changed. */
bool span_copy(const struct span *from, struct span *to, struct store *store, struct layouts *layouts);
uint64_t span_bytes(const struct span *self);

/* Returns a number for the episode of the span's first step: no two episodes of all sessions have the same one. */
static inline uint64_t span_episode(const struct span *self)
{
    const struct chunk *first = span_chunks(self)[0];
    return (uint64_t)first->session << 32 | first->episode;
}

#endif
