/* A sampler: requests under way, replies in order, batches ready.
 *
 * There is a ring of in_flight slots, one for each batch that was requested and not yet taken; that is the bound on
 * prefetching. A slot goes through these states, each step by one thread:
 *
 *   FREE -> REQUESTED   whoever has seen that there is room (caller or decode thread; send_lock keeps the order)
 *        -> ARRIVED     the connection's I/O thread, in on_reply
 *        -> READY, FAILED or EMPTY   the decode thread, strictly in the order of the requests
 *        -> FREE        the caller takes the last batch of the reply, or the error; empty ones vanish
 *
 * Over a connection without a thread the caller is the I/O thread and the decode thread as well, while it waits.
 *
 * Requests go out in bursts: when half of the slots are free. A burst wakes the connection, the broker and the decode thread
 * once, and the other half is there to be taken meanwhile.
 *
 * The state is shared by sampler, decode thread and replies that are still to come, and counted; so destroying a
 * sampler never waits for the broker. Lock order: send_lock, then lock; nothing of the connection is called with
 * lock held. */
#include <math.h>
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>

#include "agent/client/batch/batch.h"
#include "agent/client/conn/client.h"
#include "agent/client/sampler/demand.h"
#include "proto/base/clock.h"
#include "proto/base/error.h"

#define MAX_IN_FLIGHT 1024u
#define DEFAULT_MAX_BYTES (UINT64_C(4) << 30)
#define RETRY_NS (100 * NS_PER_MS)
/* How long before the end of the caller's patience the broker is asked what is missing. */
#define ASK_WHY_NS (200 * NS_PER_MS)

enum slot_state { SLOT_FREE, SLOT_REQUESTED, SLOT_ARRIVED, SLOT_READY, SLOT_FAILED, SLOT_EMPTY };

struct shared;

struct slot {
    struct shared *owner;
    enum slot_state state;
    uint64_t id; /* of the request */
    uint32_t count;
    struct conn_reply *reply;
    struct rp_batch *batches; /* of the reply: one, or a list if its items do not fit together */
    rp_error error;
};

struct shared {
    uint32_t refs;
    struct conn *conn;
    char *table;
    rp_sampler_options options;
    struct batch_pool *pool;
    struct batch_decoder *decoder; /* decode thread only, until that has ended */
    pthread_mutex_t send_lock;

    pthread_mutex_t lock; /* guards all below */
    pthread_cond_t work;  /* for the decode thread */
    pthread_cond_t ready; /* for the caller */
    bool stopping;
    bool ending;  /* nothing could be sampled for so long: no more requests */
    bool stalled; /* there was no memory to decode the next reply: the caller is told, and it is tried again */
    rp_error stall;
    char end_text[256];
    char why[256];               /* what the broker said last about waiting samplers of this table */
    bool why_asked;              /* an answer is to come */
    int64_t retry_ns;            /* no requests before this; 0: at once */
    int64_t last_ns;             /* when something was sampled last, or the sampler was made */
    uint64_t asked;              /* items of the requests under way */
    uint64_t got;                /* items of the batches decoded so far */
    uint64_t head, decode, tail; /* slots: next to take, next to decode, next to request; modulo in_flight */
    rp_sampler_stats stats;
    struct slot slots[];
};

struct rp_sampler {
    struct demand *demand; /* not NULL: nothing else is used */
    struct shared *shared;
    pthread_t thread;
    bool started;
    uint32_t batch_size;
};

/* ---- shared state ---- */

static void shared_unref(struct shared *self)
{
    if (__atomic_sub_fetch(&self->refs, 1, __ATOMIC_ACQ_REL) != 0)
        return;
    for (uint32_t i = 0; i < self->options.in_flight; i++) {
        batch_list_release(&self->slots[i].batches);
        conn_reply_destroy(&self->slots[i].reply);
    }
    batch_decoder_destroy(&self->decoder);
    batch_pool_unref(&self->pool);
    pthread_mutex_destroy(&self->send_lock);
    pthread_mutex_destroy(&self->lock);
    pthread_cond_destroy(&self->work);
    pthread_cond_destroy(&self->ready);
    free(self->table);
    free(self);
}

static struct slot *slot_at(struct shared *self, uint64_t position)
{
    return &self->slots[position % self->options.in_flight];
}

static void copy_text(char *out, size_t size, const char *text, size_t length)
{
    if (length >= size)
        length = size - 1;
    if (length)
        memcpy(out, text, length);
    out[length] = '\0';
}

