/* The peers of a broker: everything between the sockets and the handlers of messages.
 *
 * This room owns the sockets (or the ducts of a local broker), the keys of clients, the routes of connected clients, the
 * requests that are not answered yet, the replies that are kept for retries, and the messages that wait for the journal. It offers sending
 * (peer.h), answering (request.h), waiting (wait.h) and opening (sockets.h). It may use the loop, the configuration and the
 * wire format. It knows nothing of tables, samples or sessions. */
#ifndef BROKER_PEERS_H
#define BROKER_PEERS_H

#include "broker/loop/idmap.h"
#include "broker/peer/descriptors.h"
#include "broker/peer/identity.h"
#include "broker/peer/inflow.h"
#include "broker/peer/kept_replies.h"
#include "broker/peer/monitor.h"
#include "broker/peer/peer.h"
#include "broker/peer/wait.h"
#include "proto/base/log.h"
#include "proto/wire/duct.h"

struct broker_config;
struct loop;

#define STATUS_COUNT 20u /* of rp_status */

struct peer_counters {
    uint64_t messages_in, messages_bad, replies_dropped;
    uint64_t bytes_in, bytes_out;  /* of headers and payloads: no envelopes, no events */
    uint64_t failed[STATUS_COUNT]; /* replies with this status, which is not RP_OK */
};

struct peers {
    struct loop *loop;
    const struct broker_config *config;
    struct ducts *ducts; /* NULL: there are sockets */
    /* sockets; all NULL in a local broker */
    void *context;
    bool own_context;
    void *service, *ingest, *events;
    uint32_t unbound; /* bit i: socket i of these three is to be bound again */
    char service_endpoint[256], ingest_endpoint[256], events_endpoint[256]; /* as bound */
    struct {
        char service[256], ingest[256], events[256];
    } told; /* as clients are told: with the host of `advertise` */
    struct monitor monitor;
    struct descriptors_watch descriptors;
    struct inflow_watch inflow;
    uint64_t unfinished_bytes; /* of messages that have not arrived whole; those of few bytes are not counted */
    struct idmap by_route;
    struct commit commit;
    struct waits waits;
    struct kept_replies kept_replies;
    struct identities identities;
    struct peer_counters counters;
    struct {
        uint64_t number; /* 0: no trace is recorded */
        int64_t end_ns;
    } tracing; /* what replies say of a trace */
    struct log_limit service_log;
};

/* Borrows all three; ducts is NULL if there will be sockets. */
void peers_init(struct peers *self, struct loop *loop, const struct broker_config *config, struct ducts *ducts);
/* Cuts connections that hold too much of unfinished messages: once a second, and with keys more often. */
void peers_bound(struct peers *self);
/* Once a second: forgets peers with nothing in flight, ends waits of lost connections, checks the descriptors. */
void peers_sweep(struct peers *self);
/* Closes the sockets and forgets everything. No request waits any more. */
void peers_fini(struct peers *self);

#endif
