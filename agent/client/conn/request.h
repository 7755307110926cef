/* Requests in flight, and the replies to them.
 *
 * A request owns its frames, so that it can be sent again. Its reply is a part of it, so that it can always be answered. */
#pragma once

#include <protobuf-c/protobuf-c.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/queue.h>
#include <zmq.h>

#include "proto/base/error.h"
#include "proto/wire/channel.h"
#include "proto/wire/wire.h"
#include "replay.pb-c.h"
#include "replay/error.h"

#define REPLY_FRAMES 4u

/* The reply to a request, at the start of its memory. It belongs to the reply function that gets it: conn_reply_destroy. It may take
 * payload frames with zmq_msg_move. */
struct conn_reply {
    rp_status status;       /* of the broker's reply, or the library's if no reply came */
    bool answered;          /* the broker has replied: header and view are valid */
    struct wire_reply view; /* borrows header */
    zmq_msg_t header;
    zmq_msg_t *payload; /* `few`, or memory of its own */
    uint32_t n_payload, capacity;
    zmq_msg_t few[REPLY_FRAMES];
    struct conn_arena *arena; /* of a sample: the memory of the broker that has sent it; NULL: it is not here */
    char text[400];           /* the reason, if the broker has not replied */
};

typedef void conn_reply_fn(void *ctx, struct conn_reply *reply);

void conn_reply_destroy(struct conn_reply **self);
/* Makes an empty reply, and empties one that was received: its memory takes the next. */
void reply_init(struct conn_reply *self);
void reply_clear(struct conn_reply *self);
/* Puts the reply's status and sentence into err and returns the status. RP_OK leaves err alone. */
rp_status conn_reply_status(const struct conn_reply *self, rp_error *err);
/* Unpacks the body of a reply with protobuf-c: free it with unpack_free, which allows NULL. Without RP_OK *out is NULL: the reply's own
 * status, RP_NO_MEMORY, or RP_BAD_MESSAGE if it has another body or is damaged. */
rp_status conn_reply_read(const struct conn_reply *self, Replay__Reply__BodyCase body, void *out, rp_error *err);
/* Reads the numbers of a message without memory: that of field i goes to numbers[i], absent ones are 0. False: it is damaged. */
bool read_numbers(const void *data, size_t size, uint64_t *numbers, uint32_t n);
/* The same of the body, whatever the status is. RP_BAD_MESSAGE: the reply has another body, or it is damaged. */
rp_status conn_reply_numbers(const struct conn_reply *self, uint32_t body, uint64_t *numbers, uint32_t n,
                             rp_error *err);
/* The reply has another body than was asked for: RP_BAD_MESSAGE. */
rp_status conn_reply_unexpected(rp_error *err);
/* Ends requests if there is no memory for a reply of their own. Never written, never freed. */
extern const struct conn_reply reply_no_memory;

/* What a request says. The body is a protobuf message, or, if body is NULL, `size` encoded bytes. */
struct conn_message {
    uint32_t field; /* of the body, in Request */
    const ProtobufCMessage *body;
    const void *bytes;
    size_t size;
    zmq_msg_t *payload; /* frames: sending takes them and leaves them empty */
    uint32_t n_payload;
    int64_t timeout_ms; /* for the reply; negative: none */
    int64_t grace_ms; /* beyond that while the connection is up: a request that waits at the broker is answered late */
    uint64_t again;   /* id of an earlier send of the same request, which the broker does once; 0: none */
    struct loan
        *loan; /* of a sample, until its items were read; NULL: there is one from an earlier send, or none is needed */
};

/* Says that the reply to a sample is still to come or to be read, so that the broker keeps it. In the memory of who asks; all zeros:
 * there is none. */
struct loan {
    uint64_t id;
    TAILQ_ENTRY(loan) link; /* in the order of ids */
};

struct conn_request {
    struct conn_reply reply; /* first */
    uint64_t id;
    uint32_t field;                 /* of the body */
    TAILQ_ENTRY(conn_request) link; /* in the order of sending */
    struct conn_request *chain;     /* next in its bucket */
    zmq_msg_t header;
    zmq_msg_t *payload;
    uint32_t n_payload;
    int64_t deadline_ns; /* with the grace */
    int64_t timeout_ms, grace_ns;
    int64_t traced_ns; /* when it was sent; 0: no trace was on */
    conn_reply_fn *fn;
    void *ctx;
    struct conn_part *part; /* not NULL: sent once, for this part */
    bool cancelled;
    bool sent;  /* at least once */
    bool again; /* was retried because there was no memory, here or at the broker; it is not retried again */
};

/* Makes a request without an id, and takes the message's payload. NULL: no memory, and the payload stays. */
struct conn_request *request_new(uint64_t client, const struct conn_message *message);
void request_free(struct conn_request *self);
void request_name(struct conn_request *self, uint64_t id);
/* Sends the request. settled: the id up to which all samples were read or cancelled. False: the way does not take it. */
bool request_transmit(struct conn_request *self, struct port to, uint64_t settled);
/* End a request that was taken out: with the reply that it has received, or with a status of the library. */
void request_answer(struct conn_request *self);
void request_end(struct conn_request *self, rp_status status, const char *format, ...) RP_PRINTF(3, 4);

TAILQ_HEAD(request_list, conn_request);

#define REQUEST_BUCKETS 64u

/* The requests that wait for a reply. */
struct requests {
    struct request_list list;
    struct conn_request *buckets[REQUEST_BUCKETS]; /* by id */
};

void requests_add(struct requests *self, struct conn_request *request);
/* NULL: there is none of this id. */
struct conn_request *requests_find(const struct requests *self, uint64_t id);
struct conn_request *requests_take(struct requests *self, uint64_t id);

/* Receives one message; false: there is none. *reply is that of the request that it answers, or `other`; NULL: the message is damaged. A
 * reply that there is no memory for has this status. Empty it with reply_clear unless its request is answered. */
bool requests_receive(struct requests *self, struct port from, struct conn_reply *other, struct conn_reply **reply);
