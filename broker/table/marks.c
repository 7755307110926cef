#include "broker/table/marks.h"

#include <stdlib.h>
#include <string.h>

#include "broker/store/reserve.h"
#include "proto/base/error.h"

static size_t bitmap_bytes(const struct marks *self)
{
    return (size_t)self->words * sizeof(uint64_t);
}

rp_status marks_init(struct marks **at, uint32_t capacity, rp_error *err)
{
    struct marks *self = calloc(1, sizeof *self);
    *at = self;
    if (self) {
        self->words = capacity / 64 + 1;
        self->all_changed = true;
        self->changed = reserve_map(bitmap_bytes(self));
        self->pending = reserve_map(bitmap_bytes(self));
    }
    if (self && self->changed && self->pending)
        return RP_OK;
    marks_destroy(at);
    return err_set(err, RP_NO_MEMORY, "no memory for the marks of %u slots", capacity);
}

void marks_destroy(struct marks **at)
{
    struct marks *self = *at;
    if (!self)
        return;
    reserve_unmap(self->changed, bitmap_bytes(self));
    reserve_unmap(self->pending, bitmap_bytes(self));
    free(self);
    *at = NULL;
}

void marks_touch(struct marks *self, const struct table *table, const struct contents *in, uint32_t slot)
{
    uint32_t word = slot / 64;
    uint64_t bit = UINT64_C(1) << (slot % 64);
    if (__builtin_expect(self->copying != NULL, 0) && word >= self->next && slot < self->high &&
        (marks_due(self, word) & bit)) {
        self->pending[word] ^= bit;
        self->copier->copy(self->copying, table, in, slot);
    }
    self->n_changed += !(self->changed[word] & bit);
    self->changed[word] |= bit;
}

void marks_abandon(struct marks *self)
{
    self->all_changed = true;
    memset(self->pending, 0, bitmap_bytes(self));
}
