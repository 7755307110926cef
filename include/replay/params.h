/* Named parameter slots, named counters, and the sum over parallel learners. */
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
    const void *data; /* NULL: the version that the caller has, or never written */
    uint64_t bytes;
    uint64_t age_ns; /* since it was put */
} rp_param;

/* Stores a new version under a name. version may be NULL. */
RP_API rp_status rp_params_put(rp_client *client, const char *name, const void *data, uint64_t bytes,
                               int64_t timeout_ms, uint64_t *version, rp_error *err);
/* Waits until the slot has another version than `have` and gives it. Versions begin at 1 again with a broker that keeps
 * nothing on disk.
 * timeout_ms 0 polls: RP_DEADLINE_EXCEEDED if there is none. *out is NULL unless RP_OK is returned. */
RP_API rp_status rp_params_get(rp_client *client, const char *name, uint64_t have, int64_t timeout_ms, rp_params **out,
                               rp_error *err);
/* The same for n slots: returns as soon as at least one has another version. The others come without data. */
RP_API rp_status rp_params_get_many(rp_client *client, const char *const *names, const uint64_t *have, uint32_t n,
                                    int64_t timeout_ms, rp_params **out, rp_error *err);
/* Slot i (in the order of the names asked for), NULL past the end. Borrowed from params. */
RP_API const rp_param *rp_params_slot(const rp_params *params, uint32_t i);
/* Nulls *params. */
RP_API void rp_params_release(rp_params **params);

/* ---- counters ---- */

/* Adds to a counter that every client sees; it starts at 0. value (may be NULL): after the addition. */
RP_API rp_status rp_counter_add(rp_client *client, const char *name, int64_t add, int64_t timeout_ms, int64_t *value,
                                rp_error *err);
RP_API rp_status rp_counter_read(rp_client *client, const char *name, int64_t timeout_ms, int64_t *value,
                                 rp_error *err);

/* ---- reduce: the sum of float vectors over the members of a group, round by round ---- */

typedef struct rp_reduce rp_reduce;

typedef struct rp_reduced {
    uint64_t round;
    uint32_t contributors; /* how many vectors the sum holds */
    uint32_t members;      /* in the group now */
    uint32_t counted;      /* 1: this member's vector is in the sum; 0: it came after the round was closed */
    uint32_t reserved;
} rp_reduced;

/* Joins a group; a group exists as long as it has members. NULL with err set otherwise. The client must outlive it. */
RP_API rp_reduce *rp_reduce_join(rp_client *client, const char *group, int64_t timeout_ms, rp_error *err);
/* Adds this member's vector to the present round, waits until the round is complete, and replaces the vector by the
 * sum: the same bytes for every member. round_ms bounds the wait for the other members: then the round closes
 * without those that are missing, and they leave the group (negative: as long as it takes).
 *
 * timeout_ms bounds the call. After RP_DEADLINE_EXCEEDED the vector stays in its round and values are unchanged; the
 * next add takes up the wait for that round, whatever its values.
 *
 * A member that came too late gets the sum without its vector (counted 0), and is a member again from the next round
 * on. RP_FAILED_PRECONDITION: the sum is gone, or the broker was restarted; the values are unchanged, the member has
 * joined again, and the next add goes to the group's present round. */
RP_API rp_status rp_reduce_add(rp_reduce *reduce, float *values, uint64_t n, int64_t round_ms, int64_t timeout_ms,
                               rp_reduced *out, rp_error *err);
/* Leaves the group and nulls *reduce, also when the broker does not answer. */
RP_API rp_status rp_reduce_leave(rp_reduce **reduce, int64_t timeout_ms, rp_error *err);

#ifdef __cplusplus
}
#endif

#endif
