#include "agent/client/conn/conn.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "agent/client/conn/handshake.h"
#include "proto/base/clock.h"
#include "proto/base/endpoint.h"
#include "proto/base/forks.h"
#include "proto/base/log.h"
#include "proto/base/open_files.h"
#include "proto/base/rng.h"
#include "proto/base/trace.h"
#include "proto/wire/pb.h"

#define CANCEL_GRACE_MS 1000
#define CANCELS_MOST 64u
#define DRAIN_REPLIES 64
/* How long before a request expires the broker is asked what holds its replies back, how often for the requests of parts, which wait long
 * (the answer costs the broker time), and how long the answer counts. */
#define ASK_NS (300 * NS_PER_MS)
#define LONG_MS 60000
#define ASK_AGAIN_NS (5 * NS_PER_S)
#define HELD_NS (6 * NS_PER_S)

/* Lives on the stack of a thread that waits until it is done. */
struct conn_command {
    struct conn_part *part;
    bool attach; /* false: detach it */
    bool done;
    struct conn_command *next;
};

enum link_state {
    LINK_DOWN,   /* no socket; the next is opened at link_time */
    LINK_ASKING, /* HELLO is in flight; it times out at link_time */
    LINK_UP,     /* with a key: HELLO is said again at link_time */
};

/* This client's part in a trace. Only the I/O thread uses it. */
struct conn_trace {
    struct conn_part part;  /* never attached: requests of the trace are sent for it */
    uint64_t number;        /* of the trace; 0: none is on */
    uint64_t last;          /* of the trace before, which late replies may still name */
    int64_t end_ns;         /* of this process' clock: when the trace ends */
    int64_t offset_ns;      /* the broker's clock less this one's, by the shortest round trip */
    int64_t trip_ns;        /* the shortest round trip; INT64_MAX: none yet */
    uint32_t trips;         /* round trips made to compare the clocks */
    bool sending;           /* a message is in flight */
    struct trace_list list; /* after the end: what is sent */
    uint32_t sent;          /* of these */
};

struct conn {
    /* That is used or tried: home, or where the shard has moved to. The I/O thread changes it, with the mutex held. */
    const char *endpoint;
    char *home; /* the endpoint that it was given */
    char *name;
    char *host; /* "127.0.0.1", or NULL if the transport has none */
    void *context;
    bool own_context;
    struct handshake handshake;
    uint64_t client_id;
    struct conn_shards *shards;
    uint32_t shard; /* expected there; guarded by the mutex of the shards until all of them are known */
    uint32_t forks; /* forks_count and process id of the process that this connection's threads run in */
    int32_t pid;
    int64_t backoff_min_ns, backoff_max_ns;
    struct trace trace;      /* spans of any thread */
    struct conn_host broker; /* turn NULL: no host, and this connection has a thread */
    pthread_t thread;
    bool started; /* the thread runs, or there is a host */

    int wake_read, wake_write; /* -1: no thread to wake */
    atomic_bool woken;
    atomic_bool stopping;
    atomic_bool ended; /* there is no thread and no socket any more, but users are */
    atomic_uint users; /* objects that must go before the connection: parts, samplers, members of groups, additions */
    atomic_uint_fast64_t waited_ns; /* by callers, for answers that the broker gives at once */
    atomic_uint_fast64_t next_id;   /* taken with the mutex held for samples, so that loans are in the order of ids */
    atomic_uint_fast64_t unread;    /* id of the first loan; 0: there is none. The mutex guards changes */
    atomic_bool has_arena;          /* of the newest HELLO */
    atomic_bool host_unknown;       /* the last attempt ended before it had an address to connect to */

    pthread_mutex_t mutex; /* guards what follows, up to the I/O thread's part */
    pthread_cond_t changed;
    struct request_list submitted;
    uint64_t cancels[CANCELS_MOST]; /* ids that the I/O thread is to cancel */
    uint32_t n_cancels;
    TAILQ_HEAD(loan_list, loan) loans;
    struct conn_command *commands;
    struct conn_hello *hello;
    bool stands_in;       /* hello is what another shard said: this one has not answered yet */
    enum link_state link; /* the I/O thread changes it, and reads it without the mutex */
    int64_t lost_ns;      /* time at which the connection was lost */
    uint64_t reconnects;
    rp_error refusal; /* the broker's answer to HELLO, if it was an error */
    char held[300];   /* what the broker's replies waited for at held_ns */
    int64_t held_ns;

    /* I/O thread */
    void *dealer, *monitor;
    uint64_t monitor_serial;
    int64_t link_time;
    int64_t warn_time;     /* while no broker answers: when the log says so */
    int64_t warn_pause_ns; /* between the last two of these lines */
    char reason[128];      /* why the last attempt failed */
    uint32_t failures;
    bool host_found; /* the socket has had an address to connect to */
    uint64_t hello_id;
    bool reset_wanted;
    /* Number of the shard that the socket was opened for: its heartbeats and its thread follow from it. CONN_SHARD_UNKNOWN: the broker
     * is not known to be one of several. */
    uint32_t io_shard;
    bool pipe_ready; /* the last poll found a wake-up in the pipe */
    bool own_wake;   /* woken is this thread's own doing: the pipe has nothing of it */
    /* The socket may hold something: it is new, its descriptor was readable, or it was used since it was read until it was empty. */
    bool dealer_used, monitor_used;
    uint64_t n_replies; /* taken so far */
    struct requests pending;
    struct conn_reply other; /* the message that answers none of them: a notice, or an answer to HELLO */
    uint64_t taken;          /* id of the last request that another thread has submitted and this thread has taken */
    struct conn_part *parts;
    struct conn_trace tracing;
    struct conn_part asking; /* never attached: WHY is sent for it */
    int64_t asked_ns;
    struct rng rng;
};

/* ---- state */

bool conn_is_foreign(const struct conn *self)
{
    return self->forks != forks_count();
}

rp_status conn_check_process(const struct conn *self, rp_error *err)
{
    RP_TRY(conn_check_forks(self->forks, self->pid, err));
    return atomic_load(&self->ended) ? conn_stopped(err) : RP_OK;
}

rp_status conn_check_forks(uint32_t forks, pid_t pid, rp_error *err)
{
    if (forks == forks_count())
        return RP_OK;
    return err_set(err, RP_FAILED_PRECONDITION,
                   "this client belongs to process %ld, and this is process %ld: make a new client after fork",
                   (long)pid, (long)getpid());
}

const char *conn_endpoint(const struct conn *self)
{
    return __atomic_load_n(&self->endpoint, __ATOMIC_ACQUIRE);
}

void *conn_zmq_context(struct conn *self)
{
    return self->context;
}

struct trace *conn_trace(struct conn *self)
{
    return &self->trace;
}

bool conn_is_hosted(const struct conn *self)
{
    return self->broker.turn != NULL;
}

bool conn_is_inside(const struct conn *self)
{
    return conn_is_hosted(self) || strncmp(conn_endpoint(self), "inproc://", 9) == 0;
}

struct channel *conn_data_channel(struct conn *self)
{
    return conn_is_hosted(self) ? &self->broker.channels->data : NULL;
}

uint64_t conn_client_id(const struct conn *self)
{
    return self->client_id;
}

bool conn_has_key(const struct conn *self)
{
    return self->handshake.has_key;
}

uint32_t conn_shard(const struct conn *self)
{
    return __atomic_load_n(&self->shard, __ATOMIC_RELAXED); /* the I/O thread asks without a lock */
}

void conn_number(struct conn *self, uint32_t shard)
{
    __atomic_store_n(&self->shard, shard, __ATOMIC_RELAXED);
}

bool conn_is_ending(const struct conn *self)
{
    return atomic_load(&self->stopping);
}

