#include "broker/service/request.h"

#include <stdlib.h>
#include <string.h>

#include "broker/broker.h"
#include "broker/peer/frames.h"
#include "broker/peer/monitor.h"
#include "broker/sample/recall.h"
#include "proto/base/error.h"
#include "proto/base/utf8.h"
#include "proto/wire/pb.h"
#include "proto/wire/unpack.h"

#define ROW(field, name, type, handler, remember)                                                                      \
    {                                                                                                                  \
        field, name, &replay__##type##__descriptor, handler, remember, false                                           \
    }
#define AHEAD_ROW(field, name, type, handler)                                                                          \
    {                                                                                                                  \
        field, name, &replay__##type##__descriptor, handler, false, true                                               \
    }
#define RAW_ROW(field, name, handler)                                                                                  \
    {                                                                                                                  \
        field, name, NULL, handler, false, false                                                                       \
    }

static const struct command commands[] = {
    ROW(16, "hello", hello, req_hello, true),
    ROW(17, "heartbeat", heartbeat, req_heartbeat, false),
    ROW(18, "bye", bye, req_bye, true),
    RAW_ROW(19, "sample", req_sample),
    RAW_ROW(20, "update", req_update),
    RAW_ROW(21, "delete", req_delete),
    ROW(22, "cancel", cancel, req_cancel, false),
    RAW_ROW(23, "fetch", req_fetch),
    AHEAD_ROW(24, "list", list, req_list),
    ROW(25, "reset", reset, req_reset, true),
    ROW(26, "set_limiter", set_limiter, req_set_limiter, false),
    AHEAD_ROW(27, "info", info, req_info),
    AHEAD_ROW(28, "why", why, req_why),
    ROW(29, "params_put", params_put, req_params_put, true),
    ROW(30, "params_get", params_get, req_params_get, false),
    ROW(31, "counter", counter, req_counter, true),
    ROW(32, "reduce", reduce, req_reduce, false),
    AHEAD_ROW(33, "checkpoint", checkpoint, req_checkpoint),
};
#define N_COMMANDS (sizeof commands / sizeof commands[0])

/* Replies to requests that must not be done twice: the last so many, of all clients together. */
#define MEMORY_PLACES 4096u
#define MEMORY_BYTES 16384u

struct memory_place {
    uint64_t client, id;
    uint8_t *frame; /* NULL: free */
    size_t size;
};

struct request_memory {
    struct memory_place place[MEMORY_PLACES]; /* ring */
    uint32_t next;
    struct idmap by_name;
    uint8_t *spare[2]; /* MEMORY_BYTES each: what was done must be encoded, and remembered, whatever happens */
};

const struct command *request_commands(uint32_t *count)
{
    *count = N_COMMANDS;
    return commands;
}

static uint64_t memory_name(uint64_t client, uint64_t id)
{
    return (client ^ (id * UINT64_C(0x9E3779B97F4A7C15))) * UINT64_C(0xD6E8FEB86659FD93);
}

static void memory_drop(struct request_memory *self, struct memory_place *place)
{
    uint64_t name = memory_name(place->client, place->id);
    if (idmap_get(&self->by_name, name) == place)
        idmap_remove(&self->by_name, name);
    free(place->frame);
    place->frame = NULL;
}

/* Before something is done that must not be done twice: from here on its reply can be encoded and remembered. */
static bool memory_reserve(struct broker *broker)
{
    if (!broker->peers.kept_replies)
        broker->peers.kept_replies = calloc(1, sizeof *broker->peers.kept_replies);
    struct request_memory *memory = broker->peers.kept_replies;
    for (uint32_t i = 0; memory && i < 2; i++)
        if (!memory->spare[i])
            memory->spare[i] = malloc(MEMORY_BYTES);
    return memory && memory->spare[0] && memory->spare[1] && idmap_reserve(&memory->by_name);
}

