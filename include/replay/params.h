/* Named slots for parameters. A slot holds the newest version of a block of bytes, such as the weights of a policy: a learner puts a
 * block, and actors get the newest one. The broker numbers the versions. */
#ifndef REPLAY_PARAMS_H
#define REPLAY_PARAMS_H

#include <stdint.h>

#include "replay/client.h"
#include "replay/error.h"

#ifdef __cplusplus
extern "C" {
#endif

/* ---- slots ---- */

/* A version of a slot that was received. */
typedef struct rp_params rp_params;

typedef struct rp_param {
    const char *name;
    uint64_t version; /* 1, 2, 3 ... */
    const void *data;
    uint64_t bytes;
    uint64_t age_ns; /* since the put */
    uint64_t bf16;   /* 1: this is the second form of the value, which rp_publisher_put_bf16 was given */
} rp_param;

/* Stores a new version of a slot. version may be NULL. A value may be of any size that the broker has room for (a quarter of its
 * memory_limit holds all values, and the old version as long as it is read): a large one goes in parts. With shards: returns when shard 0 and all others that answer have it. */
RP_API rp_status rp_params_put(rp_client *client, const char *name, const void *data, uint64_t bytes,
                               int64_t timeout_ms, uint64_t *version, rp_error *err);
/* Waits until the slot has a version other than `have`, and gives that version. timeout_ms 0 polls: RP_DEADLINE_EXCEEDED if
 * there is none. A large value comes in parts, for as long as parts arrive; from a broker on this host it is mapped, and not copied.
 * *out is NULL unless RP_OK is returned. A broker that keeps nothing on disk counts versions from 1 again
 * after a restart. */
RP_API rp_status rp_params_get(rp_client *client, const char *name, uint64_t have, int64_t timeout_ms, rp_params **out,
                               rp_error *err);
/* Returns the slot, borrowed from params. */
RP_API const rp_param *rp_params_slot(const rp_params *params);
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
    uint64_t parts;    /* of large blocks: sent, including retries */
} rp_publisher_stats;

RP_API rp_publisher *rp_publisher_new(rp_client *client, const char *name, rp_error *err);
/* Copies the block and returns at once. At most one put is in flight, and at most about 500 puts are sent per second; of the
 * blocks that are given in between, only the newest is sent. While no broker answers, the newest block waits. If the broker
 * has refused an earlier block, that error is returned once; the block of this call is taken all the same. */
RP_API rp_status rp_publisher_put(rp_publisher *publisher, const void *data, uint64_t bytes, rp_error *err);
/* The same with a second, shorter form of the block, for subscribers that want it: for example its float32 tensors as bfloat16. */
RP_API rp_status rp_publisher_put_bf16(rp_publisher *publisher, const void *data, uint64_t bytes, const void *bf16,
                                       uint64_t bf16_bytes, rp_error *err);
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
    uint64_t parts; /* of large values: received */
} rp_subscriber_stats;

/* Starts asking for a version other than `have` (0: any). After the broker was restarted, any version is new. */
RP_API rp_subscriber *rp_subscriber_new(rp_client *client, const char *name, uint64_t have, rp_error *err);
/* The same, but takes the second form of a version that has one. */
RP_API rp_subscriber *rp_subscriber_new_bf16(rp_client *client, const char *name, uint64_t have, rp_error *err);
/* Gives the newest version that has arrived since the last call; release it with rp_params_release. timeout_ms 0 never
 * waits: RP_DEADLINE_EXCEEDED if nothing has arrived. A version that is not taken within about 20 ms is replaced by a newer
 * one. If the broker has refused a request, that error is returned once. */
RP_API rp_status rp_subscriber_take(rp_subscriber *subscriber, int64_t timeout_ms, rp_params **out, rp_error *err);
RP_API rp_status rp_subscriber_get_stats(rp_subscriber *subscriber, rp_subscriber_stats *out);
RP_API void rp_subscriber_destroy(rp_subscriber **subscriber);

#ifdef __cplusplus
}
#endif

#endif
