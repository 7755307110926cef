/* The list of segment files: how many bytes each has, and how many of them are chunks in use. It decides which files can
 * be removed, and which are so sparse that their chunks are worth moving. */
#ifndef BROKER_SEGMENTS_H
#define BROKER_SEGMENTS_H

#include <stdbool.h>
#include <stdint.h>

struct segment_use {
    uint64_t number;
    uint64_t bytes; /* size of the file */
    uint64_t live;  /* bytes of chunks in use that lie there */
    bool lost;      /* a sync of it has failed: nothing new relies on it, even after its chunks were written again */
};

struct segments {
    struct segment_use *list; /* sorted by number */
    uint32_t n, capacity;
    uint32_t n_lost;      /* segments with `lost` set */
    uint64_t total_bytes; /* sum of bytes */
    uint64_t live;        /* sum of live */
};

/* Returns NULL if there is no such segment. */
struct segment_use *segments_find(const struct segments *self, uint64_t number);
/* Adds a segment, or sets the size of a known one. */
void segments_know(struct segments *self, uint64_t number, uint64_t bytes);
void segments_forget(struct segments *self, uint64_t number);
/* Adds bytes to the size of a segment. */
void segments_grow(struct segments *self, uint64_t number, uint64_t bytes);
/* A chunk of so many bytes in this segment comes into use, or goes out of use. */
void segments_chunk_known(struct segments *self, uint64_t number, uint64_t bytes);
void segments_chunk_dead(struct segments *self, uint64_t number, uint64_t bytes);
void segments_fini(struct segments *self);

#endif
