/* A subscriber: a ParamsGet that waits at the broker, and the newest copy that it has brought.
 *
 * There is at most one request. It is sent when the caller has taken the last copy; the next copy lies ready until the caller
 * takes it, which makes the I/O thread ask again. A copy that lies ready for REFRESH_NS is replaced by a newer one, so that
 * slow callers get fresh parameters and fast callers do not pay for copies they skip. */
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "agent/client/params/params.h"
#include "agent/client/params/params_link.h"
#include "proto/base/error.h"
#include "proto/base/trace.h"
#include "replay/types.h"

/* Age at which a copy that was not taken is replaced. */
#define REFRESH_NS (20 * NS_PER_MS)

struct rp_subscriber {
    struct params_link link; /* first; its lock guards what follows, up to the I/O thread's part */
    rp_params *ready;        /* NULL: nothing new */
    int64_t arrived_ns;      /* time at which it arrived */
    uint64_t have;           /* version of the newest copy; 0: none from this broker */
    rp_subscriber_stats stats;

    /* I/O thread */
    uint64_t instance; /* of the broker */
};

static struct rp_subscriber *subscriber_of(struct conn_part *part)
{
    return (struct rp_subscriber *)part;
}

/* ---- I/O thread ---- */

/* Lock held. */
static void keep(struct rp_subscriber *self, rp_params *params)
{
    self->stats.replaced += self->ready != NULL;
    rp_params_release(&self->ready);
    self->ready = params;
    self->arrived_ns = conn_now();
    self->have = rp_params_slot(params, 0)->version;
    self->stats.arrived++;
}

static void on_params(void *ctx, struct conn_reply *reply)
{
    struct rp_subscriber *self = ctx;
    rp_params *params = NULL;
    rp_error error = {0};
    const char *name = self->link.name;
    uint64_t have = self->have;
    rp_status status = conn_reply_status(reply, &error);
    if (status == RP_OK)
        status = params_read(&name, &have, 1, reply, &params, &error);
    else
        conn_reply_destroy(&reply);
    self->link.in_flight = false;
    if (status != RP_OK)
        self->link.next_ns = conn_now() + PARAMS_RETRY_NS;
    pthread_mutex_lock(&self->link.lock);
    if (status == RP_OK) {
        keep(self, params);
    } else if (status != RP_UNAVAILABLE && status != RP_CANCELLED && status != RP_DEADLINE_EXCEEDED) {
        self->link.status = status;
        self->link.error = error;
    }
    pthread_cond_broadcast(&self->link.changed);
    pthread_mutex_unlock(&self->link.lock);
}

/* Returns the time at which a ready copy is to be replaced, and the version that is here. */
static int64_t due_ns(struct rp_subscriber *self, uint64_t *have)
{
    pthread_mutex_lock(&self->link.lock);
    int64_t due = self->ready ? self->arrived_ns + REFRESH_NS : 0;
    *have = self->have;
    pthread_mutex_unlock(&self->link.lock);
    return due;
}

static int64_t on_tick(struct conn_part *part, int64_t now_ns)
{
    struct rp_subscriber *self = subscriber_of(part);
    uint64_t have;
    int64_t wake_ns;
    if (!params_link_is_free(&self->link, now_ns, &wake_ns))
        return wake_ns;
    wake_ns = due_ns(self, &have);
    if (now_ns < wake_ns)
        return wake_ns;
    Replay__ParamsGet body = REPLAY__PARAMS_GET__INIT;
    body.n_name = 1;
    body.name = &self->link.name;
    body.n_have = 1;
    body.have = &have;
    struct conn_message message = {.field = REPLAY__REQUEST__BODY_PARAMS_GET, .body = &body.base, .timeout_ms = -1};
    self->link.in_flight = conn_send_once(self->link.conn, part, &message, on_params);
    if (!self->link.in_flight) {
        self->link.next_ns = now_ns + PARAMS_RETRY_NS;
        return self->link.next_ns;
    }
    pthread_mutex_lock(&self->link.lock);
    self->stats.polls++;
    pthread_mutex_unlock(&self->link.lock);
    return INT64_MAX;
}

