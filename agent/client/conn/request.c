#include "agent/client/conn/request.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "agent/client/conn/arena.h"
#include "agent/client/conn/wait.h"
#include "proto/wire/pb.h"

/* ---- replies */

const struct conn_reply reply_no_memory = {.status = RP_NO_MEMORY, .text = "no memory for the reply to a request"};

void reply_init(struct conn_reply *self)
{
    zmq_msg_init(&self->header);
    self->payload = self->few;
    self->capacity = REPLY_FRAMES;
    self->n_payload = 0;
    self->answered = false;
}

void reply_clear(struct conn_reply *self)
{
    zmq_msg_close(&self->header);
    for (uint32_t i = 0; i < self->n_payload; i++)
        zmq_msg_close(&self->payload[i]);
    if (self->payload != self->few)
        free(self->payload);
    conn_arena_unref(&self->arena);
    reply_init(self);
}

void conn_reply_destroy(struct conn_reply **self)
{
    struct conn_reply *reply = *self;
    *self = NULL;
    if (!reply || reply == &reply_no_memory)
        return;
    reply_clear(reply);
    free(reply); /* its request */
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

rp_status conn_reply_unexpected(rp_error *err)
{
    return err_set(err, RP_BAD_MESSAGE, "the broker's reply is not what was asked for");
}

rp_status conn_reply_read(const struct conn_reply *self, Replay__Reply__BodyCase body, void *out, rp_error *err)
{
    ProtobufCMessage *message = NULL;
    rp_status status = conn_reply_status(self, err);
    if (status == RP_OK && self->view.body != body) {
        status = conn_reply_unexpected(err);
    } else if (status == RP_OK) {
        const ProtobufCFieldDescriptor *field =
            protobuf_c_message_descriptor_get_field(&replay__reply__descriptor, body);
        status = unpack(field->descriptor, self->view.data, self->view.size, &message);
        if (status != RP_OK)
            err_set(err, status,
                    status == RP_NO_MEMORY ? "no memory for the broker's reply"
                                           : "the broker's reply cannot be decoded");
    }
    memcpy(out, &message, sizeof message); /* a pointer to a message of any type */
    return status;
}

bool read_numbers(const void *data, size_t size, uint64_t *numbers, uint32_t n)
{
    struct pb_reader reader = pb_reader(data, size);
    struct pb_field field;
    int more;
    memset(numbers, 0, n * sizeof *numbers);
    while ((more = pb_next(&reader, &field)) == 1)
        if (field.number < n && field.wire != PB_BYTES)
            numbers[field.number] = field.value;
    return more == 0;
}

rp_status conn_reply_numbers(const struct conn_reply *self, uint32_t body, uint64_t *numbers, uint32_t n, rp_error *err)
{
    bool has = self->answered && self->view.body == body;
    return read_numbers(self->view.data, has ? self->view.size : 0, numbers, n) && has ? RP_OK
                                                                                       : conn_reply_unexpected(err);
}

static bool reply_add_frame(struct conn_reply *self, zmq_msg_t *frame)
{
    if (self->n_payload == self->capacity) {
        zmq_msg_t *payload = malloc(2 * self->capacity * sizeof *payload);
        if (!payload)
            return false;
        for (uint32_t i = 0; i < self->n_payload; i++) {
            zmq_msg_init(&payload[i]);
            zmq_msg_move(&payload[i], &self->payload[i]);
            zmq_msg_close(&self->payload[i]);
        }
        if (self->payload != self->few)
            free(self->payload);
        self->payload = payload;
        self->capacity *= 2;
    }
    zmq_msg_init(&self->payload[self->n_payload]);
    zmq_msg_move(&self->payload[self->n_payload++], frame);
    return true;
}

/* ---- one request */

/* Offsets in the header of the numbers that are filled in later. The version takes two bytes with its tag; each number takes
 * 8 bytes after a tag of one byte. */
enum { ID_AT = 3, SETTLED_AT = 21 };

static bool write_header(zmq_msg_t *header, uint64_t client, const struct conn_message *message)
{
    struct text out = {0};
    size_t size = message->body ? protobuf_c_message_get_packed_size(message->body) : message->size;
    pb_put_varint(&out, 1, WIRE_VERSION);
    pb_put_fixed64(&out, 2, UINT64_MAX); /* a placeholder: 0 would be left out */
    pb_put_fixed64(&out, 3, client);
    pb_put_fixed64(&out, 4, UINT64_MAX);
    pb_tag(&out, message->field, PB_BYTES);
    pb_varint(&out, size);
    void *place = text_reserve(&out, size);
    if (place && message->body)
        protobuf_c_message_pack(message->body, place);
    else if (place && size)
        memcpy(place, message->bytes, size);
    bool ok = !out.failed && message_copy(header, out.data, out.size);
    text_fini(&out);
    return ok;
}

static void header_put(struct conn_request *self, size_t at, uint64_t value)
{
    uint8_t *place = (uint8_t *)zmq_msg_data(&self->header) + at;
    for (uint32_t i = 0; i < 8; i++)
        place[i] = (uint8_t)(value >> (8 * i));
}

struct conn_request *request_new(uint64_t client, const struct conn_message *message)
{
    uint32_t n_payload = message->n_payload;
    struct conn_request *self = calloc(1, sizeof *self);
    if (!self)
        return NULL;
    self->field = message->field;
    self->timeout_ms = message->timeout_ms;
    self->grace_ns = message->grace_ms * NS_PER_MS;
    bool ends = message->timeout_ms >= 0 && message->timeout_ms <= INT64_MAX - message->grace_ms;
    self->deadline_ns = conn_deadline(ends ? message->timeout_ms + message->grace_ms : -1);
    if (n_payload)
        self->payload = malloc(n_payload * sizeof *self->payload);
    if ((n_payload && !self->payload) || !write_header(&self->header, client, message)) {
        free(self->payload);
        free(self);
        return NULL;
    }
    for (uint32_t i = 0; i < n_payload; i++) {
        zmq_msg_init(&self->payload[i]);
        zmq_msg_move(&self->payload[i], &message->payload[i]);
    }
    self->n_payload = n_payload;
    reply_init(&self->reply);
    return self;
}

/* Frees what was sent. Returns the reply, which goes on. */
static struct conn_reply *request_close(struct conn_request *self)
{
    zmq_msg_close(&self->header);
    for (uint32_t i = 0; i < self->n_payload; i++)
        zmq_msg_close(&self->payload[i]);
    free(self->payload);
    return &self->reply;
}

void request_free(struct conn_request *self)
{
    struct conn_reply *reply = request_close(self);
    conn_reply_destroy(&reply);
}

void request_name(struct conn_request *self, uint64_t id)
{
    self->id = id;
    header_put(self, ID_AT, id);
}

bool request_transmit(struct conn_request *self, struct port to, uint64_t settled)
{
    zmq_msg_t copy;
    if (!self->sent) /* later the header is shared with copies in flight */
        header_put(self, SETTLED_AT, settled);
    self->sent = true;
    if (to.channel && !port_send_bytes(to, "c", 1, true)) /* the envelope that a socket would make */
        return false;
    for (uint32_t i = 0; i <= self->n_payload; i++) {
        zmq_msg_init(&copy);
        zmq_msg_copy(&copy, i == 0 ? &self->header : &self->payload[i - 1]);
        if (!port_send(to, &copy, i < self->n_payload)) {
            zmq_msg_close(&copy);
            return false;
        }
    }
    return true;
}

void request_answer(struct conn_request *self)
{
    self->fn(self->ctx, request_close(self));
}

void request_end(struct conn_request *self, rp_status status, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    vsnprintf(self->reply.text, sizeof self->reply.text, format, args);
    va_end(args);
    self->reply.status = status;
    request_answer(self);
}

/* ---- requests that wait */

void requests_add(struct requests *self, struct conn_request *request)
{
    TAILQ_INSERT_TAIL(&self->list, request, link);
    struct conn_request **bucket = &self->buckets[request->id % REQUEST_BUCKETS];
    request->chain = *bucket;
    *bucket = request;
}

struct conn_request *requests_find(const struct requests *self, uint64_t id)
{
    struct conn_request *request = self->buckets[id % REQUEST_BUCKETS];
    while (request && request->id != id)
        request = request->chain;
    return request;
}

struct conn_request *requests_take(struct requests *self, uint64_t id)
{
    struct conn_request **at = &self->buckets[id % REQUEST_BUCKETS];
    while (*at && (*at)->id != id)
        at = &(*at)->chain;
    struct conn_request *request = *at;
    if (!request)
        return NULL;
    *at = request->chain;
    TAILQ_REMOVE(&self->list, request, link);
    return request;
}

bool requests_receive(struct requests *self, struct port from, struct conn_reply *other, struct conn_reply **out)
{
    zmq_msg_t frame;
    struct wire_reply view;
    bool more = false;
    *out = NULL;
    zmq_msg_init(&frame);
    bool got = port_receive(from, &frame, &more);
    if (got && from.channel) /* a socket removes the envelope itself */
        got = more && port_receive(from, &frame, &more);
    if (got && wire_read_reply(zmq_msg_data(&frame), zmq_msg_size(&frame), &view, NULL) == RP_OK) {
        struct conn_request *request = requests_find(self, view.id);
        struct conn_reply *reply = *out = request ? &request->reply : other;
        zmq_msg_move(&reply->header, &frame);
        wire_read_reply(zmq_msg_data(&reply->header), zmq_msg_size(&reply->header), &reply->view, NULL);
        reply->answered = true;
        reply->status = (rp_status)view.status;
    }
    bool ok = *out != NULL;
    while (got && more && port_receive(from, &frame, &more))
        ok = ok && reply_add_frame(*out, &frame);
    zmq_msg_close(&frame);
    if (*out && !ok) {
        (*out)->answered = false;
        (*out)->status = RP_NO_MEMORY;
        memcpy((*out)->text, reply_no_memory.text, sizeof reply_no_memory.text);
    }
    return got;
}