/* ---- requesting ---- */

static void on_reply(void *ctx, struct conn_reply *reply)
{
    struct slot *slot = ctx;
    struct shared *self = slot->owner;
    pthread_mutex_lock(&self->lock);
    bool wanted = !self->stopping;
    if (wanted) {
        slot->reply = reply;
        slot->state = SLOT_ARRIVED;
        if (slot == slot_at(self, self->decode))
            pthread_cond_signal(&self->work);
    }
    pthread_mutex_unlock(&self->lock);
    if (!wanted)
        conn_reply_destroy(&reply);
    shared_unref(self);
}

/* How many items the next request asks for; 0: none now. Lock held. */
static uint32_t next_count(struct shared *self, int64_t now_ns)
{
    if (self->stopping || self->ending || self->tail - self->head >= self->options.in_flight || now_ns < self->retry_ns)
        return 0;
    uint64_t max = self->options.max_samples;
    if (max == 0)
        return self->options.batch_size;
    uint64_t under_way = self->got + self->asked;
    uint64_t left = under_way < max ? max - under_way : 0;
    return left < self->options.batch_size ? (uint32_t)left : self->options.batch_size;
}

/* What is left of the time without a sample, for a request that is sent now. Lock held. */
static uint64_t request_timeout_ms(const struct shared *self, int64_t now_ns)
{
    int64_t left = self->last_ns + self->options.timeout_ms * NS_PER_MS - now_ns;
    return left <= 0 ? 0 : (uint64_t)((left + NS_PER_MS - 1) / NS_PER_MS);
}

static void send_request(struct shared *self, struct slot *slot, uint32_t count, uint64_t timeout_ms)
{
    Replay__Sample body = REPLAY__SAMPLE__INIT;
    body.table = self->table;
    body.count = count;
    body.distinct = self->options.distinct != 0;
    body.flexible = self->options.flexible != 0;
    body.whole = self->options.whole != 0;
    if (self->options.timeout_ms >= 0) {
        body.has_timeout_ms_case = REPLAY__SAMPLE__HAS_TIMEOUT_MS_TIMEOUT_MS;
        body.timeout_ms = timeout_ms;
    }
    struct conn_message message = {.field = REPLAY__REQUEST__BODY_SAMPLE, .body = &body.base, .timeout_ms = -1};
    uint64_t id = conn_send(self->conn, &message, on_reply, slot);
    pthread_mutex_lock(&self->lock);
    slot->id = id;
    pthread_mutex_unlock(&self->lock);
}

/* Half of the slots are free. Takes the lock. */
static bool burst_due(struct shared *self)
{
    pthread_mutex_lock(&self->lock);
    uint64_t room = self->options.in_flight - (self->tail - self->head);
    pthread_mutex_unlock(&self->lock);
    return room >= 1 && room >= self->options.in_flight / 2;
}

/* Sends as many requests as there is room for, if a burst is due. Any thread, no lock held. */
static void request_more(struct shared *self)
{
    pthread_mutex_lock(&self->send_lock);
    for (bool due = burst_due(self); due;) {
        int64_t now = conn_now();
        pthread_mutex_lock(&self->lock);
        uint32_t count = next_count(self, now);
        if (count == 0) {
            pthread_mutex_unlock(&self->lock);
            break;
        }
        struct slot *slot = slot_at(self, self->tail++);
        slot->state = SLOT_REQUESTED;
        slot->count = count;
        slot->id = 0;
        /* A stream that nobody has read from for a while has not been without samples: it has not asked. */
        if (self->asked == 0)
            self->last_ns = now;
        self->asked += count;
        uint64_t timeout_ms = request_timeout_ms(self, now);
        __atomic_add_fetch(&self->refs, 1, __ATOMIC_RELAXED);
        pthread_mutex_unlock(&self->lock);
        send_request(self, slot, count, timeout_ms);
    }
    pthread_mutex_unlock(&self->send_lock);
}

/* Gives up the requests that still wait. No lock held. */
static void cancel_all(struct shared *self)
{
    uint64_t ids[MAX_IN_FLIGHT];
    uint32_t n = 0;
    pthread_mutex_lock(&self->send_lock); /* so that every request has its id */
    pthread_mutex_lock(&self->lock);
    for (uint32_t i = 0; i < self->options.in_flight; i++) {
        if (self->slots[i].state == SLOT_REQUESTED && self->slots[i].id)
            ids[n++] = self->slots[i].id;
    }
    pthread_mutex_unlock(&self->lock);
    pthread_mutex_unlock(&self->send_lock);
    for (uint32_t i = 0; i < n; i++)
        conn_cancel(self->conn, ids[i]);
}

