/* The three sockets of a broker: service (requests), ingest (inserts) and events (hints). */
#ifndef BROKER_SOCKETS_H
#define BROKER_SOCKETS_H

#include "proto/base/error.h"

struct peers;

/* Binds the sockets and watches for connections that end. context: a zmq context to bind in (for inproc); NULL: a new one,
 * which is terminated by sockets_close. A broker with ducts opens nothing. */
rp_status sockets_open(struct peers *peers, void *context, rp_error *err);
/* For tests of reconnection: closes the ingest and service sockets and binds the same endpoints again. */
rp_status sockets_rebind(struct peers *peers, rp_error *err);
/* Binds each socket anew with the present key. Connections end. */
rp_status sockets_bind_again(struct peers *peers, rp_error *err);
void sockets_close(struct peers *peers);
/* Publishes a one-frame hint on `events`. */
void sockets_announce(struct peers *peers, const char *format, ...) RP_PRINTF(2, 3);

#endif
