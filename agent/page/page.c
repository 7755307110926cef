/* Which path is answered by whom, and the way to the broker. */
#include "agent/page/page.h"

#include <stdlib.h>

#include "agent/client/conn/client.h"
#include "agent/page/page_impl.h"
#include "proto/base/error.h"

static const struct http_route routes[] = {
    {"GET", "/api/state", page_get_state, false},
    {"GET", "/api/histogram", page_get_histogram, false},
    {"GET", "/api/writers", page_get_writers, false},
    {"GET", "/api/items", page_get_items, false},
    {"GET", "/api/item", page_get_item, false},
    {"POST", "/api/do", page_do, false},
    {"GET", "/...", page_get_file, true}, /* the files of the page are no secret */
};

struct http_part page_part(struct page *self)
{
    return (struct http_part){routes, sizeof routes / sizeof routes[0], self};
}

/* ---- the broker ---- */

rp_client *page_connect(const struct page_door *door)
{
    const rp_client_options options = {
        .struct_size = sizeof options, .name = "page", .backoff_max_ms = 500, .key_file = ""};
    const struct conn_host host = {.key = door->has_key ? &door->key : NULL};
    return door->service[0] ? client_connect(door->service, &options, &host, PAGE_ASK_MS, NULL) : NULL;
}

int page_is_leaving(void *ctx)
{
    const struct page *self = ctx;
    return atomic_load(&self->leaving);
}

void page_with_client(struct page *self, void (*call)(rp_client *client, void *ctx), void *ctx)
{
    struct page_door door = {0};
    rp_wait_set(page_is_leaving, self);
    self->host.find(self->host.ctx, &door);
    rp_client *client = page_connect(&door);
    key_wipe(&door.key);
    call(client, ctx);
    if (client)
        rp_client_destroy(&client);
    rp_wait_set(NULL, NULL);
}

/* ---- life ---- */

struct page *page_new(const struct page_host *host, rp_error *err)
{
    struct page *self = calloc(1, sizeof *self);
    if (!self) {
        err_set(err, RP_NO_MEMORY, "no memory for the page");
        return NULL;
    }
    self->host = *host;
    atomic_init(&self->leaving, false);
    atomic_flag_clear(&self->stopping);
    if (page_watch_start(self, err) != RP_OK)
        page_destroy(&self);
    return self;
}

void page_leave(struct page *self)
{
    atomic_store(&self->leaving, true);
}

void page_destroy(struct page **self)
{
    if (!*self)
        return;
    page_leave(*self);
    page_watch_stop(*self);
    free(*self);
    *self = NULL;
}
