/* A subscriber: a ParamsGet that stands at the broker, and the newest copy that it has brought.
 *
 * There is at most one request. It is sent when nothing has arrived that the caller has not taken; the copy that it
 * brings lies ready until the caller takes it, which makes the I/O thread ask again. A copy that lies there for long is
 * replaced by a newer one, so that slow callers get young parameters and fast ones do not pay for those they skip. */
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "agent/client/params/params.h"
#include "proto/base/clock.h"
#include "proto/base/error.h"
#include "replay/types.h"

/* After so long a copy that was not taken is replaced. */
#define REFRESH_NS (20 * NS_PER_MS)
/* Before the next try, after the broker has ended a request (it shuts down). */
#define RETRY_NS (100 * NS_PER_MS)

struct rp_subscriber {
    struct conn_part part; /* first: reply functions get it */
    struct conn *conn;
    char *name;

    pthread_mutex_t lock; /* guards what follows, up to the I/O thread's part */
    pthread_cond_t arrived;
    rp_params *ready;   /* NULL: nothing new */
    int64_t arrived_ns; /* when it came */
    uint64_t have;      /* version of the newest that came; 0: none from this broker */
    rp_status status;   /* of a request that was refused, until the caller was told */
    rp_error error;
    rp_subscriber_stats stats;

    /* I/O thread */
    bool up;
    bool stands; /* a request is under way */
    uint64_t instance;
    int64_t next_ns; /* no request before this */
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
    const char *name = self->name;
    uint64_t have = self->have;
    rp_status status = conn_reply_status(reply, &error);
    if (status == RP_OK)
        status = params_read(&name, &have, 1, reply, &params, &error);
    else
        conn_reply_destroy(&reply);
    self->stands = false;
    if (status != RP_OK)
        self->next_ns = conn_now() + RETRY_NS;
    pthread_mutex_lock(&self->lock);
    if (status == RP_OK) {
        keep(self, params);
    } else if (status != RP_UNAVAILABLE && status != RP_CANCELLED && status != RP_DEADLINE_EXCEEDED) {
        self->status = status;
        self->error = error;
    }
    pthread_cond_broadcast(&self->arrived);
    pthread_mutex_unlock(&self->lock);
}

/* When the next request is due; and what is here already. */
static int64_t due_ns(struct rp_subscriber *self, uint64_t *have)
{
    pthread_mutex_lock(&self->lock);
    int64_t due = self->ready ? self->arrived_ns + REFRESH_NS : 0;
    *have = self->have;
    pthread_mutex_unlock(&self->lock);
    return due > self->next_ns ? due : self->next_ns;
}

static int64_t on_tick(struct conn_part *part, int64_t now_ns)
{
    struct rp_subscriber *self = subscriber_of(part);
    uint64_t have;
    if (!self->up || self->stands)
        return INT64_MAX;
    int64_t due = due_ns(self, &have);
    if (now_ns < due)
        return due;
    Replay__ParamsGet body = REPLAY__PARAMS_GET__INIT;
    body.n_name = 1;
    body.name = &self->name;
    body.n_have = 1;
    body.have = &have;
    struct conn_message message = {.field = REPLAY__REQUEST__BODY_PARAMS_GET, .body = &body.base, .timeout_ms = -1};
    self->stands = conn_send_once(self->conn, part, &message, on_params);
    if (!self->stands) {
        self->next_ns = now_ns + RETRY_NS;
        return self->next_ns;
    }
    pthread_mutex_lock(&self->lock);
    self->stats.polls++;
    pthread_mutex_unlock(&self->lock);
    return INT64_MAX;
}

static void on_up(struct conn_part *part, const struct conn_hello *hello)
{
    struct rp_subscriber *self = subscriber_of(part);
    self->up = true;
    self->next_ns = 0;
    if (self->instance != 0 && self->instance != hello->instance) {
        /* Another broker may count from 1 again: whatever it has is new. */
        pthread_mutex_lock(&self->lock);
        self->have = 0;
        pthread_mutex_unlock(&self->lock);
    }
    self->instance = hello->instance;
}

