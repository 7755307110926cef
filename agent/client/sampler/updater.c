/* Priority updates and deletes by key: calls that wait for the answer, and the updater, which does not. */
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "agent/client/conn/client.h"
#include "proto/base/clock.h"
#include "proto/base/error.h"
#include "proto/wire/pb.h"
#include "replay/sampler.h"

#define DEFAULT_PART 1024u
#define DEFAULT_BATCH 256u
#define DEFAULT_IN_FLIGHT 16u

/* Returns the largest number of keys in one request. */
static uint32_t broker_max(struct conn *conn)
{
    struct conn_hello *hello = conn_hello_ref(conn);
    uint32_t max = hello ? hello->max_keys : DEFAULT_PART;
    conn_hello_unref(&hello);
    return max;
}

static rp_status check_table(struct conn *conn, const char *table, rp_error *err)
{
    if (!table || strlen(table) > RP_MAX_NAME)
        return err_set(err, RP_INVALID_ARGUMENT, "a table's name has at most %u bytes", RP_MAX_NAME);
    struct conn_hello *hello = conn_hello_ref(conn);
    rp_status status = conn_hello_table(hello, table) ? RP_OK : conn_hello_no_table(hello, table, err);
    conn_hello_unref(&hello);
    return status;
}

/* Items of a table to be changed: updated if there are priorities, else deleted. */
struct keys {
    const char *table;
    const uint64_t *keys;
    const double *priorities;
    uint64_t n;
};

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

struct waiting {
    struct conn *conn;
    pthread_mutex_t lock;
    pthread_cond_t done;
    uint32_t refs; /* the caller and every request */
    uint32_t open; /* requests without an answer */
    rp_change change;
    rp_status status; /* the first status that was not RP_OK */
    rp_error error;
};

static struct waiting *waiting_new(struct conn *conn)
{
    struct waiting *self = calloc(1, sizeof *self);
    if (!self)
        return NULL;
    pthread_mutex_init(&self->lock, NULL);
    conn_cond_init(&self->done);
    self->conn = conn;
    self->refs = 1;
    return self;
}

static void waiting_unref(struct waiting *self)
{
    if (__atomic_sub_fetch(&self->refs, 1, __ATOMIC_ACQ_REL) != 0)
        return;
    pthread_mutex_destroy(&self->lock);
    pthread_cond_destroy(&self->done);
    free(self);
}

static void on_change(void *ctx, struct conn_reply *reply)
{
    struct waiting *self = ctx;
    rp_change change = {0};
    rp_error error = {0};
    rp_status status = conn_reply_status(reply, &error);
    /* Refused priorities come with an error and with the counts. */
    if (reply->answered && (status == RP_OK || reply->view.body == REPLAY__REPLY__BODY_CHANGE)) {
        rp_status read = read_change(reply, &change, status == RP_OK ? &error : NULL);
        status = status == RP_OK ? read : status;
    }
    conn_reply_destroy(&reply);
    pthread_mutex_lock(&self->lock);
    self->open--;
    self->change.applied += change.applied;
    self->change.missing += change.missing;
    self->change.refused += change.refused;
    if (status != RP_OK && self->status == RP_OK) {
        self->status = status;
        self->error = error;
    }
    pthread_cond_broadcast(&self->done);
    pthread_mutex_unlock(&self->lock);
    waiting_unref(self);
}

static rp_status no_memory_to_send(const struct keys *keys, rp_error *err)
{
    return err_set(err, RP_NO_MEMORY, "no memory to send %llu keys", (unsigned long long)keys->n);
}

/* Sends one request whose answer is counted in self. timeout_ms as in conn_send. */
static rp_status waiting_send(struct waiting *self, const struct keys *keys, int64_t timeout_ms, rp_error *err)
{
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
    pthread_mutex_lock(&self->lock);
    self->open++;
    pthread_mutex_unlock(&self->lock);
    __atomic_add_fetch(&self->refs, 1, __ATOMIC_RELAXED);
    uint64_t id = conn_try_send(self->conn, &message, on_change, self);
    pb_writer_fini(&body);
    if (id)
        return RP_OK;
    pthread_mutex_lock(&self->lock);
    self->open--;
    pthread_mutex_unlock(&self->lock);
    __atomic_sub_fetch(&self->refs, 1, __ATOMIC_RELAXED); /* the caller's reference is left */
    return no_memory_to_send(keys, err);
}

