/* What the other rooms of the library may ask of an rp_client. */
#ifndef AGENT_CLIENT_CLIENT_H
#define AGENT_CLIENT_CLIENT_H

#include "agent/client/conn/conn.h"
#include "replay/client.h"

/* rp_client_connect with a host. If it has ducts, the client has no thread, the broker in this process runs on the caller's thread,
 * and one thread makes all calls of such a client. */
rp_client *client_connect(const char *endpoints, const rp_client_options *options, const struct conn_host *host,
                          int64_t timeout_ms, rp_error *err);
/* Returns the connection, which lives as long as the client. */
struct conn *client_conn(rp_client *self);
/* Returns the label given in the options. */
const char *client_name(const rp_client *self);

#endif
