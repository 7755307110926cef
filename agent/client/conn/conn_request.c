/* Requests in flight, and the replies to them. */
#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "agent/client/conn/conn_impl.h"
#include "proto/base/clock.h"
#include "proto/base/error.h"
#include "proto/wire/unpack.h"

/* ---- replies */

/* Ends requests if there is no memory for a reply of their own. Never written, never freed. */
static const struct conn_reply no_memory = {.status = RP_NO_MEMORY, .text = "no memory for the reply to a request"};

struct conn_reply *reply_no_memory(void)
{
    return (struct conn_reply *)(uintptr_t)&no_memory;
}

void conn_reply_destroy(struct conn_reply **self)
{
    struct conn_reply *reply = *self;
    *self = NULL;
    if (!reply || reply == &no_memory)
        return;
    zmq_msg_close(&reply->header);
    for (uint32_t i = 0; i < reply->n_payload; i++)
        zmq_msg_close(&reply->payload[i]);
    free(reply->payload);
    free(reply);
}

static struct conn_reply *reply_new(void)
{
    struct conn_reply *self = calloc(1, sizeof *self);
    if (self)
        zmq_msg_init(&self->header);
    return self;
}

rp_status conn_reply_status(const struct conn_reply *self, rp_error *err)
{
    if (self->status == RP_OK)
        return RP_OK;
    if (!self->answered)
        return err_set(err, self->status, "%s", self->text);
    if (self->view.text.size == 0)
        return err_set(err, self->status, "%s", rp_status_text(self->status));
    return err_set(err, self->status, "%.*s", (int)self->view.text.size, self->view.text.data);
}

rp_status conn_reply_read(const struct conn_reply *self, Replay__Reply **out, rp_error *err)
{
    *out = NULL;
    if (!self->answered)
        return conn_reply_status(self, err);
    zmq_msg_t *header = (zmq_msg_t *)(uintptr_t)&self->header; /* zmq_msg_data takes no const */
    ProtobufCMessage *wire;
    rp_status status = unpack(&replay__reply__descriptor, zmq_msg_data(header), zmq_msg_size(header), &wire);
    if (status == RP_NO_MEMORY)
        return err_set(err, RP_NO_MEMORY, "no memory for the broker's reply");
    if (status != RP_OK)
        return err_set(err, RP_BAD_MESSAGE, "the broker's reply cannot be decoded");
    *out = (Replay__Reply *)wire;
    return RP_OK;
}

Replay__Reply *conn_reply_unpack(const struct conn_reply *self, rp_error *err)
{
    Replay__Reply *wire;
    conn_reply_read(self, &wire, err);
    return wire;
}

void conn_reply_unpacked_free(Replay__Reply *wire)
{
    unpack_free((ProtobufCMessage *)wire);
}

/* Payload frames that a reply has room for at first. */
#define FRAMES_AT_FIRST 4u

static bool reply_add_frame(struct conn_reply *self, zmq_msg_t *frame)
{
    if (self->n_payload == self->capacity) {
        uint32_t grown = self->capacity ? self->capacity * 2 : FRAMES_AT_FIRST;
        zmq_msg_t *payload = malloc(grown * sizeof *payload);
        if (!payload)
            return false;
        for (uint32_t i = 0; i < self->n_payload; i++) {
            zmq_msg_init(&payload[i]);
            zmq_msg_move(&payload[i], &self->payload[i]);
            zmq_msg_close(&self->payload[i]);
        }
        free(self->payload);
        self->payload = payload;
        self->capacity = grown;
    }
    zmq_msg_init(&self->payload[self->n_payload]);
    zmq_msg_move(&self->payload[self->n_payload++], frame);
    return true;
}

static struct conn_reply *reply_with_room(void)
{
    struct conn_reply *self = reply_new();
    if (self)
        self->payload = malloc(FRAMES_AT_FIRST * sizeof *self->payload);
    if (self && !self->payload)
        conn_reply_destroy(&self);
    if (self)
        self->capacity = FRAMES_AT_FIRST;
    return self;
}

/* Returns the reply that was allocated with the request, or a new one. */
static struct conn_reply *reply_for(struct conn *self, uint64_t id)
{
    struct conn_request *request = id ? conn_request_find(self, id) : NULL;
    if (!request || !request->reply)
        return reply_new();
    struct conn_reply *reply = request->reply;
    request->reply = NULL;
    return reply;
}

/* Receives the header. A socket removes the envelope itself; for a duct it is skipped here. */
static bool receive_header(struct way from, zmq_msg_t *frame, bool *more)
{
    return way_receive(from, frame, more) && (!from.duct || (*more && way_receive(from, frame, more)));
}