/* A block of MEMORY_BYTES that was put aside, or NULL. */
static uint8_t *memory_spare(struct broker *broker, size_t size)
{
    struct request_memory *memory = broker->peers.kept_replies;
    for (uint32_t i = 0; memory && size <= MEMORY_BYTES && i < 2; i++)
        if (memory->spare[i]) {
            uint8_t *spare = memory->spare[i];
            memory->spare[i] = NULL;
            return spare;
        }
    return NULL;
}

static void memory_keep(struct broker *broker, uint64_t client, uint64_t id, const uint8_t *frame, size_t size)
{
    if (!client)
        return; /* nobody: it can not be asked again */
    if (!broker->peers.kept_replies)
        broker->peers.kept_replies = calloc(1, sizeof *broker->peers.kept_replies);
    struct request_memory *memory = broker->peers.kept_replies;
    uint8_t *copy = memory && size <= MEMORY_BYTES ? malloc(size) : NULL;
    if (!copy)
        copy = memory_spare(broker, size);
    if (!copy)
        return;
    memcpy(copy, frame, size);
    EFFECT(&broker->loop, reply, client, id, frame, size);
    struct memory_place *place = &memory->place[memory->next++ % MEMORY_PLACES];
    if (place->frame)
        memory_drop(memory, place);
    *place = (struct memory_place){client, id, copy, size};
    if (!idmap_put(&memory->by_name, memory_name(place->client, place->id), place))
        memory_drop(memory, place);
}

/* The reply to a finished request that is asked for again, or NULL. */
static const struct memory_place *memory_find(const struct broker *broker, const struct request *request)
{
    if (!broker->peers.kept_replies)
        return NULL;
    const struct memory_place *place =
        idmap_get(&broker->peers.kept_replies->by_name, memory_name(request->head.client, request->head.id));
    return place && place->id == request->head.id && place->client == request->head.client ? place : NULL;
}

static rp_status memory_answer(struct broker *broker, struct request *request, const struct memory_place *place,
                               rp_error *err)
{
    zmq_msg_t header;
    if (zmq_msg_init_size(&header, place->size) != 0)
        return err_set(err, RP_NO_MEMORY, "no memory to repeat a reply");
    memcpy(zmq_msg_data(&header), place->frame, place->size);
    request->answered = true;
    peer_send(broker, &request->from, &header, NULL, 0);
    return RP_OK;
}

void request_memory_restore(struct broker *broker, uint64_t client, uint64_t id, const void *frame, size_t size)
{
    memory_keep(broker, client, id, frame, size);
}

void request_memory_each(const struct broker *broker, request_memory_fn *fn, void *ctx)
{
    const struct request_memory *memory = broker->peers.kept_replies;
    for (uint32_t i = 0; memory && i < MEMORY_PLACES; i++) {
        const struct memory_place *place = &memory->place[(memory->next + i) % MEMORY_PLACES];
        if (place->frame)
            fn(ctx, place->client, place->id, place->frame, place->size);
    }
}

void request_memory_destroy(struct request_memory **self)
{
    if (!*self)
        return;
    for (uint32_t i = 0; i < MEMORY_PLACES; i++)
        free((*self)->place[i].frame);
    free((*self)->spare[0]);
    free((*self)->spare[1]);
    idmap_fini(&(*self)->by_name);
    free(*self);
    *self = NULL;
}

static bool reply_encode(struct pb_writer *out, uint64_t id, rp_status status, const char *text, uint32_t field,
                         const ProtobufCMessage *body)
{
    pb_put_varint(out, 1, WIRE_VERSION);
    pb_put_fixed64(out, 2, id);
    pb_put_varint(out, 3, (uint64_t)status);
    if (text && text[0]) {
        size_t size = strlen(text);
        pb_put_bytes(out, 4, text, size);
        if (!out->failed) /* it may quote what a client sent */
            utf8_clean((char *)out->data + (out->size - size), size);
    }
    if (body) {
        size_t size = protobuf_c_message_get_packed_size(body);
        pb_tag(out, field, PB_BYTES);
        pb_varint(out, size);
        uint8_t *place = pb_reserve(out, size);
        if (place)
            protobuf_c_message_pack(body, place);
    }
    return !out->failed;
}

