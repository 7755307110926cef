/* See lane_wait.h. */
#include "agent/client/writer/lane_wait.h"

#include <inttypes.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

#include "proto/base/clock.h"
#include "proto/base/error.h"
#include "proto/base/trace.h"

/* Time between two looks at the other lanes. */
#define OTHERS_NS (5 * NS_PER_MS)

uint64_t lane_unconfirmed(struct lane *self)
{
    return self->created - atomic_load(&self->handoff.resolved);
}

/* Returns the unconfirmed items of the other lanes. What waits for a broker that is away holds nobody up. */
static uint64_t held_by_others(const struct lane *self)
{
    uint64_t sum = 0;
    for (uint32_t i = 0; i < self->n_lanes; i++) {
        struct lane *lane = self->lanes[i];
        if (lane && lane != self && conn_state(lane->conn) == RP_CLIENT_CONNECTED)
            sum += lane_unconfirmed(lane);
    }
    return sum;
}

void lane_set_window(struct lane *self)
{
    if (self->n_lanes <= 1)
        return;
    uint64_t others = held_by_others(self), least = self->max_items / self->n_lanes;
    self->window = self->max_items > others + least ? self->max_items - others : least;
}

/* Writes why the items wait, as far as it is known. */
static void explain(struct lane *self, char *out, size_t size)
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

typedef bool done_fn(struct lane *self, uint64_t arg);

/* Waits for news of this lane; of the others, which may leave it more room, it looks now and then. False: the deadline has passed, or
 * the caller has ended the wait. */
static bool wait_once(struct lane *self, int64_t deadline_ns)
{
    struct handoff *handoff = &self->handoff;
    int64_t now = conn_now(), until = deadline_ns;
    if (self->window < self->max_items && deadline_ns - now > OTHERS_NS)
        until = now + OTHERS_NS;
    return conn_wait(self->conn, &handoff->moved, &handoff->mutex, until) ||
           (until != deadline_ns && !conn_is_stopped());
}

/* Waits until done; what: the name of its span in a trace. False: the deadline has passed, or the caller has ended the wait. */
static bool wait_for(struct lane *self, const char *what, done_fn *done, uint64_t arg, int64_t deadline_ns)
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
    while (!(ok = done(self, arg)) && wait_once(self, deadline_ns))
        ;
    handoff->waited_ns += (uint64_t)(conn_now() - handoff->wait_ns);
    handoff->wait_ns = 0;
    pthread_mutex_unlock(&handoff->mutex);
    atomic_fetch_sub(&handoff->waiters, 1);
    trace_add_since(conn_trace(self->conn), what, NULL, start, 0);
    return !conn_is_stopped() && (ok || done(self, arg));
}

/* ---- the session */

static bool is_open(struct lane *self, uint64_t unused)
{
    (void)unused;
    return self->handoff.open || self->handoff.refusal.status != RP_OK;
}

rp_status lane_await_open(struct lane *self, int64_t timeout_ms, rp_error *err)
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

bool lane_is_open(struct lane *self)
{
    pthread_mutex_lock(&self->handoff.mutex);
    bool open = self->handoff.open;
    self->max_message_bytes = self->handoff.max_message_bytes;
    pthread_mutex_unlock(&self->handoff.mutex);
    return open && conn_state(self->conn) == RP_CLIENT_CONNECTED;
}

/* ---- room */

static bool has_room(struct lane *self, uint64_t n)
{
    return lane_has_room(self, n);
}

/* Completes the open chunk if the writer would otherwise wait for items that wait for this chunk. */
static rp_status let_go(struct lane *self, rp_error *err)
{
    if (self->n_waiting == 0)
        return RP_OK;
    RP_TRY(step_stream_cut(&self->stream, err));
    return lane_release(self, err);
}

static void lane_hurry(struct lane *self)
{
    atomic_store(&self->handoff.urgent, true);
    conn_wake(self->conn);
}

rp_status lane_await_room(struct lane *self, uint64_t n, int64_t timeout_ms, rp_error *err)
{
    RP_TRY(let_go(self, err));
    if (lane_keys_left(self) < n) {
        atomic_store(&self->handoff.renew, true);
        lane_hurry(self);
    }
    if (wait_for(self, "wait for credit", has_room, n, conn_deadline(timeout_ms)))
        return RP_OK;
    if (conn_is_stopped())
        return conn_stopped(err);
    char why[400];
    explain(self, why, sizeof why);
    return err_set(err, RP_DEADLINE_EXCEEDED,
                   "after %g s, %" PRIu64 " items are in flight, the limit is %" PRIu64 ": %s",
                   (double)timeout_ms / 1e3, lane_unconfirmed(self) + held_by_others(self), self->max_items, why);
}

/* ---- flush */

/* How long a flush that leaves some items unconfirmed looks at one lane before it looks at the next. */
#define TURN_NS (100 * NS_PER_MS)

static bool is_flushed(struct lane *self, uint64_t max_unconfirmed)
{
    return lane_unconfirmed(self) <= max_unconfirmed;
}

static uint64_t unconfirmed(struct lane *const *lanes, uint32_t n)
{
    uint64_t sum = 0;
    for (uint32_t i = 0; i < n; i++)
        sum += lane_unconfirmed(lanes[i]);
    return sum;
}

/* Waits until at most max_unconfirmed items of all lanes are. False: the deadline has passed, or the caller has ended the wait; *at is
 * the lane that it waited for. */
