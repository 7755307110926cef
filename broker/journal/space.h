/* How much disk a broker with a journal uses: how long the journal gets before a checkpoint, how large a segment gets,
 * and how much of the disk stays free so that a checkpoint, and moving the live chunks of mostly dead segments, always
 * fit. Pure functions; docs/OPERATE.md derives the bound. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#define SPACE_UNKNOWN UINT64_MAX

struct space {
    bool journal;         /* effects are recorded, not only chunks */
    uint64_t journal_max; /* as configured */
    uint64_t keep;        /* checkpoint.keep */
    uint64_t live;        /* bytes of chunks in use that lie in segments */
    uint64_t state;       /* estimated bytes of a whole checkpoint */
    uint64_t message;     /* bytes that the largest message of a writer has added to the journal */
    uint64_t used;        /* bytes of all segments, including records that are not written yet */
    uint64_t free;        /* bytes that the disk has left besides; or SPACE_UNKNOWN */
};

/* Returns the bytes of journal after which the next checkpoint is made. */
uint64_t space_limit(const struct space *self);
/* Returns the bytes after which a new segment begins. */
uint64_t space_segment(const struct space *self);
/* Returns the bytes that stay free for a checkpoint and for what it moves. With less, inserts wait. */
uint64_t space_reserve(const struct space *self);
/* True if the disk is short of space. Then only the newest checkpoint is kept, and one is made as soon as it frees
 * anything. */
bool space_is_low(const struct space *self);
/* Returns the bytes of live chunks that a checkpoint may move. */
uint64_t space_moves(const struct space *self);