/* So small a reply, or frame of one, is bounded well enough by libzmq's count of messages. */
#define SMALL_REPLY_BYTES 4096u
/* libzmq keeps so short a message within itself: it takes no memory. */
#define INLINE_BYTES 33u

/* Charges the peer for the large frames. RP_RESOURCE_EXHAUSTED: it has left too many replies unread. */
static rp_status charge(struct broker *broker, struct peer *peer, size_t header, zmq_msg_t *payload, uint32_t n)
{
    size_t bytes = header;
    for (uint32_t i = 0; i < n; i++)
        bytes += zmq_msg_size(&payload[i]);
    if (bytes > SMALL_REPLY_BYTES && peer_is_full(broker, peer))
        return RP_RESOURCE_EXHAUSTED;
    bool ok = true;
    for (uint32_t i = 0; ok && i < n; i++)
        ok = zmq_msg_size(&payload[i]) <= SMALL_REPLY_BYTES || peer_charge(peer, &payload[i]);
    return ok ? RP_OK : RP_NO_MEMORY;
}

/* A reply that says only that there is no memory, and needs none. It goes ahead of the journal, since it tells of nothing.
 * The client asks again, with the same id. */
static void send_no_memory(struct broker *broker, const struct envelope *to, uint64_t id)
{
    broker->peers.counters.replies_dropped++;
    if (!id)
        return; /* a notice: the next heartbeat tells the same */
    uint8_t bytes[13] = {0x08, WIRE_VERSION, 0x11}, *at = bytes + 3;
    memcpy(at, &id, sizeof id);
    at[8] = 0x18;
    at[9] = RP_NO_MEMORY;
    zmq_msg_t header;
    zmq_msg_init_size(&header, sizeof bytes);
    memcpy(zmq_msg_data(&header), bytes, sizeof bytes);
    peer_send_now(broker, to, &header, NULL, 0);
}

static void send_encoded(struct broker *broker, const struct envelope *to, uint64_t id, struct pb_writer *out,
                         zmq_msg_t *payload, uint32_t n)
{
    zmq_msg_t header;
    if (n == 0 && !out->failed && out->size <= INLINE_BYTES && zmq_msg_init_size(&header, out->size) == 0) {
        memcpy(zmq_msg_data(&header), out->data, out->size);
        pb_writer_fini(out);
        peer_send(broker, to, &header, NULL, 0);
        return;
    }
    struct peer *peer = peer_find(broker, to);
    rp_status charged = peer && !out->failed ? charge(broker, peer, out->size, payload, n) : RP_NO_MEMORY;
    if (charged == RP_RESOURCE_EXHAUSTED) {
        out->size = 0;
        reply_encode(out, id, RP_RESOURCE_EXHAUSTED,
                     "this client has left too many replies unread: read them before asking for more", 0, NULL);
        for (uint32_t i = 0; i < n; i++)
            zmq_msg_close(&payload[i]);
        n = 0;
    }
    bool ok = charged != RP_NO_MEMORY && !out->failed;
    if (!ok)
        pb_writer_fini(out);
    if (!ok || !peer_frame(peer, &header, out->data, out->size)) {
        for (uint32_t i = 0; i < n; i++)
            zmq_msg_close(&payload[i]);
        send_no_memory(broker, to, id);
        return;
    }
    peer_send(broker, to, &header, payload, n);
}

void request_send(struct broker *broker, const struct envelope *to, uint64_t id, rp_status status, const char *text,
                  uint32_t field, const ProtobufCMessage *body, zmq_msg_t *payload, uint32_t n_payload)
{
    struct pb_writer out = {0};
    reply_encode(&out, id, status, text, field, body);
    send_encoded(broker, to, id, &out, payload, n_payload);
}

