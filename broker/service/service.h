/* The service: one handler for each kind of request, over all rooms of the broker.
 *
 * The room owns the table of handlers, through which all requests go (to add a message: replay.proto, a row in service.c, a handler,
 * a test), and what requests leave behind that belongs to no other room: waiting parameter requests, reduce groups, and a trace. It stands above all other rooms;
 * only broker.c, which runs it, is higher. */
#pragma once

#include "broker/config/config.h"
#include "broker/loop/loop.h"
#include "broker/peer/peers.h"
#include "broker/sample/samples.h"
#include "broker/session/session.h"
#include "broker/store/params.h"
#include "broker/store/store.h"
#include "broker/table/table.h"
#include "proto/base/need.h"

struct checkpoints;
struct params_wait;
struct reduce_group;
struct spill;
struct stream;
struct trace_session;

/* Counts of one kind of request. */
struct command_stats {
    const char *name;
    uint64_t calls, errors, total_ns, max_ns; /* times of the handler */
    struct request_times times;
};

/* Requests for parameters that wait for a newer version. */
struct params_waits {
    LIST_HEAD(params_wait_list, params_wait) list; /* newest first */
    struct chore waking;                           /* answers them after a put, in slices */
    struct params_wait *wake_next;
    bool is_waking, wake_again; /* again: another put came meanwhile, which concerns all of them */
};

/* Reduce: sums float32 vectors over the members of a group, round by round, so that parallel learners can apply the same
 * averaged gradient. The broker knows nothing about the algorithm. */
struct reduces {
    struct reduce_group *groups;
    uint32_t count;
    uint64_t bytes; /* of vectors that wait and sums that are kept */
};

struct service {
    /* borrowed */
    const struct broker_config *config;
    struct loop *loop;
    struct store *store;
    struct tables *tables;
    struct params *params;
    struct peers *peers;
    struct samples *samples;
    struct sessions *sessions;
    struct stream *stream;           /* NULL: nothing is kept on disk */
    struct checkpoints *checkpoints; /* NULL: none are made */
    struct spill *spill;             /* NULL: all chunks are in memory */
    uint64_t instance;               /* random number of this run of the broker */
    /* owned */
    struct words shards; /* service endpoints of all shards, as clients reach them; none: not known, or alone */
    struct command_stats *commands; /* one for each kind of request */
    uint32_t n_commands;
    struct params_waits params_waits;
    struct reduces reduces;
    struct log_limit delete_log;
    uint64_t snapshots, snapshots_cpu_ns, snapshot_longest_ns; /* made by the snapshot_maker: info.h */
    struct trace_session *trace; /* a trace that is recorded or collected, or NULL: req_trace.c */
};

/* The caller has set what is borrowed. */
void service_init(struct service *self);
/* Tells clients from now on where all n shards are. The strings are copied. For shards that learn of each other's endpoints after they
 * were bound; in any other case the configuration has them. */
void service_set_shards(struct service *self, char *const *endpoints, uint32_t n);
/* No request waits any more. */
void service_fini(struct service *self);
/* Reads a request from the service socket and handles it. False: there was none. */
bool service_receive(struct service *service);

/* ---- handlers: see peer/request.h ---- */

/* Most keys of an update, delete or fetch: these take well under 2 ms in a table of any size. */
#define REQUEST_MAX_KEYS 2048u

typedef rp_status request_fn(struct service *service, struct request *request, rp_error *err);
request_fn req_hello, req_heartbeat, req_bye;
request_fn req_sample, req_permit, req_cancel, req_fetch;
request_fn req_lease, req_update, req_delete, req_reset;
request_fn req_list, req_set_limiter, req_info, req_why;
request_fn req_checkpoint;
request_fn req_trace, req_trace_spans;
/* A checkpoint_listener: answers requests that wait for this checkpoint or an earlier one. ctx: the service. */
void request_checkpoint_ended(void *ctx, uint64_t number, const char *error);
request_fn req_params_put, req_params_get, req_counter, req_reduce;
void reduces_fini(struct reduces *self);
