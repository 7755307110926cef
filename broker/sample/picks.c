#include "broker/sample/picks.h"

#include <stdlib.h>
#include <string.h>

#include "broker/sample/samples.h"

bool picks_reserve(struct picks *self, uint32_t n)
{
    uint32_t need = self->n + n;
    if (need <= self->capacity)
        return true;
    uint32_t capacity = self->capacity ? self->capacity : 64;
    while (capacity < need)
        capacity *= 2;
    uint8_t *block = malloc((size_t)capacity * PICKS_ITEM_BYTES);
    if (!block)
        return false;
    uint8_t *at = block;
    for (uint32_t i = 0; i < PICKS_WIDE; i++, at += (size_t)capacity * 8) {
        if (self->n)
            memcpy(at, self->wide[i], (size_t)self->n * 8);
        self->wide[i] = at;
    }
    for (uint32_t i = 0; i < PICKS_NARROW; i++, at += (size_t)capacity * 4) {
        if (self->n)
            memcpy(at, self->narrow[i], (size_t)self->n * 4);
        self->narrow[i] = at;
    }
    free(self->block);
    self->block = block;
    self->capacity = capacity;
    return true;
}

bool picks_reserve_refs(struct picks *self, uint32_t n)
{
    if (self->n_refs + n <= self->refs_capacity)
        return true;
    uint32_t capacity = self->refs_capacity ? self->refs_capacity : 64;
    while (capacity < self->n_refs + n)
        capacity *= 2;
    struct chunk **refs = realloc(self->refs, capacity * sizeof(*refs));
    if (!refs)
        return false;
    self->refs = refs;
    self->refs_capacity = capacity;
    return true;
}

void picks_own(struct picks *self, struct samples *samples)
{
    if (!self->borrowed)
        return;
    for (uint32_t i = 0; i < self->n_refs; i++)
        chunk_hold(self->refs[i]);
    for (uint32_t i = 0; i < self->n; i++)
        layouts_at(samples->layouts, self->layout[i])->refs++;
    self->borrowed = false;
}

bool picks_are_here(const struct picks *self)
{
    for (uint32_t i = 0; i < self->n_refs; i++)
        if (!chunk_is_here(self->refs[i]))
            return false;
    return true;
}

void picks_drop(struct picks *self, struct samples *samples, uint32_t i)
{
    uint32_t ref = 0, n = self->chunks[i], after = --self->n - i;
    for (uint32_t k = 0; k < i; k++)
        ref += self->chunks[k];
    for (uint32_t c = 0; c < n; c++)
        store_release(samples->store, self->refs[ref + c]);
    layouts_release(samples->layouts, layouts_at(samples->layouts, self->layout[i]));
    self->n_refs -= n;
    memmove(self->refs + ref, self->refs + ref + n, (self->n_refs - ref) * sizeof(*self->refs));
    for (uint32_t f = 0; f < PICKS_WIDE; f++) {
        uint8_t *at = (uint8_t *)self->wide[f] + (size_t)i * 8;
        memmove(at, at + 8, (size_t)after * 8);
    }
    for (uint32_t f = 0; f < PICKS_NARROW; f++) {
        uint8_t *at = (uint8_t *)self->narrow[f] + (size_t)i * 4;
        memmove(at, at + 4, (size_t)after * 4);
    }
}

void picks_clear(struct picks *self, struct samples *samples)
{
    for (uint32_t i = 0; i < self->n_refs && !self->borrowed; i++)
        store_release(samples->store, self->refs[i]);
    for (uint32_t i = 0; i < self->n && !self->borrowed; i++)
        layouts_release(samples->layouts, layouts_at(samples->layouts, self->layout[i]));
    self->n = self->n_refs = 0;
    self->borrowed = false;
}

void picks_fini(struct picks *self)
{
    free(self->block);
    free(self->refs);
    *self = (struct picks){0};
}