/* ---- decoding ---- */

/* An empty reply at its deadline ends the stream, unless another request got something meanwhile. Lock held. */
static void note_deadline(struct shared *self, const struct conn_reply *reply, int64_t now_ns)
{
    if (self->options.timeout_ms < 0 || now_ns - self->last_ns < self->options.timeout_ms * NS_PER_MS)
        return;
    if (!self->ending)
        copy_text(self->end_text, sizeof self->end_text, reply->view.text.data, reply->view.text.size);
    self->ending = true;
}

/* What becomes of a slot whose reply has come. Lock held. */
static void settle(struct shared *self, struct slot *slot, const struct conn_reply *reply, struct rp_batch *batch,
                   rp_status status, const rp_error *error)
{
    int64_t now = conn_now();
    self->asked -= slot->count;
    self->decode++;
    if (batch && batch->info.n > 0) {
        slot->state = SLOT_READY;
        slot->batches = batch;
        self->got += batch_list_items(batch);
        self->last_ns = now;
        self->why[0] = '\0';
        return;
    }
    slot->state = SLOT_EMPTY;
    if (status == RP_OK)
        batch_list_release(&batch);
    else if (status == RP_DEADLINE_EXCEEDED && reply->answered)
        note_deadline(self, reply, now);
    else if (status == RP_CANCELLED)
        /* We gave it up, or the broker shuts down: then wait for the next one. */
        self->retry_ns = now + RETRY_NS;
    else {
        slot->state = SLOT_FAILED;
        slot->error = *error;
    }
}

/* Empty slots at the front vanish. Lock held. */
static void skip_empty(struct shared *self)
{
    while (self->head < self->decode && slot_at(self, self->head)->state == SLOT_EMPTY) {
        slot_at(self, self->head)->state = SLOT_FREE;
        self->head++;
    }
}

/* Decodes the next reply. Lock held; let go of while decoding. */
static void decode_one(struct shared *self)
{
    struct slot *slot = slot_at(self, self->decode);
    struct conn_reply *reply = slot->reply;
    struct rp_batch *batch = NULL;
    rp_error error = {0};
    slot->reply = NULL;
    pthread_mutex_unlock(&self->lock);
    int64_t start = conn_now();
    rp_status status = conn_reply_status(reply, &error);
    if (status == RP_OK)
        status = batch_decode_reply(self->decoder, reply, &batch, &error);
    uint64_t n = batch_list_items(batch);
    if (n > slot->count) {
        status =
            err_set(&error, RP_BAD_MESSAGE, "%llu items came for a request of %u", (unsigned long long)n, slot->count);
        batch_list_release(&batch);
    }
    int64_t spent = conn_now() - start;
    pthread_mutex_lock(&self->lock);
    if (status == RP_NO_MEMORY && reply->answered && reply->status == RP_OK) {
        slot->reply = reply; /* what it holds may be nowhere else */
        self->stalled = true;
        self->stall = error;
        pthread_cond_signal(&self->ready);
        return;
    }
    self->stats.decode_ns += (uint64_t)spent;
    bool was_ending = self->ending;
    settle(self, slot, reply, batch, status, &error);
    bool cancel = self->ending && !was_ending;
    skip_empty(self);
    pthread_cond_signal(&self->ready);
    pthread_mutex_unlock(&self->lock);
    conn_reply_destroy(&reply);
    if (cancel)
        cancel_all(self);
    request_more(self);
    pthread_mutex_lock(&self->lock);
}

/* Does all that can be done now; gives the time at which there is more. Lock held; let go of meanwhile. */
static int64_t decode_all(struct shared *self)
{
    while (!self->stopping && !self->stalled) {
        if (self->decode < self->tail && slot_at(self, self->decode)->state == SLOT_ARRIVED) {
            decode_one(self);
            continue;
        }
        if (!self->retry_ns)
            break;
        if (conn_now() < self->retry_ns)
            return self->retry_ns;
        self->retry_ns = 0;
        pthread_mutex_unlock(&self->lock);
        request_more(self);
        pthread_mutex_lock(&self->lock);
    }
    return INT64_MAX;
}

