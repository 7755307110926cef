/* The room broker/program: replay-broker. It puts a broker together with what only the program has: a command line, signals, and
 * this face, an HTTP server with metrics (broker/http) and the page (agent/page). Nothing stands above it.
 *
 * The page is a client of the broker that it shows, over the broker's own sockets. With keys it has a key that is made at each start,
 * is in no file, and may do everything; whoever asks over HTTP needs the token for that. */
#ifndef BROKER_PROGRAM_FACE_H
#define BROKER_PROGRAM_FACE_H

#include "replay/error.h"

struct broker;
struct face;
struct key;

/* Serves what the configuration's `http` asks for; *out is NULL if it asks for nothing. The core thread does not run yet. key: of the
 * page, which is the same for all shards that one parent has started, because each of their pages asks all of them; NULL: one
 * is made. */
rp_status face_open(struct broker *broker, const struct key *key, struct face **out, rp_error *err);
/* The core thread does not run any more. NULL is fine. */
void face_close(struct face **self);
/* Returns "http://127.0.0.1:1234/"; "" for NULL. */
const char *face_url(const struct face *self);
/* Returns what a browser needs to change something, and with keys to see anything. */
const char *face_token(const struct face *self);

#endif
