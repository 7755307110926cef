/* Finds a broker: by a file that replay-broker --endpoints-file has written, or by the endpoint that it binds. Not part of the
 * public interface. */
#pragma once

#include <stdbool.h>
#include <stddef.h>

#include "replay/error.h"

#define ENDPOINT_DEFAULT "tcp://127.0.0.1:7600"

/* Returns the endpoint to connect to on this host for a bound endpoint, which may listen on all interfaces. Given to
 * the caller. */
char *endpoint_local(const char *endpoint);
/* True if no other machine can connect to the endpoint: inproc, ipc, or tcp on the loopback interface. */
bool endpoint_is_loopback(const char *endpoint);
/* True if the endpoint is one of IPv6, or all addresses of IPv4 and IPv6: "[fd00::1]", "[::]" or an asterisk for the host. */
bool endpoint_is_ipv6(const char *endpoint);
/* True if the endpoint listens on all interfaces. */
bool endpoint_is_any(const char *endpoint);
/* Writes the endpoint as other machines reach it: with `host` ("10.0.0.5", "[fe80::1]", a name) in place of its address. An endpoint
 * that no other machine can reach, or an empty host, leaves it as it is. False: it does not fit, and out is "". */
bool endpoint_with_host(const char *endpoint, const char *host, char *out, size_t size);
/* True if the text can stand for HOST in tcp://HOST:PORT: a name or an address, without a port. */
bool endpoint_is_host(const char *text);
/* Gives an endpoint ("ingest") from a file that lists endpoints by name, as it is reached on this host. The caller frees it. */
rp_status endpoint_from_file(const char *path, const char *name, char **out, rp_error *err);
/* Gives the service endpoints of all shards, separated by commas: a client that has them all finds a broker without shard 0. The caller
 * frees them. */
rp_status endpoints_from_file(const char *path, char **out, rp_error *err);
