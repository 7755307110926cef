/* See writer_wait.h. */
#include "agent/client/writer/writer_wait.h"

#include <inttypes.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

#include "proto/base/clock.h"
#include "proto/base/error.h"
#include "proto/base/trace.h"

static uint64_t unconfirmed(rp_writer *self)
{
    return self->created - atomic_load(&self->handoff.resolved);
}

/* Writes why the items wait, as far as it is known. */
static void explain(rp_writer *self, char *out, size_t size)
{
    conn_describe(self->conn, out, size);
    if (out[0])
        return;
    uint32_t slowest = 0;
    uint64_t most = 0;
    pthread_mutex_lock(&self->handoff.mutex);
    snprintf(out, size, "%s", self->handoff.why);
    for (uint32_t i = 0; i < self->handoff.n_tables; i++) {
        uint64_t open = self->table_created[i] - self->handoff.tables[i].resolved;
        slowest = open > most ? i : slowest;
        most = open > most ? open : most;
    }
    struct handoff_table table = self->handoff.tables[slowest];
    pthread_mutex_unlock(&self->handoff.mutex);
    if (!out[0])
        snprintf(out, size,
                 "table '%.200s' has confirmed %" PRIu64 " of %" PRIu64 " items; %" PRIu64
                 " are sent, and the broker allows %" PRIu64,
                 self->hello->tables[slowest].name, table.resolved, self->table_created[slowest], table.sent,
                 table.allowed);
}

typedef bool done_fn(rp_writer *self, uint64_t arg);

/* Waits until done; what: the name of its span in a trace. False: the deadline has passed, or the caller has ended the wait. */
static bool wait_for(rp_writer *self, const char *what, done_fn *done, uint64_t arg, int64_t deadline_ns)
{
    struct handoff *handoff = &self->handoff;
    if (done(self, arg))
        return true;
    if (deadline_ns != INT64_MAX && conn_now() >= deadline_ns) {
        conn_look(self->conn);
        return done(self, arg);
    }
    int64_t start = trace_now(conn_trace(self->conn));
    atomic_fetch_add(&handoff->waiters, 1);
    conn_wake(self->conn); /* the I/O thread asks the broker for reasons while a caller waits */
    pthread_mutex_lock(&handoff->mutex);
    handoff->why[0] = '\0';
    handoff->wait_ns = conn_now();
    bool ok;
    while (!(ok = done(self, arg)) && conn_wait(self->conn, &handoff->moved, &handoff->mutex, deadline_ns))
        ;
    handoff->waited_ns += (uint64_t)(conn_now() - handoff->wait_ns);
    handoff->wait_ns = 0;
    pthread_mutex_unlock(&handoff->mutex);
    atomic_fetch_sub(&handoff->waiters, 1);
    trace_add_since(conn_trace(self->conn), what, NULL, start, 0);
    return !conn_is_stopped() && (ok || done(self, arg));
}

/* ---- the session */

static bool is_open(rp_writer *self, uint64_t unused)
{
    (void)unused;
    return self->handoff.open || self->handoff.refusal.status != RP_OK;
}

rp_status writer_await_open(rp_writer *self, int64_t timeout_ms, rp_error *err)
{
    struct handoff *handoff = &self->handoff;
    int64_t deadline = conn_deadline(timeout_ms);
    atomic_fetch_add(&handoff->waiters, 1);
    conn_wake(self->conn);
    pthread_mutex_lock(&handoff->mutex);
    while (!is_open(self, 0) && conn_wait(self->conn, &handoff->moved, &handoff->mutex, deadline))
        ;
    bool open = handoff->open, stopped = !open && conn_is_stopped();
    rp_error refusal = handoff->refusal;
    self->max_message_bytes = handoff->max_message_bytes;
    pthread_mutex_unlock(&handoff->mutex);
    atomic_fetch_sub(&handoff->waiters, 1);
    if (open)
        return RP_OK;
    if (stopped)
        return conn_stopped(err);
    if (refusal.status != RP_OK)
        return err_set(err, (rp_status)refusal.status, "%s", refusal.text);
    return err_set(err, RP_UNAVAILABLE, "the broker at %s has not opened a session within %g s",
                   conn_endpoint(self->conn), (double)timeout_ms / 1e3);
}

/* ---- room */

static bool has_room(rp_writer *self, uint64_t n)
{
    return writer_has_room(self, n);
}

/* Completes the open chunk if the writer would otherwise wait for items that wait for this chunk. */
static rp_status let_go(rp_writer *self, rp_error *err)
{
    if (self->n_waiting == 0)
        return RP_OK;
    RP_TRY(step_stream_cut(&self->stream, err));
    return writer_release(self, err);
}

static void hurry(rp_writer *self)
{
    atomic_store(&self->handoff.urgent, true);
    conn_wake(self->conn);
}

rp_status writer_await_room(rp_writer *self, uint64_t n, int64_t timeout_ms, rp_error *err)
{
    RP_TRY(let_go(self, err));
    if (writer_keys_left(self) < n) {
        atomic_store(&self->handoff.renew, true);
        hurry(self);
    }
    if (wait_for(self, "wait for credit", has_room, n, conn_deadline(timeout_ms)))
        return RP_OK;
    if (conn_is_stopped())
        return conn_stopped(err);
    char why[400];
    explain(self, why, sizeof why);
    return err_set(err, RP_DEADLINE_EXCEEDED,
                   "after %g s, %" PRIu64 " items are in flight, the limit is %" PRIu64 ": %s",
                   (double)timeout_ms / 1e3, unconfirmed(self), self->max_items, why);
}

