/* A ring of in_flight slots, one for each batch that was requested and not yet taken; the ring bounds prefetching. A slot
 * goes through these states, each step by one thread:
 *
 *   FREE -> REQUESTED   the caller or the decode thread, when there is room (send_lock keeps the order)
 *        -> ARRIVED     the connection's I/O thread, in on_reply
 *        -> READY, FAILED or EMPTY   the decode thread, strictly in the order of the requests
 *        -> FREE        the caller takes the last batch of the reply, or the error; empty slots are skipped
 *
 * Over a connection without a thread the caller is also the I/O thread and the decode thread while it waits.
 *
 * Requests are sent in bursts, when half of the slots are free: a burst wakes the connection, the broker and the decode
 * thread once, while the other half of the slots can be taken.
 *
 * The state is reference-counted by the sampler, the decode thread and every request, so destroying a sampler never waits
 * for the broker. Lock order: send_lock, then lock; no function of the connection is called with lock held. */
#include "agent/client/sampler/prefetch.h"

#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>

#include "proto/base/clock.h"
#include "proto/base/error.h"
#include "proto/base/trace.h"

/* Delay before requests are sent again after the broker has cancelled some. */
#define RETRY_NS (100 * NS_PER_MS)
/* How long before the caller's deadline the broker is asked why there is no sample. */
#define ASK_WHY_NS (200 * NS_PER_MS)

enum slot_state { SLOT_FREE, SLOT_REQUESTED, SLOT_ARRIVED, SLOT_READY, SLOT_FAILED, SLOT_EMPTY };

struct prefetch_slot {
    struct prefetch *owner;
    enum slot_state state;
    uint64_t id; /* of the request */
    uint32_t count;
    struct conn_reply *reply;
    struct rp_batch *batches; /* of the reply: one batch, or a list if its items do not fit into one */
    rp_error error;
};

struct prefetch {
    struct sample_source source; /* decoder: decode thread only, until it has ended; stats: guarded by lock */
    uint32_t refs;
    pthread_t thread;
    bool started;
    pthread_mutex_t send_lock;

    pthread_mutex_t lock; /* guards all below */
    pthread_cond_t work;  /* for the decode thread */
    pthread_cond_t ready; /* for the caller */
    bool stopping;
    bool ending;  /* the stream's time-out has passed without a sample, or it was stopped: no more requests */
    bool stalled; /* no memory to decode the next reply: the caller gets `stall`, then decoding is retried */
    rp_error stall;
    char end_text[256];
    char why[256];               /* the broker's last explanation of why samplers of this table wait */
    bool why_asked;              /* an explanation is in flight */
    int64_t retry_ns;            /* time before which no request is sent; 0: none */
    int64_t last_ns;             /* time of the last sample, or of the sampler's start */
    uint64_t asked;              /* items of the requests in flight */
    uint64_t got;                /* items of the batches decoded so far */
    uint64_t head, decode, tail; /* slots: next to take, next to decode, next to request; modulo in_flight */
    struct prefetch_slot slots[];
};

/* ---- life ---- */

static void prefetch_unref(struct prefetch *self)
{
    if (__atomic_sub_fetch(&self->refs, 1, __ATOMIC_ACQ_REL) != 0)
        return;
    for (uint32_t i = 0; i < self->source.options.in_flight; i++) {
        batch_list_release(&self->slots[i].batches);
        conn_reply_destroy(&self->slots[i].reply);
    }
    sample_source_fini(&self->source);
    pthread_mutex_destroy(&self->send_lock);
    pthread_mutex_destroy(&self->lock);
    pthread_cond_destroy(&self->work);
    pthread_cond_destroy(&self->ready);
    free(self);
}

static struct prefetch_slot *slot_at(struct prefetch *self, uint64_t position)
{
    return &self->slots[position % self->source.options.in_flight];
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
    struct prefetch_slot *slot = ctx;
    struct prefetch *self = slot->owner;
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
    prefetch_unref(self);
}

/* Returns how many items the next request asks for; 0: no request now. Lock held. */
static uint32_t next_count(struct prefetch *self, int64_t now_ns)
{
    bool full = self->tail - self->head >= self->source.options.in_flight;
    if (self->stopping || self->ending || full || now_ns < self->retry_ns)
        return 0;
    return sample_source_count(&self->source, self->got + self->asked);
}

