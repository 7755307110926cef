/* Ownership of ipc paths. */
#ifndef BROKER_IPC_H
#define BROKER_IPC_H

#include "proto/base/error.h"

/* libzmq removes whatever stands at the path of an ipc endpoint before it binds: another broker's socket, or a file of
 * the user's. ipc_claim fails if somebody listens there (RP_IO) or if it is not a socket; what a killed process left is
 * no obstacle. Other endpoints pass. *lock keeps other brokers from binding there until ipc_release: bind in between. */
rp_status ipc_claim(const char *endpoint, int *lock, rp_error *err);
void ipc_release(int lock);

#endif
