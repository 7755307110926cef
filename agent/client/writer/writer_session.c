/* See writer_session.h. */
#include "agent/client/writer/writer_session.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "proto/base/clock.h"
#include "proto/base/dtype.h"
#include "proto/base/error.h"
#include "proto/base/log.h"
#include "proto/wire/pb.h"

#define BYE_TIMEOUT_MS 5000
#define HELLO_TIMEOUT_MS 5000
#define RETRY_NS (500 * NS_PER_MS)
#define NO_MEMORY_NS (20 * NS_PER_MS)
#define EXPLAIN_FIRST_NS (20 * NS_PER_MS)
#define EXPLAIN_NS (250 * NS_PER_MS)
#define STUCK_HEARTBEATS 3

/* ---- HELLO */

static void on_hello(void *ctx, struct conn_reply *reply);

static void say_hello(struct writer_session *self)
{
    Replay__Hello body = REPLAY__HELLO__INIT;
    body.name = self->name;
    body.notices = true;
    body.n_columns = self->n_columns;
    body.columns = self->columns;
    body.oldest_number = outbox_oldest(&self->outbox);
    body.memory = self->outbox.pool ? &self->memory : NULL;
    if (self->has_id)
        body.session = (ProtobufCBinaryData){WIRE_SESSION_BYTES, self->outbox.session};
    self->state = SESSION_ASKING;
    struct conn_message message = {
        .field = REPLAY__REQUEST__BODY_HELLO, .body = &body.base, .timeout_ms = HELLO_TIMEOUT_MS};
    if (!conn_send_once(self->conn, &self->part, &message, on_hello)) {
        self->state = SESSION_WAITING;
        self->retry_ns = clock_ns() + RETRY_NS;
        pthread_mutex_lock(&self->handoff->news->mutex);
        if (!handoff_is_open(self->handoff)) { /* the caller that opens the writer does not wait for memory */
            err_set(&self->handoff->refusal, RP_NO_MEMORY, "no memory to open a session");
            self->refused = true;
        }
        pthread_mutex_unlock(&self->handoff->news->mutex);
        handoff_signal(self->handoff);
    }
}

static void open_push(struct writer_session *self)
{
    int linger = 0, immediate = 1;
    if (self->push || conn_is_hosted(self->conn))
        return;
    self->push = zmq_socket(conn_zmq_context(self->conn), ZMQ_PUSH);
    if (!self->push)
        return;
    zmq_setsockopt(self->push, ZMQ_LINGER, &linger, sizeof linger);
    zmq_setsockopt(self->push, ZMQ_IMMEDIATE, &immediate, sizeof immediate);
    if (!conn_connect(self->conn, self->push, self->hello->says->ingest)) {
        log_line(LEVEL_ERROR, "C0202", "no connection for data", "endpoint=%s reason=\"%s\"", self->hello->says->ingest,
                 zmq_strerror(zmq_errno()));
        zmq_close(self->push);
        self->push = NULL;
    }
}

static void close_push(struct writer_session *self)
{
    if (self->push)
        zmq_close(self->push);
    self->push = NULL;
    self->push_full = false;
}

static void take_credit(struct writer_session *self, const Replay__Credit *credit);

static void hello_accepted(struct writer_session *self, const Replay__HelloReply *hello)
{
    bool again = self->has_id;
    self->has_id = true;
    self->heartbeat_ns = (int64_t)(hello->heartbeat_ms ? hello->heartbeat_ms : 1000) * NS_PER_MS;
    self->expiry_ns = (int64_t)(hello->expiry_ms ? hello->expiry_ms : 10000) * NS_PER_MS;
    int64_t now = clock_ns();
    self->answered_ns = now;
    self->next_heartbeat_ns = now + self->heartbeat_ns * 2 / 3;
    self->stuck_ns = now;
    self->answered_sent = self->answered_received = self->stated_sent = 0;
    self->flight_number = 0;
    self->flight_ns = 0;
    open_push(self);
    outbox_open(&self->outbox, hello);
    self->state = SESSION_OPEN;
    if (hello->lost_messages > 0)
        log_line(LEVEL_ERROR, "C0203", "the broker came back without data that it had accepted",
                 "writer=%s lost_messages=%llu", self->name, (unsigned long long)hello->lost_messages);
    if (again)
        log_line(LEVEL_INFO, "C0204", "session taken up again", "writer=%s epoch=%u resend_from=%llu", self->name,
                 self->outbox.epoch, (unsigned long long)self->outbox.wire_next);
    if (hello->credit)
        take_credit(self, hello->credit);
    atomic_store(&self->handoff->max_message_bytes, self->outbox.max_message_bytes);
    outbox_publish(&self->outbox);
    handoff_signal(self->handoff);
}

