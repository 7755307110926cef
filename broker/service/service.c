#include "broker/service/service.h"

#include <stdio.h>
#include <stdlib.h>

#include "proto/base/error.h"
#include "proto/base/need.h"
#include "proto/wire/pb.h"

struct command {
    uint32_t body; /* field number in Request */
    const char *name;
    const ProtobufCMessageDescriptor *descriptor; /* NULL: the handler reads the bytes itself */
    request_fn *handle;
    uint32_t flags; /* REMEMBER, AHEAD */
    uint32_t roles; /* that may ask for it, of enum key_role; an admin always may */
};

enum {
    REMEMBER = 1, /* must not be done twice: the reply is kept for a retry */
    AHEAD = 2     /* its reply confirms nothing: it need not wait for the journal */
};
#define ROW(body, type, flags, roles)                                                                                  \
    {                                                                                                                  \
        REPLAY__REQUEST__BODY_##body, #type, &replay__##type##__descriptor, req_##type, flags, roles                   \
    }
#define RAW_ROW(body, type, flags, roles)                                                                              \
    {                                                                                                                  \
        REPLAY__REQUEST__BODY_##body, #type, NULL, req_##type, flags, roles                                            \
    }
#define ACTOR KEY_ACTOR
#define LEARNER KEY_LEARNER
#define OBSERVER KEY_OBSERVER
#define ADMIN 0 /* an admin may do everything */

/* An actor writes, and reads parameters; a learner samples, and writes parameters and priorities; an observer looks. Everybody
 * may connect, and ask what the broker does. */
static const struct command commands[] = {
    ROW(HELLO, hello, REMEMBER, KEY_ANY),
    ROW(HEARTBEAT, heartbeat, 0, ACTOR),
    ROW(BYE, bye, REMEMBER, ACTOR),
    RAW_ROW(SAMPLE, sample, 0, LEARNER),
    ROW(PERMIT, permit, REMEMBER, LEARNER),
    RAW_ROW(LEASE, lease, REMEMBER, LEARNER),
    RAW_ROW(UPDATE, update, 0, LEARNER),
    RAW_ROW(DELETE, delete, 0, LEARNER),
    ROW(CANCEL, cancel, 0, KEY_ANY),
    RAW_ROW(FETCH, fetch, 0, LEARNER | OBSERVER),
    ROW(LIST, list, AHEAD, LEARNER | OBSERVER),
    ROW(RESET, reset, REMEMBER, ADMIN),
    ROW(SET_LIMITER, set_limiter, 0, ADMIN),
    ROW(INFO, info, AHEAD, KEY_ANY),
    ROW(WHY, why, AHEAD, KEY_ANY),
    ROW(PARAMS_PUT, params_put, REMEMBER, LEARNER),
    ROW(PARAMS_GET, params_get, 0, ACTOR | LEARNER | OBSERVER),
    ROW(COUNTER, counter, REMEMBER, ACTOR | LEARNER),
    ROW(REDUCE, reduce, 0, LEARNER),
    ROW(CHECKPOINT, checkpoint, AHEAD, ADMIN),
    ROW(TRACE, trace, AHEAD, ADMIN),
    ROW(TRACE_SPANS, trace_spans, AHEAD, KEY_ANY),
};
#define N_COMMANDS (sizeof commands / sizeof commands[0])

/* Most header bytes of a request that protobuf-c unpacks: it allocates for every element of a repeated field, so a frame of a
 * few MiB could take hundreds. */
#define COLD_HEADER_BYTES (128u << 10)

/* Unpacks the body and runs the handler. */
static rp_status command_run(struct service *service, const struct command *command, struct request *request,
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
    rp_status status = command->handle(service, request, err);
    unpack_free(request->body);
    request->body = NULL;
    return status;
}

static __attribute__((noinline)) void trace_command(struct service *service, const struct command *command,
                                                    const struct request *request, int64_t start_ns)
{
    loop_trace_end(service->loop, command->name, start_ns,
                   (struct trace_span){.who = request->head.client, .id = request->head.id, .link = TRACE_REQUEST});
}

/* The same, counted. */
static rp_status command_count(struct service *service, const struct command *command, struct request *request,
                               rp_error *err)
{
    int64_t start = clock_now(&service->loop->clock);
    service->peers->commit.ahead = command->flags & AHEAD;
    rp_status status = command_run(service, command, request, err);
    service->peers->commit.ahead = false;
    uint64_t took = (uint64_t)(clock_now(&service->loop->clock) - start);
    if (trace_on(&service->loop->trace))
        trace_command(service, command, request, start);
    struct command_stats *stats = &service->commands[command - commands];
    stats->calls++;
    stats->errors += status != RP_OK;
    stats->total_ns += took;
    if (took > stats->max_ns)
        stats->max_ns = took;
    if (!wait_goes_on(service->peers))
        histogram_add(&stats->times.latency, took, 1);
    return status;
}

