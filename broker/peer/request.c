#include "broker/peer/request.h"

#include <errno.h>
#include <netinet/in.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

#include "broker/peer/peers.h"
#include "proto/base/error.h"
#include "proto/base/need.h"
#include "proto/base/utf8.h"
#include "proto/wire/pb.h"

/* A reply, or a frame of one, that is smaller than this is not charged to its peer: libzmq's bound on the number of queued
 * messages is enough. */
#define SMALL_REPLY_BYTES 4096u
/* Most bytes of an encoded reply besides its text and body. */
#define HEAD_BYTES 64u
/* libzmq stores a message of up to this size inside zmq_msg_t: it allocates nothing. */
#define INLINE_BYTES 33u

/* Encodes a reply. It fails for lack of memory only if it is too large to be kept: what was done once must not be done again. */
static bool encode(struct text *out, uint64_t id, const struct answer *answer)
{
    size_t text = answer->text ? strlen(answer->text) : 0;
    size_t body = answer->body ? protobuf_c_message_get_packed_size(answer->body) : 0;
    size_t most = text + body + HEAD_BYTES;
    char *data = most <= KEPT_REPLY_BYTES ? need_resize(NULL, most, 1) : malloc(most);
    *out = (struct text){.capacity = most, .failed = !data};
    out->data = data;
    pb_put_varint(out, 1, WIRE_VERSION);
    pb_put_fixed64(out, 2, id);
    pb_put_varint(out, 3, (uint64_t)answer->status);
    pb_put_bytes(out, 4, answer->text, text);
    if (text && !out->failed) /* the text may quote what a client sent */
        utf8_clean((char *)out->data + (out->size - text), text);
    if (answer->body) {
        pb_tag(out, answer->field, PB_BYTES);
        pb_varint(out, body);
        uint8_t *place = text_reserve(out, body);
        if (place)
            protobuf_c_message_pack(answer->body, place);
    }
    return !out->failed;
}

/* Charges the peer for the large frames. RP_RESOURCE_EXHAUSTED: it has left too many replies unread. */
static rp_status charge(const struct peers *peers, struct peer *peer, size_t header, const struct answer *answer)
{
    size_t bytes = header;
    for (uint32_t i = 0; i < answer->n_payload; i++)
        bytes += zmq_msg_size(&answer->payload[i]);
    if (bytes > SMALL_REPLY_BYTES && peer_is_full(peers, peer))
        return RP_RESOURCE_EXHAUSTED;
    bool ok = true;
    for (uint32_t i = 0; ok && i < answer->n_payload; i++)
        ok = zmq_msg_size(&answer->payload[i]) <= SMALL_REPLY_BYTES || peer_charge(peer, &answer->payload[i]);
    return ok ? RP_OK : RP_NO_MEMORY;
}

/* Sends a reply that says only that there is no memory, and that needs none. It does not wait for the journal, since it
 * confirms nothing. The client asks again with the same id. */
static void send_no_memory(struct peers *peers, const struct envelope *to, uint64_t id)
{
    peers->counters.replies_dropped++;
    if (!id)
        return; /* a notice: the next heartbeat carries the same numbers */
    uint8_t bytes[13] = {0x08, WIRE_VERSION, 0x11}, *at = bytes + 3;
    memcpy(at, &id, sizeof id);
    at[8] = 0x18;
    at[9] = RP_NO_MEMORY;
    zmq_msg_t header;
    (void)message_copy(&header, bytes, sizeof bytes); /* so small that libzmq allocates nothing */
    peer_send_now(peers, to, &header, NULL, 0);
}

/* A connection within a machine has the same address at both ends. */
bool request_is_remote(const struct request *request)
{
    struct sockaddr_storage here = {0}, there = {0};
    socklen_t here_size = sizeof here, there_size = sizeof there;
    if (request->descriptor < 0 || getsockname(request->descriptor, (struct sockaddr *)&here, &here_size) != 0 ||
        getpeername(request->descriptor, (struct sockaddr *)&there, &there_size) != 0 ||
        here.ss_family != there.ss_family)
        return false;
    if (here.ss_family == AF_INET)
        return memcmp(&((struct sockaddr_in *)&here)->sin_addr, &((struct sockaddr_in *)&there)->sin_addr,
                      sizeof(struct in_addr)) != 0;
    return here.ss_family == AF_INET6 &&
           memcmp(&((struct sockaddr_in6 *)&here)->sin6_addr, &((struct sockaddr_in6 *)&there)->sin6_addr,
                  sizeof(struct in6_addr)) != 0;
}

