#include "broker/loop/idmap.h"

#include <stdlib.h>

#include "proto/base/need.h"

static uint32_t place(const struct idmap *self, uint64_t id)
{
    id ^= id >> 32;
    id *= UINT64_C(0x9E3779B97F4A7C15);
    return (uint32_t)(id >> 32) & self->mask;
}

static struct idmap_entry *find(const struct idmap *self, uint64_t id)
{
    uint32_t at = place(self, id);
    while (self->entries[at].value && self->entries[at].id != id)
        at = (at + 1) & self->mask;
    return &self->entries[at];
}

void *idmap_get(const struct idmap *self, uint64_t id)
{
    return self->entries ? find(self, id)->value : NULL;
}

static void grow(struct idmap *self)
{
    struct idmap larger = {NULL, self->entries ? self->mask * 2 + 1 : 63, self->count};
    larger.entries = need_alloc(((size_t)larger.mask + 1) * sizeof *larger.entries);
    for (uint32_t i = 0; self->entries && i <= self->mask; i++)
        if (self->entries[i].value)
            *find(&larger, self->entries[i].id) = self->entries[i];
    free(self->entries);
    *self = larger;
}

void idmap_put(struct idmap *self, uint64_t id, void *value)
{
    if (!self->entries || self->count * 2 > self->mask)
        grow(self);
    struct idmap_entry *entry = find(self, id);
    self->count += !entry->value;
    *entry = (struct idmap_entry){id, value};
}

void idmap_remove(struct idmap *self, uint64_t id)
{
    if (!self->entries)
        return;
    struct idmap_entry *entry = find(self, id);
    if (!entry->value)
        return;
    self->count--;
    /* Close the hole: move back whatever probed past it. */
    uint32_t hole = (uint32_t)(entry - self->entries), at = hole;
    for (;;) {
        at = (at + 1) & self->mask;
        if (!self->entries[at].value)
            break;
        uint32_t home = place(self, self->entries[at].id);
        if (((at - home) & self->mask) >= ((at - hole) & self->mask)) {
            self->entries[hole] = self->entries[at];
            hole = at;
        }
    }
    self->entries[hole].value = NULL;
}

void idmap_fini(struct idmap *self)
{
    free(self->entries);
    *self = (struct idmap){0};
}
