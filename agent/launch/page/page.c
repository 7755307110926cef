/* The server: which path is answered by whom. */
#include "agent/launch/page/page.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "agent/launch/page/page_impl.h"
#include "proto/base/error.h"
#include "proto/base/rng.h"

#define THREADS 4u

static void get_health(void *ctx, const struct http_request *request, struct http_reply *reply)
{
    (void)ctx;
    (void)request;
    text_add(&reply->text, "{\"ok\": true}\n");
}

static const struct http_route routes[] = {
    {"GET", "/healthz", get_health, true},
    {"GET", "/api/state", page_get_state, false},
    {"GET", "/api/history", page_get_history, false},
    {"GET", "/api/histogram", page_get_histogram, false},
    {"GET", "/api/sessions", page_get_sessions, false},
    {"GET", "/api/items", page_get_items, false},
    {"GET", "/api/item", page_get_item, false},
    {"GET", "/api/log", page_get_log, false},
    {"GET", "/api/runs", page_get_runs, false},
    {"GET", "/api/run", page_get_run, false},
    {"POST", "/api/do", page_do, false},
    {"GET", "/...", page_get_file, true}, /* the files of the page are no secret */
};

static void make_token(char out[65])
{
    uint8_t bytes[32];
    rng_system(bytes, sizeof bytes);
    for (size_t i = 0; i < sizeof bytes; i++)
        snprintf(out + 2 * i, 3, "%02x", bytes[i]);
}

struct page *page_start(const struct page_options *options, rp_error *err)
{
    struct page *self = calloc(1, sizeof *self);
    if (!self) {
        err_set(err, RP_NO_MEMORY, "no memory for the page");
        return NULL;
    }
    self->options = *options;
    snprintf(self->folder, sizeof self->folder, "%s", options->folder ? options->folder : "");
    snprintf(self->runs, sizeof self->runs, "%s", options->runs ? options->runs : "");
    snprintf(self->service, sizeof self->service, "%s", options->service ? options->service : "");
    snprintf(self->key_file, sizeof self->key_file, "%s", options->key_file ? options->key_file : "");
    make_token(self->token);
    const struct http_options http = {.address = options->address,
                                      .routes = routes,
                                      .n_routes = sizeof routes / sizeof routes[0],
                                      .ctx = self,
                                      .token = self->token,
                                      .open = !options->secure && http_is_loopback(options->address),
                                      .threads = THREADS};
    if (page_watch_start(self, err) != RP_OK || !(self->http = http_start(&http, err))) {
        page_stop(&self);
        return NULL;
    }
    snprintf(self->address, sizeof self->address, "http://%s/", http_address(self->http));
    snprintf(self->url, sizeof self->url, "%s?token=%s", self->address, self->token);
    return self;
}

void page_stop(struct page **self)
{
    if (!*self)
        return;
    http_stop(&(*self)->http);
    page_watch_stop(*self);
    free(*self);
    *self = NULL;
}

const char *page_url(const struct page *self)
{
    return self->url;
}

const char *page_address(const struct page *self)
{
    return self->address;
}
