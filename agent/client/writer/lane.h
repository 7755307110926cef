/* A lane: a stream of steps and items to one broker, the writing thread's half.
 *
 * The room agent/client/writer, from the ground up: pool.c (memory of chunks and messages), step_stream.c (steps as chunks),
 * item_layout.c (items as slices of chunks), handoff.c (from the writing thread to the I/O thread); on the I/O thread outbox.c
 * (messages, credit, resending) and writer_session.c (HELLO, heartbeats); on the writing thread structured.c (patterns) and lane.c.
 * writer.c is the public face: a writer has one lane to each shard, and an episode goes into one of them. */
#ifndef AGENT_CLIENT_LANE_H
#define AGENT_CLIENT_LANE_H

#include "agent/client/conn/client.h"
#include "agent/client/writer/handoff.h"
#include "agent/client/writer/item_layout.h"
#include "agent/client/writer/structured.h"
#include "agent/client/writer/writer_session.h"
#include "proto/base/forks.h"
#include "replay/writer.h"

struct lane {
    struct handoff handoff; /* first: aligned to a cache line */
    struct writer_session session;
    struct conn *conn;
    struct trace *trace; /* of the connection */
    struct conn_hello *hello;
    struct step_stream stream;
    struct item_layouts layouts;
    struct structured structured;
    rp_slice *all; /* [columns] for lane_item_last */
    uint64_t *table_created;
    uint32_t last_table;
    uint64_t created, seen_resolved;
    uint64_t key_base, key_count, keys_used; /* of the current session */
    uint64_t handed_bytes, seen_done_bytes;  /* of chunks that items need */
    uint64_t max_items, max_bytes, max_message_bytes;
    uint64_t window;           /* of max_items, what the other lanes leave: lane_set_window */
    struct lane *const *lanes; /* of the writer, with this one */
    uint32_t n_lanes;
    uint64_t policy;
    struct queued_item *waiting; /* items that wait until waiting_chunk is complete */
    uint32_t n_waiting, waiting_capacity;
    struct step_chunk *waiting_chunk;
    bool attached;
    uint32_t forks; /* of this process when the lane was made */
};

struct lane_options {
    struct conn *conn;
    const char *name;
    const rp_column *columns;
    uint32_t n_columns;
    const rp_writer_options *writer; /* checked, without defaults left open */
    struct lane *const *lanes;       /* [n_lanes] of the writer, those that exist; borrowed */
    uint32_t n_lanes;
};

/* Opens a session in the background: lane_await_open. NULL with err set: wrong columns, or no memory. */
struct lane *lane_new(const struct lane_options *options, rp_error *err);
/* Frees it. If all items are confirmed, says goodbye before, and waits for the answer until the deadline, but not long. */
void lane_destroy(struct lane **self, int64_t deadline_ns);
/* Frees it without a word to the broker. */
void lane_drop(struct lane **self);

/* See the functions of the same names in replay/writer.h. */
rp_status lane_append(struct lane *self, const void *const *values, int64_t timeout_ms, rp_error *err);
rp_status lane_set(struct lane *self, uint32_t column, const void *value, uint64_t bytes, rp_error *err);
rp_status lane_end_step(struct lane *self, int64_t timeout_ms, rp_error *err);
rp_status lane_row(struct lane *self, uint32_t column, int64_t step, const void **row, rp_error *err);
rp_status lane_item(struct lane *self, const char *table, double priority, const rp_slice *slices, uint32_t n_slices,
                    int64_t timeout_ms, uint64_t *key, rp_error *err);
rp_status lane_item_last(struct lane *self, const char *table, double priority, uint32_t steps, int64_t timeout_ms,
                         uint64_t *key, rp_error *err);
rp_status lane_check_item(struct lane *self, const char *table, const rp_slice *slices, uint32_t n_slices,
                          rp_error *err);
void lane_set_policy(struct lane *self, uint64_t version);
rp_status lane_end_episode(struct lane *self, int32_t mode, int64_t timeout_ms, rp_error *err);
rp_status lane_add_pattern(struct lane *self, const rp_pattern *pattern, rp_error *err);

/* conn_check_process, without a call where the lane is in its process. */
static inline rp_status lane_check_process(const struct lane *self, rp_error *err)
{
    return self->forks == forks_count() ? RP_OK : conn_check_process(self->conn, err);
}

/* ---- what a lane waits for, rejections and counts ---- */

/* Sets how many items of this lane may be unconfirmed: the other lanes hold the rest. While a lane is written to, the others only get
 * emptier, so an old window is not too large, unless a lane comes back that was away, which did not count. */
void lane_set_window(struct lane *self);

rp_status lane_await_open(struct lane *self, int64_t timeout_ms, rp_error *err);
/* True if it has a session at a broker that is connected: an episode can begin there. */
bool lane_is_open(struct lane *self);
/* Returns the items that are created and not confirmed. */
uint64_t lane_unconfirmed(struct lane *self);
/* RP_OK: *out is the oldest rejection that was not given yet. RP_NOT_FOUND: there is none. */
rp_status lane_next_rejection(struct lane *self, rp_rejection *out);
/* Adds this lane's numbers. */
void lane_add_info(struct lane *self, rp_writer_info *out);
struct lane_flush {
    uint64_t max_unconfirmed;
    int64_t timeout_ms; /* that the caller has given, for the error */
    int64_t deadline_ns;
};
/* Sends all items of the lanes and waits until at most max_unconfirmed of all are unconfirmed; then returns the first rejection. */
rp_status lanes_flush(struct lane *const *lanes, uint32_t n, const struct lane_flush *flush, rp_error *err);

#endif