bool conn_is_up(struct conn *self)
{
    pthread_mutex_lock(&self->mutex);
    bool up = self->link == LINK_UP;
    pthread_mutex_unlock(&self->mutex);
    return up;
}

bool conn_has_arena(const struct conn *self)
{
    return atomic_load_explicit(&self->has_arena, memory_order_relaxed);
}

bool conn_outcome(struct conn *self, rp_error *err)
{
    pthread_mutex_lock(&self->mutex);
    bool up = self->link == LINK_UP, named = strstr(self->refusal.text, self->endpoint) != NULL;
    if (!up && self->refusal.status != RP_OK)
        err_set(err, (rp_status)self->refusal.status, "%s%s%s", named ? "" : self->endpoint, named ? "" : ": ",
                self->refusal.text);
    pthread_mutex_unlock(&self->mutex);
    return up;
}

uint64_t conn_reconnects(struct conn *self)
{
    pthread_mutex_lock(&self->mutex);
    uint64_t n = self->reconnects;
    pthread_mutex_unlock(&self->mutex);
    return n;
}

int64_t conn_away_ns(struct conn *self)
{
    pthread_mutex_lock(&self->mutex);
    int64_t away = self->link == LINK_UP ? 0 : clock_ns() - self->lost_ns + 1;
    pthread_mutex_unlock(&self->mutex);
    return away;
}

struct conn_hello *conn_hello_ref(struct conn *self)
{
    pthread_mutex_lock(&self->mutex);
    struct conn_hello *hello = hello_ref(self->hello);
    pthread_mutex_unlock(&self->mutex);
    return hello;
}

void conn_stand_in(struct conn *self, struct conn_hello *from)
{
    pthread_mutex_lock(&self->mutex);
    self->stands_in = self->stands_in || !self->hello;
    self->hello = self->hello ? self->hello : hello_ref(from);
    pthread_mutex_unlock(&self->mutex);
}

uint64_t conn_instance(struct conn *self)
{
    pthread_mutex_lock(&self->mutex);
    uint64_t instance = self->stands_in ? 0 : self->hello->says->instance;
    pthread_mutex_unlock(&self->mutex);
    return instance;
}

void conn_waited_add(struct conn *self, int64_t ns)
{
    atomic_fetch_add_explicit(&self->waited_ns, (uint64_t)(ns > 0 ? ns : 0), memory_order_relaxed);
}

uint64_t conn_waited(const struct conn *self)
{
    return atomic_load_explicit(&self->waited_ns, memory_order_relaxed);
}

/* True if messages name the shard. */
static bool has_number(const struct conn *self)
{
    return conn_shards_several(self->shards) && conn_shard(self) != CONN_SHARD_UNKNOWN;
}

const char *conn_title(const struct conn *self)
{
    static _Thread_local char text[300];
    if (has_number(self))
        snprintf(text, sizeof text, "shard %u at %s", self->shard, conn_endpoint(self));
    else
        snprintf(text, sizeof text, "the broker at %s", conn_endpoint(self));
    return text;
}

void conn_describe(struct conn *self, char *out, size_t size)
{
    pthread_mutex_lock(&self->mutex);
    double lost_s = (double)(clock_ns() - self->lost_ns) / 1e9;
    const char *reason = self->refusal.text, *colon = reason[0] ? ": " : "";
    if (self->link == LINK_UP)
        snprintf(out, size, "%s", clock_ns() - self->held_ns < HELD_NS ? self->held : "");
    else if (strstr(reason, self->endpoint)) /* it answers, and the sentence says who, and why it is refused */
        snprintf(out, size, "%s", reason);
    else if (has_number(self) && (!self->hello || self->stands_in)) /* who knows since when */
        snprintf(out, size, "shard %u at %s does not answer (tried for %.1f s)%s%s", self->shard, self->endpoint,
                 lost_s, colon, reason);
    else if (has_number(self))
        snprintf(out, size, "shard %u at %s has not answered for %.1f s%s%s", self->shard, self->endpoint, lost_s,
                 colon, reason);
    else
        snprintf(out, size, "no broker answers at %s for %.1f s%s%s", self->endpoint, lost_s, colon, reason);
    pthread_mutex_unlock(&self->mutex);
}

const char *conn_hint(struct conn *self)
{
    pthread_mutex_lock(&self->mutex);
    bool known = self->hello && !self->stands_in;
    pthread_mutex_unlock(&self->mutex);
    return atomic_load(&self->host_unknown) ? "the name of its host cannot be resolved here, or no network leads there"
                                            : (known ? "has it stopped? Its log says why"
                                                     : "is replay-broker running, and is this its service endpoint?");
}

/* ---- requests in flight (I/O thread) */

/* Returns the id up to which all samples were read or cancelled. Samples that another thread has just submitted have higher ids than
 * all that were taken. */
static uint64_t settled(const struct conn *self)
{
    uint64_t unread = atomic_load(&self->unread);
    return unread ? unread - 1 : self->taken;
}

static void transmit(struct conn *self, struct conn_request *request)
{
    struct port to = {self->dealer, self->broker.channels ? &self->broker.channels->requests : NULL};
    request->traced_ns = trace_now(&self->trace);
    self->dealer_used = true; /* sending processes the socket's commands, and a reply may be among them */
    /* A request that the socket does not take is sent again after the reconnect, which is due. */
    if (!request_transmit(request, to, request->sent ? 0 : settled(self)) && to.channel)
        conn_reset(self, "no memory");
}

/* Sends a request whose answer is not waited for with the others. False: no memory. */
static bool send_untracked(struct conn *self, const struct conn_message *message, uint64_t id)
{
    struct conn_request *request = request_new(self->client_id, message);
    if (!request)
        return false;
    request_name(request, id);
    transmit(self, request);
    request_free(request);
    return true;
}

static void on_why(void *ctx, struct conn_reply *reply)
{
    struct conn *self = (struct conn *)(void *)((char *)ctx - offsetof(struct conn, asking));
    Replay__WhyReply *why;
    conn_reply_read(reply, REPLAY__REPLY__BODY_WHY, &why, NULL);
    pthread_mutex_lock(&self->mutex);
    if (why) { /* they may wait no more */
        self->held[0] = '\0';
        self->held_ns = clock_ns();
    }
    for (size_t i = 0; why && i < why->n_waits; i++)
        if (strcmp(why->waits[i]->kind, "journal") == 0)
            snprintf(self->held, sizeof self->held, "%s", why->waits[i]->text);
    pthread_mutex_unlock(&self->mutex);
    unpack_free((ProtobufCMessage *)why);
    conn_reply_destroy(&reply);
}

/* Asks what holds the reply back if a request is about to expire, or, sent for a part, waits long. Returns when to look at it again. */
static int64_t ask_why(struct conn *self, const struct conn_request *request, int64_t at, int64_t now_ns)
{
    int64_t ms = request->timeout_ms < LONG_MS ? request->timeout_ms : LONG_MS;
    bool asks = request->field == REPLAY__REQUEST__BODY_WHY; /* itself */
    if (asks || request->cancelled || self->link != LINK_UP || ms < 0)
        return at;
    int64_t half = ms * NS_PER_MS / 2, ask = at - (request->part || half < ASK_NS ? half : ASK_NS);
    if (ask > now_ns)
        return ask;
    static const struct conn_message message = {.field = REPLAY__REQUEST__BODY_WHY, .timeout_ms = 1000};
    if (now_ns - self->asked_ns >= (request->part ? ASK_AGAIN_NS : ASK_NS) &&
        conn_send_once(self, &self->asking, &message, on_why))
        self->asked_ns = now_ns;
    return at;
}

