/* Checkpoints: the state at one instant, written while the broker goes on serving.
 *
 * At the instant, what is small is copied (limiters, sessions, parameters, replies), and of each table the slots that
 * must be written are marked: all of them, or those that changed since the checkpoint before (then the new one is a
 * change of that one). A chore copies marked slots in slices; an item that is about to change before its turn is copied
 * first (checkpoint_touch). Chunks that are not in a segment yet are put there on the way; what still lives in mostly dead
 * segments is moved. Then the disk writer finishes the file, and files that no kept checkpoint needs are removed. */
#ifndef BROKER_CHECKPOINT_H
#define BROKER_CHECKPOINT_H

#include <stdbool.h>
#include <stdint.h>

#include "replay.pb-c.h"
#include "replay/error.h"

struct broker;
struct checkpoint;
struct chore;
struct contents;
struct table;
struct request;

/* Of a table's contents: slots that changed since the last checkpoint, and how far the one under way is. Bits by slot;
 * reserved for the capacity. NULL where the broker makes no checkpoints. */
struct marks {
    uint64_t *changed;
    uint64_t *pending; /* the slots that the one under way still has to copy; if it copies all of them (whole): those
                        * below `high` that it has copied ahead of its turn */
    uint32_t words;
    uint32_t n_changed;
    struct checkpoint *copying; /* under way; NULL: none, or it is through with this table */
    uint32_t next, high; /* it has passed the words before `next`; slots from `high` on were not used at its instant */
    bool whole;
    bool all_changed; /* as after a start or a reset: the next one writes all */
};

rp_status marks_init(struct marks **self, uint32_t capacity, rp_error *err);
void marks_destroy(struct marks **self);

void checkpoint_touch_(struct table *table, struct contents *in, uint32_t slot);
/* The slot is about to change: insert, remove, priority, sample. */
#define CHECKPOINT_TOUCH(table, in, slot)                                                                              \
    do {                                                                                                               \
        if ((in)->marks)                                                                                               \
            checkpoint_touch_(table, in, slot);                                                                        \
    } while (0)
/* A table's contents now lie at `in`, since the table was reset. True: the checkpoint under way still copies from them;
 * it adds `then`, which frees them, to the chores as soon as it is through. */
bool checkpoint_keeps(struct contents *in, struct chore *then);

enum checkpoint_reason {
    CHECKPOINT_ASKED,
    CHECKPOINT_SIGNAL,
    CHECKPOINT_PERIOD,
    CHECKPOINT_JOURNAL,
    CHECKPOINT_SPACE,
    CHECKPOINT_SYNC,
    CHECKPOINT_EXIT,
};

/* One begins in this turn or the next. While one is under way a second begins when that has ended. *number: which it
 * will be. Not configured: an error that says how. */
rp_status checkpoint_start(struct broker *broker, enum checkpoint_reason reason, uint64_t *number, rp_error *err);
bool checkpoint_is_running(const struct broker *broker);
/* One that is to free space on a disk that is short of it is wanted or under way. */
bool checkpoint_makes_room(const struct broker *broker);
/* Bytes that a whole one takes, estimated. */
uint64_t checkpoint_bytes(const struct broker *broker);
/* From a signal handler: one starts in the next turn. */
void checkpoint_signal(struct broker *broker);
/* Begins what was asked for and goes on with what waited for the disk. In every turn, before the chores. True: there
 * was something to do. */
bool checkpoints_run(struct broker *broker);
/* The disk writer has finished, or given up, this one. */
void checkpoint_finished(struct broker *broker, uint64_t number, bool ok);
/* At the end: one more, waited for, if it is configured. */
void checkpoint_exit(struct broker *broker);
/* Timers and state; after the restore and stream_begin. */
rp_status checkpoints_init(struct broker *broker, rp_error *err);
void checkpoints_fini(struct broker *broker);
/* What there is to tell: the fields about checkpoints. */
void checkpoints_info(const struct broker *broker, Replay__DiskInfo *out);

/* req_checkpoint.c: those who wait for this one, or an earlier one, are answered. error: NULL if it is whole. */
void checkpoint_answer(struct broker *broker, uint64_t number, const char *error);

#endif
