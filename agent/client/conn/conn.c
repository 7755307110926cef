/* The I/O thread of a client, and the calls that reach it. */
#include "agent/client/conn/conn.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "agent/client/conn/conn_impl.h"
#include "proto/base/clock.h"
#include "proto/base/error.h"
#include "proto/base/log.h"
#include "proto/wire/unpack.h"

#define DRAIN_REPLIES 64

/* ---- the thread */

/* One wake-up serves all callers until the thread takes it, in take_submitted. So callers submit before they wake the thread,
 * and the thread looks at what was submitted after it has taken the wake-up. */
void conn_wake(struct conn *self)
{
    if (!atomic_exchange(&self->woken, true) && self->wake_write >= 0) {
        ssize_t n = write(self->wake_write, "", 1);
        (void)n; /* a full pipe wakes too */
    }
}

static void take_commands(struct conn *self, struct conn_command *commands)
{
    for (struct conn_command *command = commands, *next; command; command = next) {
        next = command->next;
        struct conn_part *part = command->part;
        if (command->kind == COMMAND_DROP) {
            conn_request_drop(self, command->id);
        } else if (command->kind == COMMAND_ATTACH) {
            part->next = self->parts;
            self->parts = part;
            if (self->link == LINK_UP)
                part->ops->up(part, self->hello);
        } else {
            struct conn_part **at = &self->parts;
            while (*at && *at != part)
                at = &(*at)->next;
            if (*at)
                *at = part->next;
            conn_request_drop_once(self, part, false);
            part->ops->down(part);
        }
        pthread_mutex_lock(&self->mutex);
        command->done = true;
        pthread_cond_broadcast(&self->changed);
        pthread_mutex_unlock(&self->mutex);
    }
}

/* Takes requests, cancels and commands that other threads have submitted. */
static void take_submitted(struct conn *self, int64_t now_ns)
{
    char drained[64];
    if (!self->pipe_ready && !atomic_load(&self->woken))
        return;
    while (self->wake_read >= 0 && read(self->wake_read, drained, sizeof drained) == sizeof drained)
        ;
    atomic_store(&self->woken, false);
    self->pipe_ready = false;
    pthread_mutex_lock(&self->mutex);
    struct conn_request *request = self->submitted.first;
    self->submitted = (struct conn_request_list){0};
    struct conn_command *commands = self->commands;
    self->commands = NULL;
    uint64_t cancels[CANCELS_MOST];
    uint32_t n_cancels = self->n_cancels;
    memcpy(cancels, self->cancels, n_cancels * sizeof cancels[0]);
    self->n_cancels = 0;
    if (n_cancels == CANCELS_MOST)
        pthread_cond_broadcast(&self->changed);
    pthread_mutex_unlock(&self->mutex);

    for (struct conn_request *next; request; request = next) {
        next = request->next;
        self->taken = request->id;
        conn_request_track(self, request);
        if (self->link == LINK_UP)
            conn_request_transmit(self, request);
    }
    for (uint32_t i = 0; i < n_cancels; i++)
        conn_request_cancel(self, cancels[i], now_ns);
    take_commands(self, commands);
}

static void take_notice(struct conn *self, const struct conn_reply *reply)
{
    if (reply->view.body != 17)
        return;
    ProtobufCMessage *credit;
    if (unpack(&replay__credit__descriptor, reply->view.data, reply->view.size, &credit) != RP_OK)
        return; /* no memory: the next heartbeat brings the same numbers */
    for (struct conn_part *part = self->parts; part; part = part->next)
        if (part->ops->notice)
            part->ops->notice(part, (const Replay__Credit *)credit);
    unpack_free(credit);
}

/* Takes out the request that this status ends. NULL: there is none, or the request stays and is retried with its id. So the
 * items picked for a sample are not lost: a broker that shuts down sends them when it is back, and a broker that believed
 * the connection lost sends them at once. */
static struct conn_request *take_answered(struct conn *self, uint64_t id, rp_status status)
{
    struct conn_request *request = conn_request_find(self, id);
    if (!request)
        return NULL;
    if (status == RP_NO_MEMORY && !request->again && !request->cancelled) { /* a retry carries nothing out twice */
        request->again = true;
        conn_request_transmit(self, request);
        return NULL;
    }
    bool again = request->field == REQUEST_SAMPLE && !request->cancelled;
    if (again && status == RP_UNAVAILABLE)
        conn_request_transmit(self, request);
    if (again && (status == RP_UNAVAILABLE || status == RP_CANCELLED))
        return NULL;
    return conn_request_take(self, id);
}

