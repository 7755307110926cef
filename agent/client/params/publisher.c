/* A publisher: the newest block of one slot, handed to the client's I/O thread.
 *
 * A block goes through these places: `newest` (given, not sent; a newer one replaces it), `sent` (its put is under way),
 * and then it is settled: stored, or refused. A put that the connection or the broker broke off goes back to `newest`,
 * unless a newer block is there. The caller's thread fills `newest`; all other moves are the I/O thread's. */
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "agent/client/params/params.h"
#include "proto/base/clock.h"
#include "proto/base/error.h"
#include "replay/types.h"

/* Least time between the starts of two puts. Nobody acts better for parameters that are two milliseconds younger, but each
 * put wakes a dozen threads between the one who learns and those who act. */
#define GAP_NS (2 * NS_PER_MS)
/* Before the next try, after the broker has refused for the time being (it shuts down). */
#define RETRY_NS (100 * NS_PER_MS)

struct rp_publisher {
    struct conn_part part; /* first: reply functions get it */
    struct conn *conn;
    char *name;

    pthread_mutex_t lock; /* guards what follows, up to the I/O thread's part */
    pthread_cond_t settled_cond;
    zmq_msg_t newest;
    bool waiting;     /* newest holds a block */
    bool asleep;      /* the I/O thread has nothing to do here until it is woken */
    uint64_t settled; /* number of the newest block that was stored or refused; blocks count from 1 */
    rp_status status; /* of the first put that was refused since the caller was told */
    rp_error error;
    rp_publisher_stats stats;

    /* I/O thread */
    bool up;
    bool under_way;
    zmq_msg_t sent;
    uint64_t sent_number;
    int64_t next_ns; /* no put before this */
};

static struct rp_publisher *publisher_of(struct conn_part *part)
{
    return (struct rp_publisher *)part;
}

/* ---- I/O thread ---- */

/* The connection went, or the broker is about to: the same block again, unless there is a newer one. Lock held. */
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
        status = err_set(&error, RP_BAD_MESSAGE, "the broker's reply to a put of '%s' has no version", self->name);
    conn_reply_destroy(&reply);
    self->under_way = false;
    pthread_mutex_lock(&self->lock);
    if (status == RP_UNAVAILABLE || status == RP_CANCELLED) {
        take_back(self);
        self->next_ns = conn_now() + RETRY_NS;
    } else {
        self->settled = self->sent_number;
        self->stats.version = version ? version : self->stats.version;
        if (status != RP_OK && self->status == RP_OK) {
            self->status = status;
            self->error = error;
        }
    }
    pthread_cond_broadcast(&self->settled_cond);
    pthread_mutex_unlock(&self->lock);
}

/* Takes the newest block out; false: there is none, and whoever gives the next one wakes this thread. */
static bool take_newest(struct rp_publisher *self)
{
    pthread_mutex_lock(&self->lock);
    bool any = self->waiting;
    self->asleep = !any;
    if (any) {
        zmq_msg_move(&self->sent, &self->newest);
        self->waiting = false;
        self->sent_number = self->stats.given;
        self->stats.puts++;
    }
    pthread_mutex_unlock(&self->lock);
    return any;
}

static int64_t on_tick(struct conn_part *part, int64_t now_ns)
{
    struct rp_publisher *self = publisher_of(part);
    if (!self->up || self->under_way)
        return INT64_MAX;
    if (now_ns < self->next_ns)
        return self->next_ns;
    if (!take_newest(self))
        return INT64_MAX;
    Replay__ParamsPut body = REPLAY__PARAMS_PUT__INIT;
    zmq_msg_t copy;
    body.name = self->name;
    zmq_msg_init(&copy);
    zmq_msg_copy(&copy, &self->sent);
    self->next_ns = now_ns + GAP_NS;
    struct conn_message message = {.field = REPLAY__REQUEST__BODY_PARAMS_PUT,
                                   .body = &body.base,
                                   .payload = &copy,
                                   .n_payload = 1,
                                   .timeout_ms = -1};
    self->under_way = conn_send_once(self->conn, part, &message, on_put);
    zmq_msg_close(&copy);
    if (self->under_way)
        return INT64_MAX;
    pthread_mutex_lock(&self->lock);
    take_back(self);
    pthread_mutex_unlock(&self->lock);
    self->next_ns = now_ns + RETRY_NS;
    return self->next_ns;
}

static void on_up(struct conn_part *part, const struct conn_hello *hello)
{
    struct rp_publisher *self = publisher_of(part);
    (void)hello;
    self->up = true;
    self->next_ns = 0;
}