/* Returns the time-out of a request that is sent now: the rest of the stream's own; negative: none. Lock held. */
static int64_t request_timeout_ms(const struct prefetch *self, int64_t now_ns)
{
    if (self->source.options.timeout_ms < 0)
        return -1;
    int64_t left = self->last_ns + self->source.options.timeout_ms * NS_PER_MS - now_ns;
    return left <= 0 ? 0 : (left + NS_PER_MS - 1) / NS_PER_MS;
}

/* Returns true if half of the slots are free. Takes the lock. */
static bool burst_due(struct prefetch *self)
{
    pthread_mutex_lock(&self->lock);
    uint64_t room = self->source.options.in_flight - (self->tail - self->head);
    pthread_mutex_unlock(&self->lock);
    return room >= 1 && room >= self->source.options.in_flight / 2;
}

/* Sends as many requests as there is room for, if a burst is due. Any thread, no lock held. */
static void request_more(struct prefetch *self)
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
        struct prefetch_slot *slot = slot_at(self, self->tail++);
        slot->state = SLOT_REQUESTED;
        slot->count = count;
        slot->id = 0;
        /* A stream without requests has not waited for samples: its time-out starts now. */
        if (self->asked == 0)
            self->last_ns = now;
        self->asked += count;
        int64_t timeout_ms = request_timeout_ms(self, now);
        __atomic_add_fetch(&self->refs, 1, __ATOMIC_RELAXED);
        pthread_mutex_unlock(&self->lock);
        uint64_t id = sample_source_request(&self->source, count, timeout_ms, on_reply, slot);
        pthread_mutex_lock(&self->lock);
        slot->id = id;
        pthread_mutex_unlock(&self->lock);
    }
    pthread_mutex_unlock(&self->send_lock);
}

/* Cancels the requests that still wait. No lock held. */
static void cancel_all(struct prefetch *self)
{
    uint64_t ids[PREFETCH_MAX_IN_FLIGHT];
    uint32_t n = 0;
    pthread_mutex_lock(&self->send_lock); /* so that every request has its id */
    pthread_mutex_lock(&self->lock);
    for (uint32_t i = 0; i < self->source.options.in_flight; i++) {
        if (self->slots[i].state == SLOT_REQUESTED && self->slots[i].id)
            ids[n++] = self->slots[i].id;
    }
    pthread_mutex_unlock(&self->lock);
    pthread_mutex_unlock(&self->send_lock);
    for (uint32_t i = 0; i < n; i++)
        conn_cancel(self->source.conn, ids[i]);
}

/* ---- decoding ---- */

/* An empty reply at its deadline ends the stream, unless another request got items meanwhile. Lock held. */
static void note_deadline(struct prefetch *self, const struct conn_reply *reply, int64_t now_ns)
{
    if (self->source.options.timeout_ms < 0 || now_ns - self->last_ns < self->source.options.timeout_ms * NS_PER_MS)
        return;
    if (!self->ending)
        copy_text(self->end_text, sizeof self->end_text, reply->view.text.data, reply->view.text.size);
    self->ending = true;
}

/* Sets the state of a slot whose reply has been decoded. Lock held. */
static void finish_slot(struct prefetch *self, struct prefetch_slot *slot, const struct conn_reply *reply,
                        struct rp_batch *batch, rp_status status, const rp_error *error)
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
        /* This side has cancelled it, or the broker shuts down: wait for the next broker. */
        self->retry_ns = now + RETRY_NS;
    else {
        slot->state = SLOT_FAILED;
        slot->error = *error;
    }
}

/* Frees empty slots at the front. Lock held. */
static void skip_empty(struct prefetch *self)
{
    while (self->head < self->decode && slot_at(self, self->head)->state == SLOT_EMPTY) {
        slot_at(self, self->head)->state = SLOT_FREE;
        self->head++;
    }
}

