/* The contents of a table: what a reset replaces in one go. The parts of contents come first. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "broker/config/config.h"
#include "broker/select/keymap.h"
#include "broker/store/layout.h"
#include "broker/store/reserve.h"
#include "broker/store/store.h"

struct chore;
struct contents;
struct table;

#define NO_SLOT UINT32_MAX

/* ---- A span: the chunks that an item runs over. */

struct span {
    union {
        struct chunk *one;
        struct chunk **many; /* n > 1: owned array */
    };
    uint32_t n;
    uint32_t offset; /* first step, in the first chunk */
    uint32_t length; /* steps */
    uint32_t layout; /* index in struct layouts; a span holds a reference to its layout, too */
};

static inline struct chunk *const *span_chunks(const struct span *self)
{
    return self->n > 1 ? (struct chunk *const *)self->many : &self->one;
}
/* Bytes of the array, which the store counts outside of its slabs. */
static inline uint64_t span_list_bytes(uint32_t n)
{
    return store_block_bytes(n * sizeof(struct chunk *));
}
/* Releases all chunks, the array, and the layout. */
void span_release(struct span *self, struct store *store, struct layouts *layouts);
/* Makes `to` a second span over the same chunks and the same layout. False: no memory, and nothing has changed. */
bool span_copy(const struct span *from, struct span *to, struct store *store, struct layouts *layouts);
uint64_t span_bytes(const struct span *self);

/* Returns a number for the episode of the span's first step: no two episodes of all sessions have the same one. */
static inline uint64_t span_episode(const struct span *self)
{
    const struct chunk *first = span_chunks(self)[0];
    return (uint64_t)first->session << 32 | first->episode;
}

/* ---- The number of episodes of which a table has items.
 *
 * Every item counts for its episode. The counts of the episodes that were used last are open: they lie in an array, so that an
 * insert or a removal usually touches one counter and looks nothing up. The counts of all other episodes are in a map. */

/* log2 of the number of open counts: more than the writers that usually write at once. */
#define EPISODES_OPEN_BITS 8u

struct episode_items {
    uint64_t episode; /* span_episode */
    uint32_t n;       /* items; 0: none */
};

struct episodes {
    struct keymap *items; /* of the episodes that are not open and have items */
    uint64_t here;        /* episodes with items */
    struct episode_items open[1u << EPISODES_OPEN_BITS];
};

/* account: as for keymap_new. */
void episodes_init(struct episodes *self, uint64_t *account);
void episodes_fini(struct episodes *self);
/* Puts the count that is open back into the map and opens another one in its place. */
void episodes_open(struct episodes *self, struct episode_items *place, uint64_t episode);

static inline struct episode_items *episodes_at(struct episodes *self, uint64_t episode)
{
    struct episode_items *place = &self->open[(episode * UINT64_C(0x9E3779B97F4A7C15)) >> (64 - EPISODES_OPEN_BITS)];
    if (__builtin_expect(place->episode != episode, 0))
        episodes_open(self, place, episode);
    return place;
}

/* Counts an item. True: it is the only one of its episode. */
static inline bool episodes_enter(struct episodes *self, uint64_t episode)
{
    bool first = episodes_at(self, episode)->n++ == 0;
    self->here += first;
    return first;
}

/* An item that was counted leaves the table. */
static inline void episodes_leave(struct episodes *self, uint64_t episode)
{
    struct episode_items *place = episodes_at(self, episode);
    if (place->n && --place->n == 0)
        self->here--;
}

