/* A publisher: the newest block of one slot, handed to the client's I/O thread.
 *
 * A block goes through these places: `newest` (given, not sent; a newer block replaces it), `sent` (its put is in flight),
 * and then it is settled: stored, or refused. A put that the connection or the broker has broken off goes back to `newest`,
 * unless a newer block is there. The caller's thread fills `newest`; all other moves are the I/O thread's. */
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "agent/client/params/params.h"
#include "agent/client/params/params_link.h"
#include "proto/base/error.h"
#include "replay/types.h"

/* Least time between the starts of two puts. Parameters that are two milliseconds younger make no actor better, but each
 * put wakes a dozen threads between the learner and the actors. */
#define GAP_NS (2 * NS_PER_MS)

struct rp_publisher {
    struct params_link link; /* first; its lock guards what follows, up to the I/O thread's part */
    zmq_msg_t newest;
    bool waiting;     /* newest holds a block */
    bool asleep;      /* the I/O thread has nothing to do here until it is woken */
    uint64_t settled; /* number of the newest block that was stored or refused; blocks count from 1 */
    rp_publisher_stats stats;

    /* I/O thread */
    zmq_msg_t sent;
    uint64_t sent_number;
};

static struct rp_publisher *publisher_of(struct conn_part *part)
{
    return (struct rp_publisher *)part;
}

/* ---- I/O thread ---- */

/* The connection is lost, or the broker shuts down: sends the block again, unless there is a newer one. Lock held. */
static void take_back(struct rp_publisher *self)
{
    if (self->waiting)
        return;
    zmq_msg_move(&self->newest, &self->sent);
    self->waiting = true;
}

static void on_put(void *ctx, struct conn_reply *reply)
{
    struct rp_publisher *self = ctx;
    rp_error error = {0};
    uint64_t version = 0;
    rp_status status = conn_reply_status(reply, &error);
    if (status == RP_OK)
        status = params_read_version(reply, &version, &error);
    if (status == RP_OK && version == 0)
        status = err_set(&error, RP_BAD_MESSAGE, "the broker's reply to a put of '%s' has no version", self->link.name);
    conn_reply_destroy(&reply);
    self->link.in_flight = false;
    pthread_mutex_lock(&self->link.lock);
    if (status == RP_UNAVAILABLE || status == RP_CANCELLED) {
        take_back(self);
        self->link.next_ns = conn_now() + PARAMS_RETRY_NS;
    } else {
        self->settled = self->sent_number;
        self->stats.version = version ? version : self->stats.version;
        if (status != RP_OK && self->link.status == RP_OK) {
            self->link.status = status;
            self->link.error = error;
        }
    }
    pthread_cond_broadcast(&self->link.changed);
    pthread_mutex_unlock(&self->link.lock);
}

/* Takes the newest block out; false: there is none, and the caller that gives the next one wakes this thread. */
static bool take_newest(struct rp_publisher *self)
{
    pthread_mutex_lock(&self->link.lock);
    bool any = self->waiting;
    self->asleep = !any;
    if (any) {
        zmq_msg_move(&self->sent, &self->newest);
        self->waiting = false;
        self->sent_number = self->stats.given;
        self->stats.puts++;
    }
    pthread_mutex_unlock(&self->link.lock);
    return any;
}

static int64_t on_tick(struct conn_part *part, int64_t now_ns)
{
    struct rp_publisher *self = publisher_of(part);
    int64_t wake_ns;
    if (!params_link_is_free(&self->link, now_ns, &wake_ns))
        return wake_ns;
    if (!take_newest(self))
        return INT64_MAX;
    Replay__ParamsPut body = REPLAY__PARAMS_PUT__INIT;
    zmq_msg_t copy;
    body.name = self->link.name;
    zmq_msg_init(&copy);
    zmq_msg_copy(&copy, &self->sent);
    self->link.next_ns = now_ns + GAP_NS;
    struct conn_message message = {.field = REPLAY__REQUEST__BODY_PARAMS_PUT,
                                   .body = &body.base,
                                   .payload = &copy,
                                   .n_payload = 1,
                                   .timeout_ms = -1};
    self->link.in_flight = conn_send_once(self->link.conn, part, &message, on_put);
    zmq_msg_close(&copy);
    if (self->link.in_flight)
        return INT64_MAX;
    pthread_mutex_lock(&self->link.lock);
    take_back(self);
    pthread_mutex_unlock(&self->link.lock);
    self->link.next_ns = now_ns + PARAMS_RETRY_NS;
    return self->link.next_ns;
}

