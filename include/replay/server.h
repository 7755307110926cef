/* A broker inside this process, on threads of its own. In libreplayserver, which holds the client library as well: link
 * either that or libreplay.
 *
 * The log and malloc's settings stay the host program's, and so do its signal handlers, unless it uses czmq: czmq no longer
 * handles SIGINT and SIGTERM then. The soft limit of open files is raised to the hard one, and the host has to keep some free:
 * libzmq cannot accept connections without, and aborts if the endpoint is ipc.
 *
 * After fork, the broker runs in the parent alone: rp_server_stop in the child only forgets it. */
#ifndef REPLAY_SERVER_H
#define REPLAY_SERVER_H

#include "replay/error.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct rp_server rp_server;

/* Starts a broker and returns when clients can connect. yaml: a configuration (docs/CONFIG.md), for example
 * "service: tcp://127.0.0.1:0"; NULL: one prioritized table "replay" on free ports of 127.0.0.1. Keys about the log and the
 * endpoints file have no effect. zmq_context: borrowed, needed for inproc:// endpoints; NULL: the broker has its own. NULL with
 * err set: the mistakes in the configuration, as many as fit, or why the broker cannot start (RP_RESOURCE_EXHAUSTED: this process can
 * open too few further files). */
RP_API rp_server *rp_server_start(const char *yaml, void *zmq_context, rp_error *err);
/* The service endpoint that was bound, for rp_client_connect on this machine. */
RP_API const char *rp_server_endpoint(const rp_server *server);
/* Ends the broker as SIGTERM ends replay-broker: waiting requests get RP_CANCELLED, and with a folder
 * the state is on disk when the call returns. If the disk could not be written, the log says so (B0526); with journal: off,
 * what came since the last checkpoint is lost then. Nulls *server. */
RP_API void rp_server_stop(rp_server **server);

#ifdef __cplusplus
}
#endif

#endif