bool reply_receive(struct conn *self, struct conn_reply **out, uint64_t *lost)
{
    struct way from = {self->dealer, self->broker.ducts ? &self->broker.ducts->replies : NULL};
    zmq_msg_t frame;
    struct wire_reply view;
    bool more = false;
    *out = NULL;
    *lost = 0;
    if (!from.socket && !from.duct)
        return false;
    zmq_msg_init(&frame);
    if (!receive_header(from, &frame, &more)) {
        zmq_msg_close(&frame);
        return false;
    }
    bool sound = wire_read_reply(zmq_msg_data(&frame), zmq_msg_size(&frame), &view, NULL) == RP_OK;
    struct conn_reply *reply = sound ? reply_for(self, view.id) : NULL;
    bool ok = reply != NULL;
    if (ok)
        zmq_msg_move(&reply->header, &frame);
    while (more && way_receive(from, &frame, &more))
        ok = ok && reply_add_frame(reply, &frame);
    zmq_msg_close(&frame);
    if (ok) {
        wire_read_reply(zmq_msg_data(&reply->header), zmq_msg_size(&reply->header), &reply->view, NULL);
        reply->answered = true;
        reply->status = (rp_status)reply->view.status;
        *out = reply;
    } else {
        conn_reply_destroy(&reply);
        *lost = sound ? view.id : 0;
    }
    return true;
}

/* ---- requests */

/* Offsets in the header of the numbers that are filled in later. The version takes two bytes with its tag; each number takes
 * 8 bytes after a tag of one byte. */
enum { ID_AT = 3, SETTLED_AT = 21 };

static bool conn_request_header(struct conn_request *self, uint64_t client, const struct conn_message *message)
{
    struct pb_writer out = {0};
    size_t size = message->body ? protobuf_c_message_get_packed_size(message->body) : message->size;
    pb_put_varint(&out, 1, WIRE_VERSION);
    pb_put_fixed64(&out, 2, UINT64_MAX); /* a placeholder: 0 would be left out */
    pb_put_fixed64(&out, 3, client);
    pb_put_fixed64(&out, 4, UINT64_MAX);
    pb_tag(&out, message->field, PB_BYTES);
    pb_varint(&out, size);
    void *place = pb_reserve(&out, size);
    if (place && message->body)
        protobuf_c_message_pack(message->body, place);
    else if (place && size)
        memcpy(place, message->bytes, size);
    bool ok = !out.failed && zmq_msg_init_size(&self->header, out.size) == 0;
    if (ok)
        memcpy(zmq_msg_data(&self->header), out.data, out.size);
    pb_writer_fini(&out);
    return ok;
}

static void header_put(struct conn_request *self, size_t at, uint64_t value)
{
    uint8_t *place = (uint8_t *)zmq_msg_data(&self->header) + at;
    for (uint32_t i = 0; i < 8; i++)
        place[i] = (uint8_t)(value >> (8 * i));
}

struct conn_request *conn_request_new(struct conn *self, const struct conn_message *message)
{
    uint32_t n_payload = message->n_payload;
    struct conn_request *request = calloc(1, sizeof *request);
    if (!request)
        return NULL;
    request->field = message->field;
    request->timeout_ms = message->timeout_ms;
    request->deadline_ns = conn_deadline(message->timeout_ms);
    if (n_payload)
        request->payload = malloc(n_payload * sizeof *request->payload);
    request->reply = reply_with_room();
    if ((n_payload && !request->payload) || !request->reply ||
        !conn_request_header(request, self->client_id, message)) {
        conn_reply_destroy(&request->reply);
        free(request->payload);
        free(request);
        return NULL;
    }
    for (uint32_t i = 0; i < n_payload; i++) {
        zmq_msg_init(&request->payload[i]);
        zmq_msg_move(&request->payload[i], &message->payload[i]);
    }
    request->n_payload = n_payload;
    return request;
}

void conn_request_name(struct conn_request *request, uint64_t id)
{
    request->id = id;
    header_put(request, ID_AT, id);
}

void conn_request_free(struct conn_request *request)
{
    zmq_msg_close(&request->header);
    for (uint32_t i = 0; i < request->n_payload; i++)
        zmq_msg_close(&request->payload[i]);
    free(request->payload);
    conn_reply_destroy(&request->reply);
    free(request);
}

void conn_request_answer(struct conn_request *request, struct conn_reply *reply)
{
    request->fn(request->ctx, reply);
    conn_request_free(request);
}

void conn_request_list_add(struct conn_request_list *list, struct conn_request *request)
{
    request->next = NULL;
    request->prev = list->last;
    if (list->last)
        list->last->next = request;
    else
        list->first = request;
    list->last = request;
}

void conn_request_track(struct conn *self, struct conn_request *request)
{
    conn_request_list_add(&self->pending, request);
    struct conn_request **bucket = &self->buckets[request->id % REQUEST_BUCKETS];
    request->chain = *bucket;
    *bucket = request;
}

struct conn_request *conn_request_find(struct conn *self, uint64_t id)
{
    struct conn_request *request = self->buckets[id % REQUEST_BUCKETS];
    while (request && request->id != id)
        request = request->chain;
    return request;
}

struct conn_request *conn_request_take(struct conn *self, uint64_t id)
{
    struct conn_request **at = &self->buckets[id % REQUEST_BUCKETS];
    while (*at && (*at)->id != id)
        at = &(*at)->chain;
    struct conn_request *request = *at;
    if (!request)
        return NULL;
    *at = request->chain;
    *(request->prev ? &request->prev->next : &self->pending.first) = request->next;
    *(request->next ? &request->next->prev : &self->pending.last) = request->prev;
    return request;
}