/* The reply to something that was done: if need be, into memory that was put aside. */
static bool reply_encode_done(struct broker *broker, struct pb_writer *out, uint64_t id, const char *text,
                              uint32_t field, const ProtobufCMessage *body)
{
    if (reply_encode(out, id, RP_OK, text, field, body))
        return true;
    size_t size = body ? protobuf_c_message_get_packed_size(body) : 0;
    uint8_t *spare = memory_spare(broker, size + strlen(text) + 64);
    if (!spare)
        return false;
    pb_writer_fini(out);
    *out = (struct pb_writer){.data = spare, .capacity = MEMORY_BYTES};
    return reply_encode(out, id, RP_OK, text, field, body);
}

void request_finish(struct broker *broker, const struct wait *wait, uint32_t field, const ProtobufCMessage *body)
{
    struct pb_writer out = {0};
    if (reply_encode_done(broker, &out, wait->id, "", field, body))
        memory_keep(broker, wait->client, wait->id, out.data, out.size);
    send_encoded(broker, &wait->to, wait->id, &out, NULL, 0);
}

void request_reply(struct broker *broker, struct request *request, rp_status status, const char *text, uint32_t field,
                   const ProtobufCMessage *body, zmq_msg_t *payload, uint32_t n_payload)
{
    struct pb_writer out = {0};
    request->answered = true;
    /* What goes ahead of the journal has changed nothing, and may be asked twice. */
    bool remember = false;
    for (uint32_t i = 0; status == RP_OK && !broker->peers.commit.ahead && i < N_COMMANDS; i++)
        remember |= commands[i].body == request->head.body && commands[i].remember;
    if (status != RP_OK)
        reply_encode(&out, request->head.id, status, text, field, body);
    else if (reply_encode_done(broker, &out, request->head.id, text, field, body) && remember)
        memory_keep(broker, request->head.client, request->head.id, out.data, out.size);
    send_encoded(broker, &request->from, request->head.id, &out, payload, n_payload);
}

/* protobuf-c allocates for every element of a repeated field: one frame of a few MiB could take hundreds. A header of a
 * cold request has no need to be large. */
#define COLD_HEADER_BYTES (128u << 10)

static rp_status command_run(struct broker *broker, const struct command *command, struct request *request,
                             rp_error *err)
{
    if (command->descriptor) {
        if (request->head.size > COLD_HEADER_BYTES)
            return err_set(err, RP_RESOURCE_EXHAUSTED, "the header of a %s request has %zu bytes, at most %u are read",
                           command->name, request->head.size, COLD_HEADER_BYTES);
        rp_status unpacked = unpack(command->descriptor, request->head.data, request->head.size, &request->body);
        if (unpacked == RP_NO_MEMORY)
            return err_set(err, RP_NO_MEMORY, "no memory for the body of a %s request", command->name);
        if (unpacked != RP_OK)
            return err_set(err, RP_BAD_MESSAGE, "the body of this %s request is damaged", command->name);
    }
    rp_status status = command->handle(broker, request, err);
    unpack_free(request->body);
    request->body = NULL;
    return status;
}