static void on_up(struct conn_part *part, const struct conn_hello *hello)
{
    struct rp_subscriber *self = subscriber_of(part);
    params_link_up(part, hello);
    if (self->instance != 0 && self->instance != hello->instance) {
        /* Another broker may count from 1 again: any version it has is new. */
        pthread_mutex_lock(&self->link.lock);
        self->have = 0;
        pthread_mutex_unlock(&self->link.lock);
    }
    self->instance = hello->instance;
}

static const struct conn_part_ops subscriber_ops = {.up = on_up, .down = params_link_down, .tick = on_tick};

/* ---- calls ---- */

static rp_status nothing_new(struct rp_subscriber *self, uint64_t have, int64_t timeout_ms, rp_error *err)
{
    char why[256] = "";
    if (timeout_ms != 0)
        conn_describe(self->link.conn, why, sizeof why);
    return err_set(err, RP_DEADLINE_EXCEEDED, "no other version of '%s' than %llu has arrived%s%s", self->link.name,
                   (unsigned long long)have, why[0] ? ": " : "", why);
}

rp_status rp_subscriber_take(rp_subscriber *subscriber, int64_t timeout_ms, rp_params **out, rp_error *err)
{
    int64_t deadline = timeout_ms == 0 ? 0 : conn_deadline(timeout_ms);
    *out = NULL;
    RP_TRY(conn_check_process(subscriber->link.conn, err));
    if (timeout_ms == 0)
        conn_look(subscriber->link.conn);
    int64_t start = timeout_ms != 0 ? trace_now(conn_trace(subscriber->link.conn)) : 0;
    pthread_mutex_lock(&subscriber->link.lock);
    while (timeout_ms != 0 && !subscriber->ready && subscriber->link.status == RP_OK &&
           conn_wait(subscriber->link.conn, &subscriber->link.changed, &subscriber->link.lock, deadline))
        ;
    trace_add_since(conn_trace(subscriber->link.conn), "wait for parameters", NULL, start, 0);
    if (timeout_ms != 0 && conn_is_stopped()) {
        pthread_mutex_unlock(&subscriber->link.lock);
        return conn_stopped(err);
    }
    rp_status status = params_link_take_error(&subscriber->link, "slot", err);
    uint64_t have = subscriber->have;
    if (status == RP_OK && subscriber->ready) {
        *out = subscriber->ready;
        subscriber->ready = NULL;
        subscriber->stats.taken++;
    }
    pthread_mutex_unlock(&subscriber->link.lock);
    if (*out)
        conn_wake(subscriber->link.conn);
    else if (status == RP_OK)
        status = nothing_new(subscriber, have, timeout_ms, err);
    return status;
}

rp_status rp_subscriber_get_stats(rp_subscriber *subscriber, rp_subscriber_stats *out)
{
    uint32_t size = out->struct_size;
    if (size < sizeof size)
        return RP_INVALID_ARGUMENT;
    RP_TRY(conn_check_process(subscriber->link.conn, NULL));
    pthread_mutex_lock(&subscriber->link.lock);
    rp_subscriber_stats stats = subscriber->stats;
    pthread_mutex_unlock(&subscriber->link.lock);
    stats.struct_size = size;
    memcpy(out, &stats, size < sizeof stats ? size : sizeof stats);
    return RP_OK;
}

/* ---- life ---- */

rp_subscriber *rp_subscriber_new(rp_client *client, const char *name, uint64_t have, rp_error *err)
{
    rp_subscriber *self = calloc(1, sizeof *self);
    if (!self) {
        err_set(err, RP_NO_MEMORY, "no memory for a subscriber");
        return NULL;
    }
    if (params_link_init(&self->link, client, name, &subscriber_ops, err) != RP_OK) {
        free(self);
        return NULL;
    }
    self->have = have;
    conn_attach(self->link.conn, &self->link.part);
    return self;
}

void rp_subscriber_destroy(rp_subscriber **subscriber)
{
    if (!subscriber || !*subscriber)
        return;
    rp_subscriber *self = *subscriber;
    *subscriber = NULL;
    if (conn_is_foreign(self->link.conn)) {
        free(self);
        return;
    }
    params_link_fini(&self->link);
    rp_params_release(&self->ready);
    free(self);
}
