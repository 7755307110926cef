/* The server of a run's page: which path is answered by whom. */
#include "agent/launch/page/run_page.h"

#include <stdio.h>
#include <stdlib.h>

#include "agent/launch/page/run_page_impl.h"
#include "proto/base/error.h"

#define THREADS 4u

static void get_health(void *ctx, const struct http_request *request, struct http_reply *reply)
{
    (void)ctx;
    (void)request;
    text_add(&reply->text, "{\"ok\": true}\n");
}

static const struct http_route routes[] = {
    {"GET", "/healthz", get_health, true},
    {"GET", "/api/state", run_get_state, false}, /* also of other runs */
    {"GET", "/api/history", run_get_history, false},
    {"GET", "/api/log", run_get_log, false},
    {"GET", "/api/runs", run_get_runs, false},
    {"GET", "/api/run", run_get_run, false},
};

static rp_status start(struct run_page *self, const struct run_page_options *options, rp_error *err)
{
    const struct page_host host = {.ctx = &self->place,
                                   .find = page_place_find,
                                   .look = page_place_look,
                                   .what = "run",
                                   .stop = options->stop,
                                   .stop_ctx = options->ctx};
    self->page = page_new(&host, err);
    if (!self->page)
        return (rp_status)err->status;
    const struct http_options http = {.address = options->address,
                                      .part = {routes, sizeof routes / sizeof routes[0], self},
                                      .further = page_part(self->page),
                                      .token = self->token,
                                      .open = !options->secure && http_is_loopback(options->address),
                                      .threads = THREADS};
    self->http = http_start(&http, err);
    return self->http ? RP_OK : (rp_status)err->status;
}

struct run_page *run_page_start(const struct run_page_options *options, rp_error *err)
{
    struct run_page *self = calloc(1, sizeof *self);
    if (!self) {
        err_set(err, RP_NO_MEMORY, "no memory for the page");
        return NULL;
    }
    struct page_place *place = &self->place;
    snprintf(place->folder, sizeof place->folder, "%s", options->folder ? options->folder : "");
    snprintf(place->service, sizeof place->service, "%s", options->service ? options->service : "");
    snprintf(place->key_file, sizeof place->key_file, "%s", options->key_file ? options->key_file : "");
    snprintf(self->runs, sizeof self->runs, "%s", options->runs ? options->runs : "");
    http_make_token(self->token);
    if (start(self, options, err) != RP_OK) {
        run_page_stop(&self);
        return NULL;
    }
    snprintf(self->address, sizeof self->address, "http://%s/", http_address(self->http));
    snprintf(self->url, sizeof self->url, "%s?token=%s", self->address, self->token);
    return self;
}

void run_page_stop(struct run_page **self)
{
    if (!*self)
        return;
    if ((*self)->page)
        page_leave((*self)->page);
    http_stop(&(*self)->http);
    page_destroy(&(*self)->page);
    free(*self);
    *self = NULL;
}

const char *run_page_url(const struct run_page *self)
{
    return self->url;
}

const char *run_page_address(const struct run_page *self)
{
    return self->address;
}
