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

static bool ring_reserve(struct kept_replies *self, enum kept_kind kind)
{
    if (!self->rings[kind])
        self->rings[kind] = calloc(KEPT_REPLIES, sizeof(struct kept_reply));
    return self->rings[kind] != NULL;
}

static enum kept_kind kind_of(const struct kept_reply *reply)
{
    struct wire_reply head;
    bool permit =
        wire_read_reply(reply->frame, reply->size, &head, NULL) == RP_OK && head.body == REPLAY__REPLY__BODY_PERMIT;
    return permit ? KEPT_PERMITS : KEPT_OTHERS;
}

static void drop(struct kept_replies *self, struct kept_reply *place)
{
    uint64_t name = name_of(place->client, place->id);
    if (idmap_get(&self->by_name, name) == place)
        idmap_remove(&self->by_name, name);
    self->bytes -= place->size;
    free(place->frame);
    place->frame = NULL;
}

bool kept_replies_reserve(struct kept_replies *self, enum kept_kind kind)
{
    for (uint32_t i = 0; i < 2; i++)
        if (!self->spare[i])
            self->spare[i] = malloc(KEPT_REPLY_BYTES);
    return self->spare[0] && self->spare[1] && ring_reserve(self, kind) && idmap_reserve(&self->by_name);
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
    EFFECT(loop, reply, reply->client, reply->id, reply->frame, reply->size);
    struct kept_reply *place = &self->rings[kind][self->next[kind]++ % KEPT_REPLIES];
    if (place->frame)
        drop(self, place);
    *place = (struct kept_reply){reply->client, reply->id, copy, reply->size};
    self->bytes += place->size;
    if (!idmap_put(&self->by_name, name_of(place->client, place->id), place))
        drop(self, place);
}

const struct kept_reply *kept_replies_find(const struct kept_replies *self, uint64_t client, uint64_t id)
{
    const struct kept_reply *place = idmap_get(&self->by_name, name_of(client, id));
    return place && place->id == id && place->client == client ? place : NULL;
}

void kept_replies_each(const struct kept_replies *self, kept_reply_fn *fn, void *ctx)
{
    for (uint32_t i = 0; i < KEPT_KINDS * KEPT_REPLIES; i++) {
        uint32_t kind = i / KEPT_REPLIES;
        const struct kept_reply *ring = self->rings[kind];
        const struct kept_reply *place = ring ? &ring[(self->next[kind] + i) % KEPT_REPLIES] : NULL;
        if (place && place->frame)
            fn(ctx, place);
    }
}

void kept_replies_fini(struct kept_replies *self)
{
    for (uint32_t kind = 0; kind < KEPT_KINDS; kind++) {
        for (uint32_t i = 0; self->rings[kind] && i < KEPT_REPLIES; i++)
            free(self->rings[kind][i].frame);
        free(self->rings[kind]);
    }
    free(self->spare[0]);
    free(self->spare[1]);
    idmap_fini(&self->by_name);
    *self = (struct kept_replies){0};
}
