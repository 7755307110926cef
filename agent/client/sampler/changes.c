/* Changes of items by key: updates of priorities and deletes that wait for the answer, and the updater, which collects updates and
 * sends them without waiting.
 *
 * A key goes to the shard that owns it. Requests at a shard that is away wait there until it is back; they do not count as in
 * flight, so that the other shards get their changes all the same. */
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "agent/client/conn/client.h"
#include "proto/base/clock.h"
#include "proto/base/error.h"
#include "proto/wire/pb.h"
#include "replay/sampler.h"

#define DEFAULT_MAX 1024u
/* How often a thread that waits for several shards looks whether one of them was lost. */
#define LOOK_NS (100 * NS_PER_MS)
#define DEFAULT_BATCH 256u
/* Time after which updates for a shard that is away are ignored. */
#define PATIENCE_NS NS_PER_S
/* Requests without an answer, unless the caller says otherwise. */
#define CHANGES_IN_FLIGHT 16u

/* Items of a table to be changed: updated if there are priorities, else deleted. */
struct keys {
    const char *table;
    const uint64_t *keys;
    const double *priorities;
    uint64_t n;
};

/* The requests at one shard. */
struct changes_lane {
    struct changes *changes;
    struct conn *conn;
    uint32_t open; /* requests without an answer */
};

struct changes {
    pthread_mutex_t lock; /* guards what follows, but for refs and the connections */
    pthread_cond_t done;
    uint32_t refs; /* the caller and every request */
    uint32_t open; /* of all lanes */
    rp_change change;
    rp_status status; /* the first status that was not RP_OK */
    rp_error error;
    uint32_t n_lanes;
    struct changes_lane lanes[];
};

/* Returns the largest number of keys in one request. */
static uint32_t changes_max(struct conn *conn)
{
    struct conn_hello *hello = conn_hello_ref(conn);
    uint32_t max = hello ? hello->max_keys : DEFAULT_MAX;
    conn_hello_unref(&hello);
    return max;
}

static rp_status changes_check_table(struct conn *conn, const char *table, rp_error *err)
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

/* NULL: out of memory. */
static struct changes *changes_new(rp_client *client)
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

static void changes_unref(struct changes *self)
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

/* Sends one request, whose answer is added to self->change. timeout_ms as in conn_send. RP_NO_MEMORY: not sent. */
static rp_status changes_send(struct changes *self, uint32_t shard, const struct keys *keys, int64_t timeout_ms,
                              rp_error *err)
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

/* Waits until fewer than `most` requests are in flight. False: the deadline has passed, or the caller has ended the wait. */
static bool changes_wait_for_room(struct changes *self, uint32_t most, int64_t deadline_ns)
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

/* Waits until all requests are answered, also at shards that are away. */
static bool changes_wait_for_all(struct changes *self, int64_t deadline_ns)
{
    bool going = true;
    pthread_mutex_lock(&self->lock);
    while (self->open > 0 && going)
        going = conn_wait(self->lanes[0].conn, &self->done, &self->lock, deadline_ns);
    bool done = self->open == 0;
    pthread_mutex_unlock(&self->lock);
    return done;
}

/* ---- calls that wait ---- */

struct by_shard {
    struct keys all;  /* sorted by shard */
    uint64_t *starts; /* [shards + 1] index of the first key of each shard */
    uint64_t *keys;   /* NULL: one shard, and the keys are the caller's */
    double *priorities;
};

static void by_shard_fini(struct by_shard *self)
{
    free(self->starts);
    free(self->keys);
    free(self->priorities);
}

/* Copies the keys in the order of their shards, and those of one shard in the order in which they were given. */
static void by_shard_sort(struct by_shard *self, const rp_client *client, const struct keys *given)
{
    uint32_t n = client_shards(client);
    for (uint64_t i = 0; i < given->n; i++)
        self->starts[client_shard_of(client, given->keys[i]) + 1]++;
    for (uint32_t s = 0; s < n; s++)
        self->starts[s + 1] += self->starts[s];
    uint64_t at[WIRE_MAX_SHARDS];
    memcpy(at, self->starts, n * sizeof at[0]);
    for (uint64_t i = 0; i < given->n; i++) {
        uint64_t to = at[client_shard_of(client, given->keys[i])]++;
        self->keys[to] = given->keys[i];
        if (given->priorities)
            self->priorities[to] = given->priorities[i];
    }
    self->all.keys = self->keys;
    self->all.priorities = self->priorities;
}

