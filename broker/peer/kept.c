#include "broker/peer/kept.h"

#include <stdlib.h>
#include <string.h>

#include "broker/loop/loop.h"
#include "proto/base/need.h"

/* ---- clients ---- */

struct kept_client *kept_client_find(const struct kept_list *self, uint64_t client)
{
    return client ? idmap_get(&self->clients, client) : NULL;
}

static void client_link(struct kept_list *self, struct kept_client *client)
{
    client->next = NULL;
    client->prev = self->last_client;
    *(self->last_client ? &self->last_client->next : &self->first_client) = client;
    self->last_client = client;
}

static void client_unlink(struct kept_list *self, const struct kept_client *client)
{
    *(client->prev ? &client->prev->next : &self->first_client) = client->next;
    *(client->next ? &client->next->prev : &self->last_client) = client->prev;
}

void kept_client_heard(struct kept_list *self, struct kept_client *client, int64_t now_ns)
{
    client->heard_ns = now_ns;
    if (client == self->last_client)
        return;
    client_unlink(self, client);
    client_link(self, client);
}

struct kept_client *kept_client_make(struct kept_list *self, uint64_t id, int64_t now_ns)
{
    struct kept_client *client = idmap_get(&self->clients, id);
    if (!client) {
        client = need_alloc(sizeof *client);
        client->client = id;
        idmap_put(&self->clients, id, client);
        client_link(self, client);
    }
    kept_client_heard(self, client, now_ns);
    return client;
}

void kept_client_forget(struct kept_list *self, struct kept_client *client)
{
    client_unlink(self, client);
    idmap_remove(&self->clients, client->client);
    free(client);
}

/* ---- answers ---- */

struct kept *kept_list_find(const struct kept_client *client, uint64_t id)
{
    if (!client || id > client->highest)
        return NULL;
    struct kept *kept = client->last;
    while (kept && kept->id != id)
        kept = kept->before;
    return kept;
}

void kept_list_add(struct kept_list *self, struct kept_client *client, struct kept *kept)
{
    kept->client = client;
    kept->newer = kept->after = NULL;
    kept->older = self->newest;
    *(self->newest ? &self->newest->newer : &self->oldest) = kept;
    self->newest = kept;
    kept->before = client->last;
    *(client->last ? &client->last->after : &client->first) = kept;
    client->last = kept;
    client->count++;
    if (kept->id > client->highest)
        client->highest = kept->id;
    self->count++;
    self->bytes += kept->bytes;
}

void kept_list_remove(struct kept_list *self, struct kept *kept)
{
    struct kept_client *client = kept->client;
    *(kept->older ? &kept->older->newer : &self->oldest) = kept->newer;
    *(kept->newer ? &kept->newer->older : &self->newest) = kept->older;
    *(kept->before ? &kept->before->after : &client->first) = kept->after;
    *(kept->after ? &kept->after->before : &client->last) = kept->before;
    client->count--;
    self->count--;
    self->bytes -= kept->bytes;
}

/* ---- replies ---- */

struct kept_frame {
    struct kept kept; /* first */
    struct kept_reply reply;
    uint8_t bytes[];
};

static void frame_drop(struct kept_replies *self, struct kept *kept)
{
    struct kept_client *client = kept->client;
    kept_list_remove(&self->list, kept);
    if (!client->count)
        kept_client_forget(&self->list, client);
    if (self->account)
        *self->account -= kept->bytes;
    free(kept);
}

void kept_replies_add(struct kept_replies *self, struct loop *loop, const struct kept_reply *reply)
{
    if (!reply->client || reply->size > KEPT_REPLY_BYTES)
        return;
    struct kept_client *client = kept_client_make(&self->list, reply->client, loop->now_ns);
    bool full = self->list.count >= KEPT_REPLIES;
    if (full || client->count >= KEPT_OF_CLIENT) {
        frame_drop(self, client->count > KEPT_FAIR ? client->first : self->list.oldest);
    }
    EFFECT(loop, reply, reply->client, reply->id, reply->frame, reply->size);
    struct kept_frame *frame = need_alloc(sizeof *frame + reply->size);
    frame->kept.id = reply->id;
    frame->kept.bytes = reply->size;
    frame->reply = *reply;
    frame->reply.frame = memcpy(frame->bytes, reply->frame, reply->size);
    kept_list_add(&self->list, kept_client_make(&self->list, reply->client, loop->now_ns), &frame->kept);
    if (self->account)
        *self->account += reply->size;
}

const struct kept_reply *kept_replies_find(const struct kept_replies *self, uint64_t client, uint64_t id)
{
    const struct kept *kept = kept_list_find(kept_client_find(&self->list, client), id);
    return kept ? &((const struct kept_frame *)kept)->reply : NULL;
}

void kept_replies_each(const struct kept_replies *self, kept_reply_fn *fn, void *ctx)
{
    for (const struct kept *kept = self->list.oldest; kept; kept = kept->newer)
        fn(ctx, &((const struct kept_frame *)kept)->reply);
}

void kept_replies_fini(struct kept_replies *self)
{
    for (struct kept *kept = self->list.oldest, *newer; kept; kept = newer) {
        newer = kept->newer;
        frame_drop(self, kept);
    }
    idmap_fini(&self->list.clients);
}
