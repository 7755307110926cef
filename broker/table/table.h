/* A replay table: items over shared chunks, chosen by a sampler and a remover, held back by a limiter.
 *
 * The table owns its items, its selectors, its limiter and its extensions. It does not know sessions or clients: who
 * waits to insert or to sample stands in queues that pump.c matches (the two lists below are its, too, so that one place
 * has all that concerns the table).
 *
 * Items live in slots of one reserved array: slot numbers are small, stable and reused, and selectors know nothing else. */
#ifndef BROKER_TABLE_H
#define BROKER_TABLE_H

#include <stdbool.h>
#include <stdint.h>

#include "broker/config/config.h"
#include "broker/loop/chore.h"
#include "broker/store/layout.h"
#include "broker/store/reserve.h"
#include "broker/store/store.h"
#include "broker/table/keymap.h"
#include "broker/table/limiter.h"
#include "replay/plugin.h"

struct broker;
struct flow;
struct marks;
struct waiter;

/* The chunks that an item runs over. */
struct span {
    union {
        struct chunk *one;
        struct chunk **many; /* n > 1: owned array */
    };
    uint32_t n;
    uint32_t offset; /* first step, in the first chunk */
    uint32_t length; /* steps */
    uint32_t layout; /* index in the broker's layouts; a span holds a reference to it, too */
};

static inline struct chunk *const *span_chunks(const struct span *self)
{
    return self->n > 1 ? (struct chunk *const *)self->many : &self->one;
}
/* Lets go of all chunks, of the array, and of the layout. */
void span_release(struct span *self, struct store *store, struct layouts *layouts);
uint64_t span_bytes(const struct span *self);

/* 64 bytes: what there is per item, besides its chunks and selector entries. */
struct item {
    uint64_t key;
    double priority;
    int64_t insert_ns;
    uint64_t policy;
    struct span span; /* n == 0: the slot is free */
    uint32_t times_sampled;
    uint32_t stamp; /* of the distinct batch that last picked it; in a free slot: the next free one */
};

/* Insert times are made strictly increasing, so that of the newest may lie a little ahead. */
static inline int64_t item_age(const struct item *self, int64_t now_ns)
{
    return now_ns > self->insert_ns ? now_ns - self->insert_ns : 0;
}

/* An item on its way in. */
struct arrival {
    uint64_t key;
    double priority;
    uint64_t policy;
    struct span span;
    const struct flow *flow; /* whose next item it is; NULL: an extension's */
};

/* What a reset takes away in one go. */
struct contents {
    struct item *items;
    uint32_t high; /* slots below it have been used */
    uint32_t free; /* head of the list of free slots, or UINT32_MAX */
    uint32_t size;
    struct keymap *keys;
    void *sampler, *remover;
    struct reserve_group arrays; /* of items and selectors */
    struct marks *marks;         /* checkpoint.h; NULL: none are made */
    uint32_t account; /* under which chunks count its items: old contents are still being freed when new ones fill */
};

struct extension {
    const rp_extension_ops *ops;
    void *self;
    rp_extension_host host;
};

#define TABLE_RATE_SECONDS 10u

/* Most removals that one insert may cause, so that none stalls the loop; a chore does the rest. */
#define EVICTIONS_PER_INSERT 256u

struct table_stats {
    uint64_t updates, updates_missing, rejected, evicted, orphaned_picks, episodes;
    uint64_t evicted_for_memory;   /* since this process started; they are in evicted, too */
    int64_t evicted_for_memory_ns; /* when it first happened */
    double mean_age_s, mean_staleness, mean_weight;
    uint64_t history[TABLE_RATE_SECONDS + 1][3]; /* inserts, samples, updates at the last seconds */
    int64_t history_ns[TABLE_RATE_SECONDS + 1];
    uint32_t history_at, history_n;
    uint64_t total_inserts, total_samples; /* not reset with the limiter */
};

struct table {
    struct broker *broker;
    const struct table_config *config;
    const char *name;
    uint32_t id;
    uint32_t capacity; /* slots */
    const rp_selector_ops *sampler_ops, *remover_ops;
    struct contents in;
    struct limiter limiter;
    uint64_t bytes;
    struct extension *extensions;
    uint32_t n_extensions;
    bool hook_insert, hook_sample, hook_update, hook_delete;
    bool one_by_one; /* a pick may change what the next pick sees */
    struct signature_field *signature;
    uint32_t n_signature;
    uint64_t seed;
    uint64_t resets;
    int64_t last_insert_ns; /* insert times are strictly increasing: they are the order of insertion */
    uint32_t stamp;         /* of the newest distinct batch */
    int64_t next_removal_ns;
    bool removing;       /* the chore of soft_capacity is under way */
    bool waits_for_room; /* inserts do: room.h */
    struct table_stats stats;
    /* pump.c's */
    struct flow *blocked; /* ring of flows with items that wait */
    struct waiter *waiters, **waiters_end;
    uint64_t n_waiters, n_waiting_items;
    bool dirty;
    bool sampled_lately; /* in the last second or two */
    struct table *next_dirty;
};

rp_status table_init(struct table *self, struct broker *broker, const struct table_config *config, uint32_t id,
                     uint64_t seed, rp_error *err);
/* An empty table gets room for at least so many slots: one that is restored keeps its slot numbers. */
rp_status table_grow(struct table *self, uint32_t capacity, rp_error *err);
void table_fini(struct table *self);

/* Whether this priority can be used here: finite, not negative, and what the selectors say. */
rp_status table_check_priority(const struct table *self, double priority, rp_error *err);
/* Inserts past the limiter, which the caller has asked; counts it; then removes what is too much. On RP_OK the span's
 * references belong to the table. ALREADY_EXISTS, RESOURCE_EXHAUSTED: nothing has changed. */
rp_status table_insert(struct table *self, const struct arrival *arrival, rp_error *err);
/* UINT32_MAX: no such key. */
uint32_t table_find(const struct table *self, uint64_t key);
void table_remove(struct table *self, uint32_t slot);
/* Removes the item that the remover picks. False: there is none. */
bool table_evict(struct table *self);
/* The priority has been checked. The first runs no hooks and counts as no update. */
void table_set_priority(struct table *self, uint32_t slot, double priority);
void table_update(struct table *self, uint32_t slot, double priority);
/* An empty table with a fresh limiter, at once; what was in it is freed in slices. Waiters stay. */
rp_status table_reset(struct table *self, rp_error *err);
/* The most that a sample of `want` items may take now, all told. */
uint64_t table_sampleable(const struct table *self, uint64_t want);
/* Counts a sample of the slot's item, runs hooks, and removes it if that was its last. */
void table_sampled(struct table *self, uint32_t slot);
void table_view(const struct table *self, uint32_t slot, rp_item_view *out);
/* Once a second: the history behind the rates. */
void table_tick(struct table *self, int64_t now_ns);
/* Items per second over the last seconds: kind 0 inserts, 1 samples, 2 updates. */
double table_rate(const struct table *self, uint32_t kind);
/* Removes what is too much in slices: the surplus of a soft capacity, or what a very large item displaces. */
void table_remove_surplus(struct table *self);
/* The same at once: at the start. */
void table_remove_too_much(struct table *self);

#endif