/* False: out of memory. Call by_shard_fini also then. */
static bool by_shard_init(struct by_shard *self, const rp_client *client, const struct keys *given)
{
    uint32_t n = client_shards(client);
    *self = (struct by_shard){.all = *given, .starts = calloc(n + 1, sizeof *self->starts)};
    if (!self->starts)
        return false;
    self->starts[1] = given->n;
    if (n == 1 || given->n == 0)
        return true;
    self->starts[1] = 0;
    self->keys = malloc((size_t)given->n * sizeof *self->keys);
    self->priorities = given->priorities ? malloc((size_t)given->n * sizeof *self->priorities) : NULL;
    if (!self->keys || (given->priorities && !self->priorities))
        return false;
    by_shard_sort(self, client, given);
    return true;
}

/* Returns the keys of request number `part` to a shard; n is 0 after the last. */
static struct keys by_shard_part(const struct by_shard *self, uint32_t shard, uint64_t part, uint32_t max)
{
    uint64_t at = self->starts[shard] + part * max, end = self->starts[shard + 1];
    uint64_t left = at < end ? end - at : 0;
    at = at < end ? at : end;
    return (struct keys){self->all.table, self->all.keys + at, self->all.priorities ? self->all.priorities + at : NULL,
                         left < max ? left : max};
}

/* Sends all keys, a request to each shard in turn. *sent false: the deadline has passed before. */
static rp_status send_all(struct changes *changes, const struct by_shard *dealt, int64_t deadline, bool *sent,
                          rp_error *err)
{
    uint32_t max = changes_max(changes->lanes[0].conn);
    bool any = true;
    for (uint64_t part = 0; any; part++) {
        any = false;
        for (uint32_t s = 0; s < changes->n_lanes; s++) {
            struct keys keys = by_shard_part(dealt, s, part, max);
            if (keys.n == 0)
                continue;
            any = true;
            *sent = changes_wait_for_room(changes, CHANGES_IN_FLIGHT, deadline);
            if (!*sent)
                return RP_OK;
            RP_TRY(changes_send(changes, s, &keys, conn_left_ms(deadline), err));
        }
    }
    return RP_OK;
}

static rp_status change_keys(rp_client *client, const struct keys *keys, int64_t timeout_ms, rp_change *change,
                             rp_error *err)
{
    int64_t deadline = conn_deadline(timeout_ms);
    if (change)
        *change = (rp_change){0};
    RP_TRY(conn_check_process(client_conn(client), err));
    RP_TRY(changes_check_table(client_conn(client), keys->table, err));
    struct by_shard dealt;
    struct changes *changes = changes_new(client);
    if (!by_shard_init(&dealt, client, keys) || !changes) {
        by_shard_fini(&dealt);
        if (changes)
            changes_unref(changes);
        return err_set(err, RP_NO_MEMORY, "no memory for a request");
    }
    bool sent = true;
    rp_status status = send_all(changes, &dealt, deadline, &sent, err);
    /* The connection ends each request at its deadline with a better explanation: leave it a moment. */
    bool stopped = !sent && conn_is_stopped();
    bool done =
        !stopped && changes_wait_for_all(changes, deadline > INT64_MAX - NS_PER_S ? INT64_MAX : deadline + NS_PER_S);
    stopped = stopped || (!done && conn_is_stopped());
    pthread_mutex_lock(&changes->lock);
    if (change)
        *change = changes->change;
    if (status == RP_OK && changes->status != RP_OK)
        status = err_set(err, changes->status, "%s", changes->error.text);
    pthread_mutex_unlock(&changes->lock);
    if (status == RP_OK && stopped)
        status = conn_stopped(err);
    else if (status == RP_OK && !(done && sent))
        status = err_set(err, RP_DEADLINE_EXCEEDED, "not all of %llu keys were answered within %lld ms",
                         (unsigned long long)keys->n, (long long)timeout_ms);
    changes_unref(changes);
    by_shard_fini(&dealt);
    return status;
}

