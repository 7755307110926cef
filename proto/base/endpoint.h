/* Where a broker is, as programs are told: a file that replay-broker --endpoints-file wrote, or an endpoint to which one
 * binds. Not part of the public interface. */
#ifndef AGENT_CLIENT_ENDPOINT_H
#define AGENT_CLIENT_ENDPOINT_H

#include "replay/error.h"

#define ENDPOINT_DEFAULT "tcp://127.0.0.1:7600"

/* The endpoint as it is reached from this host, where a broker that listens on all interfaces binds it. NULL: no memory.
 * Given to the caller. */
char *endpoint_local(const char *endpoint);
/* The service endpoint from a file that lists them by name. Given to the caller. */
rp_status endpoint_from_file(const char *path, char **out, rp_error *err);

#endif
