/* Connections that end: requests of a peer that has gone must not wait on, or its share of items would go nowhere.
 *
 * libzmq tells which descriptor was closed, and each message from which descriptor it came. A descriptor may be used again
 * by the time this is read, so the wait is not dropped but answered: if the peer is gone the answer fails, and if it is a
 * new one it asks again. */
#ifndef BROKER_MONITOR_H
#define BROKER_MONITOR_H

#include <stdint.h>

#include "replay/error.h"

struct broker;

/* Watches the service socket. Called again after the socket was replaced. */
rp_status monitor_open(struct broker *broker, rp_error *err);
void monitor_close(struct broker *broker);
/* Ends the waits of connections that have closed. */
void monitor_run(struct broker *broker);
/* Once a second: also those whose request was read only after the end of its connection was. */
void monitor_sweep(struct broker *broker);
/* A number for the connection that has the descriptor, higher for those that began later: 0 if nothing is known of it, 1
 * if it has ended. */
uint64_t monitor_connection(const struct broker *broker, int descriptor);

#endif
