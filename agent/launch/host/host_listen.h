/* A socket to which hosts connect: to measure the network, and to try whether they reach this machine. */
#ifndef AGENT_LAUNCH_HOST_LISTEN_H
#define AGENT_LAUNCH_HOST_LISTEN_H

#include <stdint.h>

/* Listens at a port; 0: any free one. address: a numeric one of IPv4; NULL: all addresses, of IPv6 as well where the kernel has it.
 * Returns a socket that does not block, and the port; -1: errno says why. */
int host_listen(const char *address, uint16_t port, uint16_t *bound);

#endif
