/* The network between a host and home, measured with one TCP connection: the host sends, a sink at home counts what arrives and tells
 * the host how much it was. */
#ifndef AGENT_LAUNCH_HOST_MEASURE_H
#define AGENT_LAUNCH_HOST_MEASURE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "replay/error.h"

/* The sink: a listening socket and a thread that reads. */
struct host_measure_sink;

/* Listens at an address (see host_listen) and a port of the kernel's choice. Signals must be blocked already. */
struct host_measure_sink *host_measure_sink_open(const char *address, uint16_t *port, rp_error *err);
/* Bytes that have arrived so far, on all connections. */
uint64_t host_measure_sink_bytes(const struct host_measure_sink *self);
void host_measure_sink_close(struct host_measure_sink **self);

/* On the host: sends for ns over a connected socket and asks the sink what has arrived. *rate is in bytes/s. False: text says why.
 * Waits: to be called by a thread of its own. */
bool host_measure_send(int fd, int64_t ns, double *rate, char *text, size_t size);

#endif
