/* Changes of items by key. An updater collects updates for each shard and sends them in batches without waiting for the answers, or
 * acknowledgements of leases, which do not wait for a batch to fill. The calls that wait are an updater for one call.
 *
 * While more than half of the updates that may be without an answer are, further ones gather, and several batches go in one
 * request as soon as enough answers have come: a request costs four threads a wake-up, whatever its size.
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

/* How often a thread that waits for several shards looks whether one of them was lost. */
#define LOOK_NS (100 * NS_PER_MS)
#define DEFAULT_BATCH 256u
/* Time after which updates for a shard that is away are ignored. */
#define PATIENCE_NS NS_PER_S
/* Longest time for which fewer updates than a batch wait for more. */
#define LINGER_NS (20 * NS_PER_MS)
/* Batches without an answer, unless the caller says otherwise: the broker works on several full requests while answers travel. */
#define DEFAULT_IN_FLIGHT 64u
/* The same of a call, whose batches are as large as a request may be. */
#define CALL_IN_FLIGHT 16u

/* The requests at one shard. The updater's lock guards all but the first three. */
struct change_shard {
    struct conn_part part; /* first: its functions get it; attached for rp_updater, if the connection has a thread */
    rp_updater *updater;
    struct conn *conn;
    int64_t due_ns; /* when the I/O thread sends keys that make no batch; 0: there are none */
    uint64_t open;  /* keys without an answer */
    uint32_t n;     /* keys that were not sent yet, at most updater->most */
    uint64_t *keys;
    double *priorities;
};

/* A request without an answer. */
struct change_request {
    struct change_shard *shard;
    uint32_t weight; /* keys, or more: see transmit */
};

struct rp_updater {
    uint32_t refs; /* atomic: the caller and every request */
    rp_client *client;
    char *table;
    uint32_t batch;    /* keys that make a request worth while during a call */
    uint32_t least;    /* the same at its end, and when an answer has come */
    uint32_t most;     /* keys of a request */
    uint64_t window;   /* keys without an answer */
    uint32_t field;    /* of the request: UPDATE, DELETE or LEASE */
    uint32_t op, ms;   /* LEASE */
    bool attached;     /* parts are */
    bool patient;      /* waits for shards that are away, and does not ignore their changes */
    int64_t expire_ns; /* when requests time out; INT64_MAX: never */

    pthread_mutex_t lock; /* guards what follows */
    pthread_cond_t done;
    uint64_t open; /* keys without an answer, of all shards */
    rp_change change;
    rp_status status; /* the first status that was not RP_OK */
    rp_error error;
    uint32_t n_shards; /* constant */
    struct change_shard shards[];
};

/* ---- life ---- */

static void updater_unref(rp_updater *self)
{
    if (__atomic_sub_fetch(&self->refs, 1, __ATOMIC_ACQ_REL) != 0)
        return;
    for (uint32_t i = 0; i < self->n_shards; i++) {
        free(self->shards[i].keys);
        free(self->shards[i].priorities);
    }
    pthread_mutex_destroy(&self->lock);
    pthread_cond_destroy(&self->done);
    free(self->table);
    free(self);
}

/* The caller is done: what was not sent is dropped, and the last answer frees the rest. */
static void updater_close(rp_updater *self)
{
    pthread_mutex_lock(&self->lock);
    for (uint32_t i = 0; i < self->n_shards; i++)
        self->shards[i].n = 0;
    pthread_mutex_unlock(&self->lock);
    updater_unref(self);
}

/* in_flight: batches without an answer. max: keys that a request may have. */
static rp_updater *updater_make(rp_client *client, const char *table, uint32_t batch, uint32_t in_flight, uint32_t max,
                                rp_error *err)
{
    uint32_t n = client_shards(client);
    rp_updater *self = calloc(1, sizeof *self + n * sizeof self->shards[0]);
    bool ok = self != NULL;
    if (ok) {
        self->refs = 1;
        self->client = client;
        self->table = strdup(table);
        self->batch = self->most = self->least = batch;
        self->window = (uint64_t)batch * in_flight;
        if (self->window / 2 > batch)
            self->most = self->window / 2 < max ? (uint32_t)(self->window / 2) : max;
        self->expire_ns = INT64_MAX;
        self->field = REPLAY__REQUEST__BODY_UPDATE;
        pthread_mutex_init(&self->lock, NULL);
        pthread_cond_init(&self->done, NULL);
        self->n_shards = n;
        ok = self->table != NULL;
    }
    for (uint32_t i = 0; ok && i < n; i++) {
        struct change_shard *shard = &self->shards[i];
        shard->updater = self;
        shard->conn = client_shard(client, i);
        shard->keys = malloc(self->most * sizeof *shard->keys);
        shard->priorities = malloc(self->most * sizeof *shard->priorities);
        ok = shard->keys && shard->priorities;
    }
    if (ok)
        return self;
    if (self)
        updater_unref(self);
    return err_null(err, RP_NO_MEMORY, "no memory for changes of table '%s'", table);
}