static void on_down(struct conn_part *part)
{
    publisher_of(part)->up = false;
}

static void on_notice(struct conn_part *part, const Replay__Credit *credit)
{
    (void)part;
    (void)credit;
}

static const struct conn_part_ops publisher_ops = {on_up, on_down, on_notice, on_tick, NULL};

/* ---- calls ---- */

/* The error of an earlier put, returned once. Lock held. */
static rp_status take_error(struct rp_publisher *self, rp_error *err)
{
    rp_status status = self->status;
    self->status = RP_OK;
    if (status != RP_OK)
        err_set(err, status, "an earlier put of '%s': %s", self->name, self->error.text);
    return status;
}

rp_status rp_publisher_put(rp_publisher *publisher, const void *data, uint64_t bytes, rp_error *err)
{
    zmq_msg_t block;
    if (bytes > SIZE_MAX || zmq_msg_init_size(&block, (size_t)bytes) != 0)
        return err_set(err, RP_NO_MEMORY, "no memory for %llu bytes", (unsigned long long)bytes);
    if (bytes)
        memcpy(zmq_msg_data(&block), data, (size_t)bytes);
    pthread_mutex_lock(&publisher->lock);
    rp_status status = take_error(publisher, err);
    publisher->stats.replaced += publisher->waiting;
    zmq_msg_move(&publisher->newest, &block);
    publisher->waiting = true;
    publisher->stats.given++;
    bool wake = publisher->asleep;
    publisher->asleep = false;
    pthread_mutex_unlock(&publisher->lock);
    zmq_msg_close(&block);
    if (wake)
        conn_wake(publisher->conn);
    return status;
}

rp_status rp_publisher_flush(rp_publisher *publisher, int64_t timeout_ms, uint64_t *version, rp_error *err)
{
    int64_t deadline = conn_deadline(timeout_ms);
    pthread_mutex_lock(&publisher->lock);
    while (publisher->settled < publisher->stats.given &&
           conn_wait(publisher->conn, &publisher->settled_cond, &publisher->lock, deadline))
        ;
    bool done = publisher->settled == publisher->stats.given;
    rp_status status = take_error(publisher, err);
    if (version)
        *version = publisher->stats.version;
    pthread_mutex_unlock(&publisher->lock);
    if (done || status != RP_OK)
        return status;
    char link[256];
    conn_describe(publisher->conn, link, sizeof link);
    return err_set(err, RP_DEADLINE_EXCEEDED, "slot '%s' was not stored within %lld ms%s%s", publisher->name,
                   (long long)timeout_ms, link[0] ? ": " : "", link);
}

rp_status rp_publisher_get_stats(rp_publisher *publisher, rp_publisher_stats *out)
{
    uint32_t size = out->struct_size;
    if (size < sizeof size)
        return RP_INVALID_ARGUMENT;
    pthread_mutex_lock(&publisher->lock);
    rp_publisher_stats stats = publisher->stats;
    pthread_mutex_unlock(&publisher->lock);
    stats.struct_size = size;
    memcpy(out, &stats, size < sizeof stats ? size : sizeof stats);
    return RP_OK;
}

/* ---- life ---- */

rp_publisher *rp_publisher_new(rp_client *client, const char *name, rp_error *err)
{
    if (params_check_name(name, err) != RP_OK)
        return NULL;
    rp_publisher *self = calloc(1, sizeof *self);
    if (!self || !(self->name = strdup(name))) {
        free(self);
        err_set(err, RP_NO_MEMORY, "no memory for a publisher");
        return NULL;
    }
    self->conn = client_conn(client);
    self->part.ops = &publisher_ops;
    pthread_mutex_init(&self->lock, NULL);
    conn_cond_init(&self->settled_cond);
    zmq_msg_init(&self->newest);
    zmq_msg_init(&self->sent);
    conn_attach(self->conn, &self->part);
    return self;
}

rp_status rp_publisher_destroy(rp_publisher **publisher, int64_t timeout_ms, rp_error *err)
{
    if (!publisher || !*publisher)
        return RP_OK;
    rp_publisher *self = *publisher;
    *publisher = NULL;
    rp_status status = rp_publisher_flush(self, timeout_ms, NULL, err);
    conn_detach(self->conn, &self->part);
    zmq_msg_close(&self->newest);
    zmq_msg_close(&self->sent);
    pthread_mutex_destroy(&self->lock);
    pthread_cond_destroy(&self->settled_cond);
    free(self->name);
    free(self);
    return status;
}