/* ---- flush */

static bool is_flushed(rp_writer *self, uint64_t max_unconfirmed)
{
    return unconfirmed(self) <= max_unconfirmed;
}

/* Returns the status of the first rejection since the last call, once. */
static rp_status report_rejections(rp_writer *self, rp_error *err)
{
    pthread_mutex_lock(&self->handoff.mutex);
    rp_error first = self->handoff.unreported;
    uint64_t n = self->handoff.n_unreported;
    self->handoff.n_unreported = 0;
    self->handoff.unreported = (rp_error){0};
    pthread_mutex_unlock(&self->handoff.mutex);
    if (n == 0)
        return RP_OK;
    if (n == 1)
        return err_set(err, (rp_status)first.status, "%s", first.text);
    return err_set(err, (rp_status)first.status, "%" PRIu64 " items were not accepted, the first: %s", n, first.text);
}

rp_status writer_flush(rp_writer *self, uint64_t max_unconfirmed, int64_t timeout_ms, int64_t deadline_ns,
                       rp_error *err)
{
    RP_TRY(let_go(self, err));
    if (max_unconfirmed != UINT64_MAX && unconfirmed(self) > 0)
        hurry(self);
    if (!wait_for(self, "flush", is_flushed, max_unconfirmed, deadline_ns)) {
        if (conn_is_stopped())
            return conn_stopped(err);
        char why[450];
        explain(self, why, sizeof why);
        return err_set(err, RP_DEADLINE_EXCEEDED, "%" PRIu64 " items are unconfirmed after %g s: %s", unconfirmed(self),
                       (double)timeout_ms / 1e3, why);
    }
    return report_rejections(self, err);
}

rp_status rp_writer_flush(rp_writer *writer, uint64_t max_unconfirmed, int64_t timeout_ms, rp_error *err)
{
    RP_TRY(writer_check_process(writer, err));
    return writer_flush(writer, max_unconfirmed, timeout_ms, conn_deadline(timeout_ms), err);
}

/* ---- rejections and counts */

rp_status rp_writer_next_rejection(rp_writer *writer, rp_rejection *out)
{
    struct handoff *handoff = &writer->handoff;
    RP_TRY(writer_check_process(writer, NULL));
    pthread_mutex_lock(&handoff->mutex);
    bool any = handoff->n_rejections > 0;
    if (any) {
        *out = handoff->rejections[handoff->first_rejection];
        handoff->first_rejection = (handoff->first_rejection + 1) % HANDOFF_REJECTIONS;
        handoff->n_rejections--;
    }
    if (handoff->n_rejections == 0) {
        handoff->n_unreported = 0;
        handoff->unreported = (rp_error){0};
    }
    pthread_mutex_unlock(&handoff->mutex);
    return any ? RP_OK : RP_NOT_FOUND;
}

rp_status rp_writer_get_info(rp_writer *writer, rp_writer_info *out, rp_error *err)
{
    if (out->struct_size < offsetof(rp_writer_info, steps))
        return err_set(err, RP_INVALID_ARGUMENT, "set struct_size of rp_writer_info to its size");
    RP_TRY(writer_check_process(writer, err));
    pthread_mutex_lock(&writer->handoff.mutex);
    struct handoff_counts counts = writer->handoff.counts;
    pthread_mutex_unlock(&writer->handoff.mutex);
    uint64_t resolved = atomic_load(&writer->handoff.resolved);
    uint64_t refused = counts.rejected + counts.in_doubt;
    rp_writer_info info = {
        .struct_size = out->struct_size,
        .episode = writer->stream.episode,
        .steps = writer->stream.steps,
        .episode_steps = step_stream_length(&writer->stream),
        .created = writer->created,
        .sent = counts.sent,
        .accepted = resolved > refused ? resolved - refused : 0,
        .rejected = counts.rejected,
        .in_doubt = counts.in_doubt,
        .unconfirmed = writer->created - resolved,
        .lost_messages = counts.lost_messages,
        .messages = counts.messages,
        .bytes = counts.bytes,
        .resent_messages = counts.resent,
        .sessions = counts.sessions,
        .stored_messages = counts.stored,
        .rejections_dropped = counts.rejections_dropped,
    };
    memcpy(out, &info, out->struct_size < sizeof info ? out->struct_size : sizeof info);
    return RP_OK;
}

rp_status rp_writer_get_table_info(rp_writer *writer, const char *table, rp_writer_table_info *out, rp_error *err)
{
    uint32_t index;
    if (out->struct_size < offsetof(rp_writer_table_info, created))
        return err_set(err, RP_INVALID_ARGUMENT, "set struct_size of rp_writer_table_info to its size");
    RP_TRY(writer_check_process(writer, err));
    RP_TRY(writer_table(writer, table, &index, err));
    pthread_mutex_lock(&writer->handoff.mutex);
    struct handoff_table counts = writer->handoff.tables[index];
    pthread_mutex_unlock(&writer->handoff.mutex);
    rp_writer_table_info info = {
        .struct_size = out->struct_size,
        .created = writer->table_created[index],
        .sent = counts.sent,
        .resolved = counts.resolved,
        .rejected = counts.rejected,
        .allowed = counts.allowed,
    };
    memcpy(out, &info, out->struct_size < sizeof info ? out->struct_size : sizeof info);
    return RP_OK;
}