/* Checks the client and the table; *max is the largest number of keys in one request. */
static rp_status check(rp_client *client, const char *table, uint32_t *max, rp_error *err)
{
    struct conn *conn = client_conn(client);
    RP_TRY(conn_check_process(conn, err));
    struct conn_hello *hello = conn_hello_ref(conn);
    *max = hello->says->max_keys;
    rp_status status = conn_hello_table(hello, table, NULL, err);
    conn_hello_unref(&hello);
    return status;
}

/* ---- requests; with the lock held ---- */

static void on_change(void *ctx, struct conn_reply *reply);

/* Sends what a shard has collected. RP_NO_MEMORY: nothing was sent. */
static rp_status transmit(struct change_shard *shard, rp_error *err)
{
    rp_updater *self = shard->updater;
    struct text body = {0};
    struct change_request *request = malloc(sizeof *request);
    uint64_t id = 0;
    pb_put_bytes(&body, 1, self->table, strlen(self->table));
    uint8_t *at = pb_put_packed(&body, 2, shard->n, 8);
    if (at)
        memcpy(at, shard->keys, shard->n * sizeof *shard->keys);
    if (self->field == REPLAY__REQUEST__BODY_UPDATE)
        pb_put_bytes(&body, 3, shard->priorities,
                     pb_all_equal(shard->priorities, shard->n, 8) ? 8 : (size_t)shard->n * 8);
    if (self->field == REPLAY__REQUEST__BODY_LEASE) {
        pb_put_varint(&body, 3, self->op);
        pb_put_varint(&body, 4, self->ms);
    }
    /* Acknowledgements of a few keys count as a batch: a client may have few requests without an answer, whatever their size. */
    uint32_t weight = shard->n < self->batch && self->least < self->batch ? self->batch : shard->n;
    if (!body.failed && request) {
        *request = (struct change_request){shard, weight};
        struct conn_message message = {
            .field = self->field, .bytes = body.data, .size = body.size, .timeout_ms = conn_left_ms(self->expire_ns)};
        id = conn_try_send(shard->conn, &message, on_change, request);
    }
    text_fini(&body);
    if (!id)
        free(request);
    if (!id)
        return err_set(err, RP_NO_MEMORY, "no memory to send %u keys", shard->n);
    __atomic_add_fetch(&self->refs, 1, __ATOMIC_RELAXED); /* its answer waits for the lock */
    shard->open += weight;
    self->open += weight;
    shard->n = 0;
    shard->due_ns = 0;
    return RP_OK;
}

/* True if a request may be sent: half of the keys that may be without an answer at shards that are there have one. */
static bool has_room(const rp_updater *self)
{
    uint64_t open = self->n_shards == 1 ? self->open : 0;
    for (uint32_t i = 0; i < self->n_shards && self->n_shards > 1; i++)
        if (self->shards[i].open && conn_away_ns(self->shards[i].conn) == 0)
            open += self->shards[i].open;
    return 2 * open <= self->window;
}

/* Drops what a shard has collected that has been away for long. True: it has nothing to send. */
static bool has_nothing(struct change_shard *shard)
{
    rp_updater *self = shard->updater;
    if (shard->n && !self->patient && self->n_shards > 1 && conn_away_ns(shard->conn) >= PATIENCE_NS) {
        self->change.missing += shard->n;
        shard->n = 0;
        shard->due_ns = 0;
    }
    return shard->n == 0;
}

/* Sends what a shard has collected as soon as there is room. RP_DEADLINE_EXCEEDED: there was none before the deadline, or the
 * caller has ended the wait. */
static rp_status send_collected(struct change_shard *shard, int64_t deadline_ns, rp_error *err)
{
    rp_updater *self = shard->updater;
    uint32_t n = shard->n; /* fewer: the answer to an earlier request has sent them */
    for (bool going = true; !has_nothing(shard) && shard->n == n && !has_room(self);) {
        int64_t look = self->n_shards > 1 ? clock_ns() + LOOK_NS : INT64_MAX;
        int64_t until = look < deadline_ns ? look : deadline_ns;
        if (!going)
            return RP_DEADLINE_EXCEEDED;
        going = conn_wait(self->shards[0].conn, &self->done, &self->lock, until) ||
                (until != deadline_ns && !conn_is_stopped());
    }
    return shard->n == n && n ? transmit(shard, err) : RP_OK;
}

