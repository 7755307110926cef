/* What a writer waits for, and the sentences for its time-outs. */
#ifndef AGENT_CLIENT_WRITER_WAIT_H
#define AGENT_CLIENT_WRITER_WAIT_H

#include "agent/client/writer/writer.h"

/* Returns the number of unused keys of the current session. A new session has new keys. */
static inline uint64_t writer_keys_left(rp_writer *self)
{
    uint64_t base = atomic_load_explicit(&self->handoff.key_base, memory_order_acquire);
    if (base != self->key_base) {
        self->key_base = base;
        self->key_count = atomic_load_explicit(&self->handoff.key_count, memory_order_relaxed);
        self->keys_used = 0;
    }
    return self->key_count - self->keys_used;
}

static inline bool writer_has_room(rp_writer *self, uint64_t n)
{
    if (writer_keys_left(self) < n)
        return false;
    if (self->created + n - self->seen_resolved > self->max_items)
        self->seen_resolved = atomic_load(&self->handoff.resolved);
    if (self->handed_bytes - self->seen_done_bytes >= self->max_bytes)
        self->seen_done_bytes = atomic_load(&self->handoff.done_bytes);
    uint64_t open = self->created - self->seen_resolved;
    return (open + n <= self->max_items || open == 0) && self->handed_bytes - self->seen_done_bytes < self->max_bytes;
}

/* Waits until n more items may be created. */
rp_status writer_await_room(rp_writer *self, uint64_t n, int64_t timeout_ms, rp_error *err);
rp_status writer_await_open(rp_writer *self, int64_t timeout_ms, rp_error *err);
/* Sends all items and waits until at most max_unconfirmed are unconfirmed; then returns the first rejection. timeout_ms is what
 * the caller has given, for the error. */
rp_status writer_flush(rp_writer *self, uint64_t max_unconfirmed, int64_t timeout_ms, int64_t deadline_ns,
                       rp_error *err);
/* In writer.c: hands over the items that waited for a chunk that is now complete. */
rp_status writer_release(rp_writer *self, rp_error *err);

#endif
