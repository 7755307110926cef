/* A service request, its answer, and the wait of a request that is not answered at once. Which handler runs is decided above this
 * room (service/service.h).
 *
 * A handler answers by request_reply or request_ok, or keeps the request waiting (struct wait) and answers later by request_send
 * or request_fail. An error that a handler returns is turned into a reply by the dispatcher. */
#pragma once

#include <protobuf-c/protobuf-c.h>
#include <stdbool.h>
#include <stdint.h>
#include <zmq.h>

#include "broker/loop/histogram.h"
#include "broker/loop/idmap.h"
#include "broker/loop/loop.h"
#include "broker/peer/peer.h"
#include "proto/wire/wire.h"
#include "replay/error.h"

struct identity;
struct text;
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
    bool remember; /* must not be done twice: a reply of RP_OK is kept for a retry (kept.h) */
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
void request_put_tracing(const struct peers *peers, struct text *out);
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
/* Answers a retry with the reply that was kept for it. False: none was. */
bool request_repeat(struct peers *peers, struct request *request);

/* ---- waits ---- */

/* What a request waits for, in words. */
struct wait_text {
    const char *table; /* borrowed; NULL: no table */
    uint64_t count, got;
    char text[512];
};

/* A request that is not answered yet. It has a deadline or none, can explain what it waits for, can be taken over by a retry
 * from a new route, and is cancelled when its connection ends or the broker drains. Embedded as the first member of the struct that
 * waits. ctx is the wait's. */
struct wait_ops {
    const char *kind; /* "sample", "permit", "fetch", "params", "reduce", "checkpoint", "trace", "bye" */
    void (*explain)(const struct wait *wait, struct wait_text *out);
    /* Ends the wait after it was answered with an error, and frees it. */
    void (*end)(struct wait *wait);
    /* Ends the wait and answers with status and text. NULL: answers, then calls end. */
    void (*cancel)(struct wait *wait, rp_status status, const char *text);
    /* The deadline has passed. Ends the wait and answers. NULL: cancels it with what it waits for. */
    void (*expire)(struct wait *wait);
};

struct wait {
    struct peers *peers;
    const struct wait_ops *ops;
    void *ctx; /* of its ops */
    struct wait *prev, *next;
    struct timer timer;
    struct envelope to;
    uint64_t client, id;
    int64_t since_ns;
    int64_t traced_ns;           /* the same by a fresh look at the clock; 0: no trace was recorded then */
    int descriptor;              /* of the connection by which the request came; -1: not known */
    uint64_t connection;         /* number of that connection: monitor_connection */
    struct identity *identity;   /* whose request it is */
    uint32_t roles;              /* that may ask for it, of enum key_role */
    uint32_t places;             /* that it takes of those there are */
    struct request_times *times; /* of its kind; NULL: not measured */
    uint64_t message;            /* running number of the message by which the request came */
    bool measured;               /* its time counts when it ends: it was not answered at once */
};

struct waits {
    struct wait *first, *last;
    struct idmap by_request;
    uint64_t count;
    uint64_t places; /* that are taken */
};

/* A timeout this long, or longer than a century, means "no deadline". */
#define WAIT_FOREVER UINT64_MAX

/* Starts to wait on behalf of a request. */
rp_status wait_begin(struct peers *peers, struct wait *self, const struct wait_ops *ops, void *ctx,
                     const struct request *request, uint64_t timeout_ms, rp_error *err);
/* Allocates a struct of so many bytes that begins with a wait, and starts to wait: the request counts as answered. NULL with err set. */
void *wait_new(struct peers *peers, size_t bytes, const struct wait_ops *ops, void *ctx, struct request *request,
               uint64_t timeout_ms, rp_error *err);
/* Adds to the trace how long the request has waited. */
void wait_trace(const struct wait *self);
/* Takes a wait that was answered off the list. */
void wait_end(struct wait *self);
/* The deadline has passed: see wait_ops. */
void wait_expire(struct wait *self);
/* Answers with an error, and ends the wait. */
void wait_cancel(struct wait *self, rp_status status, const char *text);
/* After the handler of a request: true if the request waits. Its time then counts when it ends. */
bool wait_goes_on(struct peers *peers);
/* Returns the waiting request that (client, id) named. NULL: there is none. */
struct wait *wait_find(const struct waits *waits, uint64_t client, uint64_t id);
/* If the request is a retry of one that still waits, sends the answer to where the retry came from. Not if the retry is older than
 * the known route: then it came late, by a connection that the client has closed. False: no such request waits. */
bool wait_take_over(struct peers *peers, const struct request *request);
/* After a change of the list of keys: ends the waits of keys that may no longer ask for what they wait for. */
void waits_check_roles(struct peers *peers);
/* Cancels every wait. */
void waits_cancel_all(struct waits *waits, rp_status status, const char *text);

/* ---- the monitor ---- */

/* The monitor watches for connections that end: a request of a client that has gone must not wait on, or the items it gets would be
 * lost.
 *
 * libzmq reports which descriptor was closed, and for each message from which descriptor it came. A new connection may have
 * the same descriptor by the time the report is read. So the wait is not dropped but answered: if the client is gone the
 * answer fails, and if the descriptor belongs to a new client, that client asks again. */
struct monitor_connection {
    uint64_t number; /* a running one, or see request.c */
    uint64_t route;  /* of its requests; 0: not known yet */
};

struct monitor {
    void *socket; /* reports connections to the service socket that begin and end; NULL: a local broker */
    struct monitor_connection *connections; /* by descriptor */
    uint32_t n_connections;
    uint64_t n_accepted; /* connections since the start */
};

/* Watches the service socket. Called again after the socket was replaced. */
rp_status monitor_open(struct monitor *self, void *context, void *service, rp_error *err);
void monitor_close(struct monitor *self, void *service);
void monitor_fini(struct monitor *self);
/* Ends the waits of connections that have closed. */
void monitor_run(struct peers *peers);
/* True if the connection with this descriptor has ended; -1: that is not known. *number: 0 at first, then the number of the
 * connection, because another one may get the descriptor. */
bool connection_has_ended(const struct peers *peers, int descriptor, uint64_t *number);
/* Once a second: also ends waits whose request was read only after the end of its connection was reported. */
void monitor_sweep(struct peers *peers);
