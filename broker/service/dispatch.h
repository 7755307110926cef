/* Service requests: from frames to a handler, through one table of rows. To add a message: replay.proto, a row in
 * dispatch.c, a file req_*.c, a test.
 *
 * How a handler answers: peer/request.h. */
#ifndef BROKER_DISPATCH_H
#define BROKER_DISPATCH_H

#include "broker/peer/request.h"

struct service;

/* Most keys of an update, delete or fetch: these take well under 2 ms in a table of any size. */
#define REQUEST_MAX_KEYS 2048u

typedef rp_status request_fn(struct service *service, struct request *request, rp_error *err);

struct command {
    uint32_t body; /* field number in Request */
    const char *name;
    const ProtobufCMessageDescriptor *descriptor; /* NULL: the handler reads the bytes itself */
    request_fn *handle;
    bool remember;  /* must not be done twice: the reply is kept for a retry */
    bool ahead;     /* its reply confirms nothing: it need not wait for the journal */
    uint32_t roles; /* that may ask for it, of enum key_role; an admin always may */
};

/* Counts of one row. */
struct command_stats {
    uint64_t calls, errors, total_ns, max_ns; /* times of the handler */
    struct request_times times;
};

/* Returns the table of rows. */
const struct command *dispatch_commands(uint32_t *count);

/* Reads a request from the service socket and handles it. False: there was none. */
bool dispatch_receive(struct service *service);

/* The handlers, one file each. */
request_fn req_hello, req_heartbeat, req_bye;
request_fn req_sample, req_permit, req_cancel, req_fetch;
request_fn req_update, req_delete, req_reset;
request_fn req_list, req_set_limiter, req_info, req_why;
request_fn req_checkpoint;
request_fn req_trace, req_trace_spans;
/* A checkpoint_listener: answers requests that wait for this checkpoint or an earlier one. ctx: the service. */
void request_checkpoint_ended(void *ctx, uint64_t number, const char *error);
request_fn req_params_put, req_params_get, req_counter, req_reduce;

#endif
