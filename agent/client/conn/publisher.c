/* A publisher: the newest block of one slot, handed to the client's I/O threads.
 *
 * A block goes through these places: `newest` (given, not sent; a newer block replaces it), `sent` (its put is in flight),
 * and then it is settled: refused, or stored and `current`. A put that the connection or the broker has broken off goes back to
 * `newest`, unless a newer block is there. The caller's thread fills `newest`; all other moves are the I/O thread's.
 *
 * With shards, that is the way to shard 0, which gives the block its version. Then the lanes of the other shards put `current` with
 * that version. A shard that is away, or comes back as another broker, gets `current` when it is back. If another shard names a newer
 * version than that of `current`, a later put of somebody else was faster there, or shard 0 has lost its count in a restart. Shard 0
 * knows: it gives `current` a version above the newer one if `current` is still what it has, and refuses it otherwise. */
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "agent/client/conn/params.h"
#include "proto/base/error.h"
#include "replay/types.h"

/* Least time between the starts of two puts. Parameters that are two milliseconds younger make no actor better, but each
 * put wakes a dozen threads between the learner and the actors. */
#define GAP_NS (2 * NS_PER_MS)

/* What a lane puts. */
enum put_kind {
    PUT_NOTHING,
    PUT_NEWEST,  /* shard 0: a new block */
    PUT_AGAIN,   /* shard 0: `current`, if it is still there, with a version above that of another shard */
    PUT_CURRENT, /* `current` with its version */
};

struct publish_lane {
    struct params_lane lane; /* first */
    bool asleep;             /* lock: the I/O thread has nothing to do here until it is woken */
    uint64_t done;           /* lock: version of `current` that this shard has stored or refused */
    /* I/O thread: of the put in flight */
    enum put_kind kind;
    uint64_t version, id;
};

struct rp_publisher {
    struct params_link link; /* first; its lock guards what follows, up to the I/O thread's part */
    zmq_msg_t newest;
    bool waiting;     /* newest holds a block */
    uint64_t settled; /* number of the newest block that shard 0 has stored or refused; blocks count from 1 */
    zmq_msg_t current;
    uint64_t above; /* version that another shard has, where that of `current` should be newer */
    bool unsure;    /* shard 0 may have lost its count, and no put has shown that it has not */
    uint64_t retry; /* id of a put at shard 0 that was broken off, and may have been done; 0: none */
    rp_publisher_stats stats;

    /* I/O thread of shard 0 */
    zmq_msg_t sent;
    uint64_t sent_number;

    uint32_t n_lanes;
    struct publish_lane lanes[];
};

static struct rp_publisher *publisher_of(const struct publish_lane *lane)
{
    return (struct rp_publisher *)lane->lane.link;
}

static bool is_first(const struct publish_lane *lane)
{
    return lane == &publisher_of(lane)->lanes[0];
}

/* ---- I/O threads ---- */

/* Wakes lanes that sleep. Lock held. */
static void wake_lanes(struct rp_publisher *self, uint32_t first, uint32_t n)
{
    for (uint32_t i = first; i < first + n; i++) {
        if (self->lanes[i].asleep)
            conn_wake(self->lanes[i].lane.conn);
        self->lanes[i].asleep = false;
    }
}

/* The connection is lost, or the broker shuts down: repeats the put, unless there is a newer block. Lock held. */
static void put_broken_off(struct rp_publisher *self, const struct publish_lane *lane)
{
    if (self->waiting || lane->kind == PUT_CURRENT)
        return;
    if (lane->kind == PUT_NEWEST) {
        zmq_msg_move(&self->newest, &self->sent);
        self->waiting = true;
    }
    self->retry = lane->id;
}

/* A put has ended; version 0: it was refused. Lock held. */
static void put_ended(struct rp_publisher *self, struct publish_lane *lane, uint64_t version)
{
    if (lane->kind == PUT_NEWEST) {
        self->settled = self->sent_number;
        if (version)
            zmq_msg_move(&self->current, &self->sent);
    }
    if (lane->kind == PUT_CURRENT) {
        bool behind =
            version > lane->version && !is_first(lane) && self->unsure && lane->version == self->stats.version;
        lane->done = lane->version;
        self->above = behind && version > self->above ? version : self->above;
        if (behind)
            wake_lanes(self, 0, 1);
        return;
    }
    self->unsure = self->unsure && lane->kind != PUT_AGAIN;
    self->above = lane->kind == PUT_AGAIN || version > self->above ? 0 : self->above;
    if (version) {
        self->stats.version = lane->done = version;
        wake_lanes(self, 1, self->n_lanes - 1);
    }
}