static int64_t expire_requests(struct conn *self, int64_t now_ns)
{
    int64_t next = INT64_MAX;
    for (struct conn_request *request = TAILQ_FIRST(&self->pending.list), *after; request; request = after) {
        after = TAILQ_NEXT(request, link);
        int64_t at = request->deadline_ns - (self->link == LINK_UP ? 0 : request->grace_ns);
        if (at > now_ns) {
            at = ask_why(self, request, at, now_ns);
            next = at < next ? at : next;
            continue;
        }
        char text[sizeof request->reply.text];
        requests_take(&self->pending, request->id);
        conn_describe(self, text, sizeof text);
        if (request->cancelled)
            request_end(request, RP_CANCELLED, "cancelled by the caller");
        else if (self->link != LINK_UP)
            request_end(request, RP_UNAVAILABLE, "%s", text);
        else
            request_end(request, RP_DEADLINE_EXCEEDED, "%s has not answered within %lld ms%s%s", conn_title(self),
                        (long long)request->timeout_ms, text[0] ? ": " : "", text);
        after = TAILQ_FIRST(&self->pending.list); /* a reply function may have sent a request */
        next = INT64_MAX;
    }
    return next;
}

static void send_cancel(struct conn *self, uint64_t id)
{
    Replay__Cancel body = REPLAY__CANCEL__INIT;
    body.n_id = 1;
    body.id = &id;
    struct conn_message message = {.field = REPLAY__REQUEST__BODY_CANCEL, .body = &body.base, .timeout_ms = -1};
    send_untracked(self, &message, atomic_fetch_add(&self->next_id, 1));
}

static void drop_once(struct conn *self, const struct conn_part *part, bool tell)
{
    for (struct conn_request *request = TAILQ_FIRST(&self->pending.list), *after; request; request = after) {
        after = TAILQ_NEXT(request, link);
        if (!request->part || (part && request->part != part))
            continue;
        requests_take(&self->pending, request->id);
        if (tell) {
            request_end(request, RP_UNAVAILABLE, "the connection to %s was lost", self->endpoint);
            continue;
        }
        if (request->deadline_ns == INT64_MAX && self->link == LINK_UP)
            send_cancel(self, request->id); /* it might wait at the broker for ever */
        request_free(request);
    }
}

static void cancel_request(struct conn *self, uint64_t id, int64_t now_ns)
{
    struct conn_request *request = requests_find(&self->pending, id);
    if (!request || request->cancelled)
        return;
    request->cancelled = true;
    int64_t grace = self->link == LINK_UP ? now_ns + CANCEL_GRACE_MS * NS_PER_MS : now_ns;
    if (grace < request->deadline_ns)
        request->deadline_ns = grace;
    if (self->link != LINK_UP)
        return;
    send_cancel(self, id);
}

uint64_t conn_send_once(struct conn *self, struct conn_part *part, const struct conn_message *message,
                        conn_reply_fn *fn)
{
    struct conn_request *request = self->link == LINK_UP ? request_new(self->client_id, message) : NULL;
    if (!request)
        return 0;
    uint64_t id = message->again ? message->again : atomic_fetch_add(&self->next_id, 1);
    request_name(request, id);
    request->fn = fn;
    request->ctx = request->part = part;
    requests_add(&self->pending, request);
    transmit(self, request);
    return id;
}

/* ---- the client's part in a trace
 *
 * The client hears of the trace by a reply, compares its clock with the broker's, and sends its spans at the end. If the connection
 * is lost meanwhile, or the broker refuses, the spans are dropped: a trace is never worth a wait. */

/* Spans of one client, and of one message. */
#define SPANS_MOST 16384u
#define SPANS_PER_MESSAGE 4096u
/* Round trips that compare the clocks: the shortest counts. */
#define TRIPS 8u
#define ANSWER_MS 5000
/* A longer trace than a broker records. */
#define DURATION_MOST (INT64_C(3600) * NS_PER_S)

static void trace_leave(struct conn *self)
{
    struct trace_list rest;
    trace_stop(&self->trace, &rest);
    trace_list_fini(&rest);
    trace_list_fini(&self->tracing.list);
    self->tracing = (struct conn_trace){.last = self->tracing.number ? self->tracing.number : self->tracing.last};
}

static void on_trace_answer(void *ctx, struct conn_reply *reply)
{
    struct conn_part *part = ctx;
    struct conn *self = (struct conn *)(void *)((char *)part - offsetof(struct conn, tracing.part));
    self->tracing.sending = false;
    if (reply->status != RP_OK || (self->tracing.list.spans && self->tracing.sent == self->tracing.list.n))
        trace_leave(self);
    conn_reply_destroy(&reply);
}

/* Sends the next n spans, or none in order to take part and to compare the clocks. */
static void send_spans(struct conn *self, uint32_t n)
{
    struct conn_trace *trace = &self->tracing;
    struct trace_list *list = &trace->list;
    Replay__TraceSpans body = REPLAY__TRACE_SPANS__INIT;
    char *texts[TRACE_TEXTS];
    zmq_msg_t frame;
    for (uint32_t i = 0; i < list->n_texts; i++)
        texts[i] = list->texts[i];
    body.trace = trace->number;
    body.name = self->name;
    body.pid = (uint32_t)self->pid;
    body.text = texts;
    body.n_text = list->n_texts;
    body.dropped = list->dropped;
    if (trace->trip_ns != INT64_MAX) {
        body.offset_ns = trace->offset_ns;
        body.uncertainty_ns = (uint64_t)(trace->trip_ns + 1) / 2;
    }
    body.last = list->spans && trace->sent + n == list->n;
    if (!message_copy(&frame, list->spans ? list->spans + trace->sent : NULL, n * sizeof *list->spans)) {
        trace_leave(self);
        return;
    }
    struct conn_message message = {.field = REPLAY__REQUEST__BODY_TRACE_SPANS,
                                   .body = &body.base,
                                   .payload = &frame,
                                   .n_payload = n ? 1 : 0,
                                   .timeout_ms = ANSWER_MS};
    trace->sent += n;
    trace->sending = conn_send_once(self, &trace->part, &message, on_trace_answer);
    zmq_msg_close(&frame);
    if (!trace->sending)
        trace_leave(self);
}

static int64_t trace_tick(struct conn *self, int64_t now_ns)
{
    struct conn_trace *trace = &self->tracing;
    if (trace->sending)
        return INT64_MAX; /* the answer wakes this thread */
    if (now_ns < trace->end_ns) {
        if (trace->trips++ >= TRIPS)
            return trace->end_ns;
        send_spans(self, 0);
        return INT64_MAX;
    }
    if (!trace->list.spans)
        trace_stop(&self->trace, &trace->list);
    uint32_t left = trace->list.n - trace->sent;
    send_spans(self, left < SPANS_PER_MESSAGE ? left : SPANS_PER_MESSAGE);
    return INT64_MAX;
}

static void trace_told(struct conn *self, const struct wire_reply *reply, int64_t sent_ns)
{
    struct conn_trace *trace = &self->tracing;
    ProtobufCMessage *message;
    if (unpack(&replay__tracing__descriptor, reply->tracing.data, reply->tracing.size, &message) != RP_OK)
        return;
    const Replay__Tracing *told = (const Replay__Tracing *)message;
    int64_t now = clock_ns(), left = (int64_t)(told->end_ns - told->now_ns);
    bool fresh = !trace->number && told->trace && told->trace != trace->last && left > 0 && left < DURATION_MOST;
    if (fresh && trace_start(&self->trace, SPANS_MOST)) {
        trace->number = told->trace;
        trace->end_ns = now + left;
        trace->trip_ns = INT64_MAX;
    }
    if (trace->number == told->trace && sent_ns && now - sent_ns < trace->trip_ns) {
        /* Compare the clocks: the broker's reading was made at some time between sending and receiving. */
        trace->trip_ns = now - sent_ns;
        trace->offset_ns = (int64_t)told->now_ns - (sent_ns + trace->trip_ns / 2);
        /* Processes of one machine have one clock: an offset that may be 0 is 0. */
        if (llabs(trace->offset_ns) <= (trace->trip_ns + 1) / 2)
            trace->offset_ns = 0;
    }
    unpack_free(message);
}