/* ---- Groups: items with the same group key that are sampled together and leave together.
 *
 * A group begins with its first member, its leader, and waits for the others, which may come from any session. It is open until it has
 * `size` members: then its leader enters the table's sampler and remover, with the mean of the members' priorities, and stands there
 * for all of them. The other members stay hidden (table_hide), as all are before. So selectors pick a group like an item and know nothing of groups; a group counts
 * once, whatever its members' number, and fifo and lifo go by the time at which groups became complete.
 *
 * Whatever removes one member removes all: the last sample, an eviction, a delete, a version that makes the oldest member too old. A
 * group that lacks members at its deadline is dropped, or closed and delivered as it is. The broker remembers no group that has closed: a
 * member that comes later begins a new group of the same key. It cannot be complete, and meets the same end at its own deadline; to
 * refuse it instead would need every key for ever.
 *
 * Limiter, sizes and batches count items, so that a table with groups and one without are compared and configured alike. A group begins
 * only if there is room for all its members beside those that other open groups still lack, and a member of an open group is
 * always let in: so writers that wait for room do not keep each other's groups from being complete.
 *
 * These functions link slots; table.c says what becomes of the items. */

/* The members of a group are a ring, in the order in which they came. */
struct group_member {
    uint64_t group;  /* key */
    uint32_t leader; /* slot of the first member */
    uint32_t next;   /* slot; of the last member: the leader */
    /* Of the leader alone: */
    uint32_t last;         /* slot of the last member */
    uint16_t n;            /* members */
    uint16_t closed;       /* 1: no further member is taken, and the leader is shown */
    uint32_t older, newer; /* leaders of open groups; UINT32_MAX: none */
};

struct groups {
    struct group_member *slots; /* reserved with the other arrays of the table; NULL: it has no groups */
    struct keymap *leaders;     /* of open groups, by their key */
    uint32_t capacity, size;
    uint32_t oldest, newest; /* leaders of open groups, in the order in which they began */
    uint32_t n_open;
    uint32_t hidden; /* items of open groups */
};

/* Returns the leader of the open group of a key. UINT32_MAX: there is none. */
uint32_t groups_find(const struct groups *self, uint64_t group);
/* Adds an item to the open group of its key, or begins one. Returns the leader. */
uint32_t groups_enter(struct groups *self, uint32_t slot, uint64_t group);
/* The open group takes no further member. */
void groups_close(struct groups *self, uint32_t leader);
/* The group is gone. Its members stay linked until their slots are used again. */
void groups_leave(struct groups *self, uint32_t leader);

/* Returns how many items the open groups lack. */
static inline uint64_t groups_missing(const struct groups *self)
{
    return (uint64_t)self->n_open * self->size - self->hidden;
}

/* ---- A window of versions: the items of a table by the version of the parameters that made them, so that items that have become too
 * old are found without a search.
 *
 * The newest lag + 1 versions and the next one have a list each, and all older items share one: an item that is more than `lag`
 * versions behind is stale. An item of the next version may come before that version itself: over shards, another shard has it already.
 * An item of a later version counts as of the newest, or a writer could keep its items for ever. */

struct window_link {
    uint32_t next, prev; /* a slot, or the capacity and the number of a head */
};

struct window {
    struct window_link *slots; /* reserved with the other arrays of the table; NULL: it has no window */
    struct window_link *heads; /* the stale ones, then a ring of lag + 2 versions; the lists are rings, too */
    uint32_t capacity;         /* slots */
    uint32_t lag;              /* at most LIMITER_MOST_LAG: a new version moves so many lists */
    uint64_t version;          /* the newest */
};

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

/* ---- Marks of the slots of a table that have changed since the last checkpoint, and of the slots that the checkpoint in
 * progress still has to copy. A table without checkpoints has none.
 *
 * The table marks a slot right before it changes (marks_touch). While a checkpoint copies the table, an item that is about
 * to change before its turn is copied first: marks.copier is the checkpoint's way to do so, and this room knows nothing else
 * of checkpoints. */

/* What copies a table. */
struct copier {
    /* Copies the item of a slot, or that the slot is free. */
    void (*copy)(void *ctx, const struct table *table, const struct contents *in, uint32_t slot);
    /* The contents lie at `in` since the table was reset. True: they are still being copied; the copier adds `then`, which
     * frees them, to the chores when it has finished. */
    bool (*keep)(void *ctx, struct contents *in, struct chore *then);
};