/* Reads the version in a reply to ParamsPut; version may be NULL. */
static rp_status read_version(const struct conn_reply *reply, uint64_t *version, rp_error *err)
{
    struct pb_reader reader = pb_reader(reply->view.data, reply->view.size);
    struct pb_field slot, field;
    uint64_t found = 0;
    if (reply->view.body != REPLAY__REPLY__BODY_PARAMS || pb_next(&reader, &slot) != 1 || slot.wire != PB_BYTES)
        return params_unexpected(err);
    reader = pb_reader(slot.data, slot.size);
    int more;
    while ((more = pb_next(&reader, &field)) == 1)
        if (field.number == 2 && field.wire == PB_FIXED64)
            found = field.value;
    if (more < 0)
        return params_unexpected(err);
    if (version)
        *version = found;
    return RP_OK;
}

static void on_put(void *ctx, struct conn_reply *reply)
{
    struct publish_lane *lane = ctx;
    struct rp_publisher *self = publisher_of(lane);
    rp_error error = {0};
    uint64_t version = 0;
    rp_status status = conn_reply_status(reply, &error);
    if (status == RP_OK)
        status = read_version(reply, &version, &error);
    if (status == RP_OK && version == 0)
        status = err_set(&error, RP_BAD_MESSAGE, "the broker's reply to a put of '%s' has no version", self->link.name);
    conn_reply_destroy(&reply);
    lane->lane.in_flight = false;
    pthread_mutex_lock(&self->link.lock);
    if (status == RP_UNAVAILABLE || status == RP_CANCELLED) {
        put_broken_off(self, lane);
        lane->lane.next_ns = conn_now() + PARAMS_RETRY_NS;
    } else {
        put_ended(self, lane, version);
        bool replaced = lane->kind == PUT_AGAIN && status == RP_FAILED_PRECONDITION;
        if (status != RP_OK && !replaced)
            params_link_keep_error(&self->link, &lane->lane, &error);
    }
    pthread_cond_broadcast(&self->link.changed);
    pthread_mutex_unlock(&self->link.lock);
}

/* Decides what to put next, and copies the block. PUT_NOTHING: whoever has something wakes this thread. */
static enum put_kind take_block(struct rp_publisher *self, struct publish_lane *lane, zmq_msg_t *block,
                                Replay__ParamsPut *body)
{
    pthread_mutex_lock(&self->link.lock);
    uint64_t version = self->stats.version;
    if (is_first(lane) && self->waiting)
        lane->kind = PUT_NEWEST;
    else if (self->n_lanes > 1 && version && lane->done != version)
        lane->kind = PUT_CURRENT;
    else
        lane->kind = is_first(lane) && self->above ? PUT_AGAIN : PUT_NOTHING;
    lane->asleep = lane->kind == PUT_NOTHING;
    if (lane->kind == PUT_NEWEST) {
        zmq_msg_move(&self->sent, &self->newest);
        self->waiting = false;
        self->sent_number = self->stats.given;
    }
    if (lane->kind != PUT_NOTHING) {
        zmq_msg_copy(block, lane->kind == PUT_NEWEST ? &self->sent : &self->current);
        self->stats.puts++;
    }
    lane->version = version;
    body->version = lane->kind == PUT_NEWEST ? 0 : version;
    if (lane->kind != PUT_CURRENT && self->n_lanes > 1)
        body->above = self->above > version ? self->above : version;
    lane->id = lane->kind == PUT_NEWEST || lane->kind == PUT_AGAIN ? self->retry : 0;
    self->retry = lane->id ? 0 : self->retry;
    pthread_mutex_unlock(&self->link.lock);
    return lane->kind;
}

