/* A window of versions: the items of a table by the version of the parameters that made them, so that items that have become too
 * old are found without a search.
 *
 * The newest lag + 1 versions and the next one have a list each, and all older items share one: an item that is more than `lag`
 * versions behind is stale. An item of the next version may come before that version itself: over shards, another shard has it already.
 * An item of a later version counts as of the newest, or a writer could keep its items for ever. */
#ifndef BROKER_WINDOW_H
#define BROKER_WINDOW_H

#include <stdbool.h>
#include <stdint.h>

struct window_link {
    uint32_t next, prev; /* a slot, or the capacity and the number of a head */
};

struct window {
    struct window_link *slots; /* NULL: the table has no window */
    struct window_link *heads; /* the stale ones, then a ring of lag + 2 versions; the lists are rings, too */
    uint32_t capacity;         /* slots */
    uint32_t lag;              /* at most LIMITER_MOST_LAG: a new version moves so many lists */
    uint64_t version;          /* the newest */
};

/* The slots are reserved with the table's other arrays. */
void window_init(struct window *self, uint32_t capacity, uint32_t lag, uint64_t version);
void window_fini(struct window *self);
/* Returns the version that an item counts as whose writer names this one. */
static inline uint64_t window_version(const struct window *self, uint64_t version)
{
    return version <= self->version + 1 ? version : self->version;
}
/* version: from window_version. */
void window_enter(struct window *self, uint32_t slot, uint64_t version);
void window_leave(struct window *self, uint32_t slot);
/* A version newer than the window's is there. */
void window_move(struct window *self, uint64_t version);
void window_set_lag(struct window *self, uint32_t lag);
/* Returns the slot of a stale item; UINT32_MAX: there is none, or no window. */
static inline uint32_t window_stale(const struct window *self)
{
    return self->slots && self->heads[0].next < self->capacity ? self->heads[0].next : UINT32_MAX;
}

#endif
