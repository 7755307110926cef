/* The broker's HTTP room: /metrics for Prometheus and JSON below /api, by threads of their own.
 *
 * The room owns the server (proto/http), the token, and the snapshot that was last taken. It may use proto and the structs of
 * broker/loop, and knows nothing of the broker: it asks for a snapshot and shows it. The page is served beside it, as routes
 * that the program gives. Only the program replay-broker links it; embedded brokers do without. docs/METRICS.md has the user's
 * side. */
#ifndef BROKER_HTTP_WEB_H
#define BROKER_HTTP_WEB_H

#include "broker/loop/snapshot.h"
#include "proto/http/http.h"
#include "replay/error.h"

struct web;

struct web_options {
    const char *address; /* "127.0.0.1:0" */
    const char *keys;    /* folder of the token that clients need; NULL: only changes need one, made at each start */
    struct exchange *exchange; /* borrowed */
    int64_t shard;             /* number of the broker among its shards; negative: it is alone */
    struct http_part further;  /* other routes of the same server; n 0: none */
};

/* Starts to serve, by threads that inherit the caller's mask of signals. The core thread does not run yet. NULL with err set. */
struct web *web_start(const struct web_options *options, rp_error *err);
/* Returns "http://127.0.0.1:1234/". */
const char *web_url(const struct web *self);
/* Returns the token, with which everything may be asked and changed. */
const char *web_token(const struct web *self);
/* Stops to serve. NULL is fine. */
void web_stop(struct web **self);

#endif
