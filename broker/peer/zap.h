/* The ZAP handler (ZeroMQ RFC 27): libzmq asks it about each handshake. It runs on the core thread, a few requests a turn, so
 * the list of keys has one owner. A connection is accepted if its key is in the list, and for ingest an actor's, and gets the number
 * of its identity. */
#ifndef BROKER_ZAP_H
#define BROKER_ZAP_H

#include <stdbool.h>

#include "replay/error.h"

struct peers;

#define ZAP_DOMAIN "replay"
/* Of the ingest socket: only keys that may write come in. */
#define ZAP_DOMAIN_INGEST "replay.ingest"

/* Binds the handler in the broker's context, before any socket that needs it. */
rp_status zap_open(struct peers *peers, rp_error *err);
void zap_close(struct peers *peers);
/* Answers what is asked now. True: there was something. */
bool zap_run(struct peers *peers);

#endif
