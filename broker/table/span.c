#include "broker/table/span.h"

#include <stdlib.h>
#include <string.h>

void span_release(struct span *self, struct store *store, struct layouts *layouts)
{
    struct chunk *const *chunks = span_chunks(self);
    for (uint32_t i = 0; i < self->n; i++)
        store_release(store, chunks[i]);
    if (self->n > 1) {
        store->outside -= span_list_bytes(self->n);
        free(self->many);
    }
    if (self->n)
        layouts_release(layouts, layouts_at(layouts, self->layout));
    self->n = 0;
}

bool span_copy(const struct span *from, struct span *to, struct store *store, struct layouts *layouts)
{
    *to = *from;
    if (from->n > 1) {
        to->many = malloc(from->n * sizeof(*to->many));
        if (!to->many)
            return false;
        memcpy(to->many, from->many, from->n * sizeof(*to->many));
        store->outside += span_list_bytes(from->n);
    }
    struct chunk *const *chunks = span_chunks(to);
    for (uint32_t i = 0; i < to->n; i++)
        chunk_hold(chunks[i]);
    layouts_at(layouts, to->layout)->refs++;
    return true;
}

uint64_t span_bytes(const struct span *self)
{
    struct chunk *const *chunks = span_chunks(self);
    uint64_t bytes = 0;
    for (uint32_t i = 0; i < self->n; i++)
        bytes += chunks[i]->bytes;
    return bytes;
}
