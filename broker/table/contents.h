/* The contents of a table: what a reset replaces in one go. */
#ifndef BROKER_CONTENTS_H
#define BROKER_CONTENTS_H

#include <stdbool.h>
#include <stdint.h>

#include "broker/config/config.h"
#include "broker/select/keymap.h"
#include "broker/store/reserve.h"
#include "broker/table/episodes.h"
#include "broker/table/marks.h"
#include "broker/table/span.h"

struct table;

/* What a table knows of an item. */
struct item {
    uint64_t key;
    double priority;
    int64_t insert_ns;
    uint64_t policy;
    struct span span; /* n == 0: the slot is free */
    uint32_t times_sampled;
    uint32_t stamp; /* of the distinct batch that last picked it; in a free slot: the next free slot */
};

_Static_assert(sizeof(struct item) == CONFIG_RECORD_BYTES, "what --check expects");

/* Insert times are strictly increasing, so the insert time of the newest item may be a little in the future. */
static inline int64_t item_age(const struct item *self, int64_t now_ns)
{
    return now_ns > self->insert_ns ? now_ns - self->insert_ns : 0;
}

#define NO_SLOT UINT32_MAX

struct contents {
    struct item *items;
    uint32_t high; /* slots below this one have been used */
    uint32_t free; /* head of the list of free slots, or NO_SLOT */
    uint32_t size;
    struct keymap *keys;
    void *sampler, *remover;
    struct reserve_group arrays; /* of items, selectors and marks; at first also of extensions */
    struct marks *marks;         /* NULL: no checkpoints are made */
    uint32_t account; /* number under which chunks count these items: old contents are freed while new ones fill */
    struct episodes episodes;
};

struct contents_seeds {
    uint64_t sampler, remover;
};

/* Memory of used slots and of keys, which the store counts as overhead. */
uint64_t contents_memory(const struct contents *self);
/* True if a further item may need more of that memory. */
static inline bool contents_are_full(const struct contents *self)
{
    return self->free == NO_SLOT || keymap_is_full(self->keys) || keymap_is_full(self->episodes.items);
}

/* The slots will soon be free, and count no longer: new contents can fill at once. */
void contents_uncount_slots(struct contents *self, struct store *store);

/* Makes empty contents for the table. */
rp_status contents_init(struct contents *self, struct table *table, struct contents_seeds seeds, rp_error *err);
/* Frees one part of contents without items; each part may be large. False: all parts are free. */
bool contents_fini_step(struct contents *self, const struct table *table);
void contents_fini(struct contents *self, const struct table *table);

#endif
