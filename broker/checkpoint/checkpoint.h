/* Checkpoints: the state at one instant, written while the broker goes on serving.
 *
 * At the instant, small state is written (limiters, sessions, parameters, replies), and in each table the slots to
 * write are marked: all of them, or for an incremental checkpoint those that changed since its base. A chore copies
 * marked slots in slices; an item that is about to change before its turn is copied first (marks_touch). Chunks that
 * are in no segment yet are written on the way, and live chunks of sparse segments are moved. Then the disk writer
 * finishes the file, and files that no kept checkpoint needs are removed.
 *
 * The room owns the checkpoint in progress, the list of kept ones, and the way back from files to a running broker
 * (restore.h). It uses the stream, spilling, the disk format, and the rooms whose state it copies (durable_state.h). */
#pragma once

#include "broker/journal/stream.h"
#include "broker/loop/loop.h"

struct spill;

enum checkpoint_reason {
    CHECKPOINT_ASKED,
    CHECKPOINT_SIGNAL,
    CHECKPOINT_PERIOD,
    CHECKPOINT_JOURNAL,
    CHECKPOINT_SPACE,
    CHECKPOINT_SYNC,
    CHECKPOINT_EXIT,
};

/* Called when a checkpoint has ended. error: NULL if it is whole on disk. */
struct checkpoint_listener {
    void (*ended)(void *ctx, uint64_t number, const char *error);
    void *ctx;
};

/* Most incremental checkpoints on one base. */
#define CHECKPOINT_LINKS 16u

/* A checkpoint in the folder, and the list of them. */
struct kept_checkpoint {
    uint64_t number, base, journal;
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

/* A table whose items are being copied. */
struct copied_table {
    struct table *table;
    struct contents *in; /* the table's contents; after a reset, its old contents */
    struct marks *marks; /* the marks of these contents */
    struct chore *then;  /* frees the old contents after a reset */
};

/* A sample that may be asked for again, as its entry, which holds its chunks where their places will be. */
struct copied_selection {
    uint32_t table;
    struct entry_selection *body;
    size_t bytes;
};

struct checkpoint {
    struct chore chore;
    struct checkpoints *checkpoints;
    const struct durable_state *state;
    struct stream *stream;
    uint64_t number;
    uint64_t base;    /* number of the checkpoint that it changes; 0: it is whole */
    uint64_t journal; /* where the journal after its instant begins; 0: there is none */
    enum checkpoint_reason reason;
    int64_t start_ns;
    uint64_t failures; /* number of failed syncs that were known at its instant */
    bool waits;        /* it waits for the disk writer, or for chunks to be read, and is not among the chores */
    uint64_t reads;    /* it waits until spill_reads() has this value; 0: it does not wait for reads */
    uint32_t near_table, near_slot, near_tries; /* the item whose chunks it waits for, and how often it has */
    bool ended;                                 /* everything was handed to the disk writer */
    /* the file that is written */
    struct recorder out;
    uint64_t offset;
    uint64_t chunk_bytes; /* bytes of chunks that were written to segments for it */
    uint64_t *segments;   /* that it needs, once all is written */
    uint32_t n_segments;
    bool failed; /* error says why: nothing more is written */
    char error[256];
    uint64_t replaces; /* bytes of journal that it makes superfluous */
    /* what has to be written */
    struct copied_table *tables;
    uint32_t n_tables, table_at;
    struct copied_selection *selections;
    uint32_t n_selections, selection_at, selections_capacity;
    /* totals of the state at the instant */
    uint64_t items, chunks, bytes;
    uint64_t slots_all, slots_done;
};

struct checkpoints {
    struct durable_state state;
    struct stream *stream;
    struct spill *spill; /* NULL: all chunks are in memory */
    struct checkpoint_listener listener;
    struct checkpoint *running;
    uint64_t next; /* number of the next checkpoint */
    bool wanted;
    enum checkpoint_reason reason; /* of the wanted checkpoint */
    struct timer period, progress;
    bool low;              /* the disk is short of space */
    int64_t heal_ns;       /* when a checkpoint to replace bad segments may begin */
    int64_t heal_pause_ns; /* pause after its last failure */
    int64_t not_before_ns; /* after a failure: when a checkpoint that no client asked for may begin */
    uint32_t slice;        /* most slots that a slice copies */
    /* the chain that the next incremental checkpoint continues */
    uint64_t base, base_bytes, chain_bytes;
    uint32_t links;
    struct kept_checkpoints kept;
    Replay__CheckpointReply last; /* the newest whole checkpoint; number 0: none */
    int64_t last_ns;              /* when it ended */
};

/* Reads which checkpoints there are, and sets up timers. After the restore and stream_begin. *out stays NULL if the
 * configuration makes no checkpoints. stream and spill (NULL: all in memory) are borrowed. */
void checkpoints_init(struct checkpoints **out, const struct durable_state *state, struct stream *stream,
                      struct spill *spill, struct checkpoint_listener listener);
/* Abandons a checkpoint in progress. */
void checkpoints_fini(struct checkpoints **self);
/* Begins what was asked for, and continues what waited for the disk. In every turn, before the chores. True: there was
 * something to do. */
bool checkpoints_run(struct checkpoints *self);
/* Asks for a checkpoint, which begins in this turn or the next, or when the one in progress has ended. *number (may be
 * NULL): which it will be. self is NULL where none are made: then the error says how to configure them. */
rp_status checkpoint_start(struct checkpoints *self, enum checkpoint_reason reason, uint64_t *number, rp_error *err);
static inline bool checkpoint_is_running(const struct checkpoints *self)
{
    return self->running != NULL;
}
/* Of struct checkpoint_ops: the disk writer has finished this checkpoint (why is NULL), or has given it up. */
void checkpoint_finished(void *checkpoints, uint64_t number, const char *why);
/* Makes the last checkpoint, unless checkpoint.every is 0s, and waits for it. turn: lets the broker work; returns false if
 * the end must not wait any longer. Returns false if there is no such checkpoint; then the log says why. */
bool checkpoint_exit(struct checkpoints *self, bool (*turn)(void *ctx), void *ctx);
/* Removes files that are no longer needed: called when a checkpoint has ended, and when the disk becomes short of space. */
void checkpoints_clean(struct checkpoints *self);
/* Returns the share of the items of the checkpoint in progress that are written, 0 to 1. */
double checkpoint_progress(const struct checkpoints *self);
