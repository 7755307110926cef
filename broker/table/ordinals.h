/* Ordinals: which keys are in use. A key is 8 bits of shard (0 if the broker is alone), 20 bits of ordinal, and 36 bits of
 * counter.
 *
 * A session has an ordinal, and the keys of that ordinal from its first on. Ordinals are handed out in turn; an ordinal is
 * skipped while a session (or a tombstone) has it, or while items in tables have keys of it. So no session gets a key that an
 * item has. When every ordinal is in use, a session gets the keys after those of items whose own session is gone. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#define KEY_COUNTER_BITS 36u
#define KEY_COUNTERS (UINT64_C(1) << KEY_COUNTER_BITS)
#define KEY_ORDINALS (UINT32_C(1) << 20)
#define KEY_SHARD_SHIFT 56u

struct ordinal {
    uint64_t top;      /* counters of its items are below this one */
    uint32_t items;    /* items in tables with keys of this ordinal */
    uint32_t sessions; /* sessions that have this ordinal */
};

struct ordinals {
    struct ordinal *at; /* by ordinal */
    uint64_t prefix;    /* first bits of all keys: the number of the shard */
    uint64_t next;      /* running number of the next session, from 1 on; ordinal_of(next) is tried first */
};

/* The keys of a session. */
struct key_range {
    uint64_t base, count;
};

static inline uint32_t ordinal_of(uint64_t number)
{
    return 1 + (uint32_t)((number - 1) % (KEY_ORDINALS - 1)); /* nobody has ordinal 0 */
}

/* Returns the ordinal in a key. */
static inline uint32_t ordinal_of_key(uint64_t key)
{
    return (uint32_t)(key >> KEY_COUNTER_BITS) & (KEY_ORDINALS - 1);
}

/* shard: the first bits of the keys that are handed out. */
void ordinals_init(struct ordinals *self, uint32_t shard);
void ordinals_fini(struct ordinals *self);

/* Returns an ordinal for a new session, and its keys. 0: no ordinal is left. */
uint32_t ordinals_take(struct ordinals *self, struct key_range *keys);
/* A session begins (ceases) to have this ordinal. */
static inline void ordinals_hold(struct ordinals *self, uint32_t ordinal)
{
    self->at[ordinal].sessions++;
}
static inline void ordinals_release(struct ordinals *self, uint32_t ordinal)
{
    self->at[ordinal].sessions--;
}

/* An item with this key enters (leaves) a table. */
static inline void ordinals_enter(struct ordinals *self, uint64_t key)
{
    struct ordinal *at = &self->at[ordinal_of_key(key)];
    uint64_t counter = key & (KEY_COUNTERS - 1);
    if (at->items++ == 0 || counter >= at->top)
        at->top = counter + 1;
}

static inline void ordinals_leave(struct ordinals *self, uint64_t key)
{
    self->at[ordinal_of_key(key)].items--;
}
