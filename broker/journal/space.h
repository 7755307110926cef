/* How much disk a broker with a journal takes: when the journal is long enough for a checkpoint, how large a segment gets,
 * and how much of the disk stays free so that a checkpoint, and the moving of what lives in mostly dead segments, always
 * fit. Pure functions of what is known; docs/DISK.md derives the bound. */
#ifndef BROKER_SPACE_H
#define BROKER_SPACE_H

#include <stdbool.h>
#include <stdint.h>

#define SPACE_UNKNOWN UINT64_MAX

struct space {
    bool journal;         /* effects are recorded, not only chunks */
    uint64_t journal_max; /* journal.max */
    uint64_t keep;        /* checkpoint.keep */
    uint64_t live;        /* bytes of chunks in segments that are in use */
    uint64_t state;       /* bytes of a whole checkpoint, estimated */
    uint64_t message;     /* bytes that the largest message of a writer has added */
    uint64_t used;        /* bytes of all segments, with what is handed over and not written yet */
    uint64_t free;        /* bytes that the disk has left after that; SPACE_UNKNOWN */
};

/* Bytes of journal since the last checkpoint after which the next one is made. */
uint64_t space_limit(const struct space *self);
/* Bytes after which a new segment begins. */
uint64_t space_segment(const struct space *self);
/* Bytes that are left free for a checkpoint and for what it moves. With less, nothing more is taken in. */
uint64_t space_reserve(const struct space *self);
/* The disk is short of space: only the newest checkpoint is kept, and one is made as soon as it frees anything. */
bool space_is_low(const struct space *self);
/* Live data that a checkpoint may move. */
uint64_t space_moves(const struct space *self);
/* What all files take at most, if the disk has it. */
uint64_t space_most(const struct space *self);

#endif