/* Bits by slot; reserved for the capacity. */
struct marks {
    uint64_t *changed;
    /* Slots that are still to be copied; if all slots are copied (whole): slots below `high` that were copied ahead of
     * their turn. */
    uint64_t *pending;
    uint32_t words;
    uint32_t n_changed;
    void *copying;               /* ctx of the copier; NULL: no copy is in progress, or this table is copied */
    const struct copier *copier; /* set while copying is */
    uint32_t next;               /* words before this one are copied */
    uint32_t high;               /* slots from this one on were not used when the copy began */
    bool whole;                  /* all slots are copied, not only changed ones */
    bool all_changed;            /* as after a start or a reset: the next checkpoint copies all slots */
};

struct marks *marks_new(uint32_t capacity);
void marks_destroy(struct marks **self);
/* A slot of the contents is about to change: by insert, remove, priority or sample. */
void marks_touch(struct marks *self, const struct table *table, const struct contents *in, uint32_t slot);
/* The copy in progress fails: the next one copies all slots. */
void marks_abandon(struct marks *self);

/* Slots of the word that are still to be copied. */
static inline uint64_t marks_due(const struct marks *self, uint32_t word)
{
    uint64_t due = self->pending[word];
    if (!self->whole)
        return due;
    uint32_t left = self->high - word * 64;
    return ~due & (left < 64 ? (UINT64_C(1) << left) - 1 : UINT64_MAX);
}

/* ---- contents */

/* What a table knows of an item. */
struct item {
    uint64_t key;
    double priority;
    int64_t insert_ns;
    uint64_t policy;
    struct span span; /* n == 0: the slot is free */
    uint32_t times_sampled;
    uint32_t
        stamp; /* of the distinct batch that last picked it, below ITEM_HIDDEN; hidden: ITEM_HIDDEN and the number of its lease;
                     * in a free slot: the next free slot */
};

/* An item that is hidden (table_hide) is in the table, and in neither sampler nor remover. */
#define ITEM_HIDDEN (UINT32_C(1) << 31)

static inline bool item_is_hidden(const struct item *self)
{
    return self->stamp & ITEM_HIDDEN;
}
/* Number of the lease that hides a hidden item; 0: none. */
static inline uint32_t item_lease(const struct item *self)
{
    return self->stamp & ~ITEM_HIDDEN;
}

_Static_assert(sizeof(struct item) == CONFIG_RECORD_BYTES, "what --check expects");
_Static_assert(sizeof(struct window_link) == CONFIG_WINDOW_BYTES, "what --check expects");
_Static_assert(sizeof(struct group_member) == CONFIG_GROUP_BYTES, "what --check expects");

/* Insert times are strictly increasing, so the insert time of the newest item may be a little in the future. */
static inline int64_t item_age(const struct item *self, int64_t now_ns)
{
    return now_ns > self->insert_ns ? now_ns - self->insert_ns : 0;
}

struct contents {
    struct item *items;
    uint32_t high; /* slots below this one have been used */
    uint32_t free; /* head of the list of free slots, or NO_SLOT */
    uint32_t size;
    uint32_t hidden; /* items, and those of them that a lease hides */
    uint32_t leased;
    struct keymap *keys;
    void *sampler, *remover;
    struct reserve_group arrays; /* of items, selectors and marks; at first also of extensions */
    struct marks *marks;         /* NULL: no checkpoints are made */
    struct window window;
    struct groups groups;
    uint32_t unseen;  /* items that were never sampled */
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
    return self->free == NO_SLOT || keymap_is_full(self->keys) || keymap_is_full(self->episodes.items) ||
           (self->groups.slots && keymap_is_full(self->groups.leaders));
}

/* The slots will soon be free, and count no longer: new contents can fill at once. */
void contents_uncount_slots(struct contents *self, struct store *store);

/* Makes empty contents for the table. */
rp_status contents_init(struct contents *self, struct table *table, struct contents_seeds seeds, rp_error *err);
/* Frees one part of contents without items; each part may be large. False: all parts are free. */
bool contents_fini_step(struct contents *self, const struct table *table);
void contents_fini(struct contents *self, const struct table *table);