/* Waits until at most `most` requests are open. False: the deadline has passed, or the caller has ended the wait. Takes the lock. */
static bool waiting_for(struct waiting *self, uint32_t most, int64_t deadline_ns)
{
    bool done = true;
    pthread_mutex_lock(&self->lock);
    while (self->open > most && done)
        done = conn_wait(self->conn, &self->done, &self->lock, deadline_ns);
    done = self->open <= most;
    pthread_mutex_unlock(&self->lock);
    return done;
}

/* ---- calls ---- */

/* Returns the keys of one request, from `at` on. */
static struct keys keys_part(const struct keys *all, uint64_t at, uint32_t max)
{
    uint64_t left = all->n - at;
    return (struct keys){all->table, all->keys + at, all->priorities ? all->priorities + at : NULL,
                         left < max ? left : max};
}

static rp_status change_keys(struct conn *conn, const struct keys *keys, int64_t timeout_ms, rp_change *change,
                             rp_error *err)
{
    int64_t deadline = conn_deadline(timeout_ms);
    if (change)
        *change = (rp_change){0};
    RP_TRY(conn_check_process(conn, err));
    RP_TRY(check_table(conn, keys->table, err));
    struct waiting *waiting = waiting_new(conn);
    if (!waiting)
        return err_set(err, RP_NO_MEMORY, "no memory for a request");
    uint32_t max = broker_max(conn);
    rp_status status = RP_OK;
    bool sent = true;
    for (uint64_t at = 0; at < keys->n && status == RP_OK && sent; at += max) {
        struct keys part = keys_part(keys, at, max);
        sent = waiting_for(waiting, DEFAULT_IN_FLIGHT - 1, deadline);
        if (sent)
            status = waiting_send(waiting, &part, conn_left_ms(deadline), err);
    }
    /* The connection ends each request at its deadline with a better explanation: leave it a moment. */
    bool stopped = !sent && conn_is_stopped();
    bool done = !stopped && waiting_for(waiting, 0, deadline > INT64_MAX - NS_PER_S ? INT64_MAX : deadline + NS_PER_S);
    stopped = stopped || (!done && conn_is_stopped());
    pthread_mutex_lock(&waiting->lock);
    if (change)
        *change = waiting->change;
    if (status == RP_OK && waiting->status != RP_OK)
        status = err_set(err, waiting->status, "%s", waiting->error.text);
    pthread_mutex_unlock(&waiting->lock);
    if (status == RP_OK && stopped)
        status = conn_stopped(err);
    else if (status == RP_OK && !(done && sent))
        status = err_set(err, RP_DEADLINE_EXCEEDED, "not all of %llu keys were answered within %lld ms",
                         (unsigned long long)keys->n, (long long)timeout_ms);
    waiting_unref(waiting);
    return status;
}

rp_status rp_priorities_update(rp_client *client, const char *table, const uint64_t *keys, const double *priorities,
                               uint64_t n, int64_t timeout_ms, rp_change *change, rp_error *err)
{
    if (n && (!keys || !priorities))
        return err_set(err, RP_INVALID_ARGUMENT, "keys or priorities are missing");
    struct keys changed = {table, keys, priorities, n};
    return change_keys(client_conn(client), &changed, timeout_ms, change, err);
}

rp_status rp_items_delete(rp_client *client, const char *table, const uint64_t *keys, uint64_t n, int64_t timeout_ms,
                          rp_change *change, rp_error *err)
{
    if (n && !keys)
        return err_set(err, RP_INVALID_ARGUMENT, "keys are missing");
    struct keys deleted = {table, keys, NULL, n};
    return change_keys(client_conn(client), &deleted, timeout_ms, change, err);
}

/* ---- updater ---- */

struct rp_updater {
    struct conn *conn;
    char *table;
    uint32_t batch, in_flight;
    struct waiting *waiting;
    uint64_t *keys; /* collected */
    double *priorities;
    uint32_t n;
};