rp_status rp_priorities_update(rp_client *client, const char *table, const uint64_t *keys, const double *priorities,
                               uint64_t n, int64_t timeout_ms, rp_change *change, rp_error *err)
{
    if (n && (!keys || !priorities))
        return err_set(err, RP_INVALID_ARGUMENT, "keys or priorities are missing");
    struct keys changed = {table, keys, priorities, n};
    return change_keys(client, &changed, timeout_ms, change, err);
}

rp_status rp_items_delete(rp_client *client, const char *table, const uint64_t *keys, uint64_t n, int64_t timeout_ms,
                          rp_change *change, rp_error *err)
{
    if (n && !keys)
        return err_set(err, RP_INVALID_ARGUMENT, "keys are missing");
    struct keys deleted = {table, keys, NULL, n};
    return change_keys(client, &deleted, timeout_ms, change, err);
}

/* ---- the updater ---- */

/* Updates of one shard that were not sent yet. */
struct collected {
    uint64_t *keys;
    double *priorities;
    uint32_t n;
};

struct rp_updater {
    rp_client *client;
    char *table;
    uint32_t batch, in_flight;
    struct changes *changes;
    struct collected *collected; /* [shards] */
};

static bool collected_init(rp_updater *self)
{
    uint32_t n = client_shards(self->client);
    self->collected = calloc(n, sizeof *self->collected);
    bool ok = self->collected != NULL;
    for (uint32_t i = 0; ok && i < n; i++) {
        struct collected *one = &self->collected[i];
        one->keys = malloc(self->batch * sizeof *one->keys);
        one->priorities = malloc(self->batch * sizeof *one->priorities);
        ok = one->keys && one->priorities;
    }
    return ok;
}

static void updater_free(rp_updater *self)
{
    for (uint32_t i = 0; self->collected && i < client_shards(self->client); i++) {
        free(self->collected[i].keys);
        free(self->collected[i].priorities);
    }
    if (self->changes)
        changes_unref(self->changes);
    free(self->collected);
    free(self->table);
    free(self);
}

rp_updater *rp_updater_new(rp_client *client, const char *table, const rp_updater_options *options, rp_error *err)
{
    struct conn *conn = client_conn(client);
    rp_updater_options checked = {0};
    if (options)
        memcpy(&checked, options, options->struct_size < sizeof checked ? options->struct_size : sizeof checked);
    if (conn_check_process(conn, err) != RP_OK)
        return NULL;
    uint32_t max = changes_max(conn);
    if (checked.batch > max) {
        err_set(err, RP_INVALID_ARGUMENT, "batch is %u; it may be 1 to %u here", checked.batch, max);
        return NULL;
    }
    if (changes_check_table(conn, table, err) != RP_OK)
        return NULL;
    rp_updater *self = calloc(1, sizeof *self);
    if (!self)
        goto fail;
    self->client = client;
    self->batch = checked.batch ? checked.batch : max < DEFAULT_BATCH ? max : DEFAULT_BATCH;
    self->in_flight = checked.in_flight ? checked.in_flight : CHANGES_IN_FLIGHT;
    self->table = strdup(table);
    self->changes = changes_new(client);
    if (self->table && self->changes && collected_init(self))
        return self;
    updater_free(self);
fail:
    err_set(err, RP_NO_MEMORY, "no memory for an updater");
    return NULL;
}

/* Returns the error of an earlier request, once. */
static rp_status take_error(rp_updater *self, rp_error *err)
{
    rp_status status = RP_OK;
    pthread_mutex_lock(&self->changes->lock);
    if (self->changes->status != RP_OK)
        status = err_set(err, self->changes->status, "%s", self->changes->error.text);
    self->changes->status = RP_OK;
    pthread_mutex_unlock(&self->changes->lock);
    return status;
}