void request_put_tracing(const struct peers *peers, struct text *out)
{
    struct text grown = *out;
    uint8_t bytes[27];
    uint64_t values[3] = {peers->tracing.number, (uint64_t)clock_now(&peers->loop->clock),
                          (uint64_t)peers->tracing.end_ns};
    if (out->failed || !peers->tracing.number)
        return;
    for (uint32_t i = 0; i < 3; i++) {
        bytes[9 * i] = (uint8_t)((i + 1) << 3 | PB_FIXED64);
        memcpy(&bytes[9 * i + 1], &values[i], sizeof values[i]);
    }
    pb_put_bytes(&grown, 5, bytes, sizeof bytes);
    if (!grown.failed) /* without memory the client is told by the next reply */
        *out = grown;
}

/* Encodes and sends an answer with its payload. keep_for: the client that may ask for it again; 0: nobody may. */
static void send_answer(struct peers *peers, const struct envelope *to, uint64_t id, const struct answer *answer,
                        uint64_t keep_for)
{
    struct text encoded, *out = &encoded;
    if (encode(out, id, answer) && keep_for)
        kept_replies_add(&peers->kept_replies, peers->loop, &(struct kept_reply){keep_for, id, out->bytes, out->size});
    zmq_msg_t header;
    if (trace_on(&peers->loop->trace))
        request_put_tracing(peers, out);
    if (answer->status != RP_OK && (uint32_t)answer->status < STATUS_COUNT)
        peers->counters.failed[answer->status]++;
    if (answer->n_payload == 0 && !out->failed && out->size <= INLINE_BYTES &&
        message_copy(&header, out->data, out->size)) {
        text_fini(out);
        peer_send(peers, to, &header, NULL, 0);
        return;
    }
    static const struct answer too_many_unread = {
        .status = RP_RESOURCE_EXHAUSTED,
        .text = "this client has left too many replies unread: read them before asking for more"};
    struct peer *peer = peer_find(peers, to);
    rp_status charged = !out->failed ? charge(peers, peer, out->size, answer) : RP_NO_MEMORY;
    if (charged == RP_RESOURCE_EXHAUSTED) {
        frames_close(answer->payload, answer->n_payload);
        answer = &too_many_unread;
        text_fini(out);
        encode(out, id, answer);
    }
    bool ok = charged != RP_NO_MEMORY && !out->failed;
    if (!ok)
        text_fini(out);
    if (!ok || !peer_frame(peer, &header, out->data, out->size)) {
        frames_close(answer->payload, answer->n_payload);
        send_no_memory(peers, to, id);
        return;
    }
    peer_send(peers, to, &header, answer->payload, answer->n_payload);
}

void request_send(struct peers *peers, const struct envelope *to, uint64_t id, const struct answer *answer)
{
    send_answer(peers, to, id, answer, 0);
}

void request_fail(struct peers *peers, const struct envelope *to, uint64_t id, rp_status status, const char *text)
{
    request_send(peers, to, id, &(struct answer){.status = status, .text = text});
}

void request_finish(struct peers *peers, const struct wait *wait, uint32_t field, const ProtobufCMessage *body)
{
    send_answer(peers, &wait->to, wait->id, &(struct answer){.status = RP_OK, .field = field, .body = body},
                wait->client);
}

void request_reply(struct peers *peers, struct request *request, const struct answer *answer)
{
    request->answered = true;
    /* A reply that does not wait for the journal tells of no change: the request may be done twice. */
    bool remember = request->remember && !peers->commit.ahead && answer->status == RP_OK;
    send_answer(peers, &request->from, request->head.id, answer, remember ? request->head.client : 0);
}

void request_ok(struct peers *peers, struct request *request, uint32_t field, const ProtobufCMessage *body)
{
    request_reply(peers, request, &(struct answer){.status = RP_OK, .field = field, .body = body});
}

bool request_repeat(struct peers *peers, struct request *request)
{
    const struct kept_reply *reply = kept_replies_find(&peers->kept_replies, request->head.client, request->head.id);
    zmq_msg_t header;
    if (!reply)
        return false;
    request->answered = true;
    if (message_copy(&header, reply->frame, reply->size))
        peer_send(peers, &request->from, &header, NULL, 0);
    else
        send_no_memory(peers, &request->from, request->head.id);
    return true;
}

/* ---- the monitor ---- */

