/* The list of checkpoint files: which are kept, which segments they need, and the removal of all other files. */
#ifndef BROKER_CHECKPOINT_KEEP_H
#define BROKER_CHECKPOINT_KEEP_H

#include "broker/checkpoint/checkpoint_file.h"

struct kept_checkpoint {
    uint64_t number, base, journal;
    int64_t changed_ns; /* CLOCK_REALTIME of the file; 0: written by this process */
    uint64_t *segments; /* that it needs */
    uint32_t n_segments;
    bool useless; /* damaged, or newer than the one that the broker was started from */
};

struct kept_checkpoints {
    struct stream *stream;
    struct kept_checkpoint *list; /* by number */
    uint32_t n, capacity;
    uint64_t *dead; /* segments without a live chunk when the last checkpoint ended; with a journal, when it began */
    uint32_t n_dead;
};

/* Reads which checkpoints are in the folder. fresh: the broker was told to load none of them. */
void kept_checkpoints_init(struct kept_checkpoints *self, struct stream *stream, bool fresh);
void kept_checkpoints_fini(struct kept_checkpoints *self);
/* Adds a checkpoint that has just ended. */
void kept_checkpoints_add(struct kept_checkpoints *self, const struct checkpoint_file *file, uint64_t base,
                          uint64_t journal);
/* Notes the segments without live chunks, which may be removed when the checkpoint is whole. */
void kept_checkpoints_note_dead(struct kept_checkpoints *self);
/* Removes files that the newest `keep` checkpoints do not need. */
void kept_checkpoints_clean(struct kept_checkpoints *self, uint64_t keep);

#endif