static void on_down(struct conn_part *part)
{
    subscriber_of(part)->up = false;
}

static void on_notice(struct conn_part *part, const Replay__Credit *credit)
{
    (void)part;
    (void)credit;
}

static const struct conn_part_ops subscriber_ops = {on_up, on_down, on_notice, on_tick, NULL};

/* ---- calls ---- */

static rp_status nothing_new(struct rp_subscriber *self, uint64_t have, int64_t timeout_ms, rp_error *err)
{
    char link[256] = "";
    if (timeout_ms != 0)
        conn_describe(self->conn, link, sizeof link);
    return err_set(err, RP_DEADLINE_EXCEEDED, "no other version of '%s' than %llu has arrived%s%s", self->name,
                   (unsigned long long)have, link[0] ? ": " : "", link);
}

rp_status rp_subscriber_take(rp_subscriber *subscriber, int64_t timeout_ms, rp_params **out, rp_error *err)
{
    int64_t deadline = timeout_ms == 0 ? 0 : conn_deadline(timeout_ms);
    *out = NULL;
    if (timeout_ms == 0)
        conn_look(subscriber->conn);
    pthread_mutex_lock(&subscriber->lock);
    while (timeout_ms != 0 && !subscriber->ready && subscriber->status == RP_OK &&
           conn_wait(subscriber->conn, &subscriber->arrived, &subscriber->lock, deadline))
        ;
    rp_status status = subscriber->status;
    uint64_t have = subscriber->have;
    subscriber->status = RP_OK;
    if (status != RP_OK)
        err_set(err, status, "slot '%s': %s", subscriber->name, subscriber->error.text);
    else if (subscriber->ready) {
        *out = subscriber->ready;
        subscriber->ready = NULL;
        subscriber->stats.taken++;
    }
    pthread_mutex_unlock(&subscriber->lock);
    if (*out)
        conn_wake(subscriber->conn);
    else if (status == RP_OK)
        status = nothing_new(subscriber, have, timeout_ms, err);
    return status;
}

rp_status rp_subscriber_get_stats(rp_subscriber *subscriber, rp_subscriber_stats *out)
{
    uint32_t size = out->struct_size;
    if (size < sizeof size)
        return RP_INVALID_ARGUMENT;
    pthread_mutex_lock(&subscriber->lock);
    rp_subscriber_stats stats = subscriber->stats;
    pthread_mutex_unlock(&subscriber->lock);
    stats.struct_size = size;
    memcpy(out, &stats, size < sizeof stats ? size : sizeof stats);
    return RP_OK;
}

/* ---- life ---- */

rp_subscriber *rp_subscriber_new(rp_client *client, const char *name, uint64_t have, rp_error *err)
{
    if (params_check_name(name, err) != RP_OK)
        return NULL;
    rp_subscriber *self = calloc(1, sizeof *self);
    if (!self || !(self->name = strdup(name))) {
        free(self);
        err_set(err, RP_NO_MEMORY, "no memory for a subscriber");
        return NULL;
    }
    self->conn = client_conn(client);
    self->part.ops = &subscriber_ops;
    self->have = have;
    pthread_mutex_init(&self->lock, NULL);
    conn_cond_init(&self->arrived);
    conn_attach(self->conn, &self->part);
    return self;
}

void rp_subscriber_destroy(rp_subscriber **subscriber)
{
    if (!subscriber || !*subscriber)
        return;
    rp_subscriber *self = *subscriber;
    *subscriber = NULL;
    conn_detach(self->conn, &self->part);
    rp_params_release(&self->ready);
    pthread_mutex_destroy(&self->lock);
    pthread_cond_destroy(&self->arrived);
    free(self->name);
    free(self);
}