/* Returns the id up to which all samples are answered or cancelled. Samples that another thread has just submitted have higher
 * ids than all that were taken. */
static uint64_t conn_request_settled(const struct conn *self)
{
    for (const struct conn_request *request = self->pending.first; request; request = request->next)
        if (request->field == REQUEST_SAMPLE)
            return request->id - 1;
    return self->taken;
}

static bool transmit(struct way to, struct conn_request *request)
{
    zmq_msg_t copy;
    if (to.duct && !way_send_bytes(to, "c", 1, true)) /* the envelope that a socket would make */
        return false;
    for (uint32_t i = 0; i <= request->n_payload; i++) {
        zmq_msg_init(&copy);
        zmq_msg_copy(&copy, i == 0 ? &request->header : &request->payload[i - 1]);
        if (!way_send(to, &copy, i < request->n_payload)) {
            zmq_msg_close(&copy);
            return false;
        }
    }
    return true;
}

void conn_request_transmit(struct conn *self, struct conn_request *request)
{
    struct way to = {self->dealer, self->broker.ducts ? &self->broker.ducts->requests : NULL};
    if (!request->sent) /* later the header is shared with copies in flight */
        header_put(request, SETTLED_AT, conn_request_settled(self));
    request->sent = true;
    request->traced_ns = trace_now(&self->trace);
    self->dealer_used = true; /* sending processes the socket's commands, and a reply may be among them */
    /* A request that the socket does not take is sent again after the reconnect, which is due. */
    if (!transmit(to, request) && to.duct)
        conn_reset(self, "no memory");
}

void conn_request_end(struct conn_request *request, rp_status status, const char *format, ...)
{
    struct conn_reply *reply = request->reply ? request->reply : reply_new();
    request->reply = NULL;
    if (reply) {
        va_list args;
        va_start(args, format);
        vsnprintf(reply->text, sizeof reply->text, format, args);
        va_end(args);
        reply->status = status;
    }
    conn_request_answer(request, reply ? reply : reply_no_memory());
}

static void expire(struct conn *self, struct conn_request *request)
{
    char text[sizeof request->reply->text];
    if (request->cancelled) {
        conn_request_end(request, RP_CANCELLED, "cancelled by the caller");
    } else if (self->link != LINK_UP) {
        conn_describe(self, text, sizeof text);
        conn_request_end(request, RP_UNAVAILABLE, "%s", text);
    } else {
        conn_request_end(request, RP_DEADLINE_EXCEEDED, "%s has not answered within %lld ms",
                         conn_title(self, text, sizeof text), (long long)request->timeout_ms);
    }
}

int64_t conn_request_expire(struct conn *self, int64_t now_ns)
{
    int64_t next = INT64_MAX;
    for (struct conn_request *request = self->pending.first, *after; request; request = after) {
        after = request->next;
        if (request->deadline_ns > now_ns) {
            next = request->deadline_ns < next ? request->deadline_ns : next;
            continue;
        }
        conn_request_take(self, request->id);
        expire(self, request);
        after = self->pending.first; /* a reply function may have sent a request */
        next = INT64_MAX;
    }
    return next;
}

void conn_request_resend(struct conn *self)
{
    for (struct conn_request *request = self->pending.first; request; request = request->next)
        if (!request->cancelled)
            conn_request_transmit(self, request);
}

static void send_cancel(struct conn *self, uint64_t id)
{
    Replay__Cancel body = REPLAY__CANCEL__INIT;
    body.n_id = 1;
    body.id = &id;
    struct conn_message message = {.field = REQUEST_CANCEL, .body = &body.base, .timeout_ms = -1};
    struct conn_request *cancel = conn_request_new(self, &message);
    if (cancel) {
        conn_request_name(cancel, atomic_fetch_add(&self->next_id, 1));
        conn_request_transmit(self, cancel); /* without waiting for the answer */
        conn_request_free(cancel);
    }
}

void conn_request_drop_once(struct conn *self, const struct conn_part *part, bool tell)
{
    for (struct conn_request *request = self->pending.first, *after; request; request = after) {
        after = request->next;
        if (!request->part || (part && request->part != part))
            continue;
        conn_request_take(self, request->id);
        if (tell) {
            conn_request_end(request, RP_UNAVAILABLE, "the connection to %s was lost", self->endpoint);
            continue;
        }
        if (request->deadline_ns == INT64_MAX && self->link == LINK_UP)
            send_cancel(self, request->id); /* it might wait at the broker for ever */
        conn_request_free(request);
    }
}

void conn_request_drop(struct conn *self, uint64_t id)
{
    struct conn_request *request = conn_request_take(self, id);
    if (!request)
        return;
    if (self->link == LINK_UP)
        send_cancel(self, id);
    conn_request_free(request);
}

void conn_request_cancel(struct conn *self, uint64_t id, int64_t now_ns)
{
    struct conn_request *request = conn_request_find(self, id);
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
