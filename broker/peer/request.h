/* A service request and its answer. Which handler runs is decided above this room (service/dispatch.h).
 *
 * A handler answers by request_reply or request_ok, or keeps the request waiting (wait.h) and answers later by request_send
 * or request_fail. An error that a handler returns is turned into a reply by the dispatcher. */
#ifndef BROKER_REQUEST_H
#define BROKER_REQUEST_H

#include <protobuf-c/protobuf-c.h>
#include <stdbool.h>
#include <stdint.h>
#include <zmq.h>

#include "broker/loop/histogram.h"
#include "broker/peer/peer.h"
#include "proto/wire/wire.h"
#include "replay/error.h"

struct identity;
struct pb_writer;
struct peers;
struct wait;

/* How long requests of one kind take, in nanoseconds. */
struct request_times {
    struct histogram latency; /* from the request to its reply */
    struct histogram waited;  /* the same, of those that were not answered at once */
};

struct request {
    struct envelope from;
    int descriptor;              /* of the connection, or -1 */
    struct identity *identity;   /* who asks */
    uint32_t roles;              /* that may ask for this, of enum key_role */
    struct request_times *times; /* of its kind; NULL: not measured */
    struct wire_request head;
    ProtobufCMessage *body; /* unpacked; NULL if the handler reads the bytes itself */
    zmq_msg_t *payload;     /* frames after the header; a handler may move from them */
    uint32_t n_payload;
    bool remember; /* must not be done twice: a reply of RP_OK is kept for a retry (kept_replies.h) */
    bool answered;
};

/* What a reply says. */
struct answer {
    rp_status status;
    const char *text;             /* NULL: none */
    uint32_t field;               /* of the body in Reply; 0: no body */
    const ProtobufCMessage *body; /* NULL: no body */
    zmq_msg_t *payload;           /* frames after the header: taken */
    uint32_t n_payload;
};

/* True if the client is on another machine, as far as its connection shows. */
bool request_is_remote(const struct request *request);
/* Adds to an encoded reply that a trace is recorded, if one is. */
void request_put_tracing(const struct peers *peers, struct pb_writer *out);
/* Answers a request that is being handled. */
void request_reply(struct peers *peers, struct request *request, const struct answer *answer);
/* The same with status RP_OK and a body alone. */
void request_ok(struct peers *peers, struct request *request, uint32_t field, const ProtobufCMessage *body);
/* Answers a request that has waited; or sends a notice (id 0). */
void request_send(struct peers *peers, const struct envelope *to, uint64_t id, const struct answer *answer);
/* The same with a status and text alone. */
void request_fail(struct peers *peers, const struct envelope *to, uint64_t id, rp_status status, const char *text);
/* Answers RP_OK to a request that has waited and must not be done twice: the reply is kept for a retry. */
void request_finish(struct peers *peers, const struct wait *wait, uint32_t field, const ProtobufCMessage *body);
/* Answers a retry with the reply that was kept for it. *found is false if none was. RP_NO_MEMORY: it was, but there is no
 * memory to send it. */
rp_status request_repeat(struct peers *peers, struct request *request, bool *found, rp_error *err);

#endif
