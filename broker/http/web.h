/* The broker's HTTP room: /metrics for Prometheus and JSON below /api, by a thread of its own.
 *
 * The room owns the server (proto/http), the token, and the snapshot that was last taken. It may use proto and the structs of
 * broker/metrics, and knows nothing of the broker: it asks for a snapshot and shows it. Only the program replay-broker
 * links it; embedded brokers do without. docs/METRICS.md has the user's side. */
#ifndef BROKER_HTTP_WEB_H
#define BROKER_HTTP_WEB_H

#include "broker/metrics/exchange.h"
#include "replay/error.h"

struct web;

struct web_options {
    const char *address;       /* "127.0.0.1:0" */
    const char *keys;          /* folder of the token that clients need; NULL: they need none */
    struct exchange *exchange; /* borrowed */
};

/* Starts to serve. The core thread does not run yet. NULL with err set. */
struct web *web_start(const struct web_options *options, rp_error *err);
/* Returns "http://127.0.0.1:1234/". */
const char *web_url(const struct web *self);
/* Stops to serve. NULL is fine. */
void web_stop(struct web **self);

#endif
