/* A map with linear probing, at most half full. A removal closes the gap, so there are no tombstones. */
#include <stdlib.h>

#include "broker/disk/image_impl.h"

static uint32_t map_home(const struct request_map *self, uint64_t client, uint64_t id)
{
    uint64_t hash = (client ^ (id * UINT64_C(0x9E3779B97F4A7C15))) * UINT64_C(0xD6E8FEB86659FD93);
    return (uint32_t)(hash >> 32) & (self->capacity - 1);
}

/* Returns the place of a key, or where it would be. */
static uint32_t map_place(const struct request_map *self, uint64_t client, uint64_t id)
{
    uint32_t at = map_home(self, client, id);
    while (self->places[at].value && (self->places[at].client != client || self->places[at].id != id))
        at = (at + 1) & (self->capacity - 1);
    return at;
}

uint32_t request_map_get(const struct request_map *self, uint64_t client, uint64_t id)
{
    uint32_t value = self->capacity ? self->places[map_place(self, client, id)].value : 0;
    return value ? value - 1 : IMAGE_NOWHERE;
}

static bool map_grow(struct request_map *self)
{
    struct request_map larger = {.capacity = self->capacity ? self->capacity * 2 : 64, .used = self->used};
    larger.places = calloc(larger.capacity, sizeof *larger.places);
    if (!larger.places)
        return false;
    for (uint32_t i = 0; i < self->capacity; i++)
        if (self->places[i].value)
            larger.places[map_place(&larger, self->places[i].client, self->places[i].id)] = self->places[i];
    free(self->places);
    *self = larger;
    return true;
}

bool request_map_put(struct request_map *self, uint64_t client, uint64_t id, uint32_t value)
{
    if (self->used * 2 >= self->capacity && !map_grow(self))
        return false;
    struct request_place *place = &self->places[map_place(self, client, id)];
    self->used += place->value == 0;
    *place = (struct request_place){client, id, value + 1};
    return true;
}

void request_map_remove(struct request_map *self, uint64_t client, uint64_t id)
{
    uint32_t hole = self->capacity ? map_place(self, client, id) : 0;
    if (!self->capacity || !self->places[hole].value)
        return;
    uint32_t mask = self->capacity - 1;
    for (uint32_t at = (hole + 1) & mask; self->places[at].value; at = (at + 1) & mask) {
        uint32_t home = map_home(self, self->places[at].client, self->places[at].id);
        /* An entry may move into the hole unless its home lies after the hole. */
        if (((at - home) & mask) >= ((at - hole) & mask)) {
            self->places[hole] = self->places[at];
            hole = at;
        }
    }
    self->places[hole] = (struct request_place){0};
    self->used--;
}

void request_map_fini(struct request_map *self)
{
    free(self->places);
    *self = (struct request_map){0};
}
