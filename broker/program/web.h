/* The broker's HTTP server: /metrics for Prometheus and JSON below /api, by threads of their own. It owns the server (proto/http), the
 * tokens, and the snapshot that was last taken, and knows nothing of the broker: it asks for a snapshot and shows it. The page is
 * served beside it, as routes that the program gives. docs/METRICS.md has the user's side. */
#pragma once

#include "broker/loop/snapshot.h"
#include "proto/http/http.h"
#include "replay/admin.h"
#include "replay/error.h"

struct web;

struct web_options {
    const char *address; /* "127.0.0.1:0" */
    const char *keys;    /* folder of the token that clients need; NULL: only changes need one, made at each start */
    struct exchange *exchange; /* borrowed */
    int64_t shard;             /* number of the broker among its shards; negative: it is alone */
    struct http_part further;  /* other routes of the same server; n 0: none */
};

/* The tokens of a broker with keys: files beside them, made at the first start. One reads, for Prometheus; the other also changes. */
#define TOKEN_READER "http.token"
#define TOKEN_ADMIN "http.admin.token"
#define TOKEN_TEXT HTTP_TOKEN
/* Reads the token of this file in a folder of keys, or makes one. RP_PERMISSION_DENIED: others may read it. */
rp_status token_open(const char *folder, const char *file, char token[TOKEN_TEXT], rp_error *err);

/* Starts to serve, by threads that inherit the caller's mask of signals. The core thread does not run yet. NULL with err set. */
struct web *web_start(const struct web_options *options, rp_error *err);
/* Returns "http://127.0.0.1:1234/". */
const char *web_url(const struct web *self);
/* Returns the token, with which everything may be asked and changed. */
const char *web_token(const struct web *self);
/* Gives copies of the broker's state and of what waits, as rp_admin_info and rp_admin_why do; waits may be NULL. RP_UNAVAILABLE: there
 * is no snapshot in time. */
rp_status web_show(struct web *self, bool sessions, rp_info **info, rp_info **waits, rp_error *err);
/* Stops to serve; snapshots come no more. */
void web_stop(struct web *self);
/* NULL is fine. */
void web_destroy(struct web **self);