static rp_status request_dispatch(struct broker *broker, struct request *request, const void *frame, size_t size,
                                  rp_error *err)
{
    RP_TRY(wire_read_request(frame, size, &request->head, err));
    if (request->head.version != WIRE_VERSION)
        return err_set(err, RP_UNSUPPORTED, "protocol version %u is unknown here: this broker speaks version %u",
                       request->head.version, WIRE_VERSION);
    if (request->head.id == 0)
        return err_set(err, RP_BAD_MESSAGE, "Request.id is missing: every request needs an id that is not 0");
    recall_settled(broker, request->head.client, request->head.settled);
    for (uint32_t i = 0; i < N_COMMANDS; i++) {
        if (commands[i].body != request->head.body)
            continue;
        struct wait *wait = wait_find(broker, request->head.client, request->head.id);
        if (wait) { /* unless its connection has just been found to be lost */
            monitor_run(broker);
            wait = wait_find(broker, request->head.client, request->head.id);
        }
        if (wait) {
            wait_take_over(broker, wait, request);
            request->answered = true;
            return RP_OK;
        }
        const struct memory_place *place = commands[i].remember ? memory_find(broker, request) : NULL;
        if (place)
            return memory_answer(broker, request, place, err);
        if (!commands[i].ahead && (!memory_reserve(broker) || !commit_reserve(broker)))
            return err_set(err, RP_NO_MEMORY, "no memory for the reply to a %s request", commands[i].name);
        if (commands[i].remember) /* what it does, and that it was done */
            EFFECT(&broker->loop, together, 2 * MEMORY_BYTES);
        int64_t start = clock_now(&broker->loop.clock);
        broker->peers.commit.ahead = commands[i].ahead;
        rp_status status = command_run(broker, &commands[i], request, err);
        broker->peers.commit.ahead = false;
        uint64_t took = (uint64_t)(clock_now(&broker->loop.clock) - start);
        struct command_stats *stats = &broker->commands[i];
        stats->calls++;
        stats->errors += status != RP_OK;
        stats->total_ns += took;
        if (took > stats->max_ns)
            stats->max_ns = took;
        return status;
    }
    if (request->head.body == 0)
        return err_set(err, RP_UNSUPPORTED, "the request has no body: it asks for nothing");
    return err_set(err, RP_UNSUPPORTED, "message %u is unknown in protocol version %u", request->head.body,
                   WIRE_VERSION);
}

static void request_handle(struct broker *broker, struct request *request, const void *frame, size_t size)
{
    rp_error err = {0};
    rp_status status = request_dispatch(broker, request, frame, size, &err);
    if (status == RP_OK)
        return;
    if (status == RP_BAD_MESSAGE || status == RP_UNSUPPORTED) {
        broker->peers.counters.messages_bad++;
        uint32_t held;
        char quoted[320];
        if (log_allow(&broker->peers.service_log, 5, broker->loop.now_ns, &held))
            log_line(LEVEL_WARN, "B0303", "bad request", "text=%s held_back=%u",
                     log_quote(quoted, sizeof quoted, err.text), held);
    }
    if (request->answered)
        return;
    broker->peers.commit.ahead = true;
    request_reply(broker, request, status, err.text, 0, NULL, NULL, 0);
    broker->peers.commit.ahead = false;
}

/* The routing id, then short frames if an empty one ends them: a header has at least 9 bytes. Gives the index of the
 * header, or n. */
static uint32_t read_envelope(struct request *request, zmq_msg_t *frames, uint32_t n)
{
    uint32_t header = 1;
    for (uint32_t i = 1; i < n && i < 10 && zmq_msg_size(&frames[i]) < 9; i++)
        if (zmq_msg_size(&frames[i]) == 0) {
            header = i + 1;
            break;
        }
    for (uint32_t i = 0; i < header; i++)
        if (!envelope_add(&request->from, zmq_msg_data(&frames[i]), zmq_msg_size(&frames[i])))
            return n;
    return header;
}

bool request_receive(struct broker *broker)
{
    zmq_msg_t frames[64];
    uint32_t n;
    bool whole;
    struct way from = {broker->peers.service, broker->peers.ducts ? &broker->peers.ducts->requests : NULL};
    if (!frames_receive(from, frames, 64, &n, &whole))
        return false;
    broker->peers.counters.messages_in++;
    struct request request = {0};
    uint32_t header = read_envelope(&request, frames, n);
    if (header < n && whole) {
        request.payload = frames + header + 1;
        request.n_payload = n - header - 1;
        request.descriptor = zmq_msg_get(&frames[header], ZMQ_SRCFD);
        request_handle(broker, &request, zmq_msg_data(&frames[header]), zmq_msg_size(&frames[header]));
    } else {
        broker->peers.counters.messages_bad++;
        if (request.from.size)
            request_reply(broker, &request, RP_BAD_MESSAGE,
                          whole ? "the message has no header frame" : "the message has too many frames", 0, NULL, NULL,
                          0);
    }
    frames_close(frames, n);
    return true;
}
