#include "broker/peer/kept_replies.h"

#include <stdlib.h>
#include <string.h>

#include "broker/loop/loop.h"

#define KEPT_REPLIES 4096u

static uint64_t name_of(uint64_t client, uint64_t id)
{
    return (client ^ (id * UINT64_C(0x9E3779B97F4A7C15))) * UINT64_C(0xD6E8FEB86659FD93);
}

static bool ring_reserve(struct kept_replies *self)
{
    if (!self->ring)
        self->ring = calloc(KEPT_REPLIES, sizeof *self->ring);
    return self->ring != NULL;
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

bool kept_replies_reserve(struct kept_replies *self)
{
    for (uint32_t i = 0; i < 2; i++)
        if (!self->spare[i])
            self->spare[i] = malloc(KEPT_REPLY_BYTES);
    return self->spare[0] && self->spare[1] && ring_reserve(self) && idmap_reserve(&self->by_name);
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
    if (!reply->client || !ring_reserve(self))
        return;
    uint8_t *copy = reply->size <= KEPT_REPLY_BYTES ? malloc(reply->size) : NULL;
    if (!copy)
        copy = kept_replies_spare(self, reply->size);
    if (!copy)
        return;
    memcpy(copy, reply->frame, reply->size);
    EFFECT(loop, reply, reply->client, reply->id, reply->frame, reply->size);
    struct kept_reply *place = &self->ring[self->next++ % KEPT_REPLIES];
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
    for (uint32_t i = 0; self->ring && i < KEPT_REPLIES; i++) {
        const struct kept_reply *place = &self->ring[(self->next + i) % KEPT_REPLIES];
        if (place->frame)
            fn(ctx, place);
    }
}

void kept_replies_fini(struct kept_replies *self)
{
    for (uint32_t i = 0; self->ring && i < KEPT_REPLIES; i++)
        free(self->ring[i].frame);
    free(self->ring);
    free(self->spare[0]);
    free(self->spare[1]);
    idmap_fini(&self->by_name);
    *self = (struct kept_replies){0};
}
