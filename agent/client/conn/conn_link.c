/* Opens the service socket, watches it, and reopens it with exponential back-off and jitter. */
#include <stdio.h>
#include <string.h>

#include "agent/client/conn/conn_impl.h"
#include "proto/base/clock.h"
#include "proto/base/error.h"
#include "proto/base/log.h"

#define ATTEMPT_NS (2 * NS_PER_S)
/* A client with a key says HELLO again this often: the answer names the key that will replace the broker's. */
#define KEY_NEWS_NS (5 * NS_PER_S)
/* Lines about a broker that does not answer: the first comes after five seconds, and then the pause doubles up to ten minutes. */
#define WARN_FIRST_NS (5 * NS_PER_S)
#define WARN_PAUSE_MOST_NS (600 * NS_PER_S)
#define PING_MS 2000
#define PING_TIMEOUT_MS 6000
/* With shards the others go on, and wait for none that is lost longer than two seconds. */
#define SHARD_PING_MS 400
#define SHARD_PING_TIMEOUT_MS 1200

static void option(void *socket, int name, int value)
{
    zmq_setsockopt(socket, name, &value, sizeof value);
}

static void link_monitor(struct conn *self)
{
    char address[80];
    int events = ZMQ_EVENT_CONNECT_RETRIED | ZMQ_EVENT_DISCONNECTED | ZMQ_EVENT_HANDSHAKE_FAILED_NO_DETAIL |
                 ZMQ_EVENT_HANDSHAKE_FAILED_PROTOCOL | ZMQ_EVENT_HANDSHAKE_FAILED_AUTH;
    snprintf(address, sizeof address, "inproc://replay-client-%p-%llu", (void *)self,
             (unsigned long long)++self->monitor_serial);
    if (zmq_socket_monitor(self->dealer, address, events) != 0)
        return;
    self->monitor = zmq_socket(self->context, ZMQ_PAIR);
    if (!self->monitor)
        return;
    option(self->monitor, ZMQ_LINGER, 0);
    if (zmq_connect(self->monitor, address) != 0) {
        zmq_close(self->monitor);
        self->monitor = NULL;
    }
}

static void link_say_hello(struct conn *self)
{
    Replay__Hello body = REPLAY__HELLO__INIT;
    body.name = self->name;
    struct conn_message message = {.field = REQUEST_HELLO, .body = &body.base, .timeout_ms = -1};
    self->hello_id = atomic_fetch_add(&self->next_id, 1);
    struct conn_request *request = conn_request_new(self, &message);
    if (!request) {
        link_no_memory(self);
        return;
    }
    conn_request_name(request, self->hello_id);
    conn_request_transmit(self, request);
    conn_request_free(request);
}

/* Opens and connects the socket. Returns the reason if that fails, else NULL. */
static const char *link_connect(struct conn *self)
{
    self->dealer = zmq_socket(self->context, ZMQ_DEALER);
    if (!self->dealer)
        return "no socket";
    option(self->dealer, ZMQ_LINGER, 0);
    option(self->dealer, ZMQ_SNDHWM, 0); /* the callers bound what is in flight */
    option(self->dealer, ZMQ_RCVHWM, 0);
    option(self->dealer, ZMQ_HEARTBEAT_IVL, self->is_shard ? SHARD_PING_MS : PING_MS);
    option(self->dealer, ZMQ_HEARTBEAT_TIMEOUT, self->is_shard ? SHARD_PING_TIMEOUT_MS : PING_TIMEOUT_MS);
    link_monitor(self);
    self->dealer_used = self->monitor_used = true;
    return conn_connect(self, self->dealer, self->endpoint) ? NULL : zmq_strerror(zmq_errno());
}

static void link_open(struct conn *self, int64_t now_ns)
{
    if (self->failures > 0)
        conn_change_place(self);
    const char *why = conn_is_hosted(self) ? NULL : link_connect(self);
    if (why) {
        link_fail(self, why, now_ns);
        return;
    }
    self->link = LINK_ASKING;
    self->link_time = now_ns + ATTEMPT_NS;
    link_say_hello(self);
}

void link_close(struct conn *self)
{
    if (self->joined)
        conn_set_leave(self->set);
    self->joined = false;
    if (self->monitor) {
        zmq_socket_monitor(self->dealer, NULL, 0);
        zmq_close(self->monitor);
    }
    if (self->dealer)
        zmq_close(self->dealer);
    self->monitor = self->dealer = NULL;
}

void link_expect(struct conn *self, int64_t now_ns)
{
    self->warn_pause_ns = WARN_FIRST_NS;
    self->warn_time = now_ns + self->warn_pause_ns;
}

