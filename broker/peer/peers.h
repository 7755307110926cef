/* Everybody who is connected: sockets or ducts, who is there, which requests are not answered yet, and which messages have
 * not left yet. */
#ifndef BROKER_PEERS_H
#define BROKER_PEERS_H

#include "broker/loop/idmap.h"
#include "broker/peer/commit.h"
#include "broker/peer/peer.h"
#include "broker/peer/wait.h"
#include "proto/base/log.h"
#include "proto/wire/duct.h"

struct peer_counters {
    uint64_t messages_in, messages_bad, replies_dropped;
};

struct peers {
    struct ducts *ducts; /* NULL: there are sockets */
    /* sockets; all NULL in a local broker */
    void *context;
    bool own_context;
    void *service, *ingest, *events;
    void *monitor;         /* tells of connections to service that begin and end */
    uint64_t *connections; /* by descriptor: monitor.c's */
    uint32_t n_connections;
    uint64_t n_accepted;
    char service_endpoint[256], ingest_endpoint[256], events_endpoint[256];
    struct idmap by_route;
    struct commit commit;
    struct waits waits;                  /* requests that are not answered yet */
    struct request_memory *kept_replies; /* to requests that must not be done twice */
    struct peer_counters counters;
    struct log_limit service_log;
};

#endif
