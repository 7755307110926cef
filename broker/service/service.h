/* The service: one handler for each kind of request, over all rooms of the broker.
 *
 * The room owns the table of handlers (dispatch.h), and what requests leave behind that belongs to no other room: waiting
 * parameter requests, reduce groups, clients that wait for a checkpoint, and a trace. It stands above all other rooms;
 * only broker.c, which runs it, is higher. */
#ifndef BROKER_SERVICE_H
#define BROKER_SERVICE_H

#include "broker/config/config.h"
#include "broker/loop/loop.h"
#include "broker/peer/peers.h"
#include "broker/sample/samples.h"
#include "broker/service/dispatch.h"
#include "broker/service/req_params.h"
#include "broker/service/req_reduce.h"
#include "broker/session/session.h"
#include "broker/store/params.h"
#include "broker/store/store.h"
#include "broker/table/table.h"

struct checkpoint_wait;
struct checkpoints;
struct spill;
struct stream;
struct trace_session;

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
    char **shards; /* service endpoints of all shards, as clients reach them; NULL: not known, or alone */
    uint32_t n_shards;
    struct command_stats *commands; /* parallel to the table of handlers */
    struct params_waits params_waits;
    struct reduces reduces;
    struct checkpoint_wait *checkpoint_waits; /* clients that wait for a checkpoint: req_checkpoint.c */
    struct log_limit delete_log;
    struct trace_session *trace; /* a trace that is recorded or collected, or NULL: req_trace.c */
};

/* The caller has set what is borrowed. */
rp_status service_init(struct service *self, rp_error *err);
/* Tells clients from now on where all n shards are. The strings are copied. */
rp_status service_set_shards(struct service *self, char *const *endpoints, uint32_t n, rp_error *err);
/* No request waits any more. */
void service_fini(struct service *self);

#endif
