/* See demand.h. */
#include "agent/client/sampler/demand.h"

#include <stdlib.h>

#include "proto/base/clock.h"
#include "proto/base/error.h"
#include "proto/base/trace.h"

/* A broker that is up answers within the request's own time-out. After this much longer the request is cancelled. */
#define GRACE_NS (10 * NS_PER_S)
/* How often a caller whose deadline has passed checks that the connection is still up. */
#define LOOK_NS (20 * NS_PER_MS)

struct demand {
    struct sample_source source;
    pthread_mutex_t lock; /* guards the reply */
    pthread_cond_t arrived;
    struct conn_reply *reply;
    struct conn_reply *kept; /* no memory to decode it: decoded at the next call */
    uint32_t kept_count;
    rp_batch *rest; /* batches of the last reply that were not taken yet */
};

struct demand *demand_new(struct conn *conn, const char *table, const rp_sampler_options *options)
{
    struct demand *self = calloc(1, sizeof *self);
    if (!self)
        return NULL;
    pthread_mutex_init(&self->lock, NULL);
    conn_cond_init(&self->arrived);
    if (!sample_source_init(&self->source, conn, table, options, 2))
        demand_destroy(&self);
    return self;
}

void demand_destroy(struct demand **self)
{
    struct demand *demand = *self;
    if (!demand)
        return;
    *self = NULL;
    conn_reply_destroy(&demand->kept);
    batch_list_release(&demand->rest);
    sample_source_fini(&demand->source);
    pthread_mutex_destroy(&demand->lock);
    pthread_cond_destroy(&demand->arrived);
    free(demand);
}

struct sample_source *demand_source(struct demand *self)
{
    return &self->source;
}

/* ---- one request ---- */

static void on_reply(void *ctx, struct conn_reply *reply)
{
    struct demand *self = ctx;
    pthread_mutex_lock(&self->lock);
    self->reply = reply;
    pthread_cond_signal(&self->arrived);
    pthread_mutex_unlock(&self->lock);
}

/* Returns the time of the next check, or 0: cancel the request. */
static int64_t look_again(struct demand *self, int64_t deadline)
{
    int64_t now = conn_now();
    if (now < deadline)
        return deadline;
    if (now - deadline >= GRACE_NS || conn_state(self->source.conn) != RP_CLIENT_CONNECTED)
        return 0;
    return now + LOOK_NS;
}

/* Waits for the reply: every request gets one, a cancelled request too. *stopped: the caller has ended the wait. */
static struct conn_reply *await_reply(struct demand *self, uint64_t id, int64_t deadline, bool *stopped)
{
    int64_t until = deadline;
    bool cancelled = false;
    pthread_mutex_lock(&self->lock);
    while (!self->reply) {
        if (conn_wait(self->source.conn, &self->arrived, &self->lock, until) || self->reply || cancelled)
            continue;
        *stopped = conn_is_stopped();
        pthread_mutex_unlock(&self->lock);
        until = *stopped ? 0 : look_again(self, deadline);
        if (until == 0) {
            conn_cancel(self->source.conn, id);
            cancelled = true;
            until = INT64_MAX;
        }
        pthread_mutex_lock(&self->lock);
    }
    struct conn_reply *reply = self->reply;
    self->reply = NULL;
    pthread_mutex_unlock(&self->lock);
    return reply;
}

/* ---- a batch ---- */

static rp_status decode(struct demand *self, struct conn_reply *reply, uint32_t count, rp_batch **batch, rp_error *err)
{
    int64_t start = conn_now();
    int64_t traced = trace_now(conn_trace(self->source.conn));
    RP_TRY(sample_source_decode(&self->source, reply, count, &self->rest, err));
    self->source.stats.decode_ns += (uint64_t)(conn_now() - start);
    trace_add_since(conn_trace(self->source.conn), "decode", NULL, traced, count);
    if (batch_list_items(self->rest) == 0) {
        batch_list_release(&self->rest);
        return err_set(err, RP_BAD_MESSAGE, "0 items came for a request of %u", count);
    }
    *batch = sample_source_take(&self->source, &self->rest);
    return RP_OK;
}

rp_status demand_next(struct demand *self, rp_batch **batch, int64_t timeout_ms, rp_error *err)
{
    if (self->rest) {
        *batch = sample_source_take(&self->source, &self->rest);
        return RP_OK;
    }
    uint32_t count = sample_source_count(&self->source, self->source.stats.items);
    if (count == 0 && !self->kept)
        return sample_source_ended(&self->source, err);
    int64_t deadline = conn_deadline(timeout_ms);
    struct conn_reply *reply = self->kept;
    bool stopped = false;
    if (reply)
        count = self->kept_count;
    else
        reply = await_reply(self, sample_source_request(&self->source, count, timeout_ms, on_reply, self), deadline,
                            &stopped);
    self->kept = NULL;
    rp_error why = {0};
    rp_status status = conn_reply_status(reply, &why);
    if (status == RP_OK) {
        status = decode(self, reply, count, batch, err);
        if (status == RP_NO_MEMORY) { /* its items may exist nowhere else */
            self->kept = reply;
            self->kept_count = count;
            return status;
        }
    } else if (status == RP_CANCELLED && stopped)
        status = conn_stopped(err);
    else if (status == RP_DEADLINE_EXCEEDED || status == RP_CANCELLED)
        /* Cancelled by this side after the deadline, or by a broker that shuts down and may come back. */
        status = sample_source_timed_out(&self->source, timeout_ms, why.text, err);
    else
        status = err_set(err, status, "%s", why.text);
    conn_reply_destroy(&reply);
    return status;
}
