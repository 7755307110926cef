/* The file of a checkpoint in progress: fills records with entries, hands them to the disk writer, and counts the segments
 * that entries refer to. */
#ifndef BROKER_CHECKPOINT_FILE_H
#define BROKER_CHECKPOINT_FILE_H

#include "broker/journal/stream.h"

/* A segment that entries of the file refer to. */
struct named_segment {
    uint64_t number, chunks, bytes;
    bool moving; /* it is sparse or bad: its live chunks are moved */
    bool bad;    /* it could not be synced, so no entry refers to it after its chunks were moved */
};

/* True if the checkpoint needs the segment. Journal entries after the instant may refer to the old places of moved
 * chunks. journal: where they begin; 0: there is no journal. */
static inline bool named_is_needed(const struct named_segment *self, uint64_t journal)
{
    return self->chunks > 0 || (self->moving && !self->bad && journal);
}

struct checkpoint_file {
    struct recorder out; /* first member */
    struct stream *stream;
    uint64_t number; /* of the checkpoint */
    bool failed;     /* error says why: nothing more is written */
    char error[256];
    uint64_t offset;
    uint64_t chunk_bytes;           /* bytes of chunks that were written to segments for it */
    struct named_segment *segments; /* by number */
    uint32_t n_segments, segments_capacity, last_segment;
};

void checkpoint_file_init(struct checkpoint_file *self, struct stream *stream, uint64_t number);
void checkpoint_file_fini(struct checkpoint_file *self);
/* Returns the place of a chunk for an entry, and counts it. Writes or moves the chunk first if necessary. */
uint64_t checkpoint_file_place(struct checkpoint_file *self, struct chunk *chunk);
/* Returns the segment's row, which is added if it is new. */
struct named_segment *checkpoint_file_segment(struct checkpoint_file *self, uint64_t number);
RP_PRINTF(2, 3) void checkpoint_file_fail(struct checkpoint_file *self, const char *format, ...);

#endif
