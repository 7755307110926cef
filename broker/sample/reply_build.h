/* What goes into the reply to a sample: the layouts of its items, its chunks, each once, and the blocks of them that the
 * layouts need. Kept between replies as working memory. */
#ifndef BROKER_REPLY_BUILD_H
#define BROKER_REPLY_BUILD_H

#include "broker/sample/picks.h"
#include "proto/wire/pb.h"

/* A chunk with more needed bytes is sent as a frame of its own: a copy would cost more than the frame. */
#define OWN_FRAME_BYTES (128u << 10)

#define HOT_HEADERS 256u

/* The place of a chunk in the reply. */
struct reply_place {
    struct chunk *chunk;
    uint32_t index; /* plus 1; 0: not placed yet */
};

struct reply_build {
    struct chunk **chunk; /* distinct chunks in the order of the reply: n_small of them, then the large ones */
    uint32_t *chunk_length, *chunk_blocks; /* steps and blocks of each */
    uint32_t *chunk_index;                 /* of each reference of the picks */
    uint32_t chunk_capacity;
    uint32_t *block_size;
    uint8_t *block_column, *block_codec;
    uint32_t block_capacity;
    struct reply_place *places; /* hash map by chunk */
    uint32_t place_mask, place_capacity;
    uint32_t n_chunks, n_small, n_blocks;
    uint32_t *layout_index; /* of each item */
    uint64_t *age_ns;       /* of each item */
    uint32_t item_capacity;
    struct pb_writer layouts; /* encoded, one after another */
    uint8_t need[32];         /* bits of the columns that are needed */
    uint32_t full;            /* all columns below this are needed: chunks without others are sent as they are */
    bool alike;               /* all chunks are such, with the same columns */
    size_t small_bytes;       /* of the needed blocks of small chunks */
    uint32_t stamp;           /* marks the layouts that are in the reply */
};

/* Collects everything for the reply but ages. False: no memory. */
bool reply_build_collect(struct reply_build *self, const struct layouts *layouts, const struct picks *picks);
/* True if every chunk comes with the same columns. */
bool reply_build_same_columns(const struct reply_build *self);
/* Returns the bytes of a chunk's blocks that the reply needs. */
uint32_t reply_build_needed_bytes(const struct reply_build *self, struct chunk *chunk);
/* Prefetches the header of chunk i, if there is one. Picking has fetched it, but in a reply with more than HOT_HEADERS chunks it is
 * cold again. Inlined always: gcc drops calls of functions that only prefetch. */
static inline __attribute__((always_inline)) void reply_build_prefetch(const struct reply_build *self, uint32_t i)
{
    if (self->n_chunks > HOT_HEADERS && i < self->n_chunks) {
        const char *at = (const char *)self->chunk[i];
        __builtin_prefetch(at);
        __builtin_prefetch(at + 64);
    }
}
static inline bool reply_build_needs(const struct reply_build *self, uint32_t column)
{
    return self->need[column / 8] >> (column % 8) & 1;
}
void reply_build_destroy(struct reply_build **self);

#endif