static bool await_flushed(struct lane *const *lanes, uint32_t n, uint64_t max_unconfirmed, int64_t deadline_ns,
                          struct lane **at)
{
    bool in_turn = n > 1 && max_unconfirmed > 0; /* any lane may be the one that makes the rest small enough */
    for (uint32_t i = 0;; i = (i + 1) % n) {
        uint64_t all = unconfirmed(lanes, n), own = lane_unconfirmed(lanes[i]), others = all - own;
        if (all <= max_unconfirmed)
            return true;
        if (own == 0)
            continue;
        *at = lanes[i];
        uint64_t most = others < max_unconfirmed ? max_unconfirmed - others : 0;
        int64_t now = conn_now(), turn = in_turn && deadline_ns - now > TURN_NS ? now + TURN_NS : deadline_ns;
        if (!wait_for(lanes[i], "flush", is_flushed, most, turn) && (conn_is_stopped() || turn == deadline_ns))
            return !conn_is_stopped() && unconfirmed(lanes, n) <= max_unconfirmed;
    }
}

/* Returns the status of the first rejection since the last call, once. */
static rp_status report_rejections(struct lane *const *lanes, uint32_t n_lanes, rp_error *err)
{
    rp_error first = {0};
    uint64_t n = 0;
    for (uint32_t i = 0; i < n_lanes; i++) {
        struct handoff *handoff = &lanes[i]->handoff;
        pthread_mutex_lock(&handoff->mutex);
        if (n == 0)
            first = handoff->unreported;
        n += handoff->n_unreported;
        handoff->n_unreported = 0;
        handoff->unreported = (rp_error){0};
        pthread_mutex_unlock(&handoff->mutex);
    }
    if (n == 0)
        return RP_OK;
    if (n == 1)
        return err_set(err, (rp_status)first.status, "%s", first.text);
    return err_set(err, (rp_status)first.status, "%" PRIu64 " items were not accepted, the first: %s", n, first.text);
}

/* Writes what holds a flush up: a broker that is away, or what the lane that it waited for says. */
static void explain_flush(struct lane *const *lanes, uint32_t n, struct lane *at, char *out, size_t size)
{
    for (uint32_t i = 0; i < n; i++)
        if (lane_unconfirmed(lanes[i]) > 0 && conn_state(lanes[i]->conn) != RP_CLIENT_CONNECTED) {
            explain(lanes[i], out, size);
            return;
        }
    int used = n > 1 ? snprintf(out, size, "shard %u: ", conn_shard(at->conn)) : 0;
    explain(at, out + used, size - (size_t)used);
}

rp_status lanes_flush(struct lane *const *lanes, uint32_t n, const struct lane_flush *flush, rp_error *err)
{
    for (uint32_t i = 0; i < n; i++) {
        RP_TRY(let_go(lanes[i], err));
        if (flush->max_unconfirmed != UINT64_MAX && lane_unconfirmed(lanes[i]) > 0)
            lane_hurry(lanes[i]);
    }
    struct lane *at = lanes[0];
    if (await_flushed(lanes, n, flush->max_unconfirmed, flush->deadline_ns, &at))
        return report_rejections(lanes, n, err);
    if (conn_is_stopped())
        return conn_stopped(err);
    char why[450];
    explain_flush(lanes, n, at, why, sizeof why);
    return err_set(err, RP_DEADLINE_EXCEEDED, "%" PRIu64 " items are unconfirmed after %g s: %s", unconfirmed(lanes, n),
                   (double)flush->timeout_ms / 1e3, why);
}

/* ---- rejections and counts */

rp_status lane_next_rejection(struct lane *self, rp_rejection *out)
{
    struct handoff *handoff = &self->handoff;
    RP_TRY(lane_check_process(self, NULL));
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

void lane_add_info(struct lane *self, rp_writer_info *out)
{
    pthread_mutex_lock(&self->handoff.mutex);
    struct handoff_counts counts = self->handoff.counts;
    pthread_mutex_unlock(&self->handoff.mutex);
    uint64_t resolved = atomic_load(&self->handoff.resolved);
    uint64_t refused = counts.rejected + counts.in_doubt;
    out->episode += self->stream.episode;
    out->steps += self->stream.steps;
    out->created += self->created;
    out->sent += counts.sent;
    out->accepted += resolved > refused ? resolved - refused : 0;
    out->rejected += counts.rejected;
    out->in_doubt += counts.in_doubt;
    out->unconfirmed += self->created - resolved;
    out->lost_messages += counts.lost_messages;
    out->messages += counts.messages;
    out->bytes += counts.bytes;
    out->resent_messages += counts.resent;
    out->sessions += counts.sessions;
    out->stored_messages += counts.stored;
    out->rejections_dropped += counts.rejections_dropped;
}

rp_status lane_add_table_info(struct lane *self, const char *table, rp_writer_table_info *out, rp_error *err)
{
    uint32_t index;
    RP_TRY(lane_check_process(self, err));
    RP_TRY(lane_table(self, table, &index, err));
    pthread_mutex_lock(&self->handoff.mutex);
    struct handoff_table counts = self->handoff.tables[index];
    pthread_mutex_unlock(&self->handoff.mutex);
    out->created += self->table_created[index];
    out->sent += counts.sent;
    out->resolved += counts.resolved;
    out->rejected += counts.rejected;
    out->allowed += counts.allowed;
    return RP_OK;
}
