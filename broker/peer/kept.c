#include "broker/peer/kept.h"

#include <stdlib.h>
#include <string.h>

#include "broker/loop/loop.h"
#include "proto/base/need.h"

void kept_list_init(struct kept_list *self)
{
    *self = (struct kept_list){0};
    TAILQ_INIT(&self->heard);
    TAILQ_INIT(&self->answers);
}

/* ---- clients ---- */

struct kept_client *kept_client_find(const struct kept_list *self, uint64_t client)
{
    return client ? idmap_get(&self->clients, client) : NULL;
}

void kept_client_heard(struct kept_list *self, struct kept_client *client, int64_t now_ns)
{
    client->heard_ns = now_ns;
    if (!TAILQ_NEXT(client, link))
        return;
    TAILQ_REMOVE(&self->heard, client, link);
    TAILQ_INSERT_TAIL(&self->heard, client, link);
}

struct kept_client *kept_client_make(struct kept_list *self, uint64_t id, int64_t now_ns)
{
    struct kept_client *client = idmap_get(&self->clients, id);
    if (!client) {
        client = need_alloc(sizeof *client);
        client->client = id;
        TAILQ_INIT(&client->answers);
        idmap_put(&self->clients, id, client);
        TAILQ_INSERT_TAIL(&self->heard, client, link);
    }
    kept_client_heard(self, client, now_ns);
    return client;
}

void kept_client_forget(struct kept_list *self, struct kept_client *client)
{
    TAILQ_REMOVE(&self->heard, client, link);
    idmap_remove(&self->clients, client->client);
    free(client);
}

/* ---- answers ---- */

struct kept *kept_list_find(const struct kept_client *client, uint64_t id)
{
    if (!client || id > client->highest)
        return NULL;
    struct kept *kept = TAILQ_LAST(&client->answers, kept_answers);
    while (kept && kept->id != id)
        kept = TAILQ_PREV(kept, kept_answers, of_client);
    return kept;
}

void kept_list_add(struct kept_list *self, struct kept_client *client, struct kept *kept)
{
    kept->client = client;
    TAILQ_INSERT_TAIL(&self->answers, kept, of_all);
    TAILQ_INSERT_TAIL(&client->answers, kept, of_client);
    client->count++;
    if (kept->id > client->highest)
        client->highest = kept->id;
    self->count++;
    self->bytes += kept->bytes;
}

void kept_list_remove(struct kept_list *self, struct kept *kept)
{
    struct kept_client *client = kept->client;
    TAILQ_REMOVE(&self->answers, kept, of_all);
    TAILQ_REMOVE(&client->answers, kept, of_client);
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
    if (full || client->count >= KEPT_OF_CLIENT)
        frame_drop(self, TAILQ_FIRST(client->count > KEPT_FAIR ? &client->answers : &self->list.answers));
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
    for (const struct kept *kept = TAILQ_FIRST(&self->list.answers); kept; kept = TAILQ_NEXT(kept, of_all))
        fn(ctx, &((const struct kept_frame *)kept)->reply);
}

void kept_replies_fini(struct kept_replies *self)
{
    for (struct kept *kept = TAILQ_FIRST(&self->list.answers), *next; kept; kept = next) {
        next = TAILQ_NEXT(kept, of_all);
        frame_drop(self, kept);
    }
    idmap_fini(&self->list.clients);
}
