/* Counters that all clients share, and sums over parallel learners. */
#ifndef REPLAY_COLLECTIVE_H
#define REPLAY_COLLECTIVE_H

#include <stdint.h>

#include "replay/client.h"
#include "replay/error.h"

#ifdef __cplusplus
extern "C" {
#endif

/* ---- counters ---- */

/* Adds to a counter that all clients share; it starts at 0, and stays at INT64_MAX or INT64_MIN where the sum would pass it. *value
 * (may be NULL) is its value after the addition. */
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
