/* Which keys are in use. A key is 8 bits of shard (0 so far), 20 bits of an ordinal, and 36 bits of a counter.
 *
 * A session has an ordinal, and the keys of that ordinal from its first on. Ordinals are handed out in turn; one that a
 * session (a tombstone, too) has, or whose keys items in tables bear, is passed over. So no key is handed out that an item
 * bears. When every ordinal is in use, a session gets the keys behind those of items whose own session is gone. */
#ifndef BROKER_ORDINALS_H
#define BROKER_ORDINALS_H

#include <stdbool.h>
#include <stdint.h>

#define KEY_COUNTER_BITS 36u
#define KEY_COUNTERS (UINT64_C(1) << KEY_COUNTER_BITS)
#define KEY_ORDINALS (UINT32_C(1) << 20)

struct ordinal {
    uint64_t top;      /* with items: their counters are below it */
    uint32_t items;    /* in tables, with keys of this ordinal */
    uint32_t sessions; /* that have it */
};

struct ordinals {
    struct ordinal *at; /* by ordinal */
    uint64_t next;      /* running number of the next session, from 1 on: it is tried first as ordinal_of(next) */
};

/* The keys of a session. */
struct key_range {
    uint64_t base, count;
};

static inline uint32_t ordinal_of(uint64_t number)
{
    return 1 + (uint32_t)((number - 1) % (KEY_ORDINALS - 1)); /* 0 is nobody's */
}

bool ordinals_init(struct ordinals *self);
void ordinals_fini(struct ordinals *self);

/* An ordinal for a new session, and its keys. 0: none is left. */
uint32_t ordinals_take(struct ordinals *self, struct key_range *keys);
/* The keys of a session that comes from a file. key_base 0: of one that was opened when ordinals had 24 bits. */
struct key_range ordinals_restored(uint32_t ordinal, uint64_t key_base);
/* A session has this ordinal and these keys from now on; or no more. */
void ordinals_hold(struct ordinals *self, uint32_t ordinal, struct key_range keys);
void ordinals_release(struct ordinals *self, uint32_t ordinal, struct key_range keys);

/* An item with this key goes into a table; or is gone from it. */
static inline void ordinals_enter(struct ordinals *self, uint64_t key)
{
    if (key >> KEY_COUNTER_BITS >= KEY_ORDINALS)
        return;
    struct ordinal *at = &self->at[key >> KEY_COUNTER_BITS];
    uint64_t counter = key & (KEY_COUNTERS - 1);
    if (at->items++ == 0 || counter >= at->top)
        at->top = counter + 1;
}

static inline void ordinals_leave(struct ordinals *self, uint64_t key)
{
    if (key >> KEY_COUNTER_BITS < KEY_ORDINALS)
        self->at[key >> KEY_COUNTER_BITS].items--;
}

#endif
