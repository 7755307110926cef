/* Ownership of ipc paths. */
#ifndef BROKER_IPC_H
#define BROKER_IPC_H

#include "proto/base/error.h"

/* libzmq removes whatever is at the path of an ipc endpoint before it binds: another broker's socket, or a file of the user.
 * ipc_claim fails (RP_IO) if a process listens there or if the path is not a socket; a socket that a killed process left is no
 * obstacle. Endpoints of other transports pass. *lock keeps other brokers from binding there until ipc_release: bind between the
 * two calls. */
rp_status ipc_claim(const char *endpoint, int *lock, rp_error *err);
void ipc_release(int lock);

#endif