/* Says in the log that no broker answers: a caller without a time-out would wait in silence. */
static void link_warn(struct conn *self, int64_t now_ns)
{
    char quoted[160];
    int64_t pause = 2 * self->warn_pause_ns;
    self->warn_pause_ns = pause < WARN_PAUSE_MOST_NS ? pause : WARN_PAUSE_MOST_NS;
    self->warn_time = now_ns + self->warn_pause_ns;
    bool refused = self->refusal.status != RP_OK;
    pthread_mutex_lock(&self->mutex);
    bool known = self->hello && !self->hello->basis;
    pthread_mutex_unlock(&self->mutex);
    log_line(LEVEL_WARN, "C0106", refused ? "still refused; still trying" : "no broker answers; still trying",
             "endpoint=%s waited_s=%.0f reason=%s hint=\"%s\"", self->endpoint, (double)(now_ns - self->lost_ns) / 1e9,
             log_quote(quoted, sizeof quoted, self->reason[0] ? self->reason : "no answer"),
             known ? "has it stopped? Its log says why"
                   : "is replay-broker running, and is this its service endpoint?");
}

static void link_publish(struct conn *self, enum link_state state, int64_t now_ns)
{
    pthread_mutex_lock(&self->mutex);
    bool lost = self->state == LINK_UP && state != LINK_UP;
    if (lost)
        self->lost_ns = now_ns;
    self->state = state;
    pthread_cond_broadcast(&self->changed);
    pthread_mutex_unlock(&self->mutex);
    if (lost)
        link_expect(self, now_ns);
    conn_set_signal(self->set);
}

static int64_t link_pause(struct conn *self)
{
    int64_t pause = self->backoff_min_ns;
    for (uint32_t i = 0; i < self->failures && pause < self->backoff_max_ns; i++)
        pause *= 2;
    if (pause > self->backoff_max_ns)
        pause = self->backoff_max_ns;
    return (int64_t)((double)pause * (0.5 + 0.5 * rng_unit(&self->rng)));
}

void link_fail(struct conn *self, const char *why, int64_t now_ns)
{
    bool was_up = self->link == LINK_UP;
    link_close(self);
    self->link = LINK_DOWN;
    self->link_time = now_ns + link_pause(self);
    self->failures++;
    self->reset_wanted = false;
    snprintf(self->reason, sizeof self->reason, "%s", why);
    link_publish(self, LINK_DOWN, now_ns);
    if (!was_up)
        return;
    char quoted[128];
    log_line(LEVEL_WARN, "C0101", "connection lost", "endpoint=%s reason=%s", self->endpoint,
             log_quote(quoted, sizeof quoted, why));
    conn_request_drop_once(self, NULL, true);
    for (struct conn_part *part = self->parts; part; part = part->next)
        part->ops->down(part);
}

static void link_refused(struct conn *self, const rp_error *refusal, int64_t now_ns)
{
    char quoted[256];
    pthread_mutex_lock(&self->mutex);
    bool news = self->hello && strcmp(self->refusal.text, refusal->text) != 0;
    self->refusal = *refusal;
    pthread_mutex_unlock(&self->mutex);
    if (news)
        log_line(LEVEL_WARN, "C0104", "connection refused", "endpoint=%s reason=%s", self->endpoint,
                 log_quote(quoted, sizeof quoted, refusal->text));
    link_fail(self, refusal->text, now_ns);
}

void link_no_memory(struct conn *self)
{
    rp_error refusal = {0};
    err_set(&refusal, RP_NO_MEMORY, "no memory to say HELLO to a broker");
    link_refused(self, &refusal, conn_now());
}

/* Takes the news out of the answer to a HELLO on a link that is up. */
static void take_key_news(struct conn *self, struct conn_hello *hello)
{
    if (hello && hello->has_next_key)
        conn_key_announced(self, hello->next_key);
    conn_hello_unref(&hello);
}

/* Makes the answer to HELLO the newest, and returns the one before, which the caller has now. */
static struct conn_hello *take_hello(struct conn *self, struct conn_hello *hello)
{
    pthread_mutex_lock(&self->mutex);
    struct conn_hello *old = self->hello;
    self->hello = hello;
    self->refusal = (rp_error){0};
    self->reconnects += old && !old->basis;
    pthread_mutex_unlock(&self->mutex);
    if (old && !old->basis)
        conn_set_compare(self->set, old, hello);
    if (old && !old->basis)
        log_line(LEVEL_INFO, "C0102", "connected again", "endpoint=%s restarted=%s", self->endpoint,
                 old->instance == hello->instance ? "no" : "yes");
    else if (old)
        log_line(LEVEL_INFO, "C0105", "connected to a late shard", "endpoint=%s shard=%u", self->endpoint,
                 hello->shard);
    return old;
}

