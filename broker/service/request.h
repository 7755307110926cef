/* Service requests: from frames to a handler, through one table of rows. To add a message: replay.proto, a row in
 * request.c, a file req_*.c, a test.
 *
 * A handler answers by request_reply, or keeps the request waiting (wait.h), or returns an error, which one place turns
 * into a reply. */
#ifndef BROKER_REQUEST_H
#define BROKER_REQUEST_H

#include <protobuf-c/protobuf-c.h>
#include <zmq.h>

#include "broker/peer/peer.h"
#include "proto/wire/wire.h"
#include "replay/error.h"

struct broker;
struct request_memory;
struct wait;

struct request {
    struct envelope from;
    int descriptor; /* of the connection, or -1 */
    struct wire_request head;
    ProtobufCMessage *body; /* unpacked, for rows with a descriptor */
    zmq_msg_t *payload;     /* frames after the header; a handler may move from them */
    uint32_t n_payload;
    bool answered;
};

typedef rp_status request_fn(struct broker *broker, struct request *request, rp_error *err);

struct command {
    uint32_t body; /* field number in Request */
    const char *name;
    const ProtobufCMessageDescriptor *descriptor; /* NULL: the handler reads the bytes itself */
    request_fn *handle;
    bool remember; /* must not be done twice: the reply is kept for a retry */
    bool ahead;    /* its reply makes no promise: it need not wait for the journal */
};

/* Counted per row. */
struct command_stats {
    uint64_t calls, errors, total_ns, max_ns;
};

const struct command *request_commands(uint32_t *count);

/* Reads a request from the service socket and handles it. False: there was none. */
bool request_receive(struct broker *broker);

/* Replies with a body (field number in Reply, or 0 and NULL) and takes the payload frames. */
void request_reply(struct broker *broker, struct request *request, rp_status status, const char *text, uint32_t field,
                   const ProtobufCMessage *body, zmq_msg_t *payload, uint32_t n_payload);
/* The same for an answer that comes later, or for a notice (id 0). */
void request_send(struct broker *broker, const struct envelope *to, uint64_t id, rp_status status, const char *text,
                  uint32_t field, const ProtobufCMessage *body, zmq_msg_t *payload, uint32_t n_payload);

/* The good end of a request that waited and must not be done twice: remembered as request_reply does. */
void request_finish(struct broker *broker, const struct wait *wait, uint32_t field, const ProtobufCMessage *body);

/* Remembered replies, oldest first; and one that comes from a file. */
typedef void request_memory_fn(void *ctx, uint64_t client, uint64_t id, const void *frame, size_t size);
void request_memory_each(const struct broker *broker, request_memory_fn *fn, void *ctx);
void request_memory_restore(struct broker *broker, uint64_t client, uint64_t id, const void *frame, size_t size);
void request_memory_destroy(struct request_memory **self);

/* The handlers, one file each. */
request_fn req_hello, req_heartbeat, req_bye;
request_fn req_sample, req_cancel, req_fetch;
request_fn req_update, req_delete, req_reset;
request_fn req_list, req_set_limiter, req_info, req_why;
request_fn req_checkpoint;
request_fn req_params_put, req_params_get, req_counter, req_reduce;

#endif
