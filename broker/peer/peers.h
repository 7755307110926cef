/* The peers of a broker: everything between the sockets and the handlers of messages.
 *
 * This room owns the sockets (or the channels of a local broker), the keys of clients, the routes of connected clients, the
 * requests that are not answered yet, the replies that are kept for retries, and the messages that wait for the journal. It offers sending
 * (peer.h), answering and waiting (request.h), and opening. It may use the loop, the configuration and the
 * wire format. It knows nothing of tables, samples or sessions. */
#pragma once

#include "broker/loop/idmap.h"
#include "broker/peer/guard.h"
#include "broker/peer/identity.h"
#include "broker/peer/kept.h"
#include "broker/peer/peer.h"
#include "broker/peer/request.h"
#include "proto/base/clock.h"
#include "proto/base/log.h"
#include "proto/wire/channel.h"

struct broker_config;
struct loop;

/* Time for sending the last replies when the broker ends. */
#define PEER_DRAIN_NS (2 * NS_PER_S)
#define ENDPOINT_BYTES 256u
#define STATUS_COUNT 20u /* of rp_status */

struct peer_counters {
    uint64_t messages_in, messages_bad, replies_dropped;
    uint64_t bytes_in, bytes_out;  /* of headers and payloads: no envelopes, no events */
    uint64_t failed[STATUS_COUNT]; /* replies with this status, which is not RP_OK */
};

struct peers {
    struct loop *loop;
    const struct broker_config *config;
    struct channels *channels; /* NULL: there are sockets */
    /* sockets; all NULL in a local broker */
    void *context;
    bool own_context;
    void *service, *ingest, *events;
    /* The socket may hold messages: it was bound, its descriptor was readable, or it was used since it was read until it was empty. */
    bool service_used, ingest_used;
    uint32_t unbound;   /* bit i: socket i of these three is to be bound again */
    int64_t unbound_ns; /* since when, or when that was logged */
    char service_endpoint[ENDPOINT_BYTES], ingest_endpoint[ENDPOINT_BYTES],
        events_endpoint[ENDPOINT_BYTES]; /* as bound */
    struct {
        char service[ENDPOINT_BYTES], ingest[ENDPOINT_BYTES], events[ENDPOINT_BYTES];
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

/* Borrows all three; channels is NULL if there will be sockets. */
void peers_init(struct peers *self, struct loop *loop, const struct broker_config *config, struct channels *channels);

/* The three sockets of a broker are service (requests), ingest (inserts) and events (hints). Binds them and watches for connections
 * that end. context: a zmq context to bind in (for inproc); NULL: a new one, which is terminated by sockets_close. A broker with channels
 * opens nothing. */
rp_status sockets_open(struct peers *peers, void *context, rp_error *err);
void sockets_close(struct peers *peers);
/* Publishes a one-frame hint on `events`. */
void sockets_announce(struct peers *peers, const char *format, ...) RP_PRINTF(2, 3);

#define ZAP_DOMAIN "replay"
#define ZAP_DOMAIN_INGEST "replay.ingest" /* only keys that may write come in */
/* The ZAP handler (ZeroMQ RFC 27): libzmq asks it about each handshake. It runs on the core thread, a few requests a turn, so
 * the list of keys has one owner. A connection is accepted if its key is in the list, and for ingest an actor's, and gets the number
 * of its identity. Answers what is asked now. True: there was something. */
bool zap_run(struct peers *peers);
/* Reads the files of keys again if they have changed. With another broker key, binds all endpoints again; with another list, ends the
 * waits of keys that may no longer ask. */
void peers_look_at_keys(struct peers *self);
/* Cuts connections that hold too much of unfinished messages: once a second, and with keys more often. */
void peers_bound(struct peers *self);
/* Once a second: forgets peers with nothing in flight, ends waits of lost connections, checks the descriptors. */
void peers_sweep(struct peers *self);
/* Closes the sockets and forgets everything. No request waits any more. */
void peers_fini(struct peers *self);