static void *decode_main(void *arg)
{
    struct shared *self = arg;
    pthread_mutex_lock(&self->lock);
    while (!self->stopping) {
        int64_t wake = decode_all(self);
        if (!self->stopping)
            conn_cond_wait(&self->work, &self->lock, wake);
    }
    pthread_mutex_unlock(&self->lock);
    shared_unref(self);
    return NULL;
}

/* ---- taking ---- */

/* What the broker's waiters of this table wait for. */
static void on_why(void *ctx, struct conn_reply *reply)
{
    struct shared *self = ctx;
    Replay__Reply *wire = reply->status == RP_OK ? conn_reply_unpack(reply, NULL) : NULL;
    pthread_mutex_lock(&self->lock);
    self->why_asked = false;
    if (wire && wire->body_case == REPLAY__REPLY__BODY_WHY) {
        for (size_t i = 0; i < wire->why->n_waits; i++) {
            const Replay__Wait *wait = wire->why->waits[i];
            if (strcmp(wait->kind, "sample") == 0 && strcmp(wait->table, self->table) == 0) {
                copy_text(self->why, sizeof self->why, wait->text, strlen(wait->text));
                break;
            }
        }
    }
    pthread_mutex_unlock(&self->lock);
    if (wire)
        conn_reply_unpacked_free(wire);
    conn_reply_destroy(&reply);
    shared_unref(self);
}

/* Lock held; let go of meanwhile. */
static void ask_why(struct shared *self)
{
    self->why_asked = true;
    __atomic_add_fetch(&self->refs, 1, __ATOMIC_RELAXED);
    pthread_mutex_unlock(&self->lock);
    struct conn_message message = {.field = REPLAY__REQUEST__BODY_WHY, .timeout_ms = 1000};
    conn_send(self->conn, &message, on_why, self);
    pthread_mutex_lock(&self->lock);
}

/* Lock held. */
static bool has_ended(const struct shared *self)
{
    return self->head == self->tail &&
           (self->ending || (self->options.max_samples && self->got >= self->options.max_samples));
}

/* Waits until the slot at the front can be taken or the stream has ended. Lock held. */
static bool wait_for_slot(struct shared *self, int64_t timeout_ms)
{
    int64_t deadline = conn_deadline(timeout_ms), ask_at = INT64_MAX;
    if (timeout_ms > 0) {
        int64_t early = timeout_ms * NS_PER_MS / 4;
        ask_at = deadline - (early < ASK_WHY_NS ? early : ASK_WHY_NS);
    }
    for (;;) {
        int64_t wake = conn_is_hosted(self->conn) ? decode_all(self) : INT64_MAX;
        wake = wake < deadline ? wake : deadline;
        skip_empty(self);
        enum slot_state state = self->head < self->decode ? slot_at(self, self->head)->state : SLOT_FREE;
        if (state == SLOT_READY || state == SLOT_FAILED || self->stalled || has_ended(self))
            return true;
        int64_t now = conn_now();
        if (now >= deadline)
            return false;
        if (now >= ask_at) {
            ask_at = INT64_MAX;
            if (!self->why_asked)
                ask_why(self);
            continue;
        }
        conn_wait(self->conn, &self->ready, &self->lock, ask_at < wake ? ask_at : wake);
    }
}

/* Takes the lock. */
static rp_status timed_out(struct shared *self, int64_t timeout_ms, rp_error *err)
{
    char link[256], why[sizeof self->why];
    conn_describe(self->conn, link, sizeof link);
    pthread_mutex_lock(&self->lock);
    memcpy(why, self->why, sizeof why);
    pthread_mutex_unlock(&self->lock);
    const char *reason = link[0] ? link : why[0] ? why : "the broker has not answered yet";
    return err_set(err, RP_DEADLINE_EXCEEDED, "no batch from table '%s' within %lld ms: %s", self->table,
                   (long long)timeout_ms, reason);
}

/* Lock held. */
static rp_status ended(const struct shared *self, rp_error *err)
{
    if (!self->ending)
        return err_set(err, RP_END_OF_STREAM, "all of the %llu samples asked for were given",
                       (unsigned long long)self->options.max_samples);
    return err_set(err, RP_END_OF_STREAM, "nothing could be sampled from table '%s' for %lld ms: %s", self->table,
                   (long long)self->options.timeout_ms, self->end_text);
}