static void hello_refused(struct writer_session *self, const struct conn_reply *reply)
{
    rp_error refusal = {0};
    conn_reply_status(reply, &refusal);
    self->state = SESSION_WAITING;
    self->retry_ns = clock_ns() + RETRY_NS;
    if (reply->answered && reply->status == RP_SESSION_UNKNOWN && self->has_id) {
        self->has_id = false;
        outbox_forget(&self->outbox, false);
        say_hello(self);
        return;
    }
    if (reply->status == RP_OK || reply->status == RP_NO_MEMORY) /* RP_OK: there was no memory to unpack the reply */
        self->retry_ns = clock_ns() + NO_MEMORY_NS;
    if (!reply->answered || reply->status == RP_OK)
        return;
    pthread_mutex_lock(&self->handoff->news->mutex);
    if (!handoff_is_open(self->handoff) && reply->status != RP_CANCELLED) { /* a broker that shuts down may come back */
        self->handoff->refusal = refusal;
        self->refused = true;
    }
    snprintf(self->handoff->why, sizeof self->handoff->why, "the broker refuses the session: %.300s", refusal.text);
    pthread_mutex_unlock(&self->handoff->news->mutex);
    handoff_signal(self->handoff);
    log_line(LEVEL_ERROR, "C0205", "the broker refuses a session", "writer=%s reason=%s", self->name,
             log_text(refusal.text));
}

static void on_hello(void *ctx, struct conn_reply *reply)
{
    struct writer_session *self = ctx;
    Replay__HelloReply *hello = NULL;
    if (self->state == SESSION_ASKING)
        conn_reply_read(reply, REPLAY__REPLY__BODY_HELLO, &hello, NULL);
    if (hello && hello->session.len == WIRE_SESSION_BYTES) {
        if (self->has_id && memcmp(hello->session.data, self->outbox.session, WIRE_SESSION_BYTES) != 0)
            outbox_forget(&self->outbox, false);
        hello_accepted(self, hello);
    } else if (self->state == SESSION_ASKING) {
        hello_refused(self, reply);
    }
    unpack_free((ProtobufCMessage *)hello);
    conn_reply_destroy(&reply);
}

/* ---- credit and heartbeats */

static void take_credit(struct writer_session *self, const Replay__Credit *credit)
{
    if (self->state != SESSION_OPEN || credit->epoch != self->outbox.epoch)
        return;
    self->answered_ns = clock_ns();
    uint64_t seen = self->outbox.rejections_seen, released = self->outbox.released_bytes;
    if (credit->n_waiting > 0) {
        struct handoff *handoff = self->handoff;
        pthread_mutex_lock(&handoff->news->mutex);
        handoff->why[0] = '\0';
        for (size_t i = 0; i < credit->n_waiting; i++)
            text_append(handoff->why, sizeof handoff->why, "%s%s", i ? "; " : "", credit->waiting[i]);
        pthread_mutex_unlock(&handoff->news->mutex);
    }
    outbox_credit(&self->outbox, credit);
    if (self->flight_number && credit->received >= self->flight_number) {
        self->flight_ns = self->answered_ns - self->flight_from_ns;
        self->flight_number = 0;
    }
    if (self->outbox.rejections_seen != seen || self->outbox.released_bytes != released)
        self->confirm = true;
    if (credit->gap && !credit->expired) /* C0204 tells of a session that was resumed */
        log_line(LEVEL_WARN, "C0206", "messages were lost on the way and are sent again", "writer=%s received=%llu",
                 self->name, (unsigned long long)credit->received);
    if (credit->gap) {
        close_push(self);
        say_hello(self);
    }
}