/* ---- the link: opens the service socket, watches it, and reopens it with exponential back-off and jitter */

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

bool conn_connect(const struct conn *self, void *socket, const char *endpoint)
{
    int ipv6 = endpoint_is_ipv6(endpoint);
    /* Gives the sockets of each shard a thread of the context. libzmq would choose the thread with the fewest sockets, but connections
     * that begin at the same time do not count yet: several shards got one thread, while others had nothing to do. */
    bool is_shard = self->io_shard != CONN_SHARD_UNKNOWN;
    int threads = is_shard ? zmq_ctx_get(self->context, ZMQ_IO_THREADS) : 1;
    uint64_t mask = UINT64_C(1) << (threads > 1 ? self->io_shard % (uint32_t)(threads < 64 ? threads : 64) : 0);
    return zmq_setsockopt(socket, ZMQ_IPV6, &ipv6, sizeof ipv6) == 0 && handshake_secure(&self->handshake, socket) &&
           (threads <= 1 || zmq_setsockopt(socket, ZMQ_AFFINITY, &mask, sizeof mask) == 0) &&
           zmq_connect(socket, endpoint) == 0;
}

static char *host_of(const char *endpoint)
{
    static const char tcp[] = "tcp://";
    if (strncmp(endpoint, tcp, sizeof tcp - 1) != 0)
        return NULL;
    const char *start = endpoint + sizeof tcp - 1, *local = strchr(start, ';'), *colon = strrchr(start, ':');
    if (local && local < colon)
        start = local + 1;
    return colon ? strndup(start, (size_t)(colon - start)) : NULL;
}

/* A shard that has moved is looked for at its old and its new endpoint in turn. */
static void change_endpoint(struct conn *self)
{
    const char *moved = conn_shards_moved(self->shards, conn_shard(self)),
               *next = self->endpoint == moved ? self->home : moved;
    if (!next)
        return;
    pthread_mutex_lock(&self->mutex);
    __atomic_store_n(&self->endpoint, next, __ATOMIC_RELEASE);
    pthread_mutex_unlock(&self->mutex);
    free(self->host);
    self->host = host_of(self->endpoint);
}

/* From now on a broker is expected to answer: the log says so if it does not. */
static void link_expect(struct conn *self, int64_t now_ns)
{
    self->warn_pause_ns = WARN_FIRST_NS;
    self->warn_time = now_ns + self->warn_pause_ns;
}