/* Handshakes that break off without a reason are no news: clients probe an endpoint before they use it. */
#define HANDSHAKE_FAILED ZMQ_EVENT_HANDSHAKE_FAILED_PROTOCOL

/* Values of monitor_connection.number; a running number of the connection from FIRST_CONNECTION on. */
enum { NEVER_SEEN, HAS_ENDED, FIRST_CONNECTION };

static const char lost[] = "the connection was lost: ask again";

void wait_cancel(struct wait *self, rp_status status, const char *text)
{
    if (self->ops->cancel) {
        self->ops->cancel(self, status, text);
        return;
    }
    request_fail(self->peers, &self->to, self->id, status, text);
    self->ops->end(self);
}

rp_status monitor_open(struct monitor *self, void *context, void *service, rp_error *err)
{
    char endpoint[64];
    static _Atomic unsigned serial;
    snprintf(endpoint, sizeof endpoint, "inproc://replay-monitor-%p-%u", (void *)self, serial++);
    int linger = 0;
    self->socket = zmq_socket(context, ZMQ_PAIR);
    if (!self->socket ||
        zmq_socket_monitor(service, endpoint, ZMQ_EVENT_ACCEPTED | ZMQ_EVENT_DISCONNECTED | HANDSHAKE_FAILED) != 0 ||
        zmq_connect(self->socket, endpoint) != 0)
        return err_set(err, RP_IO, "cannot watch the service socket: %s", zmq_strerror(errno));
    zmq_setsockopt(self->socket, ZMQ_LINGER, &linger, sizeof linger);
    /* Connections to the previous socket are not reported any more. */
    if (self->connections)
        memset(self->connections, 0, self->n_connections * sizeof *self->connections);
    return RP_OK;
}

void monitor_close(struct monitor *self, void *service)
{
    if (service)
        zmq_socket_monitor(service, NULL, 0);
    if (self->socket)
        zmq_close(self->socket);
    self->socket = NULL;
}

void monitor_fini(struct monitor *self)
{
    free(self->connections);
    self->connections = NULL;
    self->n_connections = 0;
}

/* Returns the number of the connection that has the descriptor, higher for later connections, or NEVER_SEEN or HAS_ENDED. */
static uint64_t monitor_connection(const struct monitor *self, int descriptor)
{
    return descriptor >= 0 && (uint32_t)descriptor < self->n_connections ? self->connections[descriptor].number : 0;
}

bool connection_has_ended(const struct peers *peers, int descriptor, uint64_t *number)
{
    uint64_t now = monitor_connection(&peers->monitor, descriptor);
    if (*number < FIRST_CONNECTION) /* its beginning may be reported later */
        *number = now;
    return now != *number || now == HAS_ENDED;
}

static void set_open(struct monitor *self, int descriptor, bool open)
{
    uint32_t at = (uint32_t)descriptor;
    if (at >= self->n_connections) {
        uint32_t n = at < 32 ? 64 : (at + 1) * 2;
        self->connections = need_resize(self->connections, n, sizeof *self->connections);
        memset(self->connections + self->n_connections, 0, (n - self->n_connections) * sizeof *self->connections);
        self->n_connections = n;
    }
    self->connections[at] =
        (struct monitor_connection){.number = open ? FIRST_CONNECTION + self->n_accepted++ : HAS_ENDED};
}

/* A client that could not even state its key: the ZAP handler never hears of it. value: in the place of a descriptor, an error. */
static void log_failure(struct peers *peers, zmq_msg_t *address, uint32_t value)
{
    struct identities *identities = &peers->identities;
    uint32_t held;
    char text[128];
    if (!identities->on)
        return;
    identities->refused++;
    if (!log_allow(&identities->log, 5, peers->loop->now_ns, &held))
        return;
    snprintf(text, sizeof text, "%.*s", (int)zmq_msg_size(address), (const char *)zmq_msg_data(address));
    const char *why = value == ZMQ_PROTOCOL_ERROR_ZMTP_MECHANISM_MISMATCH ? "the client has no key"
                      : value == ZMQ_PROTOCOL_ERROR_ZMTP_CRYPTOGRAPHIC    ? "the client expects another broker's key"
                                                                          : "the handshake broke off";
    log_line(LEVEL_WARN, "B0606", "connection refused", "endpoint=%s key=- why=\"%s\" held_back=%u", log_text(text),
             why, held);
}