static rp_status request_dispatch(struct service *service, struct request *request, const void *frame, size_t size,
                                  rp_error *err)
{
    struct peers *peers = service->peers;
    RP_TRY(wire_read_request(frame, size, &request->head, err));
    if (request->head.version != WIRE_VERSION)
        return err_set(err, RP_UNSUPPORTED, "protocol version %u is unknown here: this broker speaks version %u",
                       request->head.version, WIRE_VERSION);
    if (request->head.id == 0)
        return err_set(err, RP_BAD_MESSAGE, "Request.id is missing: every request needs an id that is not 0");
    if (request->head.client)
        request->head.client = identity_client(request->identity, request->head.client);
    kept_samples_settle(service->samples, request->head.client, request->head.settled);
    if (!LIST_EMPTY(&service->samples->leases.holders))
        leases_heard(&service->samples->leases, request);
    if (request->head.body == 0)
        return err_set(err, RP_UNSUPPORTED, "the request has no body: it asks for nothing");
    const struct command *command = commands;
    while (command < commands + N_COMMANDS && command->body != request->head.body)
        command++;
    if (command == commands + N_COMMANDS)
        return err_set(err, RP_UNSUPPORTED, "message %u is unknown in protocol version %u", request->head.body,
                       WIRE_VERSION);
    request->roles = command->roles;
    request->times = &service->commands[command - commands].times;
    if (peers->identities.on) {
        char what[64];
        snprintf(what, sizeof what, "a %s request", command->name);
        RP_TRY(identity_check(request->identity, command->roles, what, err));
    }
    request->answered = wait_take_over(peers, request);
    request->remember = command->flags & REMEMBER;
    if (request->answered || (request->remember && request_repeat(peers, request)))
        return RP_OK;
    if (request->remember) /* its effects and its reply are one record */
        EFFECT(service->loop, together, 2 * KEPT_REPLY_BYTES);
    return command_count(service, command, request, err);
}

/* Handles a request; an error that the handler returns becomes a reply. */
static void request_handle(struct service *service, struct request *request, const void *frame, size_t size)
{
    rp_error err = {0};
    rp_status status = request_dispatch(service, request, frame, size, &err);
    if (status == RP_OK)
        return;
    if (status == RP_BAD_MESSAGE || status == RP_UNSUPPORTED) {
        service->peers->counters.messages_bad++;
        uint32_t held;
        if (log_allow(&service->peers->service_log, 5, service->loop->now_ns, &held))
            log_line(LEVEL_WARN, "B0303", "bad request", "text=%s held_back=%u", log_text(err.text), held);
    }
    if (request->answered)
        return;
    service->peers->commit.ahead = true;
    request_reply(service->peers, request, &(struct answer){.status = status, .text = err.text});
    service->peers->commit.ahead = false;
}

/* Reads the routing id, then short frames if an empty frame ends them (a header has at least 9 bytes). Returns the index of
 * the header, or n. */
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

bool service_receive(struct service *service)
{
    zmq_msg_t frames[64];
    uint32_t n;
    bool whole;
    struct port from = {service->peers->service, service->peers->channels ? &service->peers->channels->requests : NULL};
    if (!frames_receive(from, frames, 64, &n, &whole))
        return false;
    service->peers->counters.messages_in++;
    struct request request = {0};
    uint32_t header = read_envelope(&request, frames, n);
    if (header < n && whole) {
        request.payload = frames + header + 1;
        request.n_payload = n - header - 1;
        request.descriptor = zmq_msg_get(&frames[header], ZMQ_SRCFD);
        request.identity = identity_of(service->peers, &frames[header]);
        request.from.unread = request.identity->unread;
        /* Only requests of a learner have large payloads. */
        inflow_taken(request.descriptor,
                     request.identity->roles & (LEARNER | KEY_ADMIN) ? inflow_most_requests(service->config) : 0);
        size_t size = zmq_msg_size(&frames[header]);
        service->peers->counters.bytes_in += size;
        for (uint32_t i = 0; i < request.n_payload; i++)
            service->peers->counters.bytes_in += zmq_msg_size(&request.payload[i]);
        request_handle(service, &request, zmq_msg_data(&frames[header]), size);
    } else {
        service->peers->counters.messages_bad++;
        if (request.from.size)
            request_reply(service->peers, &request,
                          &(struct answer){.status = RP_BAD_MESSAGE,
                                           .text = whole ? "the message has no header frame"
                                                         : "the message has too many frames"});
    }
    frames_close(frames, n);
    return true;
}

/* ---- life ---- */

void service_set_shards(struct service *self, char *const *endpoints, uint32_t n)
{
    words_clear(&self->shards);
    for (uint32_t i = 0; i < n; i++)
        words_add(&self->shards, endpoints[i]);
}

void service_init(struct service *self)
{
    self->n_commands = N_COMMANDS;
    self->commands = need_alloc(N_COMMANDS * sizeof *self->commands);
    for (uint32_t i = 0; i < N_COMMANDS; i++)
        self->commands[i].name = commands[i].name;
    const struct schema_list *shards = &self->config->shards;
    if (shards->count > 1 && config_shard_endpoint(self->config, 0))
        service_set_shards(self, shards->data, shards->count);
}

void service_fini(struct service *self)
{
    reduces_fini(&self->reduces);
    words_clear(&self->shards);
    free(self->commands);
    self->commands = NULL;
}
