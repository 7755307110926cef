/* The way in: ingest messages become chunks in the store and items in tables, or items that wait for their table. */
#ifndef BROKER_INGEST_H
#define BROKER_INGEST_H

#include <stdbool.h>

struct sessions;

/* Reads a message from the ingest socket and takes it in. False: there was none. */
bool ingest_receive(struct sessions *sessions);

#endif