static int64_t on_tick(struct conn_part *part, int64_t now_ns)
{
    struct publish_lane *lane = (struct publish_lane *)part;
    struct rp_publisher *self = publisher_of(lane);
    int64_t wake_ns;
    if (!params_lane_is_free(&lane->lane, now_ns, &wake_ns))
        return wake_ns;
    Replay__ParamsPut body = REPLAY__PARAMS_PUT__INIT;
    zmq_msg_t block;
    body.name = self->link.name;
    zmq_msg_init(&block);
    if (take_block(self, lane, &block, &body) == PUT_NOTHING) {
        zmq_msg_close(&block);
        return INT64_MAX;
    }
    lane->lane.next_ns = now_ns + GAP_NS;
    struct conn_message message = {.field = REPLAY__REQUEST__BODY_PARAMS_PUT,
                                   .body = &body.base,
                                   .payload = &block,
                                   .n_payload = 1,
                                   .timeout_ms = -1,
                                   .again = lane->id};
    uint64_t id = conn_send_once(lane->lane.conn, part, &message, on_put);
    zmq_msg_close(&block);
    lane->lane.in_flight = id != 0;
    if (id) {
        lane->id = id;
        return INT64_MAX;
    }
    pthread_mutex_lock(&self->link.lock);
    put_broken_off(self, lane);
    pthread_mutex_unlock(&self->link.lock);
    lane->lane.next_ns = now_ns + PARAMS_RETRY_NS;
    return lane->lane.next_ns;
}

static void on_up(struct conn_part *part, const struct conn_hello *hello)
{
    struct publish_lane *lane = (struct publish_lane *)part;
    struct rp_publisher *self = publisher_of(lane);
    bool first_time = lane->lane.instance == 0, other = params_lane_up(&lane->lane, hello);
    pthread_mutex_lock(&self->link.lock);
    if (other)
        lane->done = 0; /* it may have lost the block */
    self->unsure = self->unsure || (is_first(lane) && (other || first_time));
    pthread_mutex_unlock(&self->link.lock);
}

static const struct conn_part_ops publisher_ops = {.up = on_up, .down = params_lane_down, .tick = on_tick};

/* ---- calls ---- */

rp_status rp_publisher_put(rp_publisher *publisher, const void *data, uint64_t bytes, rp_error *err)
{
    zmq_msg_t block;
    RP_TRY(conn_check_process(client_conn(publisher->link.client), err));
    if (bytes > SIZE_MAX || zmq_msg_init_size(&block, (size_t)bytes) != 0)
        return err_set(err, RP_NO_MEMORY, "no memory for %llu bytes", (unsigned long long)bytes);
    if (bytes)
        memcpy(zmq_msg_data(&block), data, (size_t)bytes);
    pthread_mutex_lock(&publisher->link.lock);
    rp_status status = params_link_take_error(&publisher->link, "an earlier put of", err);
    publisher->stats.replaced += publisher->waiting;
    zmq_msg_move(&publisher->newest, &block);
    publisher->waiting = true;
    publisher->retry = 0;
    publisher->stats.given++;
    wake_lanes(publisher, 0, 1);
    pthread_mutex_unlock(&publisher->link.lock);
    zmq_msg_close(&block);
    return status;
}

/* Returns the lane of a shard that has yet to get the newest block; shards that are away need not, but for shard 0. NULL: none has.
 * Lock held. */
static const struct publish_lane *open_lane(const struct rp_publisher *self)
{
    if (self->settled < self->stats.given || self->above)
        return &self->lanes[0];
    for (uint32_t i = 1; i < self->n_lanes; i++)
        if (self->lanes[i].lane.up && self->lanes[i].done != self->stats.version)
            return &self->lanes[i];
    return NULL;
}

rp_status rp_publisher_flush(rp_publisher *publisher, int64_t timeout_ms, uint64_t *version, rp_error *err)
{
    int64_t deadline = conn_deadline(timeout_ms);
    struct conn *conn = client_conn(publisher->link.client);
    RP_TRY(conn_check_process(conn, err));
    pthread_mutex_lock(&publisher->link.lock);
    while (open_lane(publisher) && conn_wait(conn, &publisher->link.changed, &publisher->link.lock, deadline))
        ;
    const struct publish_lane *open = open_lane(publisher);
    if (open && conn_is_stopped()) {
        pthread_mutex_unlock(&publisher->link.lock);
        return conn_stopped(err);
    }
    rp_status status = params_link_take_error(&publisher->link, "an earlier put of", err);
    if (version)
        *version = publisher->stats.version;
    pthread_mutex_unlock(&publisher->link.lock);
    if (!open || status != RP_OK)
        return status;
    char why[300];
    conn_describe(open->lane.conn, why, sizeof why);
    bool silent = why[0] == '\0';
    return err_set(err, RP_DEADLINE_EXCEEDED, "slot '%s' was not stored within %lld ms: %s%s", publisher->link.name,
                   (long long)timeout_ms, silent ? conn_title(open->lane.conn, why, sizeof why) : why,
                   silent ? " has not answered" : "");
}