void monitor_run(struct peers *peers)
{
    struct monitor *self = &peers->monitor;
    zmq_msg_t frames[4];
    uint32_t n;
    bool whole;
    while (self->socket && frames_receive((struct port){self->socket, NULL}, frames, 4, &n, &whole)) {
        if (zmq_msg_size(&frames[0]) == 6) {
            uint16_t event;
            int32_t descriptor;
            memcpy(&event, zmq_msg_data(&frames[0]), sizeof event);
            memcpy(&descriptor, (const char *)zmq_msg_data(&frames[0]) + 2, sizeof descriptor);
            if (event & HANDSHAKE_FAILED)
                log_failure(peers, &frames[n - 1], (uint32_t)descriptor);
            else if (descriptor >= 0)
                set_open(self, descriptor, event == ZMQ_EVENT_ACCEPTED);
            struct wait *wait = event == ZMQ_EVENT_DISCONNECTED ? peers->waits.first : NULL, *next;
            for (; wait; wait = next) {
                next = wait->next;
                if (wait->descriptor == descriptor)
                    wait_cancel(wait, RP_UNAVAILABLE, lost);
            }
        }
        frames_close(frames, n);
    }
}

/* The descriptor of a closed connection is soon used again: the waits of the old connection must end before a wait of the new one takes
 * the descriptor. A request by a route that was seen with the descriptor came by the connection that the monitor knows. */
static void monitor_expect(struct peers *peers, const struct request *request)
{
    struct monitor *self = &peers->monitor;
    uint64_t route = envelope_is_unique(&request->from) ? envelope_route(&request->from) : 0;
    bool known = monitor_connection(self, request->descriptor) >= FIRST_CONNECTION;
    if (known && route && self->connections[request->descriptor].route == route)
        return;
    monitor_run(peers);
    if (monitor_connection(self, request->descriptor) >= FIRST_CONNECTION)
        self->connections[request->descriptor].route = route;
}

void monitor_sweep(struct peers *peers)
{
    monitor_run(peers);
    struct wait *next;
    for (struct wait *wait = peers->waits.first; wait; wait = next) {
        next = wait->next;
        if (wait->descriptor >= 0 && peers->loop->now_ns - wait->since_ns > NS_PER_S &&
            monitor_connection(&peers->monitor, wait->descriptor) == HAS_ENDED)
            wait_cancel(wait, RP_UNAVAILABLE, lost);
    }
}

/* ---- waits ---- */

/* Places for requests that wait: a client that asks without reading must not use up the memory. A request is kept while it
 * waits: each PLACE_BYTES of it take a further place. */
#define WAIT_PLACES 100000u
#define PLACE_BYTES 1024u

static uint64_t name_of(uint64_t client, uint64_t id)
{
    return client ^ (id * UINT64_C(0xD6E8FEB86659FD93));
}

void wait_expire(struct wait *self)
{
    struct wait_text why = {0};
    if (self->ops->expire) {
        self->ops->expire(self);
        return;
    }
    self->ops->explain(self, &why);
    wait_cancel(self, RP_DEADLINE_EXCEEDED, why.text);
}

static void fire(struct timer *timer)
{
    wait_expire(timer->ctx);
}

rp_status wait_begin(struct peers *peers, struct wait *self, const struct wait_ops *ops, void *ctx,
                     const struct request *request, uint64_t timeout_ms, rp_error *err)
{
    struct loop *loop = peers->loop;
    struct waits *waits = &peers->waits;
    monitor_expect(peers, request);
    *self = (struct wait){
        .peers = peers,
        .ops = ops,
        .ctx = ctx,
        .timer = {.fire = fire, .ctx = self},
        .to = request->from,
        .client = request->head.client,
        .id = request->head.id,
        .since_ns = loop->now_ns,
        .traced_ns = loop_trace_start(loop),
        .descriptor = request->descriptor,
        .connection = monitor_connection(&peers->monitor, request->descriptor),
        .identity = request->identity,
        .roles = request->roles,
        .places = 1 + (uint32_t)(request->head.size / PLACE_BYTES),
        .times = request->times,
        .message = peers->counters.messages_in,
    };
    if (waits->places + self->places > WAIT_PLACES)
        return err_set(err, RP_RESOURCE_EXHAUSTED,
                       "the requests that wait have taken all %u places: this %s request cannot wait, too. Ask again "
                       "later",
                       WAIT_PLACES, self->ops->kind);
    const struct quota *quota = &request->identity->quota;
    if (quota->waiting > 0 && request->identity->waiting + self->places > quota->waiting)
        return err_set(err, RP_RESOURCE_EXHAUSTED,
                       "the requests of the key '%s' that wait have taken all of its %lld places: this %s request "
                       "cannot wait, too. Ask again later, or raise waiting= in the broker's list of keys",
                       request->identity->name, (long long)quota->waiting, self->ops->kind);
    bool has_deadline = timeout_ms <= (uint64_t)(INT64_MAX / NS_PER_MS / 2);
    if (has_deadline)
        timer_set(&loop->timers, &self->timer, loop->now_ns + (int64_t)timeout_ms * NS_PER_MS);
    idmap_put(&waits->by_request, name_of(self->client, self->id), self);
    self->identity->waiting += self->places;
    waits->places += self->places;
    self->prev = waits->last;
    *(waits->last ? &waits->last->next : &waits->first) = self;
    waits->last = self;
    waits->count++;
    return RP_OK;
}

