/* The network between a host and home: whether a host reaches an address of home, and how many bytes/s get there over one TCP
 * connection. A thread on the host connects and sends; a sink at home reads. */
#ifndef AGENT_LAUNCH_HOST_MEASURE_H
#define AGENT_LAUNCH_HOST_MEASURE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "replay/error.h"

/* Listens at a port; 0: any free one. address: a numeric one of IPv4; NULL: all addresses, of IPv6 as well where the kernel has it.
 * Returns a socket that does not block, and the port; -1: errno says why. */
int host_listen(const char *address, uint16_t port, uint16_t *bound);

/* The sink: a listening socket and a thread that reads. */
struct host_measure_sink;
/* Listens at an address (see host_listen) and a port of the kernel's choice. Signals must be blocked already. */
struct host_measure_sink *host_measure_sink_open(const char *address, uint16_t *port, rp_error *err);
/* Bytes that have arrived so far, on all connections. */
uint64_t host_measure_sink_bytes(const struct host_measure_sink *self);
void host_measure_sink_close(struct host_measure_sink **self);

/* What came of an attempt to connect to home, and perhaps to send. Smaller than PIPE_BUF. */
struct host_probe {
    bool done, ok;
    int64_t ns;     /* that the connection took */
    double rate;    /* bytes/s that arrived; 0: nothing was sent */
    char text[256]; /* why it failed */
};
/* On the host: connects to "tcp://HOST:PORT" or "HOST:PORT", sends for ns (0: only connects), and writes a struct host_probe into the pipe
 * `to`, all in a thread of its own that does not outlive the program. */
void host_probe_start(const char *endpoint, int64_t ns, int to);

#endif