/* Sets err to what is without an answer, and why. */
static rp_status explain(rp_updater *self, rp_error *err)
{
    if (conn_is_stopped())
        return conn_stopped(err);
    char link[256];
    client_describe(self->client, link, sizeof link);
    return err_set(err, RP_DEADLINE_EXCEEDED, "updates of table '%s' are without an answer%s%s", self->table,
                   link[0] ? ": " : "", link);
}

/* Ignores updates for a shard that has been away for long. True: it has. */
static bool is_lost(rp_updater *self, uint32_t shard)
{
    struct collected *collected = &self->collected[shard];
    if (self->changes->n_lanes == 1 || conn_away_ns(self->changes->lanes[shard].conn) < PATIENCE_NS)
        return false;
    pthread_mutex_lock(&self->changes->lock);
    self->changes->change.missing += collected->n;
    pthread_mutex_unlock(&self->changes->lock);
    collected->n = 0;
    return true;
}

static rp_status send_collected(rp_updater *self, uint32_t shard, int64_t deadline_ns, rp_error *err)
{
    struct collected *collected = &self->collected[shard];
    if (collected->n == 0 || is_lost(self, shard))
        return RP_OK;
    if (!changes_wait_for_room(self->changes, self->in_flight, deadline_ns))
        return explain(self, err);
    struct keys keys = {self->table, collected->keys, collected->priorities, collected->n};
    RP_TRY(changes_send(self->changes, shard, &keys, -1, err));
    collected->n = 0;
    return RP_OK;
}

/* Returns how many keys from the first on belong to the same shard. */
static uint32_t run_length(const rp_updater *self, const uint64_t *keys, uint32_t n, uint32_t *shard)
{
    uint32_t run = 1;
    *shard = client_shard_of(self->client, keys[0]);
    if (self->changes->n_lanes == 1)
        return n;
    while (run < n && client_shard_of(self->client, keys[run]) == *shard)
        run++;
    return run;
}

rp_status rp_updater_add(rp_updater *updater, const uint64_t *keys, const double *priorities, uint32_t n,
                         int64_t timeout_ms, uint32_t *taken, rp_error *err)
{
    int64_t deadline = conn_deadline(timeout_ms);
    uint32_t done = 0;
    RP_TRY(conn_check_process(client_conn(updater->client), err));
    rp_status status = take_error(updater, err);
    while (done < n && status == RP_OK) {
        uint32_t shard, run = run_length(updater, keys + done, n - done, &shard);
        struct collected *to = &updater->collected[shard];
        uint32_t room = updater->batch - to->n, part = run < room ? run : room;
        memcpy(to->keys + to->n, keys + done, part * sizeof *keys);
        memcpy(to->priorities + to->n, priorities + done, part * sizeof *priorities);
        to->n += part;
        done += part;
        if (to->n == updater->batch)
            status = send_collected(updater, shard, deadline, err);
    }
    if (taken)
        *taken = done;
    return status;
}

rp_status rp_updater_flush(rp_updater *updater, int64_t timeout_ms, rp_change *change, rp_error *err)
{
    int64_t deadline = conn_deadline(timeout_ms);
    RP_TRY(conn_check_process(client_conn(updater->client), err));
    rp_status status = RP_OK;
    for (uint32_t s = 0; s < updater->changes->n_lanes && status == RP_OK; s++)
        status = send_collected(updater, s, deadline, err);
    if (status == RP_OK && !changes_wait_for_all(updater->changes, deadline))
        status = explain(updater, err);
    if (status == RP_CANCELLED)
        return status;
    pthread_mutex_lock(&updater->changes->lock);
    if (change)
        *change = updater->changes->change;
    pthread_mutex_unlock(&updater->changes->lock);
    return status == RP_OK ? take_error(updater, err) : status;
}

rp_status rp_updater_destroy(rp_updater **updater, int64_t timeout_ms, rp_error *err)
{
    if (!updater || !*updater)
        return RP_OK;
    rp_updater *self = *updater;
    *updater = NULL;
    if (conn_is_foreign(client_conn(self->client))) {
        free(self);
        return RP_OK;
    }
    rp_status status = rp_updater_flush(self, timeout_ms, NULL, err);
    updater_free(self);
    return status;
}
