#include "broker/table/ordinals.h"

#include <stddef.h>

#include "broker/store/reserve.h"

/* Fewest keys for a session that gets the rest of an ordinal's keys. */
#define LEAST_KEYS (UINT64_C(1) << 32)
/* Ordinals that are tried before taking one whose keys are partly used. */
#define FEW 4096u
/* The key map keeps 16 keys in a line. */
#define LINE_KEYS 16u

void ordinals_init(struct ordinals *self, uint32_t shard)
{
    self->prefix = (uint64_t)shard << KEY_SHARD_SHIFT;
    self->at = reserve_map(KEY_ORDINALS * sizeof *self->at);
    self->next = 1;
}

void ordinals_fini(struct ordinals *self)
{
    reserve_unmap(self->at, KEY_ORDINALS * sizeof *self->at);
    self->at = NULL;
}

/* Returns the first of `tries` ordinals from `next` on whose keys are free from some counter on: from 0, or after the items of
 * sessions that are gone. 0: there is none. */
static uint32_t find(struct ordinals *self, uint32_t tries, bool behind_items, struct key_range *keys)
{
    for (uint32_t n = 0; n < tries; n++) {
        uint32_t ordinal = ordinal_of(self->next + n);
        const struct ordinal *at = &self->at[ordinal];
        uint64_t first = at->items ? (at->top + LINE_KEYS - 1) / LINE_KEYS * LINE_KEYS : 0;
        if (at->sessions || (at->items && (!behind_items || first > KEY_COUNTERS - LEAST_KEYS)))
            continue;
        self->next += n + 1;
        *keys = (struct key_range){self->prefix | (uint64_t)ordinal << KEY_COUNTER_BITS | first, KEY_COUNTERS - first};
        return ordinal;
    }
    return 0;
}

uint32_t ordinals_take(struct ordinals *self, struct key_range *keys)
{
    static const uint32_t tries[] = {FEW, KEY_ORDINALS - 1}; /* trying all takes some milliseconds */
    uint32_t ordinal = 0;
    for (uint32_t i = 0; i < 4 && !ordinal; i++)
        ordinal = find(self, tries[i / 2], i % 2, keys);
    return ordinal;
}