static void take_reply(struct conn *self, struct conn_reply *reply)
{
    uint64_t id = reply->view.id;
    if (reply->view.tracing.size) {
        const struct conn_request *request = conn_request_find(self, id);
        conn_trace_told(self, &reply->view, request ? request->traced_ns : 0);
    }
    if (id == 0) {
        take_notice(self, reply);
    } else if (id == self->hello_id) {
        link_answer(self, reply);
    } else {
        struct conn_request *request = take_answered(self, id, (rp_status)reply->view.status);
        if (request) {
            if (request->traced_ns)
                conn_trace_request(self, request);
            conn_request_answer(request, reply);
            return;
        }
    }
    conn_reply_destroy(&reply);
}

/* Handles an answer that there was no memory for. */
static void lose_reply(struct conn *self, uint64_t id)
{
    if (id == self->hello_id) {
        link_no_memory(self);
        return;
    }
    struct conn_request *request = take_answered(self, id, RP_NO_MEMORY);
    if (request)
        conn_request_end(request, RP_NO_MEMORY, "no memory for the broker's reply");
}

static void take_replies(struct conn *self)
{
    struct conn_reply *reply;
    uint64_t lost;
    if (self->dealer && !self->dealer_used)
        return;
    for (int i = 0; i < DRAIN_REPLIES; i++) {
        if (!reply_receive(self, &reply, &lost)) {
            self->dealer_used = false;
            return;
        }
        self->n_replies++;
        if (reply)
            take_reply(self, reply);
        else if (lost)
            lose_reply(self, lost);
    }
}

static int64_t tick_parts(struct conn *self, int64_t now_ns)
{
    int64_t next = INT64_MAX;
    for (struct conn_part *part = self->parts; part; part = part->next) {
        int64_t at = part->ops->tick(part, now_ns);
        next = at < next ? at : next;
    }
    return next;
}

int64_t conn_turn(struct conn *self)
{
    int64_t now = conn_now();
    take_submitted(self, now);
    /* Only now: a stop that came while take_submitted took a wake-up has sent no wake-up of its own. */
    if (atomic_load(&self->stopping))
        return now;
    link_watch(self, now);
    link_step(self, now);
    take_replies(self);
    int64_t next = conn_request_expire(self, now);
    int64_t parts = tick_parts(self, now);
    next = parts < next ? parts : next;
    if (self->tracing.number) {
        int64_t trace = conn_trace_tick(self, now);
        next = trace < next ? trace : next;
    }
    if (self->reset_wanted)
        next = now;
    if (self->link != LINK_UP || self->has_key)
        next = self->link_time < next ? self->link_time : next;
    if (self->link != LINK_UP)
        next = self->warn_time < next ? self->warn_time : next;
    return next;
}

void conn_finish(struct conn *self)
{
    self->pipe_ready = true;
    take_submitted(self, 0);
    while (self->pending.first)
        conn_request_end(conn_request_take(self, self->pending.first->id), RP_CANCELLED, "the client is being closed");
    link_close(self);
}

void *conn_main(void *arg)
{
    struct conn *self = arg;
    struct conn_poll poll = {0};
    for (;;) {
        int64_t next = conn_turn(self);
        if (atomic_load(&self->stopping))
            break;
        conn_poll(&poll, self, next);
    }
    conn_finish(self);
    free(poll.fds);
    return NULL;
}

/* ---- calls from other threads */

uint64_t conn_send(struct conn *self, const struct conn_message *message, conn_reply_fn *fn, void *ctx)
{
    uint64_t id = conn_try_send(self, message, fn, ctx);
    if (id)
        return id;
    for (uint32_t i = 0; i < message->n_payload; i++) {
        zmq_msg_close(&message->payload[i]);
        zmq_msg_init(&message->payload[i]);
    }
    fn(ctx, reply_no_memory());
    return atomic_fetch_add(&self->next_id, 1);
}

