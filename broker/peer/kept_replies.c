#include "broker/peer/kept_replies.h"

#include <stdlib.h>
#include <string.h>

#include "broker/loop/loop.h"
#include "proto/wire/wire.h"
#include "replay.pb-c.h"

#define KEPT_REPLIES 4096u

static uint64_t name_of(uint64_t client, uint64_t id)
{
    return (client ^ (id * UINT64_C(0x9E3779B97F4A7C15))) * UINT64_C(0xD6E8FEB86659FD93);
}

static void count_bytes(struct kept_replies *self, uint64_t more, uint64_t less)
{
    self->bytes += more - less;
    if (self->account)
        *self->account += more - less;
}

static bool ring_reserve(struct kept_replies *self, enum kept_kind kind)
{
    if (!self->rings[kind])
        self->rings[kind] = calloc(KEPT_REPLIES, sizeof(struct kept_place));
    return self->rings[kind] != NULL;
}

static enum kept_kind kind_of(const struct kept_reply *reply)
{
    struct wire_reply head;
    bool permit =
        wire_read_reply(reply->frame, reply->size, &head, NULL) == RP_OK && head.body == REPLAY__REPLY__BODY_PERMIT;
    return permit ? KEPT_PERMITS : KEPT_OTHERS;
}

static void drop(struct kept_replies *self, struct kept_place *place)
{
    struct kept_reply *reply = &place->reply;
    uint64_t name = name_of(reply->client, reply->id);
    if (idmap_get(&self->by_name, name) == place)
        idmap_remove(&self->by_name, name);
    count_bytes(self, 0, reply->size);
    free(reply->frame);
    *place = (struct kept_place){0};
}

/* ---- the permits of a client ---- */

/* Makes the next permit of its client the oldest one. */
static void unlink_oldest(struct kept_replies *self, const struct kept_place *oldest)
{
    struct kept_place *next = oldest->newer;
    idmap_remove(&self->clients, oldest->reply.client);
    if (!next)
        return;
    next->newest = oldest->newest;
    next->count = oldest->count - 1;
    idmap_put(&self->clients, next->reply.client, next);
}

/* Appends a permit. */
static void link_newest(struct kept_replies *self, struct kept_place *place)
{
    struct kept_place *oldest = idmap_get(&self->clients, place->reply.client);
    if (oldest) {
        oldest->newest->newer = place;
        oldest->newest = place;
        oldest->count++;
        return;
    }
    place->newest = place;
    place->count = 1;
    idmap_put(&self->clients, place->reply.client, place);
}

/* Returns a free place for a permit: that of the oldest one of its client, or of one that has others, unless there are free ones. */
static struct kept_place *permit_place(struct kept_replies *self, uint64_t client)
{
    struct kept_place *oldest = idmap_get(&self->clients, client);
    if (!oldest || oldest->count < KEPT_OF_CLIENT) {
        struct kept_place *place = &self->rings[KEPT_PERMITS][self->next[KEPT_PERMITS]++ % KEPT_REPLIES];
        if (!place->reply.frame)
            return place;
        oldest = idmap_get(&self->clients, place->reply.client);
    }
    unlink_oldest(self, oldest);
    drop(self, oldest);
    return oldest;
}

static struct kept_place *other_place(struct kept_replies *self)
{
    struct kept_place *place = &self->rings[KEPT_OTHERS][self->next[KEPT_OTHERS]++ % KEPT_REPLIES];
    if (place->reply.frame)
        drop(self, place);
    return place;
}

/* ---- all ---- */

bool kept_replies_reserve(struct kept_replies *self, enum kept_kind kind)
{
    for (uint32_t i = 0; i < 2; i++)
        if (!self->spare[i])
            self->spare[i] = malloc(KEPT_REPLY_BYTES);
    return self->spare[0] && self->spare[1] && ring_reserve(self, kind);
}

uint8_t *kept_replies_spare(struct kept_replies *self, size_t size)
{
    for (uint32_t i = 0; size <= KEPT_REPLY_BYTES && i < 2; i++)
        if (self->spare[i]) {
            uint8_t *spare = self->spare[i];
            self->spare[i] = NULL;
            return spare;
        }
    return NULL;
}

void kept_replies_add(struct kept_replies *self, struct loop *loop, const struct kept_reply *reply)
{
    if (!reply->client)
        return;
    enum kept_kind kind = kind_of(reply);
    if (!ring_reserve(self, kind))
        return;
    uint8_t *copy = reply->size <= KEPT_REPLY_BYTES ? malloc(reply->size) : NULL;
    if (!copy)
        copy = kept_replies_spare(self, reply->size);
    if (!copy)
        return;
    memcpy(copy, reply->frame, reply->size);
    struct kept_place *place = kind == KEPT_PERMITS ? permit_place(self, reply->client) : other_place(self);
    EFFECT(loop, reply, reply->client, reply->id, reply->frame, reply->size);
    *place = (struct kept_place){.reply = {reply->client, reply->id, copy, reply->size}};
    count_bytes(self, reply->size, 0);
    idmap_put(&self->by_name, name_of(reply->client, reply->id), place);
    if (kind == KEPT_PERMITS)
        link_newest(self, place);
}

const struct kept_reply *kept_replies_find(const struct kept_replies *self, uint64_t client, uint64_t id)
{
    const struct kept_place *place = idmap_get(&self->by_name, name_of(client, id));
    return place && place->reply.id == id && place->reply.client == client ? &place->reply : NULL;
}

void kept_replies_each(const struct kept_replies *self, kept_reply_fn *fn, void *ctx)
{
    const struct kept_place *others = self->rings[KEPT_OTHERS], *permits = self->rings[KEPT_PERMITS];
    for (uint32_t i = 0; others && i < KEPT_REPLIES; i++) {
        const struct kept_place *place = &others[(self->next[KEPT_OTHERS] + i) % KEPT_REPLIES];
        if (place->reply.frame)
            fn(ctx, &place->reply);
    }
    for (uint32_t i = 0; permits && i < KEPT_REPLIES; i++)
        if (permits[i].count) /* the oldest of a client */
            for (const struct kept_place *place = &permits[i]; place; place = place->newer)
                fn(ctx, &place->reply);
}

void kept_replies_fini(struct kept_replies *self)
{
    for (uint32_t kind = 0; kind < KEPT_KINDS; kind++) {
        for (uint32_t i = 0; self->rings[kind] && i < KEPT_REPLIES; i++)
            free(self->rings[kind][i].reply.frame);
        free(self->rings[kind]);
    }
    free(self->spare[0]);
    free(self->spare[1]);
    idmap_fini(&self->by_name);
    idmap_fini(&self->clients);
    *self = (struct kept_replies){0};
}
