/* See changes.h. */
#include "agent/client/sampler/changes.h"

#include <stdlib.h>
#include <string.h>

#include "proto/base/clock.h"
#include "proto/base/error.h"
#include "proto/wire/pb.h"

#define DEFAULT_MAX 1024u
/* How often a thread that waits for several shards looks whether one of them was lost. */
#define LOOK_NS (100 * NS_PER_MS)

uint32_t changes_max(struct conn *conn)
{
    struct conn_hello *hello = conn_hello_ref(conn);
    uint32_t max = hello ? hello->max_keys : DEFAULT_MAX;
    conn_hello_unref(&hello);
    return max;
}

rp_status changes_check_table(struct conn *conn, const char *table, rp_error *err)
{
    if (!table || strlen(table) > RP_MAX_NAME)
        return err_set(err, RP_INVALID_ARGUMENT, "a table's name has at most %u bytes", RP_MAX_NAME);
    struct conn_hello *hello = conn_hello_ref(conn);
    rp_status status = conn_hello_table(hello, table) ? RP_OK : conn_hello_no_table(hello, table, err);
    conn_hello_unref(&hello);
    return status;
}

static void encode_keys(struct pb_writer *out, const struct keys *keys)
{
    pb_put_bytes(out, 1, keys->table, strlen(keys->table));
    uint8_t *at = pb_put_packed(out, 2, keys->n, 8);
    if (at)
        memcpy(at, keys->keys, (size_t)keys->n * 8);
    if (keys->priorities)
        pb_put_f64s(out, 3, keys->priorities, keys->n);
}

static rp_status read_change(const struct conn_reply *reply, rp_change *change, rp_error *err)
{
    uint64_t counts[4] = {0}; /* by field */
    struct pb_reader reader = pb_reader(reply->view.data, reply->view.size);
    struct pb_field field;
    int more;
    while ((more = pb_next(&reader, &field)) == 1)
        if (field.number < 4 && field.wire == PB_FIXED64)
            counts[field.number] = field.value;
    if (more < 0 || reply->view.body != REPLAY__REPLY__BODY_CHANGE)
        return err_set(err, RP_BAD_MESSAGE, "the broker's reply does not say what was changed");
    change->applied += counts[1];
    change->missing += counts[2];
    change->refused += counts[3];
    if (counts[3])
        return err_set(err, RP_INVALID_ARGUMENT, "%.*s", (int)reply->view.text.size, reply->view.text.data);
    return RP_OK;
}

/* ---- several requests at once, and waiting for all ---- */

struct changes *changes_new(rp_client *client)
{
    uint32_t n = client_shards(client);
    struct changes *self = calloc(1, sizeof *self + n * sizeof self->lanes[0]);
    if (!self)
        return NULL;
    pthread_mutex_init(&self->lock, NULL);
    conn_cond_init(&self->done);
    self->refs = 1;
    self->n_lanes = n;
    for (uint32_t i = 0; i < n; i++)
        self->lanes[i] = (struct changes_lane){.changes = self, .conn = client_shard(client, i)};
    return self;
}

void changes_unref(struct changes *self)
{
    if (__atomic_sub_fetch(&self->refs, 1, __ATOMIC_ACQ_REL) != 0)
        return;
    pthread_mutex_destroy(&self->lock);
    pthread_cond_destroy(&self->done);
    free(self);
}

/* Reads an answer. Refused priorities come with an error and with the counts. */
static rp_status read_answer(const struct changes_lane *lane, const struct conn_reply *reply, rp_change *change,
                             rp_error *error)
{
    char title[300];
    rp_status status = conn_reply_status(reply, error);
    if (reply->answered && (status == RP_OK || reply->view.body == REPLAY__REPLY__BODY_CHANGE)) {
        rp_status read = read_change(reply, change, status == RP_OK ? error : NULL);
        status = status == RP_OK ? read : status;
    }
    if (status != RP_OK && reply->answered && lane->changes->n_lanes > 1)
        err_prefix(error, "%s", conn_title(lane->conn, title, sizeof title));
    return status;
}