static void on_notice(struct conn_part *part, const Replay__Credit *credit)
{
    struct writer_session *self = (struct writer_session *)part;
    if (credit->session == 0)
        self->confirm = true; /* of an unknown session: a heartbeat shows whether it is this one */
    else if (credit->session == self->outbox.ordinal)
        take_credit(self, credit);
}

/* Detects messages that do not arrive although the broker reports no gap, and reconnects to send them again. */
static void watch_progress(struct writer_session *self, const Replay__Credit *credit)
{
    int64_t now = clock_ns();
    if (credit->received != self->answered_received || credit->received >= self->answered_sent) {
        self->stuck_ns = now;
        self->patience = 1;
    }
    self->answered_received = credit->received;
    self->answered_sent = self->stated_sent;
    if (now - self->stuck_ns < STUCK_HEARTBEATS * self->patience * self->heartbeat_ns)
        return;
    self->patience *= 2; /* so that a slow connection gets enough time in the end */
    log_line(LEVEL_WARN, "C0207", "messages do not arrive and are sent again", "writer=%s received=%llu sent=%llu",
             self->name, (unsigned long long)credit->received, (unsigned long long)self->stated_sent);
    close_push(self);
    say_hello(self);
}

static void on_heartbeat(void *ctx, struct conn_reply *reply)
{
    struct writer_session *self = ctx;
    if (reply->answered)
        self->answered_ns = clock_ns();
    if (reply->answered && reply->status == RP_SESSION_UNKNOWN && self->state == SESSION_OPEN)
        say_hello(self);
    Replay__Credit *credit;
    conn_reply_read(reply, REPLAY__REPLY__BODY_CREDIT, &credit, NULL);
    if (credit) {
        take_credit(self, credit);
        /* A Credit without tables says that the broker waits for its disk, and not what has arrived. */
        if (self->state == SESSION_OPEN && credit->epoch == self->outbox.epoch && credit->n_table)
            watch_progress(self, credit);
    }
    unpack_free((ProtobufCMessage *)credit);
    conn_reply_destroy(&reply);
}

static void send_heartbeat(struct writer_session *self, int64_t now_ns, bool explain)
{
    Replay__Heartbeat body = REPLAY__HEARTBEAT__INIT;
    body.session = (ProtobufCBinaryData){WIRE_SESSION_BYTES, self->outbox.session};
    body.epoch = self->outbox.epoch;
    body.sent = self->outbox.wire_next - 1;
    body.confirmed_rejections = self->outbox.rejections_seen;
    body.released_bytes = self->outbox.released_bytes;
    body.explain = explain;
    /* How long the writer waits, and how long its data takes: the broker cannot see either. */
    struct handoff *handoff = self->handoff;
    pthread_mutex_lock(&handoff->news->mutex);
    body.waited_ns = handoff->waited_ns + conn_waited(self->conn);
    if (handoff->wait_ns && now_ns > handoff->wait_ns)
        body.waited_ns += (uint64_t)(now_ns - handoff->wait_ns);
    pthread_mutex_unlock(&handoff->news->mutex);
    int64_t flight = self->flight_number ? now_ns - self->flight_from_ns : 0;
    body.flight_ns = (uint64_t)(flight > self->flight_ns ? flight : self->flight_ns);
    self->stated_sent = body.sent;
    self->confirm = false;
    self->next_heartbeat_ns = now_ns + self->heartbeat_ns * 2 / 3;
    struct conn_message message = {
        .field = REPLAY__REQUEST__BODY_HEARTBEAT, .body = &body.base, .timeout_ms = self->expiry_ns / NS_PER_MS};
    conn_send_once(self->conn, &self->part, &message, on_heartbeat);
}

/* ---- a new session when the keys are used up */

