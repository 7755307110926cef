/* Picks: items that were chosen for a reply, as the parallel arrays that the reply carries. Picks hold their chunks, so the
 * items may leave the table before the reply is made. */
#pragma once

#include "broker/loop/entries.h"
#include "broker/table/table.h"

struct samples;

#define PICKS_WIDE 7u
#define PICKS_NARROW 6u
/* Bytes of an item in the arrays. */
#define PICKS_ITEM_BYTES (PICKS_WIDE * 8u + PICKS_NARROW * 4u)

struct picks {
    uint32_t n, capacity;
    union { /* arrays of 8 bytes for each item */
        struct {
            uint64_t *key, *age_ns, *policy, *step; /* age_ns: the time of insertion until the reply is made */
            uint64_t *group;                        /* only of a table with groups */
            double *priority, *probability;
        };
        void *wide[PICKS_WIDE];
    };
    union { /* and of 4 */
        struct {
            uint32_t *times_sampled, *session, *layout, *offset, *length, *chunks;
        };
        void *narrow[PICKS_NARROW];
    };
    struct chunk **refs; /* chunks of all items, one after another, each held */
    uint32_t n_refs, refs_capacity;
    bool borrowed;       /* chunks and layouts are not held: the reply goes out before anything can leave the table */
    void *block;         /* the arrays' memory */
    uint64_t table_size; /* before the last pick */
};

/* Makes room for n more items, or n more chunks. False: no memory. */
bool picks_reserve(struct picks *self, uint32_t n);
bool picks_reserve_refs(struct picks *self, uint32_t n);
/* Adds the item of a slot, for which there is room; holds its chunks and its layout unless borrowed. The table's counts are not
 * touched. */
static inline __attribute__((always_inline)) void picks_put(struct picks *self, const struct table *table,
                                                            uint32_t slot, double probability, bool borrowed)
{
    const struct item *item = &table->in.items[slot];
    struct chunk *const *chunks = span_chunks(&item->span);
    uint32_t i = self->n++;
    self->key[i] = item->key;
    self->age_ns[i] = (uint64_t)item->insert_ns; /* turned into an age when the reply is made */
    self->policy[i] = item->policy;
    self->step[i] = chunks[0]->step + item->span.offset;
    self->priority[i] = item->priority;
    self->probability[i] = probability;
    self->times_sampled[i] = item->times_sampled;
    self->session[i] = chunks[0]->session;
    self->layout[i] = item->span.layout;
    self->offset[i] = item->span.offset;
    self->length[i] = item->span.length;
    self->chunks[i] = item->span.n;
    for (uint32_t c = 0; c < item->span.n; c++) {
        if (!borrowed)
            chunk_hold(chunks[c]);
        self->refs[self->n_refs++] = chunks[c];
    }
    if (!borrowed)
        layouts_at(table->layouts, item->span.layout)->refs++;
}
/* The data of the item's chunks is in use, if some chunks are on disk. */
static inline void picks_heat(const struct table *table, uint32_t slot)
{
    const struct span *span = &table->in.items[slot].span;
    for (uint32_t c = 0; table->tables->disk.ctx && c < span->n; c++)
        span_chunks(span)[c]->hot = 1;
}
/* The same as picks_put, with the key of its group, if the table has groups. False: no memory. */
static inline bool picks_add_member(struct picks *self, const struct table *table, uint32_t slot, double probability)
{
    if (!picks_reserve(self, 1) || !picks_reserve_refs(self, table->in.items[slot].span.n))
        return false;
    picks_put(self, table, slot, probability, self->borrowed);
    picks_heat(table, slot);
    if (table->in.groups.slots)
        self->group[self->n - 1] = table->in.groups.slots[slot].group;
    return true;
}
/* True if picks with these flags (PICK_... of loop/entries.h) leave the table. */
static inline bool picks_leave(const struct table *table, uint32_t flags)
{
    return table->one_by_one && !(flags & PICK_LEASED);
}
/* Holds what was borrowed: the picks will outlast this call. */
void picks_own(struct picks *self, struct samples *samples);
/* True if the data of all chunks is in memory. */
bool picks_are_here(const struct picks *self);
/* Removes item i. The picks must be owned. */
void picks_drop(struct picks *self, struct samples *samples, uint32_t i);
/* Releases all items; the memory stays for the next use. */
void picks_clear(struct picks *self, struct samples *samples);
/* Frees the memory. */
void picks_fini(struct picks *self);
