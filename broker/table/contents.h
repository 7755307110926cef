/* The contents of a table: what a reset replaces in one go. */
#ifndef BROKER_CONTENTS_H
#define BROKER_CONTENTS_H

#include <stdbool.h>
#include <stdint.h>

#include "broker/select/keymap.h"
#include "broker/store/reserve.h"
#include "broker/table/episodes.h"
#include "broker/table/marks.h"
#include "broker/table/span.h"

struct table;

/* 64 bytes: the memory that an item takes, besides its chunks and selector entries. */
struct item {
    uint64_t key;
    double priority;
    int64_t insert_ns;
    uint64_t policy;
    struct span span; /* n == 0: the slot is free */
    uint32_t times_sampled;
    uint32_t stamp; /* of the distinct batch that last picked it; in a free slot: the next free slot */
};

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
    struct reserve_group arrays; /* of items and selectors */
    struct marks *marks;         /* NULL: no checkpoints are made */
    uint32_t account; /* number under which chunks count these items: old contents are freed while new ones fill */
    struct episodes episodes;
};

struct contents_seeds {
    uint64_t sampler, remover;
};

/* Makes empty contents for the table. */
rp_status contents_init(struct contents *self, struct table *table, struct contents_seeds seeds, rp_error *err);
/* Frees one part of contents without items; each part may be large. False: all parts are free. */
bool contents_fini_step(struct contents *self, const struct table *table);
void contents_fini(struct contents *self, const struct table *table);

#endif
