/* Checkpoints: the state at one instant, written while the broker goes on serving.
 *
 * At the instant, small state is copied (limiters, sessions, parameters, replies), and in each table the slots to
 * write are marked: all of them, or for an incremental checkpoint those that changed since its base. A chore copies
 * marked slots in slices; an item that is about to change before its turn is copied first (marks_touch). Chunks that
 * are in no segment yet are written on the way, and live chunks of sparse segments are moved. Then the disk writer
 * finishes the file, and files that no kept checkpoint needs are removed.
 *
 * The room owns the checkpoint in progress, the list of kept ones, and the way back from files to a running broker
 * (restore.h). It uses the stream, spilling, the disk format, and the rooms whose state it copies (durable_state.h). */
#ifndef BROKER_CHECKPOINT_H
#define BROKER_CHECKPOINT_H

#include <stdbool.h>
#include <stdint.h>

#include "replay/error.h"

struct durable_state;
struct spill;
struct stream;

enum checkpoint_reason {
    CHECKPOINT_ASKED,
    CHECKPOINT_SIGNAL,
    CHECKPOINT_PERIOD,
    CHECKPOINT_JOURNAL,
    CHECKPOINT_SPACE,
    CHECKPOINT_SYNC,
    CHECKPOINT_EXIT,
};

struct checkpoints;

/* Called when a checkpoint has ended. error: NULL if it is whole on disk. */
struct checkpoint_listener {
    void (*ended)(void *ctx, uint64_t number, const char *error);
    void *ctx;
};

/* What there is to tell about checkpoints. */
struct checkpoint_report {
    uint64_t last; /* number of the newest whole one; 0: none. The next five are about it */
    uint64_t base, items, bytes, took_ns, age_ns;
    uint64_t running; /* number of the one in progress; 0: none */
    double done;      /* share of its items that are written, 0 to 1 */
};

/* Reads which checkpoints there are, and sets up timers. After the restore and stream_begin. *out stays NULL if the
 * configuration makes no checkpoints. stream and spill (NULL: all in memory) are borrowed. */
rp_status checkpoints_init(struct checkpoints **out, const struct durable_state *state, struct stream *stream,
                           struct spill *spill, struct checkpoint_listener listener, rp_error *err);
/* Abandons a checkpoint in progress. */
void checkpoints_fini(struct checkpoints **self);
/* Begins what was asked for, and continues what waited for the disk. In every turn, before the chores. True: there was
 * something to do. */
bool checkpoints_run(struct checkpoints *self);
/* Asks for a checkpoint, which begins in this turn or the next, or when the one in progress has ended. *number (may be
 * NULL): which it will be. self is NULL where none are made: then the error says how to configure them. */
rp_status checkpoint_start(struct checkpoints *self, enum checkpoint_reason reason, uint64_t *number, rp_error *err);
/* NULL-safe. */
bool checkpoint_is_running(const struct checkpoints *self);
/* True while a checkpoint is wanted or running. NULL-safe. */
bool checkpoint_is_pending(const struct checkpoints *self);
/* The disk writer has finished this checkpoint, or (ok is false) has given it up. */
void checkpoint_finished(struct checkpoints *self, uint64_t number, bool ok);
/* Makes the last checkpoint, if checkpoint.on_exit is set, and waits for it. turn: lets the broker work; returns false if
 * the end must not wait any longer. */
void checkpoint_exit(struct checkpoints *self, bool (*turn)(void *ctx), void *ctx);
/* All zero for NULL. */
struct checkpoint_report checkpoints_report(const struct checkpoints *self);

#endif