static void link_monitor(struct conn *self)
{
    char address[80];
    int events = ZMQ_EVENT_CONNECT_DELAYED | ZMQ_EVENT_CONNECT_RETRIED | ZMQ_EVENT_DISCONNECTED |
                 ZMQ_EVENT_HANDSHAKE_FAILED_NO_DETAIL | ZMQ_EVENT_HANDSHAKE_FAILED_PROTOCOL |
                 ZMQ_EVENT_HANDSHAKE_FAILED_AUTH;
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

/* Opens and connects the socket. Returns the reason if that fails, else NULL. */
static const char *link_connect(struct conn *self)
{
    self->dealer = zmq_socket(self->context, ZMQ_DEALER);
    if (!self->dealer)
        return "no socket";
    option(self->dealer, ZMQ_LINGER, 0);
    option(self->dealer, ZMQ_SNDHWM, 0); /* the callers bound what is in flight */
    option(self->dealer, ZMQ_RCVHWM, 0);
    option(self->dealer, ZMQ_HEARTBEAT_IVL, self->io_shard != CONN_SHARD_UNKNOWN ? SHARD_PING_MS : PING_MS);
    option(self->dealer, ZMQ_HEARTBEAT_TIMEOUT,
           self->io_shard != CONN_SHARD_UNKNOWN ? SHARD_PING_TIMEOUT_MS : PING_TIMEOUT_MS);
    link_monitor(self);
    self->dealer_used = self->monitor_used = true;
    self->host_found = false;
    return conn_connect(self, self->dealer, self->endpoint) ? NULL : zmq_strerror(zmq_errno());
}

static void link_close(struct conn *self)
{
    if (self->link == LINK_UP)
        conn_shards_leave(self->shards);
    if (self->monitor) {
        zmq_socket_monitor(self->dealer, NULL, 0);
        zmq_close(self->monitor);
    }
    if (self->dealer)
        zmq_close(self->dealer);
    self->monitor = self->dealer = NULL;
}

/* Says in the log that no broker answers: a caller without a time-out would wait in silence. */
static void link_warn(struct conn *self, int64_t now_ns)
{
    int64_t pause = 2 * self->warn_pause_ns;
    self->warn_pause_ns = pause < WARN_PAUSE_MOST_NS ? pause : WARN_PAUSE_MOST_NS;
    self->warn_time = now_ns + self->warn_pause_ns;
    bool refused = self->refusal.status != RP_OK;
    log_line(LEVEL_WARN, "C0106", refused ? "still refused; still trying" : "no broker answers; still trying",
             "endpoint=%s waited_s=%.0f reason=%s hint=\"%s\"", self->endpoint, (double)(now_ns - self->lost_ns) / 1e9,
             log_text(self->reason[0] ? self->reason : "no answer"), conn_hint(self));
}

static void set_link(struct conn *self, enum link_state state, int64_t now_ns)
{
    pthread_mutex_lock(&self->mutex);
    bool was_up = self->link == LINK_UP;
    self->link = state;
    if (was_up)
        self->lost_ns = now_ns;
    pthread_cond_broadcast(&self->changed);
    pthread_mutex_unlock(&self->mutex);
    if (was_up)
        link_expect(self, now_ns);
    conn_shards_signal(self->shards);
}

static void link_fail(struct conn *self, const char *why, int64_t now_ns)
{
    bool was_up = self->link == LINK_UP;
    int64_t pause = self->backoff_min_ns;
    for (uint32_t i = 0; i < self->failures && pause < self->backoff_max_ns; i++)
        pause *= 2;
    pause = pause < self->backoff_max_ns ? pause : self->backoff_max_ns;
    link_close(self);
    self->link_time = now_ns + (int64_t)((double)pause * (0.5 + 0.5 * rng_unit(&self->rng)));
    self->failures++;
    self->reset_wanted = false;
    snprintf(self->reason, sizeof self->reason, "%s", why);
    set_link(self, LINK_DOWN, now_ns);
    if (!was_up)
        return;
    log_line(LEVEL_WARN, "C0101", "connection lost", "endpoint=%s reason=%s", self->endpoint, log_text(why));
    drop_once(self, NULL, true);
    for (struct conn_part *part = self->parts; part; part = part->next)
        part->ops->down(part);
}

static void link_refused(struct conn *self, const rp_error *refusal, int64_t now_ns)
{
    pthread_mutex_lock(&self->mutex);
    bool news = self->hello && strcmp(self->refusal.text, refusal->text) != 0;
    self->refusal = *refusal;
    pthread_mutex_unlock(&self->mutex);
    if (news)
        log_line(LEVEL_WARN, "C0104", "connection refused", "endpoint=%s reason=%s", self->endpoint,
                 log_text(refusal->text));
    link_fail(self, refusal->text, now_ns);
}

static void link_say_hello(struct conn *self)
{
    Replay__Hello body = REPLAY__HELLO__INIT;
    body.name = self->name;
    struct conn_message message = {.field = REPLAY__REQUEST__BODY_HELLO, .body = &body.base, .timeout_ms = -1};
    self->hello_id = atomic_fetch_add(&self->next_id, 1);
    if (!send_untracked(self, &message, self->hello_id)) {
        rp_error refusal = {0};
        err_set(&refusal, RP_NO_MEMORY, "no memory to say HELLO to a broker");
        link_refused(self, &refusal, clock_ns());
    }
}

static void link_open(struct conn *self, int64_t now_ns)
{
    if (self->failures > 0)
        change_endpoint(self);
    const char *why = conn_is_hosted(self) ? NULL : link_connect(self);
    if (why) {
        link_fail(self, why, now_ns);
        return;
    }
    set_link(self, LINK_ASKING, now_ns);
    self->link_time = now_ns + ATTEMPT_NS;
    link_say_hello(self);
}

/* Makes the answer to HELLO the newest. */
static void take_hello(struct conn *self, struct conn_hello *hello)
{
    pthread_mutex_lock(&self->mutex);
    struct conn_hello *old = self->hello;
    bool again = old && !self->stands_in;
    self->hello = hello;
    self->stands_in = false;
    hello->arena = conn_arena_map(old ? old->arena : NULL, hello->says->arena, conn_is_inside(self));
    atomic_store(&self->has_arena, hello->arena != NULL);
    self->refusal = (rp_error){0};
    self->reconnects += again;
    pthread_mutex_unlock(&self->mutex);
    if (again) {
        conn_shards_compare(self->shards, old, hello);
        log_line(LEVEL_INFO, "C0102", "connected again", "endpoint=%s restarted=%s", self->endpoint,
                 old->says->instance == hello->says->instance ? "no" : "yes");
    } else if (old) {
        log_line(LEVEL_INFO, "C0105", "connected to a late shard", "endpoint=%s shard=%u", self->endpoint,
                 hello->says->shard);
    }
    conn_hello_unref(&old);
}

static void link_answer(struct conn *self, const struct conn_reply *reply)
{
    rp_error refusal = {0};
    int64_t now = clock_ns();
    struct conn_hello *hello = NULL;
    self->hello_id = 0;
    if (conn_reply_status(reply, &refusal) == RP_OK)
        hello = hello_read(reply, self->host, &refusal);
    if (self->link == LINK_UP) {
        if (hello)
            handshake_announced(&self->handshake, &hello->says->next_key);
        conn_hello_unref(&hello);
        return;
    }
    if (hello && hello->says->n_shards > 1 && self->io_shard == CONN_SHARD_UNKNOWN && self->dealer) {
        self->io_shard =
            hello->says->shard; /* once a socket is connected, its heartbeats and thread cannot be changed */
        conn_hello_unref(&hello);
        link_close(self);
        link_open(self, now);
        return;
    }
    if (!hello || conn_shards_join(self->shards, self->endpoint, hello, &self->shard, &refusal) != RP_OK) {
        conn_hello_unref(&hello);
        link_refused(self, &refusal, now);
        return;
    }
    self->link_time = now + KEY_NEWS_NS;
    self->failures = self->handshake.broken = 0;
    handshake_announced(&self->handshake, &hello->says->next_key);
    take_hello(self, hello);
    set_link(self, LINK_UP, now);
    for (struct conn_part *part = self->parts; part; part = part->next)
        part->ops->up(part, hello);
    for (struct conn_request *request = TAILQ_FIRST(&self->pending.list); request; request = TAILQ_NEXT(request, link))
        if (!request->cancelled)
            transmit(self, request);
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

static void link_watch(struct conn *self, int64_t now_ns)
{
    uint16_t event, failed = 0;
    uint32_t value, failed_value = 0;
    const char *why = NULL;
    if (!self->monitor_used)
        return;
    self->monitor_used = false;
    while (next_event(self, &event, &value)) {
        if (event == ZMQ_EVENT_CONNECT_DELAYED) {
            self->host_found = true;
            atomic_store(&self->host_unknown, false);
        } else if (event == ZMQ_EVENT_CONNECT_RETRIED) {
            bool unknown = self->host && !self->host_found;
            atomic_store(&self->host_unknown, unknown);
            why = why ? why : unknown ? "unknown host" : "connection refused"; /* what came before it says more */
        } else if (event == ZMQ_EVENT_DISCONNECTED && self->link == LINK_UP) {
            why = "disconnected";
        } else if (event && failed != ZMQ_EVENT_HANDSHAKE_FAILED_AUTH &&
                   !(failed && event == ZMQ_EVENT_DISCONNECTED)) { /* the event before that one says more */
            failed = event;
            failed_value = value;
        }
    }
    rp_error refusal = {0};
    if (!failed) {
        if (why)
            link_fail(self, why, now_ns);
    } else if (!handshake_failed(&self->handshake, self->endpoint, failed, failed_value, &refusal)) {
        link_fail(self, "the broker has another key", now_ns); /* the next one is tried at once */
        self->link_time = now_ns + self->backoff_min_ns;
    } else if (refusal.status == RP_PERMISSION_DENIED) {
        link_refused(self, &refusal, now_ns);
    } else {
        link_fail(self, refusal.text, now_ns);
    }
}

void conn_reset(struct conn *self, const char *why)
{
    if (!self->reset_wanted && self->link == LINK_UP)
        log_line(LEVEL_WARN, "C0103", "giving up a connection", "endpoint=%s reason=%s", self->endpoint, log_text(why));
    self->reset_wanted = true;
}

static void link_step(struct conn *self, int64_t now_ns)
{
    if (self->link == LINK_UP && self->reset_wanted)
        link_fail(self, "given up", now_ns);
    if (self->link == LINK_ASKING && now_ns >= self->link_time)
        link_fail(self, "no answer", now_ns);
    if (self->link == LINK_DOWN && now_ns >= self->link_time)
        link_open(self, now_ns);
    if (self->link != LINK_UP && now_ns >= self->warn_time)
        link_warn(self, now_ns);
    if (self->link == LINK_UP && self->handshake.has_key && now_ns >= self->link_time) {
        self->link_time = now_ns + KEY_NEWS_NS;
        link_say_hello(self);
    }
}

/* ---- the I/O thread */

/* The connection whose I/O thread this is; NULL: none. */
static _Thread_local struct conn *served;

/* One wake-up serves all callers until the thread takes it, in take_submitted. So callers submit before they wake the thread,
 * and the thread looks at what was submitted after it has taken the wake-up. The thread takes what it submits itself, in a reply
 * function, before it sleeps. */
void conn_wake(struct conn *self)
{
    if (atomic_exchange(&self->woken, true) || self->wake_write < 0)
        return;
    if (served == self) {
        self->own_wake = true;
        return;
    }
    ssize_t n = write(self->wake_write, "", 1);
    (void)n; /* a full pipe wakes too */
}

static void take_commands(struct conn *self, struct conn_command *commands)
{
    for (struct conn_command *command = commands, *next; command; command = next) {
        next = command->next;
        struct conn_part *part = command->part;
        if (command->attach) {
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
            drop_once(self, part, false);
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
    bool reads = self->wake_read >= 0 && (self->pipe_ready || !self->own_wake);
    while (reads && read(self->wake_read, drained, sizeof drained) == sizeof drained)
        ;
    atomic_store(&self->woken, false);
    self->pipe_ready = self->own_wake = false;
    pthread_mutex_lock(&self->mutex);
    struct request_list submitted = TAILQ_HEAD_INITIALIZER(submitted);
    TAILQ_CONCAT(&submitted, &self->submitted, link);
    struct conn_command *commands = self->commands;
    self->commands = NULL;
    uint64_t cancels[CANCELS_MOST];
    uint32_t n_cancels = self->n_cancels;
    memcpy(cancels, self->cancels, n_cancels * sizeof cancels[0]);
    self->n_cancels = 0;
    if (n_cancels == CANCELS_MOST)
        pthread_cond_broadcast(&self->changed);
    pthread_mutex_unlock(&self->mutex);

    for (struct conn_request *request = TAILQ_FIRST(&submitted), *next; request; request = next) {
        next = TAILQ_NEXT(request, link);
        self->taken = request->id > self->taken ? request->id : self->taken; /* an earlier one may be sent again */
        requests_add(&self->pending, request);
        if (self->link == LINK_UP)
            transmit(self, request);
    }
    for (uint32_t i = 0; i < n_cancels; i++)
        cancel_request(self, cancels[i], now_ns);
    take_commands(self, commands);
}

/* Takes out the request that this status ends. NULL: there is none, or the request stays and is retried with its id. So the
 * items picked for a sample are not lost: a broker that shuts down sends them when it is back, and a broker that believed
 * the connection lost sends them at once. */
static struct conn_request *take_answered(struct conn *self, uint64_t id, rp_status status)
{
    struct conn_request *request = requests_find(&self->pending, id);
    if (!request)
        return NULL;
    if (status == RP_NO_MEMORY && !request->again && !request->cancelled) { /* a retry carries nothing out twice */
        request->again = true;
        transmit(self, request);
        return NULL;
    }
    bool again = request->field == REPLAY__REQUEST__BODY_SAMPLE && !request->cancelled;
    if (again && status == RP_UNAVAILABLE)
        transmit(self, request);
    if (again && (status == RP_UNAVAILABLE || status == RP_CANCELLED))
        return NULL;
    return requests_take(&self->pending, id);
}

static void take_reply(struct conn *self, struct conn_reply *reply)
{
    uint64_t id = reply->view.id;
    if (reply->view.tracing.size) {
        const struct conn_request *request = requests_find(&self->pending, id);
        trace_told(self, &reply->view, request ? request->traced_ns : 0);
    }
    if (id == 0) {                       /* a notice */
        ProtobufCMessage *credit = NULL; /* without memory the next heartbeat brings the same numbers */
        if (reply->view.body == REPLAY__REPLY__BODY_CREDIT)
            unpack(&replay__credit__descriptor, reply->view.data, reply->view.size, &credit);
        for (struct conn_part *part = self->parts; part && credit; part = part->next)
            if (part->ops->notice)
                part->ops->notice(part, (const Replay__Credit *)credit);
        unpack_free(credit);
    } else if (id == self->hello_id) {
        link_answer(self, reply);
    } else {
        struct conn_request *request = take_answered(self, id, reply->status);
        if (request) {
            if (request->traced_ns) {
                const ProtobufCFieldDescriptor *field =
                    protobuf_c_message_descriptor_get_field(&replay__request__descriptor, request->field);
                trace_add(&self->trace, field ? field->name : "request", "requests",
                          &(struct trace_span){.start_ns = request->traced_ns,
                                               .duration_ns = clock_ns() - request->traced_ns,
                                               .id = request->id,
                                               .link = TRACE_REQUEST});
            }
            if (request->field == REPLAY__REQUEST__BODY_SAMPLE && self->hello)
                reply->arena = conn_arena_ref(self->hello->arena);
            request_answer(request);
            return;
        }
    }
    reply_clear(reply);
}

static void take_replies(struct conn *self)
{
    struct conn_reply *reply;
    for (int i = 0; i < DRAIN_REPLIES; i++) {
        struct port from = {self->dealer, self->broker.channels ? &self->broker.channels->replies : NULL};
        bool open = from.channel || (from.socket && self->dealer_used);
        if (!open || !requests_receive(&self->pending, from, &self->other, &reply)) {
            self->dealer_used = false;
            return;
        }
        self->n_replies++;
        if (reply)
            take_reply(self, reply);
    }
}

static int64_t turn(struct conn *self)
{
    int64_t now = clock_ns();
    take_submitted(self, now);
    /* Only now: a stop that came while take_submitted took a wake-up has sent no wake-up of its own. */
    if (atomic_load(&self->stopping))
        return now;
    link_watch(self, now);
    link_step(self, now);
    take_replies(self);
    if (self->own_wake)
        take_submitted(self, now);
    int64_t next = expire_requests(self, now);
    for (struct conn_part *part = self->parts; part; part = part->next) {
        int64_t at = part->ops->tick(part, now);
        next = at < next ? at : next;
    }
    if (self->tracing.number) {
        int64_t trace = trace_tick(self, now);
        next = trace < next ? trace : next;
    }
    if (self->reset_wanted)
        next = now;
    if (self->link != LINK_UP || self->handshake.has_key)
        next = self->link_time < next ? self->link_time : next;
    if (self->link != LINK_UP)
        next = self->warn_time < next ? self->warn_time : next;
    return next;
}

/* At the end; and for those who wait for an answer after it, when there is no other thread that could. */
static void end_submitted(struct conn *self)
{
    self->pipe_ready = true;
    take_submitted(self, 0);
    while (TAILQ_FIRST(&self->pending.list))
        request_end(requests_take(&self->pending, TAILQ_FIRST(&self->pending.list)->id), RP_CANCELLED,
                    "the client is being closed");
}

/* The sockets of a part that is still there would keep libzmq from ending. */
static void finish(struct conn *self)
{
    end_submitted(self);
    for (struct conn_part *part = self->parts; part; part = part->next)
        part->ops->down(part);
    link_close(self);
    set_link(self, LINK_DOWN, clock_ns());
}

/* What the I/O thread waits for: see socket_fd. */

#define MOST_MS 60000

enum { POLL_PIPE, POLL_DEALER, POLL_MONITOR, POLL_PARTS, POLL_MOST = 64 };

/* Returns the milliseconds until a time, at most `most`. */
static int ms_until(int64_t until_ns, int most)
{
    int64_t left_ms = conn_left_ms(until_ns);
    return left_ms >= 0 && left_ms < most ? (int)left_ms : most;
}

/* Waits until there is something to do, or until the time has come. */
static void wait_for_work(struct conn *self, int64_t until_ns)
{
    self->dealer_used = self->dealer_used && socket_has(self->dealer, ZMQ_POLLIN);
    self->monitor_used = self->monitor_used && socket_has(self->monitor, ZMQ_POLLIN);
    bool ready = self->dealer_used || self->monitor_used || self->own_wake;
    struct pollfd fds[POLL_MOST];
    fds[POLL_PIPE] = (struct pollfd){.fd = self->wake_read, .events = POLLIN};
    fds[POLL_DEALER] = (struct pollfd){.fd = socket_fd(self->dealer), .events = POLLIN};
    fds[POLL_MONITOR] = (struct pollfd){.fd = socket_fd(self->monitor), .events = POLLIN};
    nfds_t n = POLL_PARTS;
    for (struct conn_part *part = self->parts; part && n < POLL_MOST; part = part->next) {
        void *socket = part->ops->full ? part->ops->full(part) : NULL;
        if (!socket)
            continue;
        fds[n++] = (struct pollfd){.fd = socket_fd(socket), .events = POLLIN};
        ready |= socket_has(socket, ZMQ_POLLOUT);
    }
    int most = n < POLL_MOST ? MOST_MS : 1; /* parts for which there is no room try again after a short sleep */
    poll(fds, n, ready ? 0 : until_ns == INT64_MAX && n < POLL_MOST ? -1 : ms_until(until_ns, most));
    self->pipe_ready = fds[POLL_PIPE].revents != 0;
    self->dealer_used |= fds[POLL_DEALER].revents != 0;
    self->monitor_used |= fds[POLL_MONITOR].revents != 0;
}

static void *io_main(void *arg)
{
    struct conn *self = served = arg;
    for (;;) {
        int64_t next = turn(self);
        if (atomic_load(&self->stopping))
            break;
        wait_for_work(self, next);
    }
    finish(self);
    return NULL;
}

/* ---- waits of the callers */

/* Longest sleep of a host before the connection does its own work again, and of a caller before it looks whether there still is one. */
#define HOST_SLEEP_MS 100
#define LOOK_NS NS_PER_S

/* Does the thread's work: sends what was submitted, lets the host run, and takes its replies. If there is no reply, the host
 * sleeps. */
static void serve(struct conn *self, int64_t deadline_ns)
{
    uint64_t seen = self->n_replies;
    int wait_ms = 0;
    turn(self);
    for (int i = 0; i < 2 && self->n_replies == seen; i++) {
        self->broker.turn(self->broker.ctx, wait_ms);
        int64_t next = turn(self);
        wait_ms = ms_until(next < deadline_ns ? next : deadline_ns, HOST_SLEEP_MS);
    }
}

/* Waits until the condition is signalled or the time has come, without the function of rp_wait_set. */
static bool wait_once(struct conn *self, pthread_cond_t *cond, pthread_mutex_t *mutex, int64_t until_ns)
{
    if (!self->broker.turn)
        return conn_cond_wait(cond, mutex, until_ns);
    pthread_mutex_unlock(mutex);
    serve(self, until_ns);
    pthread_mutex_lock(mutex);
    return until_ns == INT64_MAX || clock_ns() < until_ns;
}

bool conn_wait(struct conn *self, pthread_cond_t *cond, pthread_mutex_t *mutex, int64_t deadline_ns)
{
    int64_t until = conn_watch_begin(deadline_ns), look = clock_ns() + LOOK_NS;
    if (atomic_load(&self->ended))
        return conn_watch_stop();
    bool in_time = wait_once(self, cond, mutex, until < look ? until : look);
    return conn_watch_end(mutex, deadline_ns, in_time || look < until);
}

void conn_look(struct conn *self)
{
    if (self->broker.turn)
        serve(self, 0);
}

/* ---- calls from other threads */

uint64_t conn_try_send(struct conn *self, const struct conn_message *message, conn_reply_fn *fn, void *ctx)
{
    struct conn_request *request = request_new(self->client_id, message);
    if (!request)
        return 0;
    request->fn = fn;
    request->ctx = ctx;
    pthread_mutex_lock(&self->mutex);
    uint64_t id = message->again ? message->again : atomic_fetch_add(&self->next_id, 1);
    request_name(request, id);
    TAILQ_INSERT_TAIL(&self->submitted, request, link);
    if (message->loan) {
        message->loan->id = id;
        TAILQ_INSERT_TAIL(&self->loans, message->loan, link);
        atomic_store(&self->unread, TAILQ_FIRST(&self->loans)->id);
    }
    pthread_mutex_unlock(&self->mutex);
    conn_wake(self);
    return id;
}

uint64_t conn_send(struct conn *self, const struct conn_message *message, conn_reply_fn *fn, void *ctx)
{
    uint64_t id = conn_try_send(self, message, fn, ctx);
    if (id)
        return id;
    fn(ctx, (struct conn_reply *)(uintptr_t)&reply_no_memory);
    return atomic_fetch_add(&self->next_id, 1);
}

void conn_loan_end(struct conn *self, struct loan *loan)
{
    if (!loan->id)
        return;
    pthread_mutex_lock(&self->mutex);
    TAILQ_REMOVE(&self->loans, loan, link);
    atomic_store(&self->unread, TAILQ_EMPTY(&self->loans) ? 0 : TAILQ_FIRST(&self->loans)->id);
    pthread_mutex_unlock(&self->mutex);
    loan->id = 0;
}

void conn_cancel(struct conn *self, uint64_t id)
{
    if (atomic_load(&self->ended))
        return;
    pthread_mutex_lock(&self->mutex);
    while (self->n_cancels == CANCELS_MOST)
        wait_once(self, &self->changed, &self->mutex, INT64_MAX); /* the I/O thread takes them soon */
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
    if (atomic_load(&self->ended))
        end_submitted(self);
    pthread_mutex_lock(&self->mutex);
    while (!command.done)
        wait_once(self, &self->changed, &self->mutex, INT64_MAX);
    pthread_mutex_unlock(&self->mutex);
}

void conn_hold(struct conn *self)
{
    atomic_fetch_add(&self->users, 1);
}

void conn_let_go(struct conn *self)
{
    atomic_fetch_sub(&self->users, 1);
}

uint32_t conn_users(struct conn *self)
{
    return atomic_load(&self->users);
}

void conn_attach(struct conn *self, struct conn_part *part)
{
    conn_hold(self);
    command_run(self, (struct conn_command){.part = part, .attach = true});
}

void conn_detach(struct conn *self, struct conn_part *part)
{
    command_run(self, (struct conn_command){.part = part});
    conn_let_go(self);
}

static void ticket_unref(struct conn_ticket *self)
{
    if (__atomic_sub_fetch(&self->refs, 1, __ATOMIC_ACQ_REL) != 0)
        return;
    conn_reply_destroy(&self->reply);
    free(self);
}

static void on_ticket_reply(void *ctx, struct conn_reply *reply)
{
    struct conn_ticket *self = ctx;
    pthread_mutex_lock(&self->conn->mutex);
    self->reply = reply;
    pthread_cond_broadcast(&self->conn->changed);
    pthread_mutex_unlock(&self->conn->mutex);
    ticket_unref(self);
}

struct conn_ticket *conn_ticket_new(struct conn *conn, const struct conn_message *message, rp_error *err)
{
    struct conn_ticket *self = calloc(1, sizeof *self);
    if (!self)
        return err_null(err, RP_NO_MEMORY, "no memory for a request");
    self->conn = conn;
    self->refs = 2;
    self->id = conn_try_send(conn, message, on_ticket_reply, self);
    if (self->id)
        return self;
    err_set(err, RP_NO_MEMORY, "no memory for a request");
    free(self);
    return NULL;
}

struct conn_reply *conn_ticket_await(struct conn_ticket *self, int64_t deadline_ns)
{
    struct conn *conn = self->conn;
    if (atomic_load(&conn->ended))
        end_submitted(conn);
    else if (deadline_ns == 0)
        conn_look(conn);
    pthread_mutex_lock(&conn->mutex);
    while (!self->reply && deadline_ns != 0 && conn_wait(conn, &conn->changed, &conn->mutex, deadline_ns))
        ;
    struct conn_reply *reply = self->reply;
    self->reply = NULL;
    pthread_mutex_unlock(&conn->mutex);
    return reply;
}

void conn_ticket_destroy(struct conn_ticket **self)
{
    if (*self && !conn_is_foreign((*self)->conn))
        ticket_unref(*self);
    *self = NULL;
}

rp_status conn_call(struct conn *self, const struct conn_message *message, struct conn_reply **out, rp_error *err)
{
    if (out)
        *out = NULL;
    RP_TRY(conn_check_process(self, err));
    struct conn_ticket *ticket = conn_ticket_new(self, message, err);
    if (!ticket)
        return RP_NO_MEMORY;
    struct conn_reply *reply = conn_ticket_await(ticket, INT64_MAX);
    if (!reply)
        conn_cancel(self, ticket->id);
    conn_ticket_destroy(&ticket);
    rp_status status = reply ? conn_reply_status(reply, err) : conn_stopped(err);
    if (status == RP_OK && out)
        *out = reply;
    else
        conn_reply_destroy(&reply);
    return status;
}

/* ---- life */

/* Longest back-off in milliseconds: a day. More is no help, and must not overflow in nanoseconds. */
#define BACKOFF_MOST_MS INT64_C(86400000)

/* The key that is given, or that of a key file. */
static rp_status load_key(struct conn *self, const struct conn_plan *plan, rp_error *err)
{
    struct handshake *handshake = &self->handshake;
    if (plan->host && plan->host->key) {
        handshake->key = *plan->host->key;
        handshake->has_key = true;
        return RP_OK;
    }
    if (!conn_is_inside(self))
        RP_TRY(handshake_load(handshake, plan->options->key_file, err));
    /* If shards have different keys, their lines are likely in the order of the shards; if not, the others are tried. */
    if (handshake->has_key && self->shard != CONN_SHARD_UNKNOWN)
        handshake->broker_key = self->shard % handshake->key.n_brokers;
    return RP_OK;
}

static void init(struct conn *self, const struct conn_plan *plan)
{
    const rp_client_options *options = plan->options;
    uint64_t seed = 0;
    self->forks = forks_count();
    self->pid = getpid();
    self->wake_read = self->wake_write = -1;
    if (plan->host && plan->host->channels)
        self->broker = *plan->host;
    self->shards = plan->shards;
    self->shard = self->io_shard = plan->shard;
    self->client_id = plan->client_id;
    pthread_mutex_init(&self->mutex, NULL);
    trace_init(&self->trace);
    TAILQ_INIT(&self->submitted);
    TAILQ_INIT(&self->loans);
    TAILQ_INIT(&self->pending.list);
    reply_init(&self->other);
    pthread_cond_init(&self->changed, NULL);
    int64_t min_ms = options->backoff_min_ms > 0 ? options->backoff_min_ms : 50;
    int64_t max_ms = options->backoff_max_ms > 0 ? options->backoff_max_ms : 500;
    min_ms = min_ms < BACKOFF_MOST_MS ? min_ms : BACKOFF_MOST_MS;
    max_ms = max_ms < BACKOFF_MOST_MS ? max_ms : BACKOFF_MOST_MS;
    self->backoff_min_ns = min_ms * NS_PER_MS;
    self->backoff_max_ns = (max_ms < min_ms ? min_ms : max_ms) * NS_PER_MS;
    rng_system(&seed, sizeof seed);
    rng_seed(&self->rng, seed);
    atomic_store(&self->next_id, 1);
    self->lost_ns = clock_ns();
    link_expect(self, self->lost_ns);
    self->endpoint = self->home = strdup(plan->endpoint);
    self->name = strdup(options->name ? options->name : "client");
    self->host = host_of(plan->endpoint);
    self->own_context = !options->zmq_context && !conn_is_hosted(self);
    self->context = self->own_context ? zmq_ctx_new() : options->zmq_context;
}

/* Lets libzmq check the endpoint once, before the thread starts to retry. */
static rp_status check_endpoint(struct conn *self, rp_error *err)
{
    void *probe = zmq_socket(self->context, ZMQ_DEALER);
    if (!probe)
        return err_set(err, RP_IO, "no socket: %s", zmq_strerror(zmq_errno()));
    int linger = 0, rc = zmq_setsockopt(probe, ZMQ_LINGER, &linger, sizeof linger);
    bool inproc = strncmp(self->endpoint, "inproc://", 9) == 0;
    if (rc == 0 && !(inproc ? handshake_secure(&self->handshake, probe) : conn_connect(self, probe, self->endpoint)))
        rc = -1;
    int reason = zmq_errno();
    zmq_close(probe);
    if (rc == 0 && strncmp(self->endpoint, "tcp://", 6) == 0 && atol(strrchr(self->endpoint, ':') + 1) > 65535) {
        rc = -1; /* libzmq would cut it to 16 bits */
        reason = EINVAL;
    }
    if (rc != 0)
        return err_set(err, RP_INVALID_ARGUMENT,
                       "'%.200s' is not an endpoint to connect to (%s): write tcp://HOST:PORT, such as "
                       "tcp://127.0.0.1:7600",
                       self->endpoint, zmq_strerror(reason));
    return RP_OK;
}

static rp_status start(struct conn *self, rp_error *err)
{
    int fds[2];
    self->started = self->broker.turn != NULL;
    if (self->started)
        return RP_OK;
    if (pipe2(fds, O_NONBLOCK | O_CLOEXEC) != 0)
        return err_set(err, RP_IO, "no pipe for the client's thread: %s", strerror(errno));
    self->wake_read = fds[0];
    self->wake_write = fds[1];
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    int rc = pthread_create(&self->thread, NULL, io_main, self);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    self->started = rc == 0;
    return rc == 0 ? RP_OK : err_set(err, RP_IO, "no thread for the client: %s", strerror(rc));
}

/* Descriptors that a connection takes, and as many again for its writers and samplers; each I/O thread of its context takes two
 * more. */
#define CONN_DESCRIPTORS 32
#define CONN_PER_IO_THREAD 2

rp_status conn_open(const struct conn_plan *plan, struct conn **out, rp_error *err)
{
    void *context = plan->options->zmq_context;
    int threads = context ? zmq_ctx_get(context, ZMQ_IO_THREADS) : 1;
    if (!plan->host || !plan->host->channels) /* before libzmq takes any: it would abort the process */
        RP_TRY(open_files_check((uint32_t)(CONN_DESCRIPTORS + CONN_PER_IO_THREAD * (threads > 0 ? threads : 0)),
                                "a client", "two more for each writer or sampler", err));
    struct conn *self = calloc(1, sizeof *self);
    if (!self)
        return err_set(err, RP_NO_MEMORY, "no memory for a client");
    bool watched = forks_watch();
    init(self, plan);
    rp_status status = RP_OK;
    if (!watched || !self->endpoint || !self->name || !(self->context || conn_is_hosted(self)))
        status = err_set(err, RP_NO_MEMORY, "no memory for a client");
    if (status == RP_OK)
        status = load_key(self, plan, err);
    if (status == RP_OK && !conn_is_hosted(self))
        status = check_endpoint(self, err);
    if (status == RP_OK)
        status = start(self, err);
    if (status == RP_OK)
        *out = self;
    else
        conn_destroy(&self);
    return status;
}

void conn_stop(struct conn *self)
{
    atomic_store(&self->stopping, true);
    conn_wake(self);
}

static void free_memory(struct conn *self)
{
    if (self->wake_read >= 0) {
        close(self->wake_read);
        close(self->wake_write);
    }
    free(self->home);
    free(self->name);
    free(self->host);
    key_wipe(&self->handshake.key);
    free(self);
}

/* Ends the thread, and closes all sockets. */
static void end(struct conn *self)
{
    if (self->started) {
        conn_stop(self);
        if (self->broker.turn)
            finish(self);
        else
            pthread_join(self->thread, NULL);
    }
    if (self->own_context && self->context)
        zmq_ctx_term(self->context);
}

void conn_abandon(struct conn *self)
{
    end(self);
    atomic_store(&self->ended, true);
}

void conn_destroy(struct conn **self_p)
{
    struct conn *self = *self_p;
    *self_p = NULL;
    if (!self)
        return;
    if (conn_is_foreign(self)) {
        /* The parent's threads may have been changing the rest, and libzmq would wait for its own. */
        free_memory(self);
        return;
    }
    end(self);
    conn_hello_unref(&self->hello);
    pthread_cond_destroy(&self->changed);
    pthread_mutex_destroy(&self->mutex);
    trace_leave(self);
    trace_fini(&self->trace);
    free_memory(self);
}
