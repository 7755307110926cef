#include "broker/journal/segments.h"

#include <stdlib.h>
#include <string.h>

#include "proto/base/need.h"

struct segment_use *segments_find(const struct segments *self, uint64_t number)
{
    if (!self->n)
        return NULL;
    /* Few numbers are missing, and the last ones are asked for most: try the place where the number would be. */
    uint64_t back = self->list[self->n - 1].number - number;
    if (back < self->n && self->list[self->n - 1 - back].number == number)
        return &self->list[self->n - 1 - back];
    uint32_t low = 0, high = self->n;
    while (low < high) {
        uint32_t middle = low + (high - low) / 2;
        if (self->list[middle].number < number)
            low = middle + 1;
        else
            high = middle;
    }
    return low < self->n && self->list[low].number == number ? &self->list[low] : NULL;
}

void segments_know(struct segments *self, uint64_t number, uint64_t bytes)
{
    struct segment_use *known = segments_find(self, number);
    if (known) {
        self->total_bytes += bytes - known->bytes;
        known->bytes = bytes;
        return;
    }
    if (self->n == self->capacity) {
        self->capacity = self->capacity ? self->capacity * 2 : 64;
        self->list = need_resize(self->list, self->capacity, sizeof *self->list);
    }
    uint32_t at = self->n++;
    for (; at > 0 && self->list[at - 1].number > number; at--)
        self->list[at] = self->list[at - 1];
    self->list[at] = (struct segment_use){.number = number, .bytes = bytes};
    self->total_bytes += bytes;
}

void segments_forget(struct segments *self, uint64_t number)
{
    struct segment_use *use = segments_find(self, number);
    if (!use)
        return;
    self->total_bytes -= use->bytes;
    self->n_lost -= use->lost;
    memmove(use, use + 1, (size_t)(self->list + self->n - use - 1) * sizeof *use);
    self->n--;
}

void segments_grow(struct segments *self, uint64_t number, uint64_t bytes)
{
    struct segment_use *use = segments_find(self, number);
    if (use)
        use->bytes += bytes;
    self->total_bytes += bytes;
}

void segments_chunk_known(struct segments *self, uint64_t number, uint64_t bytes)
{
    struct segment_use *use = segments_find(self, number);
    if (use) {
        use->live += bytes;
        self->live += bytes;
    }
}

void segments_chunk_dead(struct segments *self, uint64_t number, uint64_t bytes)
{
    struct segment_use *use = segments_find(self, number);
    if (use) {
        use->live -= bytes;
        self->live -= bytes;
    }
}

void segments_fini(struct segments *self)
{
    free(self->list);
    *self = (struct segments){0};
}