struct conn_message writer_session_bye(struct writer_session *self, Replay__Bye *body, int64_t timeout_ms)
{
    replay__bye__init(body);
    body->session = (ProtobufCBinaryData){WIRE_SESSION_BYTES, self->outbox.session};
    body->last_number = self->outbox.last_number;
    body->has_timeout_ms_case = REPLAY__BYE__HAS_TIMEOUT_MS_TIMEOUT_MS;
    body->timeout_ms = (uint64_t)timeout_ms / 2;
    return (struct conn_message){.field = REPLAY__REQUEST__BODY_BYE, .body = &body->base, .timeout_ms = timeout_ms};
}

/* Opens the next session, even if BYE was not answered: all items of the old session are confirmed. */
static void on_bye(void *ctx, struct conn_reply *reply)
{
    struct writer_session *self = ctx;
    conn_reply_destroy(&reply);
    if (self->state != SESSION_LEAVING)
        return;
    self->has_id = false;
    outbox_forget(&self->outbox, true);
    say_hello(self);
}

static void tick_renew(struct writer_session *self)
{
    if (!atomic_load(&self->handoff->renew) || !outbox_is_settled(&self->outbox))
        return;
    Replay__Bye body;
    struct conn_message message = writer_session_bye(self, &body, BYE_TIMEOUT_MS);
    if (conn_send_once(self->conn, &self->part, &message, on_bye))
        self->state = SESSION_LEAVING;
}

/* Asks the broker for an explanation while the writer waits. */
static int64_t tick_explain(struct writer_session *self, int64_t now_ns)
{
    struct handoff_news *news = self->handoff->news;
    bool waits = atomic_load(&news->waiters) > 0;
    if (waits) {
        pthread_mutex_lock(&news->mutex);
        waits = self->handoff->wait_ns != 0;
        pthread_mutex_unlock(&news->mutex);
    }
    if (!waits) {
        self->explain_ns = 0;
        return INT64_MAX;
    }
    if (self->explain_ns == 0)
        self->explain_ns = now_ns + EXPLAIN_FIRST_NS;
    if (now_ns >= self->explain_ns) {
        send_heartbeat(self, now_ns, true);
        self->explain_ns = now_ns + EXPLAIN_NS;
    }
    return self->explain_ns;
}

/* ---- the part */

static void on_up(struct conn_part *part, const struct conn_hello *hello)
{
    struct writer_session *self = (struct writer_session *)part;
    (void)hello;
    conn_hello_unref(&self->hello);
    self->hello = conn_hello_ref(self->conn);
    self->answered_ns = clock_ns();
    say_hello(self);
}

static void on_down(struct conn_part *part)
{
    struct writer_session *self = (struct writer_session *)part;
    close_push(self);
    outbox_close(&self->outbox);
    self->state = SESSION_CLOSED;
    handoff_signal(self->handoff);
}

/* Sends messages, and sets what the writing thread should wake this thread for. */
static int64_t tick_send(struct writer_session *self, int64_t now_ns)
{
    struct handoff *handoff = self->handoff;
    atomic_store_explicit(&handoff->mode, HANDOFF_AWAKE, memory_order_relaxed);
    bool urgent = atomic_load(&handoff->urgent) && atomic_exchange(&handoff->urgent, false);
    outbox_take(&self->outbox);
    enum outbox_more more = OUTBOX_BLOCKED;
    struct port push = {self->push, conn_data_channel(self->conn)};
    if (self->state == SESSION_OPEN && (push.socket || push.channel))
        more = outbox_send(&self->outbox, push, now_ns, urgent);
    self->push_full = more == OUTBOX_FULL;
    if (!self->flight_number && self->outbox.wire_next > self->outbox.received + 1) {
        self->flight_number = self->outbox.wire_next - 1;
        self->flight_from_ns = now_ns;
    }
    outbox_publish(&self->outbox);
    if (more == OUTBOX_MORE)
        return now_ns;
    int mode = more == OUTBOX_EMPTY ? HANDOFF_IDLE : more == OUTBOX_LINGER ? HANDOFF_LINGER : HANDOFF_BLOCKED;
    atomic_store(&handoff->mode, mode);
    if ((mode != HANDOFF_BLOCKED && handoff_peek(handoff)) || atomic_load(&handoff->urgent))
        return now_ns;
    return more == OUTBOX_LINGER ? self->outbox.last_partial_ns + OUTBOX_LINGER_NS : INT64_MAX;
}

