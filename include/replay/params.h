/* Named parameter slots, named counters, and sums over parallel learners. */
#ifndef REPLAY_PARAMS_H
#define REPLAY_PARAMS_H

#include <stdint.h>

#include "replay/client.h"
#include "replay/error.h"

#ifdef __cplusplus
extern "C" {
#endif

/* ---- slots ---- */

/* One or more slots as they were received. */
typedef struct rp_params rp_params;

typedef struct rp_param {
    const char *name;
    uint64_t version; /* 1, 2, 3 ...; 0: the slot was never written */
    const void *data; /* NULL: the caller has this version already, or the slot was never written */
    uint64_t bytes;
    uint64_t age_ns; /* since the put */
} rp_param;

/* Stores a new version of a slot. version may be NULL. With shards: returns when shard 0 and all others that answer have it. */
RP_API rp_status rp_params_put(rp_client *client, const char *name, const void *data, uint64_t bytes,
                               int64_t timeout_ms, uint64_t *version, rp_error *err);
/* Waits until the slot has a version other than `have`, and gives that version. timeout_ms 0 polls: RP_DEADLINE_EXCEEDED if
 * there is none. *out is NULL unless RP_OK is returned. A broker that keeps nothing on disk counts versions from 1 again
 * after a restart. */
RP_API rp_status rp_params_get(rp_client *client, const char *name, uint64_t have, int64_t timeout_ms, rp_params **out,
                               rp_error *err);
/* The same for n slots: returns as soon as at least one slot has another version. The other slots come without data. */
RP_API rp_status rp_params_get_many(rp_client *client, const char *const *names, const uint64_t *have, uint32_t n,
                                    int64_t timeout_ms, rp_params **out, rp_error *err);
/* Returns slot i, in the order of the names, or NULL past the end. Borrowed from params. */
RP_API const rp_param *rp_params_slot(const rp_params *params, uint32_t i);
/* Nulls *params. */
RP_API void rp_params_release(rp_params **params);

/* ---- slots without waiting ----
 *
 * rp_params_put and rp_params_get take a round trip each. In a loop of steps, use a publisher or a subscriber: the client's
 * own thread talks to the broker, and the loop never waits. Each may be used by one thread at a time; the client must
 * outlive both.
 *
 * With shards, blocks are put to all of them, and a shard that was lost gets the newest block when it is back, as long as the
 * publisher lives. Each client reads from one shard, and from another when that one has not answered for a second. */

typedef struct rp_publisher rp_publisher;
typedef struct rp_subscriber rp_subscriber;

/* Set struct_size before the call. */
typedef struct rp_publisher_stats {
    uint32_t struct_size;
    uint32_t reserved;
    uint64_t given;    /* blocks that rp_publisher_put took */
    uint64_t replaced; /* of them: never sent, because a newer block came first */
    uint64_t puts;     /* sent, including retries */
    uint64_t version;  /* of the newest block that the broker has stored; 0: none */
} rp_publisher_stats;

RP_API rp_publisher *rp_publisher_new(rp_client *client, const char *name, rp_error *err);
/* Copies the block and returns at once. At most one put is in flight, and at most about 500 puts are sent per second; of the
 * blocks that are given in between, only the newest is sent. While no broker answers, the newest block waits. If the broker
 * has refused an earlier block, that error is returned once; the block of this call is taken all the same. */
RP_API rp_status rp_publisher_put(rp_publisher *publisher, const void *data, uint64_t bytes, rp_error *err);
/* Waits until the newest block is stored. version may be NULL. RP_DEADLINE_EXCEEDED: the block is still in flight. */
RP_API rp_status rp_publisher_flush(rp_publisher *publisher, int64_t timeout_ms, uint64_t *version, rp_error *err);
RP_API rp_status rp_publisher_get_stats(rp_publisher *publisher, rp_publisher_stats *out);
/* Flushes for at most timeout_ms, then drops a block that is not stored. Nulls *publisher. */
RP_API rp_status rp_publisher_destroy(rp_publisher **publisher, int64_t timeout_ms, rp_error *err);

typedef struct rp_subscriber_stats {
    uint32_t struct_size;
    uint32_t reserved;
    uint64_t polls;    /* requests sent; at most one is in flight */
    uint64_t arrived;  /* versions received */
    uint64_t replaced; /* of them: not taken before a newer version came */
    uint64_t taken;
} rp_subscriber_stats;

/* Starts asking for a version other than `have` (0: any). After the broker was restarted, any version is new. */
RP_API rp_subscriber *rp_subscriber_new(rp_client *client, const char *name, uint64_t have, rp_error *err);
/* Gives the newest version that has arrived since the last call; release it with rp_params_release. timeout_ms 0 never
 * waits: RP_DEADLINE_EXCEEDED if nothing has arrived. A version that is not taken within about 20 ms is replaced by a newer
 * one. If the broker has refused a request, that error is returned once. */
RP_API rp_status rp_subscriber_take(rp_subscriber *subscriber, int64_t timeout_ms, rp_params **out, rp_error *err);
RP_API rp_status rp_subscriber_get_stats(rp_subscriber *subscriber, rp_subscriber_stats *out);
RP_API void rp_subscriber_destroy(rp_subscriber **subscriber);

/* ---- counters ---- */

/* Adds to a counter that all clients share; it starts at 0. *value (may be NULL) is its value after the addition. */
RP_API rp_status rp_counter_add(rp_client *client, const char *name, int64_t add, int64_t timeout_ms, int64_t *value,
                                rp_error *err);
RP_API rp_status rp_counter_read(rp_client *client, const char *name, int64_t timeout_ms, int64_t *value,
                                 rp_error *err);

/* An addition in flight. */
typedef struct rp_addition rp_addition;
/* The same in two steps, so that the caller can work meanwhile: begin sends, end waits for the answer. timeout_ms 0 polls.
 * RP_DEADLINE_EXCEEDED: the addition is still in flight, and *addition stays; any other status ends and nulls it. The client
 * must outlive it. begin returns NULL without memory, or if the name is not allowed. */
RP_API rp_addition *rp_counter_begin(rp_client *client, const char *name, int64_t add, rp_error *err);
RP_API rp_status rp_counter_end(rp_addition **addition, int64_t timeout_ms, int64_t *value, rp_error *err);
/* Nulls *addition without waiting: it is not known whether the broker carries it out. */
RP_API void rp_counter_forget(rp_addition **addition);

/* ---- reduce: the sum of float vectors over the members of a group, round by round ---- */

typedef struct rp_reduce rp_reduce;

typedef struct rp_reduced {
    uint64_t round;
    uint32_t contributors; /* number of vectors in the sum */
    uint32_t members;      /* in the group now */
    uint32_t counted;      /* 1: this member's vector is in the sum; 0: it arrived after the round was closed */
    uint32_t reserved;
} rp_reduced;

/* Joins a group; a group exists as long as it has members. NULL with err set: it failed. The client must outlive it. */
RP_API rp_reduce *rp_reduce_join(rp_client *client, const char *group, int64_t timeout_ms, rp_error *err);
/* Adds this member's vector to the current round, waits until the round is complete, and replaces the vector by the sum:
 * the same bytes for every member. round_ms bounds the wait for the other members (negative: no bound): after it the round
 * closes without the missing members, and they leave the group.
 *
 * timeout_ms bounds the call. After RP_DEADLINE_EXCEEDED the vector stays in its round and values are unchanged; the
 * next add goes on waiting for that round and ignores its own values.
 *
 * A member that comes too late gets the sum without its vector (counted 0), and is a member again from the next round on.
 * RP_FAILED_PRECONDITION: the broker no longer has the sum, or was restarted; the values are unchanged, the member has
 * joined again, and the next add goes to the group's current round. */
RP_API rp_status rp_reduce_add(rp_reduce *reduce, float *values, uint64_t n, int64_t round_ms, int64_t timeout_ms,
                               rp_reduced *out, rp_error *err);
/* Leaves the group and nulls *reduce, even if the broker does not answer. */
RP_API rp_status rp_reduce_leave(rp_reduce **reduce, int64_t timeout_ms, rp_error *err);

#ifdef __cplusplus
}
#endif

#endif