/* Sends what has gathered, if there is room. Without memory it is sent later. */
static void send_gathered(rp_updater *self)
{
    for (uint32_t i = 0; i < self->n_shards; i++)
        if (self->shards[i].n >= self->least && has_room(self))
            transmit(&self->shards[i], NULL);
}

static rp_status send_all(rp_updater *self, int64_t deadline_ns, rp_error *err)
{
    rp_status status = RP_OK;
    pthread_mutex_lock(&self->lock);
    for (uint32_t i = 0; i < self->n_shards && status == RP_OK; i++)
        status = send_collected(&self->shards[i], deadline_ns, err);
    pthread_mutex_unlock(&self->lock);
    return status;
}

/* Takes keys, with priorities unless they are deletes, and sends full batches. *taken: how many. Without the lock. */
static rp_status collect(rp_updater *self, const uint64_t *keys, const double *priorities, uint64_t n,
                         int64_t deadline_ns, uint64_t *taken, rp_error *err)
{
    rp_status status = RP_OK;
    pthread_mutex_lock(&self->lock);
    for (*taken = 0; *taken < n && status == RP_OK;) {
        uint32_t shard = client_shard_of(self->client, keys[*taken]);
        uint64_t run = self->n_shards == 1 ? n - *taken : 1; /* keys that belong to the same shard */
        while (*taken + run < n && client_shard_of(self->client, keys[*taken + run]) == shard)
            run++;
        struct change_shard *to = &self->shards[shard];
        uint32_t room = self->most - to->n, part = run < room ? (uint32_t)run : room;
        memcpy(to->keys + to->n, keys + *taken, part * sizeof *keys);
        if (priorities)
            memcpy(to->priorities + to->n, priorities + *taken, part * sizeof *priorities);
        to->n += part;
        *taken += part;
        if (to->n == self->most || (to->n >= self->batch && has_room(self)))
            status = send_collected(to, deadline_ns, err);
        if (to->n && to->n < self->least && !to->due_ns && self->attached) {
            to->due_ns = clock_ns() + LINGER_NS;
            conn_wake(to->conn);
        }
    }
    send_gathered(self);
    pthread_mutex_unlock(&self->lock);
    return status;
}

/* Waits until all requests are answered, also at shards that are away. Without the lock. */
static bool await_all(rp_updater *self, int64_t deadline_ns)
{
    bool going = true;
    pthread_mutex_lock(&self->lock);
    while (self->open > 0 && going)
        going = conn_wait(self->shards[0].conn, &self->done, &self->lock, deadline_ns);
    bool done = self->open == 0;
    pthread_mutex_unlock(&self->lock);
    return done;
}

/* ---- answers ---- */

/* Reads an answer. Refused priorities come with an error and with the counts. */
static rp_status read_answer(const struct change_shard *shard, const struct conn_reply *reply, rp_change *change,
                             rp_error *error)
{
    uint64_t counts[4];
    rp_status status = conn_reply_status(reply, error);
    rp_status read = conn_reply_numbers(reply, REPLAY__REPLY__BODY_CHANGE, counts, 4, status == RP_OK ? error : NULL);
    if (status == RP_OK)
        status = read;
    if (status == RP_OK && counts[3])
        status = err_set(error, RP_INVALID_ARGUMENT, "%.*s", (int)reply->view.text.size, reply->view.text.data);
    *change = (rp_change){.applied = counts[1], .missing = counts[2], .refused = counts[3]};
    if (status != RP_OK && reply->answered && shard->updater->n_shards > 1)
        err_prefix(error, "%s", conn_title(shard->conn));
    return status;
}

static void on_change(void *ctx, struct conn_reply *reply)
{
    struct change_request request = *(struct change_request *)ctx;
    struct change_shard *shard = request.shard;
    rp_updater *self = shard->updater;
    rp_change change;
    rp_error error = {0};
    rp_status status = read_answer(shard, reply, &change, &error);
    conn_reply_destroy(&reply);
    free(ctx);
    pthread_mutex_lock(&self->lock);
    self->open -= request.weight;
    shard->open -= request.weight;
    self->change.applied += change.applied;
    self->change.missing += change.missing;
    self->change.refused += change.refused;
    if (status != RP_OK && self->status == RP_OK) {
        self->status = status;
        self->error = error;
    }
    send_gathered(self);
    pthread_mutex_unlock(&self->lock);
    pthread_cond_broadcast(&self->done); /* whoever wakes finds the lock free */
    updater_unref(self);
}

