/* A map from 64-bit numbers to pointers: sessions by id, peers by route. Open addressing, linear probing. */
#pragma once

#include <stdint.h>

struct idmap_entry {
    uint64_t id;
    void *value; /* NULL: free */
};

struct idmap {
    struct idmap_entry *entries;
    uint32_t mask; /* capacity - 1; 0: nothing allocated */
    uint32_t count;
};

void *idmap_get(const struct idmap *self, uint64_t id);
/* Adds or replaces an entry. value is not NULL. */
void idmap_put(struct idmap *self, uint64_t id, void *value);
void idmap_remove(struct idmap *self, uint64_t id);
void idmap_fini(struct idmap *self);