rp_updater *rp_updater_new(rp_client *client, const char *table, const rp_updater_options *options, rp_error *err)
{
    struct conn *conn = client_conn(client);
    rp_updater_options checked = {0};
    if (options)
        memcpy(&checked, options, options->struct_size < sizeof checked ? options->struct_size : sizeof checked);
    if (conn_check_process(conn, err) != RP_OK)
        return NULL;
    uint32_t max = broker_max(conn);
    if (checked.batch > max) {
        err_set(err, RP_INVALID_ARGUMENT, "batch is %u; it may be 1 to %u here", checked.batch, max);
        return NULL;
    }
    if (check_table(conn, table, err) != RP_OK)
        return NULL;
    rp_updater *self = calloc(1, sizeof *self);
    if (!self)
        goto fail;
    self->conn = conn;
    self->batch = checked.batch ? checked.batch : max < DEFAULT_BATCH ? max : DEFAULT_BATCH;
    self->in_flight = checked.in_flight ? checked.in_flight : DEFAULT_IN_FLIGHT;
    self->table = strdup(table);
    self->waiting = waiting_new(conn);
    self->keys = malloc(self->batch * sizeof *self->keys);
    self->priorities = malloc(self->batch * sizeof *self->priorities);
    if (self->table && self->waiting && self->keys && self->priorities)
        return self;
fail:
    err_set(err, RP_NO_MEMORY, "no memory for an updater");
    rp_updater_destroy(&self, 0, NULL);
    return NULL;
}

/* Returns the error of an earlier request, once. */
static rp_status take_error(rp_updater *self, rp_error *err)
{
    rp_status status = RP_OK;
    pthread_mutex_lock(&self->waiting->lock);
    if (self->waiting->status != RP_OK)
        status = err_set(err, self->waiting->status, "%s", self->waiting->error.text);
    self->waiting->status = RP_OK;
    pthread_mutex_unlock(&self->waiting->lock);
    return status;
}

static rp_status send_collected(rp_updater *self, int64_t deadline_ns, rp_error *err)
{
    if (self->n == 0)
        return RP_OK;
    if (!waiting_for(self->waiting, self->in_flight - 1, deadline_ns))
        return conn_is_stopped()
                   ? conn_stopped(err)
                   : err_set(err, RP_DEADLINE_EXCEEDED, "%u requests with updates of table '%s' are without an answer",
                             self->in_flight, self->table);
    struct keys keys = {self->table, self->keys, self->priorities, self->n};
    RP_TRY(waiting_send(self->waiting, &keys, -1, err));
    self->n = 0;
    return RP_OK;
}

rp_status rp_updater_add(rp_updater *updater, const uint64_t *keys, const double *priorities, uint32_t n,
                         int64_t timeout_ms, uint32_t *taken, rp_error *err)
{
    int64_t deadline = conn_deadline(timeout_ms);
    uint32_t done = 0;
    RP_TRY(conn_check_process(updater->conn, err));
    rp_status status = take_error(updater, err);
    while (done < n && status == RP_OK) {
        uint32_t room = updater->batch - updater->n;
        uint32_t part = n - done < room ? n - done : room;
        memcpy(updater->keys + updater->n, keys + done, part * sizeof *keys);
        memcpy(updater->priorities + updater->n, priorities + done, part * sizeof *priorities);
        updater->n += part;
        done += part;
        if (updater->n == updater->batch)
            status = send_collected(updater, deadline, err);
    }
    if (taken)
        *taken = done;
    return status;
}

rp_status rp_updater_flush(rp_updater *updater, int64_t timeout_ms, rp_change *change, rp_error *err)
{
    int64_t deadline = conn_deadline(timeout_ms);
    RP_TRY(conn_check_process(updater->conn, err));
    rp_status status = send_collected(updater, deadline, err);
    if (status == RP_OK && !waiting_for(updater->waiting, 0, deadline)) {
        if (conn_is_stopped())
            return conn_stopped(err);
        char link[256];
        conn_describe(updater->conn, link, sizeof link);
        status = err_set(err, RP_DEADLINE_EXCEEDED, "updates of table '%s' are without an answer%s%s", updater->table,
                         link[0] ? ": " : "", link);
    }
    pthread_mutex_lock(&updater->waiting->lock);
    if (change)
        *change = updater->waiting->change;
    pthread_mutex_unlock(&updater->waiting->lock);
    return status == RP_OK ? take_error(updater, err) : status;
}

rp_status rp_updater_destroy(rp_updater **updater, int64_t timeout_ms, rp_error *err)
{
    if (!updater || !*updater)
        return RP_OK;
    rp_updater *self = *updater;
    *updater = NULL;
    if (conn_is_foreign(self->conn)) {
        free(self);
        return RP_OK;
    }
    rp_status status = RP_OK;
    if (self->waiting && self->priorities)
        status = rp_updater_flush(self, timeout_ms, NULL, err);
    if (self->waiting)
        waiting_unref(self->waiting);
    free(self->table);
    free(self->keys);
    free(self->priorities);
    free(self);
    return status;
}