/* ---- on the I/O thread: what waits for a batch to fill ---- */

static void change_up(struct conn_part *part, const struct conn_hello *hello)
{
    (void)part, (void)hello;
}

static void change_down(struct conn_part *part)
{
    (void)part;
}

static int64_t change_tick(struct conn_part *part, int64_t now_ns)
{
    struct change_shard *shard = (struct change_shard *)part;
    rp_updater *self = shard->updater;
    pthread_mutex_lock(&self->lock);
    int64_t due = shard->due_ns ? shard->due_ns : INT64_MAX;
    if (now_ns >= due) {
        if (has_room(self) && !has_nothing(shard))
            transmit(shard, NULL);
        due = shard->n ? now_ns + LINGER_NS
                       : INT64_MAX; /* answers of other shards, which make room, do not wake this thread */
    }
    pthread_mutex_unlock(&self->lock);
    return due;
}

static const struct conn_part_ops change_ops = {.up = change_up, .down = change_down, .tick = change_tick};

/* ---- calls that wait ---- */

/* What is done to keys: the field of the request, and what it says beside them. */
struct change {
    uint32_t field, op, ms;
    const double *priorities;
};

static rp_status change_keys(rp_client *client, const char *table, const struct change *what, const uint64_t *keys,
                             uint64_t n, int64_t timeout_ms, rp_change *change, rp_error *err)
{
    int64_t deadline = conn_deadline(timeout_ms);
    uint32_t max;
    uint64_t taken;
    if (change)
        *change = (rp_change){0};
    if (n && !keys)
        return err_set(err, RP_INVALID_ARGUMENT, "keys are missing");
    RP_TRY(check(client, table, &max, err));
    uint32_t batch = n == 0 ? 1 : n < max ? (uint32_t)n : max;
    rp_updater *self = updater_make(client, table, batch, CALL_IN_FLIGHT, batch, err);
    if (!self)
        return RP_NO_MEMORY;
    self->field = what->field;
    self->op = what->op;
    self->ms = what->ms;
    self->patient = true;
    self->expire_ns = deadline;
    rp_status status = collect(self, keys, what->priorities, n, deadline, &taken, err);
    status = status == RP_OK ? send_all(self, deadline, err) : status;
    /* The connection ends each request at its deadline with a better explanation: leave it a moment. */
    bool stopped = status != RP_OK && conn_is_stopped();
    bool done = !stopped && await_all(self, deadline > INT64_MAX - NS_PER_S ? INT64_MAX : deadline + NS_PER_S);
    stopped = stopped || (!done && conn_is_stopped());
    pthread_mutex_lock(&self->lock);
    if (change)
        *change = self->change;
    if (status != RP_NO_MEMORY && self->status != RP_OK)
        status = err_set(err, self->status, "%s", self->error.text);
    else if (status != RP_NO_MEMORY && stopped)
        status = conn_stopped(err);
    else if (status == RP_DEADLINE_EXCEEDED || (status == RP_OK && !done))
        status = err_set(err, RP_DEADLINE_EXCEEDED, "not all of %llu keys were answered within %lld ms",
                         (unsigned long long)n, (long long)timeout_ms);
    pthread_mutex_unlock(&self->lock);
    updater_close(self);
    return status;
}

rp_status rp_priorities_update(rp_client *client, const char *table, const uint64_t *keys, const double *priorities,
                               uint64_t n, int64_t timeout_ms, rp_change *change, rp_error *err)
{
    struct change what = {.field = REPLAY__REQUEST__BODY_UPDATE, .priorities = priorities};
    if (n && !priorities)
        return err_set(err, RP_INVALID_ARGUMENT, "priorities are missing");
    return change_keys(client, table, &what, keys, n, timeout_ms, change, err);
}

rp_status rp_items_delete(rp_client *client, const char *table, const uint64_t *keys, uint64_t n, int64_t timeout_ms,
                          rp_change *change, rp_error *err)
{
    struct change what = {.field = REPLAY__REQUEST__BODY_DELETE};
    return change_keys(client, table, &what, keys, n, timeout_ms, change, err);
}

rp_status rp_items_lease(rp_client *client, const char *table, rp_lease_op op, const uint64_t *keys, uint64_t n,
                         uint32_t lease_ms, int64_t timeout_ms, rp_change *change, rp_error *err)
{
    struct change what = {.field = REPLAY__REQUEST__BODY_LEASE, .op = (uint32_t)op, .ms = lease_ms};
    return change_keys(client, table, &what, keys, n, timeout_ms, change, err);
}