static const struct conn_part_ops publisher_ops = {.up = params_link_up, .down = params_link_down, .tick = on_tick};

/* ---- calls ---- */

rp_status rp_publisher_put(rp_publisher *publisher, const void *data, uint64_t bytes, rp_error *err)
{
    zmq_msg_t block;
    RP_TRY(conn_check_process(publisher->link.conn, err));
    if (bytes > SIZE_MAX || zmq_msg_init_size(&block, (size_t)bytes) != 0)
        return err_set(err, RP_NO_MEMORY, "no memory for %llu bytes", (unsigned long long)bytes);
    if (bytes)
        memcpy(zmq_msg_data(&block), data, (size_t)bytes);
    pthread_mutex_lock(&publisher->link.lock);
    rp_status status = params_link_take_error(&publisher->link, "an earlier put of", err);
    publisher->stats.replaced += publisher->waiting;
    zmq_msg_move(&publisher->newest, &block);
    publisher->waiting = true;
    publisher->stats.given++;
    bool wake = publisher->asleep;
    publisher->asleep = false;
    pthread_mutex_unlock(&publisher->link.lock);
    zmq_msg_close(&block);
    if (wake)
        conn_wake(publisher->link.conn);
    return status;
}

rp_status rp_publisher_flush(rp_publisher *publisher, int64_t timeout_ms, uint64_t *version, rp_error *err)
{
    int64_t deadline = conn_deadline(timeout_ms);
    RP_TRY(conn_check_process(publisher->link.conn, err));
    pthread_mutex_lock(&publisher->link.lock);
    while (publisher->settled < publisher->stats.given &&
           conn_wait(publisher->link.conn, &publisher->link.changed, &publisher->link.lock, deadline))
        ;
    bool done = publisher->settled == publisher->stats.given;
    if (!done && conn_is_stopped()) {
        pthread_mutex_unlock(&publisher->link.lock);
        return conn_stopped(err);
    }
    rp_status status = params_link_take_error(&publisher->link, "an earlier put of", err);
    if (version)
        *version = publisher->stats.version;
    pthread_mutex_unlock(&publisher->link.lock);
    if (done || status != RP_OK)
        return status;
    char why[256];
    conn_describe(publisher->link.conn, why, sizeof why);
    return err_set(err, RP_DEADLINE_EXCEEDED, "slot '%s' was not stored within %lld ms%s%s", publisher->link.name,
                   (long long)timeout_ms, why[0] ? ": " : "", why);
}

rp_status rp_publisher_get_stats(rp_publisher *publisher, rp_publisher_stats *out)
{
    uint32_t size = out->struct_size;
    if (size < sizeof size)
        return RP_INVALID_ARGUMENT;
    RP_TRY(conn_check_process(publisher->link.conn, NULL));
    pthread_mutex_lock(&publisher->link.lock);
    rp_publisher_stats stats = publisher->stats;
    pthread_mutex_unlock(&publisher->link.lock);
    stats.struct_size = size;
    memcpy(out, &stats, size < sizeof stats ? size : sizeof stats);
    return RP_OK;
}

/* ---- life ---- */

rp_publisher *rp_publisher_new(rp_client *client, const char *name, rp_error *err)
{
    rp_publisher *self = calloc(1, sizeof *self);
    if (!self) {
        err_set(err, RP_NO_MEMORY, "no memory for a publisher");
        return NULL;
    }
    if (params_link_init(&self->link, client, name, &publisher_ops, err) != RP_OK) {
        free(self);
        return NULL;
    }
    zmq_msg_init(&self->newest);
    zmq_msg_init(&self->sent);
    conn_attach(self->link.conn, &self->link.part);
    return self;
}

rp_status rp_publisher_destroy(rp_publisher **publisher, int64_t timeout_ms, rp_error *err)
{
    if (!publisher || !*publisher)
        return RP_OK;
    rp_publisher *self = *publisher;
    *publisher = NULL;
    if (conn_is_foreign(self->link.conn)) {
        free(self);
        return RP_OK;
    }
    rp_status status = rp_publisher_flush(self, timeout_ms, NULL, err);
    params_link_fini(&self->link);
    zmq_msg_close(&self->newest);
    zmq_msg_close(&self->sent);
    free(self);
    return status;
}
