/* Writing: steps go into a stream, and items refer to slices of its recent steps.
 *
 *   rp_writer_append(w, values, -1, &err);                  one step, one pointer per column
 *   rp_writer_item_last(w, "replay", 1.0, 3, -1, &key, &err);   an item over the last 3 steps
 *   rp_writer_end_episode(w, RP_END_WAIT, -1, &err);
 *
 * Steps are collected in chunks of chunk_length. A chunk is sent only if an item needs it, and an item is sent as soon
 * as its chunks are complete; rp_writer_flush and rp_writer_end_episode complete the chunk that is being filled. Items
 * travel in the background. max_in_flight_items and max_in_flight_bytes bound what is in flight; calls wait when a bound is
 * reached. A call that times out has done nothing and can be repeated.
 *
 * A confirmed item is in its table exactly once, even if the connection was lost in between. rp_writer_next_rejection and
 * the next flush report an item that the broker has refused.
 *
 * With shards, a writer has a session at each of them. A whole episode goes to one shard, the better of two by unconfirmed items;
 * a shard that is away gets no new episodes, and what it was sent before waits for it. The bounds on what is in flight hold for each
 * shard.
 *
 * A writer may be used by one thread at a time. */
#ifndef REPLAY_WRITER_H
#define REPLAY_WRITER_H

#include <stddef.h>
#include <stdint.h>

#include "replay/client.h"
#include "replay/error.h"
#include "replay/types.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct rp_writer rp_writer;

/* What to do with items that were sent in a session that the broker no longer knows: they may or may not be in their
 * table. */
typedef enum rp_doubt {
    RP_DOUBT_REPORT = 0, /* report each item as RP_IN_DOUBT and do not send it again */
    RP_DOUBT_RESEND =
        1, /* send each item again under its key; an item that was sampled and removed meanwhile is inserted twice */
} rp_doubt;

/* Set struct_size to sizeof(rp_writer_options) and the rest to 0 for the defaults. */
typedef struct rp_writer_options {
    uint32_t struct_size;
    uint32_t chunk_length;        /* steps per chunk; 0: 1 */
    const char *name;             /* shown by the broker; NULL: the client's */
    uint64_t keep_alive;          /* number of newest steps that items may refer to; 0: chunk_length */
    uint64_t max_in_flight_items; /* items created and not confirmed, at all shards that are there; 0: 20000 */
    uint64_t max_in_flight_bytes; /* of their chunks, at each shard; 0: 256 MiB; at most 32 MiB in shared memory */
    uint32_t batch_items;         /* largest number of items in one message; 0: 50 */
    int32_t doubt;                /* an rp_doubt */
    uint32_t history;             /* 1: keep a copy of the newest keep_alive steps for rp_writer_row */
    uint32_t reserved;
} rp_writer_options;

/* One field of an item: every `stride`-th row of a column, `count` rows, starting at step `start`. */
typedef struct rp_slice {
    const char *field; /* name of the field in the item; NULL: the column's name */
    uint32_t column;   /* index into the writer's columns */
    uint32_t count;    /* 0: up to the newest step */
    int64_t start;     /* step in the episode; negative: counted back from the newest step, which is -1 */
    uint32_t stride;   /* 0 and 1 are the same */
    uint32_t squeeze;  /* not 0: count is 1 and the field has no step dimension */
} rp_slice;

/* Opens a stream of steps with these columns, which are copied. options may be NULL. The client must outlive the writer. */
RP_API rp_writer *rp_writer_new(rp_client *client, const rp_column *columns, uint32_t n_columns,
                                const rp_writer_options *options, int64_t timeout_ms, rp_error *err);
/* Waits until all items are confirmed, then closes the stream and frees the writer. After a time-out it frees the writer all
 * the same, and the error says how many items were unconfirmed. Nulls *writer. */
RP_API rp_status rp_writer_destroy(rp_writer **writer, int64_t timeout_ms, rp_error *err);

/* Appends a whole step: a pointer to one row per column; NULL leaves the column out of this step. Also completes a step that
 * was begun with rp_writer_set. */
RP_API rp_status rp_writer_append(rp_writer *writer, const void *const *values, int64_t timeout_ms, rp_error *err);
/* Sets one column of the current step. Refuses a column that is set already, and a wrong number of bytes. */
RP_API rp_status rp_writer_set(rp_writer *writer, uint32_t column, const void *value, uint64_t bytes, rp_error *err);
/* Completes the current step; columns that were not set are absent in it. */
RP_API rp_status rp_writer_end_step(rp_writer *writer, int64_t timeout_ms, rp_error *err);

/* Gives the value of a column at a step that items may refer to; step as rp_slice.start. *row is NULL if the column has no value
 * there, and is valid until the writer is used again. Needs the option history. RP_NOT_FOUND: the step has left the window, or is
 * not complete yet. */
RP_API rp_status rp_writer_row(rp_writer *writer, uint32_t column, int64_t step, const void **row, rp_error *err);

/* Creates an item with these fields. priority: not negative; what it means is up to the selectors of the table. *key (may be NULL) is
 * its key, by which its priority can be set later. */
RP_API rp_status rp_writer_item(rp_writer *writer, const char *table, double priority, const rp_slice *slices,
                                uint32_t n_slices, int64_t timeout_ms, uint64_t *key, rp_error *err);
/* Checks that the table accepts items with these fields: their names, dtypes, shapes and numbers of steps (count 0: any
 * number), wherever they start. Gives a clear error before the first step is appended. */
RP_API rp_status rp_writer_check_item(rp_writer *writer, const char *table, const rp_slice *slices, uint32_t n_slices,
                                      rp_error *err);
/* Creates an item of the last `steps` steps of all columns. */
RP_API rp_status rp_writer_item_last(rp_writer *writer, const char *table, double priority, uint32_t steps,
                                     int64_t timeout_ms, uint64_t *key, rp_error *err);