void *wait_new(struct peers *peers, size_t bytes, const struct wait_ops *ops, void *ctx, struct request *request,
               uint64_t timeout_ms, rp_error *err)
{
    struct wait *self = need_alloc(bytes);
    if (wait_begin(peers, self, ops, ctx, request, timeout_ms, err) == RP_OK) {
        request->answered = true;
        return self;
    }
    free(self);
    return NULL;
}

void wait_trace(const struct wait *self)
{
    const struct peers *peers = self->peers;
    int64_t now = clock_now(&peers->loop->clock), start = self->traced_ns ? self->traced_ns : self->since_ns;
    if (self->message !=
        peers->counters.messages_in) /* otherwise it was answered at once, and is part of its request */
        trace_add(&peers->loop->trace, self->ops->kind, "waits",
                  &(struct trace_span){.start_ns = start,
                                       .duration_ns = now - start,
                                       .who = self->client,
                                       .id = self->id,
                                       .link = TRACE_REQUEST});
}

bool wait_goes_on(struct peers *peers)
{
    struct wait *last = peers->waits.last;
    if (!last || last->message != peers->counters.messages_in)
        return false;
    last->measured = last->times != NULL;
    return true;
}

void wait_end(struct wait *self)
{
    struct peers *peers = self->peers;
    if (self->measured) {
        int64_t took = clock_now(&peers->loop->clock) - self->since_ns;
        histogram_add_ns(&self->times->latency, took, 1);
        histogram_add_ns(&self->times->waited, took, 1);
    }
    if (trace_on(&peers->loop->trace))
        wait_trace(self);
    struct waits *waits = &peers->waits;
    timer_clear(&peers->loop->timers, &self->timer);
    self->identity->waiting -= self->places;
    waits->places -= self->places;
    uint64_t name = name_of(self->client, self->id);
    if (idmap_get(&waits->by_request, name) == self)
        idmap_remove(&waits->by_request, name);
    *(self->prev ? &self->prev->next : &waits->first) = self->next;
    *(self->next ? &self->next->prev : &waits->last) = self->prev;
    waits->count--;
}

struct wait *wait_find(const struct waits *waits, uint64_t client, uint64_t id)
{
    /* Client 0 is anonymous: requests of several anonymous clients may have the same id. */
    struct wait *wait = client ? idmap_get(&waits->by_request, name_of(client, id)) : NULL;
    return wait && wait->client == client && wait->id == id ? wait : NULL;
}

bool wait_take_over(struct peers *peers, const struct request *request)
{
    if (!wait_find(&peers->waits, request->head.client, request->head.id))
        return false;
    monitor_run(peers); /* ends the wait if its connection is lost */
    struct wait *self = wait_find(&peers->waits, request->head.client, request->head.id);
    if (!self)
        return false;
    uint64_t connection = monitor_connection(&peers->monitor, request->descriptor);
    if (!connection || connection >= self->connection) {
        self->to = request->from;
        self->descriptor = request->descriptor;
        self->connection = connection;
    }
    return true;
}

void waits_check_roles(struct peers *peers)
{
    struct wait *next;
    for (struct wait *wait = peers->waits.first; wait; wait = next) {
        rp_error err = {0};
        char what[64];
        next = wait->next;
        snprintf(what, sizeof what, "a %s request", wait->ops->kind);
        if (identity_check(wait->identity, wait->roles, what, &err) != RP_OK)
            wait_cancel(wait, RP_PERMISSION_DENIED, err.text);
    }
}

void waits_cancel_all(struct waits *waits, rp_status status, const char *text)
{
    while (waits->first)
        wait_cancel(waits->first, status, text);
}