/* Decodes the next reply. Lock held; released while decoding. */
static void decode_one(struct prefetch *self)
{
    struct prefetch_slot *slot = slot_at(self, self->decode);
    struct conn_reply *reply = slot->reply;
    struct rp_batch *batch = NULL;
    rp_error error = {0};
    slot->reply = NULL;
    pthread_mutex_unlock(&self->lock);
    int64_t start = conn_now();
    rp_status status = conn_reply_status(reply, &error);
    if (status == RP_OK)
        status = sample_source_decode(&self->source, reply, slot->count, &batch, &error);
    int64_t spent = conn_now() - start;
    if (trace_on(conn_trace(self->source.conn)))
        trace_add(conn_trace(self->source.conn), "decode", NULL,
                  &(struct trace_span){.start_ns = start, .duration_ns = spent, .count = slot->count});
    pthread_mutex_lock(&self->lock);
    if (status == RP_NO_MEMORY && reply->answered && reply->status == RP_OK) {
        slot->reply = reply; /* its items may exist nowhere else */
        self->stalled = true;
        self->stall = error;
        pthread_cond_signal(&self->ready);
        return;
    }
    self->source.stats.decode_ns += (uint64_t)spent;
    bool was_ending = self->ending;
    finish_slot(self, slot, reply, batch, status, &error);
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

/* Decodes and requests what it can now; returns the time at which to call it again. Lock held; released meanwhile. */
static int64_t decode_all(struct prefetch *self)
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
    struct prefetch *self = arg;
    pthread_mutex_lock(&self->lock);
    while (!self->stopping) {
        int64_t wake = decode_all(self);
        if (!self->stopping)
            conn_cond_wait(&self->work, &self->lock, wake);
    }
    pthread_mutex_unlock(&self->lock);
    prefetch_unref(self);
    return NULL;
}

/* ---- taking ---- */

/* Keeps what the broker says about samplers of this table that wait. */
static void on_why(void *ctx, struct conn_reply *reply)
{
    struct prefetch *self = ctx;
    Replay__Reply *wire = reply->status == RP_OK ? conn_reply_unpack(reply, NULL) : NULL;
    pthread_mutex_lock(&self->lock);
    self->why_asked = false;
    if (wire && wire->body_case == REPLAY__REPLY__BODY_WHY) {
        for (size_t i = 0; i < wire->why->n_waits; i++) {
            const Replay__Wait *wait = wire->why->waits[i];
            if (strcmp(wait->kind, "sample") == 0 && strcmp(wait->table, self->source.table) == 0) {
                copy_text(self->why, sizeof self->why, wait->text, strlen(wait->text));
                break;
            }
        }
    }
    pthread_mutex_unlock(&self->lock);
    if (wire)
        conn_reply_unpacked_free(wire);
    conn_reply_destroy(&reply);
    prefetch_unref(self);
}

/* Lock held; released meanwhile. */
static void ask_why(struct prefetch *self)
{
    self->why_asked = true;
    __atomic_add_fetch(&self->refs, 1, __ATOMIC_RELAXED);
    pthread_mutex_unlock(&self->lock);
    struct conn_message message = {.field = REPLAY__REQUEST__BODY_WHY, .timeout_ms = 1000};
    conn_send(self->source.conn, &message, on_why, self);
    pthread_mutex_lock(&self->lock);
}

/* Lock held. */
static bool has_ended(const struct prefetch *self)
{
    return self->head == self->tail &&
           (self->ending || (self->source.options.max_samples && self->got >= self->source.options.max_samples));
}

/* Waits until the front slot can be taken or the stream has ended; false: the deadline has passed, or the caller has ended the
 * wait. Lock held. */
static bool wait_for_slot(struct prefetch *self, int64_t timeout_ms)
{
    int64_t deadline = conn_deadline(timeout_ms), ask_at = INT64_MAX;
    if (timeout_ms > 0 && deadline != INT64_MAX) {
        int64_t early = (deadline - conn_now()) / 4;
        ask_at = deadline - (early < ASK_WHY_NS ? early : ASK_WHY_NS);
    }
    for (;;) {
        int64_t wake = conn_is_hosted(self->source.conn) ? decode_all(self) : INT64_MAX;
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
        if (!conn_wait(self->source.conn, &self->ready, &self->lock, ask_at < wake ? ask_at : wake) &&
            conn_is_stopped())
            return false;
    }
}

/* Takes the lock. */
static rp_status timed_out(struct prefetch *self, int64_t timeout_ms, rp_error *err)
{
    char why[sizeof self->why];
    pthread_mutex_lock(&self->lock);
    memcpy(why, self->why, sizeof why);
    pthread_mutex_unlock(&self->lock);
    return sample_source_timed_out(&self->source, timeout_ms, why[0] ? why : "the broker has not answered yet", err);
}