/* Waits until so many items can be made, which then do not wait, whatever is appended between them. So steps and their items can be
 * all or nothing: after a time-out nothing has been done. Replaces what was reserved before. */
RP_API rp_status rp_writer_reserve(rp_writer *writer, uint64_t items, int64_t timeout_ms, rp_error *err);
/* Sets the version of the parameters that choose the actions from now on: items carry the oldest of their
 * steps to the learner (rp_batch_arrays.policy). */
RP_API void rp_writer_set_policy(rp_writer *writer, uint64_t version);

/* Sets the group of the items from now on, for tables that have groups (group.size): items with the same key, of any writers, are sampled
 * together. Items of other tables have none. 0: no group. With shards, it also says where the next episode goes: set it before
 * the first step of an episode. */
RP_API void rp_writer_set_group(rp_writer *writer, uint64_t group);

/* Waits until at most max_unconfirmed items are unconfirmed. After a time-out the error says what the items wait for.
 * Otherwise returns the status of the first rejection since the last flush, once, if there was any. */
RP_API rp_status rp_writer_flush(rp_writer *writer, uint64_t max_unconfirmed, int64_t timeout_ms, rp_error *err);

typedef enum rp_end {
    RP_END_WAIT = 0, /* return when all items are confirmed; with shards: all items at the episode's shard */
    RP_END_GO = 1,   /* items are confirmed in the background */
} rp_end;
/* Ends the episode: later items cannot refer to its steps. After a time-out, call it again to go on waiting. */
RP_API rp_status rp_writer_end_episode(rp_writer *writer, int32_t mode, int64_t timeout_ms, rp_error *err);

/* ---- patterns: items made by rule instead of by code ---- */

typedef enum rp_condition_kind {
    RP_WHEN_STEP_MODULO = 1,    /* the number of steps in the episode, modulo a, is b */
    RP_WHEN_END_OF_EPISODE = 2, /* only at the end of an episode */
    RP_WHEN_MIN_STEPS = 3,      /* the episode has at least a steps */
    RP_WHEN_EVERY = 4,          /* a or more steps have passed since this pattern last made an item */
    RP_WHEN_VALUE = 5, /* the newest step's value in `column`, compared by a with `number`; not if it is absent */
    RP_WHEN_STEPS = 6, /* the number of steps in the episode, compared by a with `number` */
} rp_condition_kind;

/* Whole numbers are compared without rounding. NaN in a column is unequal to every number, and neither less nor greater. */
typedef enum rp_compare {
    RP_COMPARE_EQ = 1,
    RP_COMPARE_NE = 2,
    RP_COMPARE_LT = 3,
    RP_COMPARE_LE = 4,
    RP_COMPARE_GT = 5,
    RP_COMPARE_GE = 6,
} rp_compare;

typedef struct rp_condition {
    int32_t kind;    /* an rp_condition_kind */
    uint32_t column; /* of RP_WHEN_VALUE: holds one bool, whole number, float32 or float64 */
    uint64_t a;      /* of RP_WHEN_VALUE and RP_WHEN_STEPS: an rp_compare */
    union {
        uint64_t b;
        double number; /* of RP_WHEN_VALUE and RP_WHEN_STEPS */
    };
} rp_condition;

/* Makes an item with these slices after each step for which all conditions hold. A pattern that is to run at the end of an
 * episode needs RP_WHEN_END_OF_EPISODE; it runs before the steps of the episode are dropped. A pattern whose slices reach
 * back past the start of the episode, or to an absent value, makes no item at that step. */
typedef struct rp_pattern {
    const char *table;
    double priority;
    const rp_slice *slices; /* with negative starts */
    uint32_t n_slices;
    uint32_t n_conditions;
    const rp_condition *conditions;
} rp_pattern;

/* Copies the pattern. Refuses slices that reach back further than keep_alive. */
RP_API rp_status rp_writer_add_pattern(rp_writer *writer, const rp_pattern *pattern, rp_error *err);

/* ---- confirmed and rejected items ---- */

typedef struct rp_rejection {
    int32_t status; /* an rp_status; RP_IN_DOUBT: see rp_doubt */
    uint32_t reserved;
    uint64_t key;
    char table[256];
    char text[256];
} rp_rejection;

/* RP_OK: *out is the oldest rejection that was not given yet. RP_NOT_FOUND: there is none. */
RP_API rp_status rp_writer_next_rejection(rp_writer *writer, rp_rejection *out);

typedef struct rp_writer_info {
    uint32_t struct_size;
    uint32_t episode;         /* of the current step */
    uint64_t steps;           /* appended so far */
    uint64_t episode_steps;   /* in this episode */
    uint64_t created;         /* items */
    uint64_t sent;            /* of them: sent at least once */
    uint64_t accepted;        /* in their table */
    uint64_t rejected;        /* refused by the broker */
    uint64_t in_doubt;        /* sent in a session that the broker no longer knows */
    uint64_t unconfirmed;     /* neither accepted, rejected nor in doubt */
    uint64_t lost_messages;   /* acknowledged by a broker that has restarted without them */
    uint64_t messages;        /* sent */
    uint64_t bytes;           /* sent, all frames */
    uint64_t resent_messages; /* sent again after a lost connection */
    uint64_t sessions; /* opened; more than one for each shard: the broker had lost one, or its keys were used up */
    uint64_t stored_messages;    /* kept for a resend */
    uint64_t rejections_dropped; /* rejections that were not read in time: the oldest 1024 are kept */
} rp_writer_info;

RP_API rp_status rp_writer_get_info(rp_writer *writer, rp_writer_info *out, rp_error *err);

#ifdef __cplusplus
}
#endif

#endif
