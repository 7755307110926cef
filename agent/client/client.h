/* What the parts of the library may ask of an rp_client. */
#ifndef AGENT_CLIENT_CLIENT_H
#define AGENT_CLIENT_CLIENT_H

#include "agent/client/conn.h"
#include "replay/client.h"

/* Borrowed: lives as long as the client. */
struct conn *client_conn(rp_client *self);
/* The label given in the options. */
const char *client_name(const rp_client *self);

#endif