/* ---- the updater ---- */

rp_updater *rp_updater_new(rp_client *client, const char *table, const rp_updater_options *options, rp_error *err)
{
    rp_updater_options checked;
    uint32_t max;
    if (client_copy_options(&checked, sizeof checked, options, "rp_updater_options", err) != RP_OK ||
        check(client, table, &max, err) != RP_OK)
        return NULL;
    if (checked.batch > max)
        return err_null(err, RP_INVALID_ARGUMENT, "batch is %u; it may be 1 to %u here", checked.batch, max);
    uint32_t batch = checked.batch ? checked.batch : max < DEFAULT_BATCH ? max : DEFAULT_BATCH;
    uint32_t in_flight = checked.in_flight ? checked.in_flight : DEFAULT_IN_FLIGHT;
    rp_updater *self = updater_make(client, table, batch, in_flight, max, err);
    if (self && checked.acknowledge) {
        self->field = REPLAY__REQUEST__BODY_LEASE;
        self->op = RP_LEASE_ACK;
        self->least = 1; /* a lease may end while its acknowledgement waits */
        self->patient = true;
    } else if (self && !conn_is_hosted(client_conn(client))) {
        self->attached = true;
        for (uint32_t i = 0; i < self->n_shards; i++) {
            self->shards[i].part.ops = &change_ops;
            conn_attach(self->shards[i].conn, &self->shards[i].part);
        }
    }
    for (uint32_t i = 0; self && !self->attached && i < self->n_shards; i++)
        conn_hold(self->shards[i].conn);
    return self;
}

/* Returns the error of an earlier request, once. */
static rp_status take_error(rp_updater *self, rp_error *err)
{
    pthread_mutex_lock(&self->lock);
    rp_status status = self->status;
    if (status != RP_OK)
        err_set(err, status, "%s", self->error.text);
    self->status = RP_OK;
    pthread_mutex_unlock(&self->lock);
    return status;
}

/* Sets err to what is without an answer, and why. */
static rp_status explain(rp_updater *self, rp_error *err)
{
    if (conn_is_stopped())
        return conn_stopped(err);
    char link[256];
    client_describe(self->client, link, sizeof link);
    return err_set(err, RP_DEADLINE_EXCEEDED, "%s of table '%s' are without an answer%s%s",
                   self->field == REPLAY__REQUEST__BODY_LEASE ? "acknowledgements" : "updates", self->table,
                   link[0] ? ": " : "", link);
}

rp_status rp_updater_add(rp_updater *updater, const uint64_t *keys, const double *priorities, uint32_t n,
                         int64_t timeout_ms, uint32_t *taken, rp_error *err)
{
    int64_t deadline = conn_deadline(timeout_ms);
    uint64_t done = 0;
    RP_TRY(conn_check_process(client_conn(updater->client), err));
    if (n && !priorities && updater->field == REPLAY__REQUEST__BODY_UPDATE)
        return err_set(err, RP_INVALID_ARGUMENT, "priorities are missing");
    for (uint32_t i = 0; i < n && updater->field == REPLAY__REQUEST__BODY_UPDATE; i++)
        RP_TRY(client_check_priority(priorities[i], err));
    rp_status status = take_error(updater, err);
    if (status == RP_OK) {
        status = collect(updater, keys, priorities, n, deadline, &done, err);
        status = status == RP_DEADLINE_EXCEEDED ? explain(updater, err) : status;
    }
    if (taken)
        *taken = (uint32_t)done;
    return status;
}

rp_status rp_updater_flush(rp_updater *updater, int64_t timeout_ms, rp_change *change, rp_error *err)
{
    int64_t deadline = conn_deadline(timeout_ms);
    RP_TRY(conn_check_process(client_conn(updater->client), err));
    rp_status status = send_all(updater, deadline, err);
    if (status == RP_DEADLINE_EXCEEDED || (status == RP_OK && !await_all(updater, deadline)))
        status = explain(updater, err);
    if (status == RP_CANCELLED)
        return status;
    pthread_mutex_lock(&updater->lock);
    if (change)
        *change = updater->change;
    pthread_mutex_unlock(&updater->lock);
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
    for (uint32_t i = 0; i < self->n_shards; i++) {
        if (self->attached)
            conn_detach(self->shards[i].conn, &self->shards[i].part);
        else
            conn_let_go(self->shards[i].conn);
    }
    updater_close(self);
    return status;
}
