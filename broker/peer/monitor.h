/* Watches for connections that end: a request of a client that has gone must not wait on, or the items it gets would be
 * lost.
 *
 * libzmq reports which descriptor was closed, and for each message from which descriptor it came. A new connection may have
 * the same descriptor by the time the report is read. So the wait is not dropped but answered: if the client is gone the
 * answer fails, and if the descriptor belongs to a new client, that client asks again. */
#ifndef BROKER_MONITOR_H
#define BROKER_MONITOR_H

#include <stdint.h>

#include "replay/error.h"

struct peers;

struct monitor {
    void *socket;          /* reports connections to the service socket that begin and end; NULL: a local broker */
    uint64_t *connections; /* by descriptor: see monitor_connection */
    uint32_t n_connections;
    uint64_t n_accepted; /* connections since the start */
};

/* Watches the service socket. Called again after the socket was replaced. */
rp_status monitor_open(struct monitor *self, void *context, void *service, rp_error *err);
void monitor_close(struct monitor *self, void *service);
void monitor_fini(struct monitor *self);
/* Ends the waits of connections that have closed. */
void monitor_run(struct peers *peers);
/* Once a second: also ends waits whose request was read only after the end of its connection was reported. */
void monitor_sweep(struct peers *peers);
/* Returns the number of the connection that has the descriptor, higher for later connections: 0 if the descriptor is
 * unknown, 1 if the connection has ended. */
uint64_t monitor_connection(const struct monitor *self, int descriptor);

#endif