uint64_t conn_try_send(struct conn *self, const struct conn_message *message, conn_reply_fn *fn, void *ctx)
{
    struct conn_request *request = conn_request_new(self, message);
    if (!request)
        return 0;
    request->fn = fn;
    request->ctx = ctx;
    pthread_mutex_lock(&self->mutex);
    /* Under the mutex, so that ids are in the order of the list: conn_request_settled relies on it. */
    uint64_t id = atomic_fetch_add(&self->next_id, 1);
    conn_request_name(request, id);
    conn_request_list_add(&self->submitted, request);
    pthread_mutex_unlock(&self->mutex);
    conn_wake(self);
    return id;
}

uint64_t conn_send_once(struct conn *self, struct conn_part *part, const struct conn_message *message,
                        conn_reply_fn *fn)
{
    struct conn_request *request = self->link == LINK_UP ? conn_request_new(self, message) : NULL;
    if (!request)
        return 0;
    uint64_t id = message->again ? message->again : atomic_fetch_add(&self->next_id, 1);
    conn_request_name(request, id);
    request->fn = fn;
    request->ctx = request->part = part;
    conn_request_track(self, request);
    conn_request_transmit(self, request);
    return id;
}

void conn_cancel(struct conn *self, uint64_t id)
{
    pthread_mutex_lock(&self->mutex);
    while (self->n_cancels == CANCELS_MOST)
        conn_wait_once(self, &self->changed, &self->mutex, INT64_MAX); /* the I/O thread takes them soon */
    self->cancels[self->n_cancels++] = id;
    pthread_mutex_unlock(&self->mutex);
    conn_wake(self);
}

/* Waits until the I/O thread has carried out the command, which takes it no longer than a turn. */
static void command_run(struct conn *self, struct conn_command command)
{
    pthread_mutex_lock(&self->mutex);
    struct conn_command **at = &self->commands;
    while (*at)
        at = &(*at)->next;
    *at = &command;
    pthread_mutex_unlock(&self->mutex);
    conn_wake(self);
    pthread_mutex_lock(&self->mutex);
    while (!command.done)
        conn_wait_once(self, &self->changed, &self->mutex, INT64_MAX);
    pthread_mutex_unlock(&self->mutex);
}

struct call {
    pthread_mutex_t mutex;
    pthread_cond_t done;
    struct conn_reply *reply;
};

static void call_done(void *ctx, struct conn_reply *reply)
{
    struct call *call = ctx;
    pthread_mutex_lock(&call->mutex);
    call->reply = reply;
    pthread_cond_signal(&call->done);
    pthread_mutex_unlock(&call->mutex);
}

rp_status conn_call(struct conn *self, const struct conn_message *message, struct conn_reply **out, rp_error *err)
{
    if (out)
        *out = NULL;
    RP_TRY(conn_check_process(self, err));
    struct call call = {.reply = NULL};
    pthread_mutex_init(&call.mutex, NULL);
    conn_cond_init(&call.done);
    uint64_t id = conn_send(self, message, call_done, &call);
    pthread_mutex_lock(&call.mutex);
    while (!call.reply && conn_wait(self, &call.done, &call.mutex, INT64_MAX))
        ;
    bool answered = call.reply != NULL;
    pthread_mutex_unlock(&call.mutex);
    if (!answered) /* the reply function may still run before this returns, but not after */
        command_run(self, (struct conn_command){.kind = COMMAND_DROP, .id = id});
    pthread_mutex_destroy(&call.mutex);
    pthread_cond_destroy(&call.done);
    rp_status status = answered ? conn_reply_status(call.reply, err) : conn_stopped(err);
    if (status == RP_OK && out)
        *out = call.reply;
    else
        conn_reply_destroy(&call.reply);
    return status;
}

void conn_attach(struct conn *self, struct conn_part *part)
{
    command_run(self, (struct conn_command){.kind = COMMAND_ATTACH, .part = part});
}

void conn_detach(struct conn *self, struct conn_part *part)
{
    command_run(self, (struct conn_command){.kind = COMMAND_DETACH, .part = part});
}

void conn_reset(struct conn *self, const char *why)
{
    char quoted[128];
    if (!self->reset_wanted && self->link == LINK_UP)
        log_line(LEVEL_WARN, "C0103", "giving up a connection", "endpoint=%s reason=%s", self->endpoint,
                 log_quote(quoted, sizeof quoted, why));
    self->reset_wanted = true;
}