static int64_t on_tick(struct conn_part *part, int64_t now_ns)
{
    struct writer_session *self = (struct writer_session *)part;
    /* Ignore the time during which this process was stopped or not scheduled: no answer could be read then, so the broker was not
     * silent. */
    int64_t pause = self->ticked_ns ? now_ns - self->ticked_ns - self->heartbeat_ns : 0;
    if (pause > 0)
        self->answered_ns = self->answered_ns + pause < now_ns ? self->answered_ns + pause : now_ns;
    self->ticked_ns = now_ns;
    int64_t next = tick_send(self, now_ns);
    if (self->state == SESSION_WAITING && !self->refused) {
        if (now_ns >= self->retry_ns)
            say_hello(self);
        else
            next = self->retry_ns < next ? self->retry_ns : next;
    }
    if (self->state == SESSION_OPEN)
        tick_renew(self);
    if (self->state != SESSION_OPEN)
        return next;
    if (!self->push)
        open_push(self);
    if (now_ns - self->answered_ns > self->expiry_ns / 2)
        conn_reset(self->conn, "heartbeats are not answered");
    if (now_ns >= self->next_heartbeat_ns || self->confirm)
        send_heartbeat(self, now_ns, false);
    int64_t explain = tick_explain(self, now_ns);
    next = explain < next ? explain : next;
    return self->next_heartbeat_ns < next ? self->next_heartbeat_ns : next;
}

static void *full_push(struct conn_part *part)
{
    const struct writer_session *self = (struct writer_session *)part;
    return self->push_full ? self->push : NULL;
}

static const struct conn_part_ops writer_session_ops = {on_up, on_down, on_notice, on_tick, full_push};

/* ---- life */

/* Describes the columns for HELLO. Names and shapes are the stream's. */
static bool describe_columns(struct writer_session *self, const struct step_stream *stream)
{
    uint32_t n = stream->n_columns;
    self->columns = malloc(n * (sizeof(Replay__Column *) + sizeof(Replay__Column)));
    if (!self->columns)
        return false;
    self->n_columns = n;
    Replay__Column *all = (Replay__Column *)(self->columns + n);
    for (uint32_t i = 0; i < n; i++) {
        const struct step_column *from = &stream->columns[i];
        replay__column__init(&all[i]);
        all[i].name = from->name;
        all[i].dtype = (char *)(uintptr_t)dtype_name(from->dtype);
        all[i].n_shape = from->rank;
        all[i].shape = (uint32_t *)(uintptr_t)from->shape;
        self->columns[i] = &all[i];
    }
    return true;
}

bool writer_session_init(struct writer_session *self, struct conn *conn, struct handoff *handoff,
                         struct step_stream *stream, const struct conn_hello *hello, const rp_writer_options *options)
{
    *self = (struct writer_session){.part = {.ops = &writer_session_ops}, .conn = conn, .handoff = handoff};
    self->heartbeat_ns = NS_PER_S;
    self->expiry_ns = 10 * NS_PER_S;
    self->patience = 1;
    snprintf(self->name, sizeof self->name, "%s", options->name);
    bool ok = outbox_init(&self->outbox, handoff, hello, stream->n_columns, options->doubt);
    self->outbox.trace = conn_trace(conn);
    struct memfile_name name;
    if (conn_shares_memory(conn_is_inside(self->conn)) && step_stream_make_file(stream, &name)) {
        replay__arena__init(&self->memory);
        self->memory.pid = name.pid;
        self->memory.fd = name.fd;
        self->memory.size = name.size;
        self->memory.nonce = name.nonce;
        self->outbox.pool = stream->raws;
    }
    return describe_columns(self, stream) && ok;
}

void writer_session_fini(struct writer_session *self)
{
    outbox_fini(&self->outbox);
    free(self->columns);
    conn_hello_unref(&self->hello);
}