rp_status rp_sampler_next(rp_sampler *sampler, rp_batch **batch, int64_t timeout_ms, rp_error *err)
{
    struct shared *self = sampler->shared;
    rp_status status = RP_OK;
    bool taken = false;
    *batch = NULL;
    if (sampler->demand)
        return demand_next(sampler->demand, batch, timeout_ms, err);
    if (timeout_ms == 0)
        conn_look(self->conn);
    pthread_mutex_lock(&self->lock);
    if (!wait_for_slot(self, timeout_ms)) {
        pthread_mutex_unlock(&self->lock);
        return timed_out(self, timeout_ms, err);
    }
    if (has_ended(self)) {
        status = ended(self, err);
    } else if (self->head == self->decode && self->stalled) {
        status = err_set(err, (rp_status)self->stall.status, "%s", self->stall.text);
        self->stalled = false;
        pthread_cond_signal(&self->work);
    } else {
        struct slot *slot = slot_at(self, self->head);
        if (slot->state == SLOT_READY) {
            *batch = batch_list_take(&slot->batches);
            self->stats.batches++;
            self->stats.items += (*batch)->info.n;
        } else {
            status = err_set(err, (rp_status)slot->error.status, "%s", slot->error.text);
        }
        taken = !slot->batches;
        if (taken) {
            slot->state = SLOT_FREE;
            self->head++;
            skip_empty(self); /* they count as room for a burst, too */
        }
    }
    pthread_mutex_unlock(&self->lock);
    if (taken)
        request_more(self);
    return status;
}

rp_status rp_sampler_post_buffers(rp_sampler *sampler, const rp_buffer *fields, uint32_t n, rp_error *err)
{
    struct batch_pool *pool = sampler->demand ? demand_pool(sampler->demand) : sampler->shared->pool;
    return batch_pool_post(pool, fields, n, sampler->batch_size, err);
}

static void shared_stats(struct shared *self, rp_sampler_stats *out)
{
    pthread_mutex_lock(&self->lock);
    *out = self->stats;
    for (uint32_t i = 0; i < self->options.in_flight; i++) {
        enum slot_state state = self->slots[i].state;
        out->requested += state == SLOT_REQUESTED || state == SLOT_ARRIVED;
        out->ready += state == SLOT_READY;
    }
    pthread_mutex_unlock(&self->lock);
}

rp_status rp_sampler_get_stats(rp_sampler *sampler, rp_sampler_stats *out)
{
    uint32_t size = out->struct_size;
    rp_sampler_stats stats;
    if (size < sizeof size)
        return RP_INVALID_ARGUMENT;
    if (sampler->demand)
        demand_get_stats(sampler->demand, &stats);
    else
        shared_stats(sampler->shared, &stats);
    stats.posted = batch_pool_posted(sampler->demand ? demand_pool(sampler->demand) : sampler->shared->pool);
    stats.struct_size = size;
    memcpy(out, &stats, size < sizeof stats ? size : sizeof stats);
    return RP_OK;
}

/* ---- life ---- */

void rp_sampler_defaults(rp_sampler_options *options)
{
    rp_sampler_options defaults = {.struct_size = options->struct_size,
                                   .batch_size = 256,
                                   .in_flight = 4,
                                   .timeout_ms = -1,
                                   .max_bytes = DEFAULT_MAX_BYTES};
    size_t size = options->struct_size < sizeof defaults ? options->struct_size : sizeof defaults;
    memcpy(options, &defaults, size);
}

static rp_status check_options(const rp_sampler_options *options, const struct conn_hello *hello, rp_error *err)
{
    if (options->batch_size == 0 || (hello->max_batch && options->batch_size > hello->max_batch))
        return err_set(err, RP_INVALID_ARGUMENT, "batch_size is %u; it may be 1 to %u here", options->batch_size,
                       hello->max_batch);
    if (options->in_flight == 0 || options->in_flight > MAX_IN_FLIGHT)
        return err_set(err, RP_INVALID_ARGUMENT, "in_flight is %u; it may be 1 to %u", options->in_flight,
                       MAX_IN_FLIGHT);
    if (!isfinite(options->beta) || options->beta < 0)
        return err_set(err, RP_INVALID_ARGUMENT, "beta is %g; it must be 0 or more", options->beta);
    if (options->timeout_ms > INT64_MAX / NS_PER_MS / 4)
        return err_set(err, RP_INVALID_ARGUMENT, "timeout_ms is too large; a negative one waits as long as it takes");
    if (options->on_demand > 1)
        return err_set(err, RP_INVALID_ARGUMENT, "on_demand is %u; it may be 0 or 1", options->on_demand);
    if (options->on_demand && options->timeout_ms >= 0)
        return err_set(err, RP_INVALID_ARGUMENT,
                       "timeout_ms is %lld with on_demand: give the time to rp_sampler_next instead",
                       (long long)options->timeout_ms);
    return RP_OK;
}