rp_status rp_publisher_get_stats(rp_publisher *publisher, rp_publisher_stats *out)
{
    uint32_t size = out->struct_size;
    if (size < sizeof size)
        return RP_INVALID_ARGUMENT;
    RP_TRY(conn_check_process(client_conn(publisher->link.client), NULL));
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
    uint32_t n = client_shards(client);
    rp_publisher *self = calloc(1, sizeof *self + n * sizeof self->lanes[0]);
    if (!self) {
        err_set(err, RP_NO_MEMORY, "no memory for a publisher");
        return NULL;
    }
    if (params_link_init(&self->link, client, name, err) != RP_OK) {
        free(self);
        return NULL;
    }
    zmq_msg_init(&self->newest);
    zmq_msg_init(&self->sent);
    zmq_msg_init(&self->current);
    self->n_lanes = n;
    for (uint32_t i = 0; i < n; i++)
        params_lane_open(&self->lanes[i].lane, &self->link, i, &publisher_ops);
    return self;
}

rp_status rp_publisher_destroy(rp_publisher **publisher, int64_t timeout_ms, rp_error *err)
{
    if (!publisher || !*publisher)
        return RP_OK;
    rp_publisher *self = *publisher;
    *publisher = NULL;
    if (conn_is_foreign(client_conn(self->link.client))) {
        free(self);
        return RP_OK;
    }
    rp_status status = rp_publisher_flush(self, timeout_ms, NULL, err);
    for (uint32_t i = 0; i < self->n_lanes; i++)
        params_lane_close(&self->lanes[i].lane);
    params_link_fini(&self->link);
    zmq_msg_close(&self->newest);
    zmq_msg_close(&self->sent);
    zmq_msg_close(&self->current);
    free(self);
    return status;
}

/* ---- putting once ---- */

/* Puts to all shards: as a publisher that has one block. */
static rp_status put_to_shards(rp_client *client, const char *name, const void *data, uint64_t bytes,
                               int64_t timeout_ms, uint64_t *version, rp_error *err)
{
    rp_error own = {0};
    rp_publisher *publisher = rp_publisher_new(client, name, &own);
    rp_status status = publisher ? rp_publisher_put(publisher, data, bytes, &own) : (rp_status)own.status;
    if (publisher && status == RP_OK)
        status = rp_publisher_flush(publisher, timeout_ms, version, &own);
    rp_publisher_destroy(&publisher, 0, NULL);
    return status == RP_OK ? RP_OK : err_set(err, status, "%s", own.text);
}

rp_status rp_params_put(rp_client *client, const char *name, const void *data, uint64_t bytes, int64_t timeout_ms,
                        uint64_t *version, rp_error *err)
{
    RP_TRY(params_check_name(name, err));
    if (client_shards(client) > 1)
        return put_to_shards(client, name, data, bytes, timeout_ms, version, err);
    zmq_msg_t payload;
    if (bytes > SIZE_MAX || zmq_msg_init_size(&payload, (size_t)bytes) != 0)
        return err_set(err, RP_NO_MEMORY, "no memory for %llu bytes", (unsigned long long)bytes);
    if (bytes)
        memcpy(zmq_msg_data(&payload), data, (size_t)bytes);
    Replay__ParamsPut body = REPLAY__PARAMS_PUT__INIT;
    body.name = (char *)(uintptr_t)name;
    struct conn_message message = {.field = REPLAY__REQUEST__BODY_PARAMS_PUT,
                                   .body = &body.base,
                                   .payload = &payload,
                                   .n_payload = 1,
                                   .timeout_ms = timeout_ms};
    struct conn_reply *reply = NULL;
    rp_status status = conn_call(client_conn(client), &message, &reply, err);
    zmq_msg_close(&payload);
    if (status != RP_OK)
        return status;
    status = read_version(reply, version, err);
    conn_reply_destroy(&reply);
    return status;
}