void link_answer(struct conn *self, const struct conn_reply *reply)
{
    rp_error refusal = {0};
    int64_t now = conn_now();
    struct conn_hello *hello = NULL;
    self->hello_id = 0;
    if (conn_reply_status(reply, &refusal) == RP_OK)
        hello = hello_read(reply, self->host, &refusal);
    if (self->link == LINK_UP) {
        take_key_news(self, hello);
        return;
    }
    if (hello && hello->n_shards > 1 && !self->is_shard && self->dealer) {
        self->is_shard = true; /* now with what cannot be changed once a socket is connected: heartbeats, thread */
        self->io_thread = hello->shard;
        conn_hello_unref(&hello);
        link_close(self);
        link_open(self, now);
        return;
    }
    self->joined = hello && conn_set_join(self->set, self->endpoint, hello, &self->shard, &refusal) == RP_OK;
    if (!self->joined) {
        conn_hello_unref(&hello);
        link_refused(self, &refusal, now);
        return;
    }
    self->link = LINK_UP;
    self->link_time = now + KEY_NEWS_NS;
    self->failures = self->broken = 0;
    if (self->has_key && hello->has_next_key)
        conn_key_announced(self, hello->next_key);
    struct conn_hello *old = take_hello(self, hello);
    conn_hello_unref(&old);
    link_publish(self, LINK_UP, now);
    for (struct conn_part *part = self->parts; part; part = part->next)
        part->ops->up(part, hello);
    conn_request_resend(self);
}

/* Reads one event of the monitor; false: there is none. */
static bool next_event(struct conn *self, uint16_t *event, uint32_t *value)
{
    zmq_msg_t frame;
    zmq_msg_init(&frame);
    *event = 0;
    bool found = self->monitor && zmq_msg_recv(&frame, self->monitor, ZMQ_DONTWAIT) >= 0;
    if (found && zmq_msg_size(&frame) == sizeof *event + sizeof *value) {
        memcpy(event, zmq_msg_data(&frame), sizeof *event);
        memcpy(value, (const char *)zmq_msg_data(&frame) + sizeof *event, sizeof *value);
    }
    while (found && zmq_msg_more(&frame) && zmq_msg_recv(&frame, self->monitor, ZMQ_DONTWAIT) >= 0)
        ;
    zmq_msg_close(&frame);
    return found;
}

/* A handshake failed: tries another key of the broker at once, or gives up for a while and says why. */
static void handshake_failed(struct conn *self, uint16_t event, uint32_t value, int64_t now_ns)
{
    rp_error refusal = {0};
    if (!conn_key_failed(self, event, value, &refusal)) {
        link_fail(self, "the broker has another key", now_ns);
        self->link_time = now_ns + self->backoff_min_ns;
        return;
    }
    if (refusal.status == RP_PERMISSION_DENIED)
        link_refused(self, &refusal, now_ns);
    else
        link_fail(self, refusal.text, now_ns);
}

void link_watch(struct conn *self, int64_t now_ns)
{
    uint16_t event, failed = 0;
    uint32_t value, failed_value = 0;
    const char *why = NULL;
    if (!self->monitor_used)
        return;
    self->monitor_used = false;
    while (next_event(self, &event, &value)) {
        if (event == ZMQ_EVENT_CONNECT_RETRIED)
            why = why ? why : "connection refused"; /* what came before it says more */
        else if (event == ZMQ_EVENT_DISCONNECTED && self->link == LINK_UP)
            why = "disconnected";
        else if (event && failed != ZMQ_EVENT_HANDSHAKE_FAILED_AUTH &&
                 !(failed && event == ZMQ_EVENT_DISCONNECTED)) { /* the event before that one says more */
            failed = event;
            failed_value = value;
        }
    }
    if (failed)
        handshake_failed(self, failed, failed_value, now_ns);
    else if (why)
        link_fail(self, why, now_ns);
}

void link_step(struct conn *self, int64_t now_ns)
{
    if (self->link == LINK_UP && self->reset_wanted)
        link_fail(self, "given up", now_ns);
    if (self->link == LINK_ASKING && now_ns >= self->link_time)
        link_fail(self, "no answer", now_ns);
    if (self->link == LINK_DOWN && now_ns >= self->link_time)
        link_open(self, now_ns);
    if (self->link != LINK_UP && now_ns >= self->warn_time)
        link_warn(self, now_ns);
    if (self->link == LINK_UP && self->has_key && now_ns >= self->link_time) {
        self->link_time = now_ns + KEY_NEWS_NS;
        link_say_hello(self);
    }
}