static void on_change(void *ctx, struct conn_reply *reply)
{
    struct changes_lane *lane = ctx;
    struct changes *self = lane->changes;
    rp_change change = {0};
    rp_error error = {0};
    rp_status status = read_answer(lane, reply, &change, &error);
    conn_reply_destroy(&reply);
    pthread_mutex_lock(&self->lock);
    self->open--;
    lane->open--;
    self->change.applied += change.applied;
    self->change.missing += change.missing;
    self->change.refused += change.refused;
    if (status != RP_OK && self->status == RP_OK) {
        self->status = status;
        self->error = error;
    }
    pthread_cond_broadcast(&self->done);
    pthread_mutex_unlock(&self->lock);
    changes_unref(self);
}

static rp_status no_memory_to_send(const struct keys *keys, rp_error *err)
{
    return err_set(err, RP_NO_MEMORY, "no memory to send %llu keys", (unsigned long long)keys->n);
}

static void count_open(struct changes_lane *lane, int change)
{
    pthread_mutex_lock(&lane->changes->lock);
    lane->open += (uint32_t)change;
    lane->changes->open += (uint32_t)change;
    pthread_mutex_unlock(&lane->changes->lock);
}

rp_status changes_send(struct changes *self, uint32_t shard, const struct keys *keys, int64_t timeout_ms, rp_error *err)
{
    struct changes_lane *lane = &self->lanes[shard];
    struct pb_writer body = {0};
    encode_keys(&body, keys);
    if (body.failed) {
        pb_writer_fini(&body);
        return no_memory_to_send(keys, err);
    }
    struct conn_message message = {.field =
                                       keys->priorities ? REPLAY__REQUEST__BODY_UPDATE : REPLAY__REQUEST__BODY_DELETE,
                                   .bytes = body.data,
                                   .size = body.size,
                                   .timeout_ms = timeout_ms};
    count_open(lane, 1);
    __atomic_add_fetch(&self->refs, 1, __ATOMIC_RELAXED);
    uint64_t id = conn_try_send(lane->conn, &message, on_change, lane);
    pb_writer_fini(&body);
    if (id)
        return RP_OK;
    count_open(lane, -1);
    __atomic_sub_fetch(&self->refs, 1, __ATOMIC_RELAXED); /* the caller's reference is left */
    return no_memory_to_send(keys, err);
}

/* Returns the number of requests without an answer at shards that are there. Lock held. */
static uint32_t in_flight(const struct changes *self)
{
    uint32_t n = 0;
    if (self->n_lanes == 1)
        return self->open;
    for (uint32_t i = 0; i < self->n_lanes; i++)
        if (self->lanes[i].open && conn_away_ns(self->lanes[i].conn) == 0)
            n += self->lanes[i].open;
    return n;
}

bool changes_wait_for_room(struct changes *self, uint32_t most, int64_t deadline_ns)
{
    bool going = true;
    pthread_mutex_lock(&self->lock);
    while (in_flight(self) >= most && going) {
        int64_t look = self->n_lanes > 1 ? conn_now() + LOOK_NS : INT64_MAX;
        int64_t until = look < deadline_ns ? look : deadline_ns;
        going = conn_wait(self->lanes[0].conn, &self->done, &self->lock, until) ||
                (until != deadline_ns && !conn_is_stopped());
    }
    bool room = in_flight(self) < most;
    pthread_mutex_unlock(&self->lock);
    return room;
}

bool changes_wait_for_all(struct changes *self, int64_t deadline_ns)
{
    bool going = true;
    pthread_mutex_lock(&self->lock);
    while (self->open > 0 && going)
        going = conn_wait(self->lanes[0].conn, &self->done, &self->lock, deadline_ns);
    bool done = self->open == 0;
    pthread_mutex_unlock(&self->lock);
    return done;
}
