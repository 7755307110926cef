/* What a lane waits for, and the sentences for its time-outs; rejections and counts. */
#ifndef AGENT_CLIENT_LANE_WAIT_H
#define AGENT_CLIENT_LANE_WAIT_H

#include "agent/client/writer/lane.h"

/* Returns the number of unused keys of the current session. A new session has new keys. */
static inline uint64_t lane_keys_left(struct lane *self)
{
    uint64_t base = atomic_load_explicit(&self->handoff.key_base, memory_order_acquire);
    if (base != self->key_base) {
        self->key_base = base;
        self->key_count = atomic_load_explicit(&self->handoff.key_count, memory_order_relaxed);
        self->keys_used = 0;
    }
    return self->key_count - self->keys_used;
}

/* Sets how many items of this lane may be unconfirmed: the other lanes hold the rest. While a lane is written to, the others only get
 * emptier, so an old window is not too large, unless a lane comes back that was away, which did not count. */
void lane_set_window(struct lane *self);

static inline bool lane_has_room(struct lane *self, uint64_t n)
{
    if (lane_keys_left(self) < n)
        return false;
    if (self->created + n - self->seen_resolved > self->window) {
        self->seen_resolved = atomic_load(&self->handoff.resolved);
        lane_set_window(self);
    }
    if (self->handed_bytes - self->seen_done_bytes >= self->max_bytes)
        self->seen_done_bytes = atomic_load(&self->handoff.done_bytes);
    uint64_t open = self->created - self->seen_resolved;
    return (open + n <= self->window || open == 0) && self->handed_bytes - self->seen_done_bytes < self->max_bytes;
}

/* Waits until n more items may be created. */
rp_status lane_await_room(struct lane *self, uint64_t n, int64_t timeout_ms, rp_error *err);
rp_status lane_await_open(struct lane *self, int64_t timeout_ms, rp_error *err);
/* True if it has a session at a broker that is connected: an episode can begin there. */
bool lane_is_open(struct lane *self);
/* Returns the items that are created and not confirmed. */
uint64_t lane_unconfirmed(struct lane *self);
/* RP_OK: *out is the oldest rejection that was not given yet. RP_NOT_FOUND: there is none. */
rp_status lane_next_rejection(struct lane *self, rp_rejection *out);
/* Adds this lane's numbers. */
void lane_add_info(struct lane *self, rp_writer_info *out);
rp_status lane_add_table_info(struct lane *self, const char *table, rp_writer_table_info *out, rp_error *err);
struct lane_flush {
    uint64_t max_unconfirmed;
    int64_t timeout_ms; /* that the caller has given, for the error */
    int64_t deadline_ns;
};
/* Sends all items of the lanes and waits until at most max_unconfirmed of all are unconfirmed; then returns the first rejection. */
rp_status lanes_flush(struct lane *const *lanes, uint32_t n, const struct lane_flush *flush, rp_error *err);
/* In lane_item.c: hands over the chunk that has left the stream. */
void lane_hand_evicted(struct lane *self);
/* Hands over the items that waited for a chunk that is now complete. */
rp_status lane_release(struct lane *self, rp_error *err);

#endif
