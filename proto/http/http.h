/* The room proto/http: a small HTTP server for people and tools, on libmicrohttpd. It owns the listening socket, its threads, the
 * token and the checks that every request has to pass; what is served comes from a table of routes. It knows nothing of brokers
 * and runs, and uses proto/base.
 *
 * A server on loopback without a token answers only requests that name this machine in their Host header, so that a page of
 * another site cannot read it through a name of its own. Pages of other origins may link to the server, and nothing else. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "proto/base/format.h"
#include "replay/error.h"

#define HTTP_ADDRESS 64u
#define HTTP_TOKEN 65u /* 32 bytes as hexadecimal digits, terminated */

struct http_request {
    void *connection; /* libmicrohttpd's */
    const char *path; /* as the route names it; with a route "x/..." what follows it */
    const char *body; /* of a POST; terminated */
    size_t body_size;
    bool trusted; /* it has the token that changes */
};

/* Returns a parameter of the query, NULL: there is none. Valid as long as the request. */
const char *http_query(const struct http_request *request, const char *name);
const char *http_header(const struct http_request *request, const char *name);

/* Filled in by a handler; 200 with JSON unless it says otherwise. */
struct http_reply {
    struct text text;
    const void *data; /* instead of the text: bytes that live as long as the server */
    size_t size;
    const char *type; /* NULL: application/json */
    uint32_t status;  /* 0: 200 */
};
/* Answers with one text: {"NAME": "..."}. */
void http_say(struct http_reply *reply, const char *name, const char *text);
/* Answers with {"error": "..."}. */
void http_fail(struct http_reply *reply, uint32_t status, const char *format, ...) RP_PRINTF(3, 4);

struct http_route {
    const char *method; /* "GET" also answers HEAD */
    const char *path;   /* "/api/state"; with "..." at its end: everything that begins so */
    void (*handle)(void *ctx, const struct http_request *request, struct http_reply *reply);
    bool open; /* needs no token */
};

/* Routes with the context of their handlers, which may be called from several threads at once. */
struct http_part {
    const struct http_route *routes;
    uint32_t n;
    void *ctx;
    bool secret; /* reading needs the token, too, also on a server that is `open` */
};

struct http_options {
    const char *address; /* "127.0.0.1:0", "[::1]:8080", "0.0.0.0:8080" */
    struct http_part part;
    struct http_part further; /* looked at after `part`; n 0: none */
    /* Gives two parts to use instead for a path below theirs ("/1/run/api/state"), and moves *url on to what they know ("/api/state").
     * ctx is that of `part`. False, or NULL: there are none. */
    bool (*mount)(void *ctx, const char **url, struct http_part out[2]);
    const char *token;  /* needed as "Authorization: Bearer ..." or as ?token=; NULL or "": none */
    const char *reader; /* another token, with which requests only read; NULL or "": none; borrowed */
    bool open;          /* only changes need the token */
    uint32_t threads;   /* 0: 1 */
};

/* Makes a token from random bytes. */
void http_make_token(char out[HTTP_TOKEN]);

struct http;
/* Listens and serves. NULL with err set: "127.0.0.1:80 cannot be bound: Permission denied". */
struct http *http_start(const struct http_options *options, rp_error *err);
/* Answers that are being made are sent, unless their client does not read them. */
void http_stop(struct http **self);
/* "127.0.0.1:40123". */
const char *http_address(const struct http *self);
/* True if an address is on loopback; false also for one that cannot be read. */
bool http_is_loopback(const char *address);
