/* The three sockets of a broker: service (requests), ingest (inserts) and events (hints). */
#ifndef BROKER_SOCKETS_H
#define BROKER_SOCKETS_H

#include "proto/base/clock.h"
#include "proto/base/error.h"

struct peers;

/* Time for sending the last replies when the broker ends. */
#define PEER_DRAIN_NS (2 * NS_PER_S)

/* Binds the sockets and watches for connections that end. context: a zmq context to bind in (for inproc); NULL: a new one,
 * which is terminated by sockets_close. A broker with ducts opens nothing. */
rp_status sockets_open(struct peers *peers, void *context, rp_error *err);
/* For tests of reconnection: closes the ingest and service sockets and binds the same endpoints again. */
rp_status sockets_rebind(struct peers *peers, rp_error *err);
/* Gives up all endpoints and takes the present key for later connections. Connections end. An endpoint is free only when an I/O
 * thread has closed its listener, so sockets_bind_rest is to be called until it returns RP_OK. */
rp_status sockets_unbind(struct peers *peers, rp_error *err);
/* Tries to bind the endpoints that were given up, without waiting. RP_OK: all are bound. */
rp_status sockets_bind_rest(struct peers *peers, rp_error *err);
void sockets_close(struct peers *peers);
/* Publishes a one-frame hint on `events`. */
void sockets_announce(struct peers *peers, const char *format, ...) RP_PRINTF(2, 3);

#endif
