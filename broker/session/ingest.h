/* The way in: ingest messages become chunks in the store and items in tables, or items that wait for their table. */
#ifndef BROKER_INGEST_H
#define BROKER_INGEST_H

#include <stdbool.h>

#include "broker/session/session.h"

/* Reads a message from the ingest socket and takes it in. False: there was none. */
bool ingest_receive(struct sessions *sessions);
/* Registers a layout; data is the message that `wire` was unpacked from. False: no memory. */
bool intake_register(struct session *session, const Replay__Layout *wire, const void *data, size_t size);

#endif