/* Lock held. */
static rp_status ended(const struct prefetch *self, rp_error *err)
{
    if (!self->ending || self->source.stopped)
        return sample_source_ended(&self->source, err);
    return err_set(err, RP_END_OF_STREAM, "nothing could be sampled from table '%s' for %lld ms: %s",
                   self->source.table, (long long)self->source.options.timeout_ms, self->end_text);
}

rp_status prefetch_next(struct prefetch *self, rp_batch **batch, int64_t timeout_ms, rp_error *err)
{
    rp_status status = RP_OK;
    bool taken = false;
    if (timeout_ms == 0)
        conn_look(self->source.conn);
    pthread_mutex_lock(&self->lock);
    if (!wait_for_slot(self, timeout_ms)) {
        pthread_mutex_unlock(&self->lock);
        return conn_is_stopped() ? conn_stopped(err) : timed_out(self, timeout_ms, err);
    }
    if (has_ended(self)) {
        status = ended(self, err);
    } else if (self->head == self->decode && self->stalled) {
        status = err_set(err, (rp_status)self->stall.status, "%s", self->stall.text);
        self->stalled = false;
        pthread_cond_signal(&self->work);
    } else {
        struct prefetch_slot *slot = slot_at(self, self->head);
        if (slot->state == SLOT_READY) {
            *batch = sample_source_take(&self->source, &slot->batches);
        } else {
            status = err_set(err, (rp_status)slot->error.status, "%s", slot->error.text);
        }
        taken = !slot->batches;
        if (taken) {
            slot->state = SLOT_FREE;
            self->head++;
            skip_empty(self); /* empty slots count as room for a burst, too */
        }
    }
    pthread_mutex_unlock(&self->lock);
    if (taken)
        request_more(self);
    return status;
}

void prefetch_get_stats(struct prefetch *self, rp_sampler_stats *out)
{
    pthread_mutex_lock(&self->lock);
    *out = self->source.stats;
    for (uint32_t i = 0; i < self->source.options.in_flight; i++) {
        enum slot_state state = self->slots[i].state;
        out->requested += state == SLOT_REQUESTED || state == SLOT_ARRIVED;
        out->ready += state == SLOT_READY;
    }
    pthread_mutex_unlock(&self->lock);
}

/* ---- starting and stopping ---- */

void prefetch_stop(struct prefetch *self)
{
    pthread_mutex_lock(&self->lock);
    self->source.stopped = self->ending = true;
    pthread_mutex_unlock(&self->lock);
    cancel_all(self); /* items that a request has picked still come, if they exist nowhere else */
}

struct sample_source *prefetch_source(struct prefetch *self)
{
    return &self->source;
}

/* Starts the decode thread, which leaves the host program's signals alone. */
static bool start_thread(struct prefetch *self)
{
    sigset_t all, before;
    if (conn_is_hosted(self->source.conn))
        return true;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    __atomic_add_fetch(&self->refs, 1, __ATOMIC_RELAXED);
    self->started = pthread_create(&self->thread, NULL, decode_main, self) == 0;
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (!self->started) /* the owner's reference is left */
        __atomic_sub_fetch(&self->refs, 1, __ATOMIC_RELAXED);
    return self->started;
}

struct prefetch *prefetch_new(struct conn *conn, const char *table, const rp_sampler_options *options)
{
    struct prefetch *self = calloc(1, sizeof *self + options->in_flight * sizeof *self->slots);
    if (!self)
        return NULL;
    self->refs = 1;
    self->last_ns = conn_now();
    pthread_mutex_init(&self->send_lock, NULL);
    pthread_mutex_init(&self->lock, NULL);
    conn_cond_init(&self->work);
    conn_cond_init(&self->ready);
    for (uint32_t i = 0; i < options->in_flight; i++)
        self->slots[i].owner = self;
    if (!sample_source_init(&self->source, conn, table, options, options->in_flight + 2) || !start_thread(self)) {
        prefetch_unref(self);
        return NULL;
    }
    request_more(self);
    return self;
}

void prefetch_destroy(struct prefetch **self)
{
    struct prefetch *prefetch = *self;
    if (!prefetch)
        return;
    *self = NULL;
    pthread_mutex_lock(&prefetch->lock);
    prefetch->stopping = true;
    pthread_cond_signal(&prefetch->work);
    pthread_mutex_unlock(&prefetch->lock);
    if (prefetch->started)
        pthread_join(prefetch->thread, NULL);
    cancel_all(prefetch);
    prefetch_unref(prefetch);
}
