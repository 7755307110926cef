#include "broker/program/face.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>

#include "agent/page/page.h"
#include "broker/broker.h"
#include "broker/http/web.h"
#include "proto/base/endpoint.h"
#include "proto/base/error.h"

/* All but the pointers to page and web is set before their threads start, and never changed after that. */
struct face {
    struct broker *broker; /* to stop it; nothing else of it is touched */
    char *service;         /* endpoint of the broker as this process connects to it */
    const char *keys;      /* folder; NULL: without keys */
    struct key key;        /* of the page */
    struct page *page;
    struct web *web;
};

/* Adds the public half of a key in the folder, if it is there. */
static void add_broker(const struct face *self, const char *name, struct key *out)
{
    char path[4096];
    struct key broker = {0};
    if ((size_t)snprintf(path, sizeof path, "%s/%s", self->keys, name) < sizeof path &&
        key_read(path, &broker, NULL) == RP_OK)
        key_add_broker(out, broker.public_key);
    key_wipe(&broker);
}

/* The broker's key may have been rotated since the last time. */
static void find(void *ctx, struct page_door *out)
{
    const struct face *self = ctx;
    snprintf(out->service, sizeof out->service, "%s", self->service);
    out->has_key = self->keys != NULL;
    if (!out->has_key)
        return;
    out->key = self->key;
    add_broker(self, ALLOW_NEXT_KEY, &out->key);
    add_broker(self, ALLOW_BROKER_KEY, &out->key);
}

static void stop(void *ctx)
{
    struct face *self = ctx;
    broker_stop(self->broker);
}

static rp_status open_page(struct face *self, const struct key *key, rp_error *err)
{
    const struct page_host host = {.ctx = self, .find = find, .what = "broker", .stop = stop, .stop_ctx = self};
    self->service = endpoint_local(self->broker->peers.service_endpoint);
    if (!self->service)
        return err_set(err, RP_NO_MEMORY, "no memory for the page");
    if (self->keys) {
        if (key)
            self->key = *key;
        else
            RP_TRY(key_make(&self->key, "page", err));
        identities_trust(&self->broker->peers.identities, &self->key);
    }
    self->page = page_new(&host, err);
    return self->page ? RP_OK : (rp_status)err->status;
}

static rp_status open_all(struct face *self, const struct key *key, rp_error *err)
{
    const struct broker_config *config = self->broker->config;
    self->keys = config_uses_curve(config) ? config->keys_dir : NULL;
    RP_TRY(open_page(self, key, err));
    self->web = web_start(&(struct web_options){.address = config->http,
                                                .keys = self->keys,
                                                .exchange = &self->broker->snapshots.exchange,
                                                .shard = config->shard,
                                                .further = page_part(self->page)},
                          err);
    return self->web ? RP_OK : (rp_status)err->status;
}

/* Signals are for the core thread: other threads inherit a mask that blocks all of them. */
rp_status face_open(struct broker *broker, const struct key *key, struct face **out, rp_error *err)
{
    sigset_t all, before;
    *out = NULL;
    if (!broker->config->http[0])
        return RP_OK;
    struct face *self = calloc(1, sizeof *self);
    if (!self)
        return err_set(err, RP_NO_MEMORY, "no memory for http");
    self->broker = broker;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    rp_status status = open_all(self, key, err);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (status != RP_OK)
        face_close(&self);
    *out = self;
    return status;
}

void face_close(struct face **at)
{
    struct face *self = *at;
    *at = NULL;
    if (!self)
        return;
    if (self->page)
        page_leave(self->page);
    web_stop(&self->web);
    page_destroy(&self->page);
    key_wipe(&self->key);
    free(self->service);
    free(self);
}

const char *face_url(const struct face *self)
{
    return self ? web_url(self->web) : "";
}

const char *face_token(const struct face *self)
{
    return web_token(self->web);
}