static rp_status read_options(struct conn *conn, const char *table, const rp_sampler_options *given,
                              rp_sampler_options *out, rp_error *err)
{
    *out = (rp_sampler_options){.struct_size = sizeof *out};
    rp_sampler_defaults(out);
    if (given) {
        if (given->struct_size < sizeof given->struct_size)
            return err_set(err, RP_INVALID_ARGUMENT, "struct_size of the options is not set");
        memcpy(out, given, given->struct_size < sizeof *out ? given->struct_size : sizeof *out);
    }
    if (out->max_bytes == 0)
        out->max_bytes = DEFAULT_MAX_BYTES;
    if (!table || strlen(table) > RP_MAX_NAME)
        return err_set(err, RP_INVALID_ARGUMENT, "a table's name has at most %u bytes", RP_MAX_NAME);
    struct conn_hello *hello = conn_hello_ref(conn);
    rp_status status =
        conn_hello_table(hello, table) ? check_options(out, hello, err) : conn_hello_no_table(hello, table, err);
    conn_hello_unref(&hello);
    return status;
}

static struct shared *shared_new(struct conn *conn, const char *table, const rp_sampler_options *options)
{
    struct shared *self = calloc(1, sizeof *self + options->in_flight * sizeof *self->slots);
    if (!self)
        return NULL;
    struct batch_options decode = {.beta = options->beta, .max_bytes = options->max_bytes};
    self->refs = 1;
    self->conn = conn;
    self->options = *options;
    self->table = strdup(table);
    self->pool = batch_pool_new(options->in_flight + 2);
    self->decoder = self->pool ? batch_decoder_new(self->pool, &decode) : NULL;
    self->last_ns = conn_now();
    pthread_mutex_init(&self->send_lock, NULL);
    pthread_mutex_init(&self->lock, NULL);
    conn_cond_init(&self->work);
    conn_cond_init(&self->ready);
    for (uint32_t i = 0; i < options->in_flight; i++)
        self->slots[i].owner = self;
    if (!self->table || !self->decoder) {
        shared_unref(self);
        return NULL;
    }
    return self;
}

/* The host program's signals are not for our thread. */
static bool start_thread(rp_sampler *sampler)
{
    sigset_t all, before;
    if (conn_is_hosted(sampler->shared->conn))
        return true;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    __atomic_add_fetch(&sampler->shared->refs, 1, __ATOMIC_RELAXED);
    sampler->started = pthread_create(&sampler->thread, NULL, decode_main, sampler->shared) == 0;
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (!sampler->started) /* the sampler's own reference is left */
        __atomic_sub_fetch(&sampler->shared->refs, 1, __ATOMIC_RELAXED);
    return sampler->started;
}

rp_sampler *rp_sampler_new(rp_client *client, const char *table, const rp_sampler_options *options, rp_error *err)
{
    struct conn *conn = client_conn(client);
    rp_sampler_options checked;
    if (read_options(conn, table, options, &checked, err) != RP_OK)
        return NULL;
    rp_sampler *sampler = calloc(1, sizeof *sampler);
    bool ok = sampler != NULL;
    if (ok) {
        sampler->batch_size = checked.batch_size;
        if (checked.on_demand)
            ok = (sampler->demand = demand_new(conn, table, &checked)) != NULL;
        else
            ok = (sampler->shared = shared_new(conn, table, &checked)) != NULL && start_thread(sampler);
    }
    if (!ok) {
        err_set(err, RP_NO_MEMORY, "no memory or no thread for a sampler");
        rp_sampler_destroy(&sampler);
        return NULL;
    }
    if (sampler->shared)
        request_more(sampler->shared);
    return sampler;
}

void rp_sampler_destroy(rp_sampler **sampler)
{
    if (!sampler || !*sampler)
        return;
    rp_sampler *self = *sampler;
    *sampler = NULL;
    demand_destroy(&self->demand);
    if (self->shared) {
        struct shared *shared = self->shared;
        pthread_mutex_lock(&shared->lock);
        shared->stopping = true;
        pthread_cond_signal(&shared->work);
        pthread_mutex_unlock(&shared->lock);
        if (self->started)
            pthread_join(self->thread, NULL);
        cancel_all(shared);
        shared_unref(shared);
    }
    free(self);
}
