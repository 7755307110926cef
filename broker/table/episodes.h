/* The number of episodes of which a table has items.
 *
 * Every item counts for its episode. The counts of the episodes that were used last are open: they lie in an array, so that an
 * insert or a removal usually touches one counter and looks nothing up. The counts of all other episodes are in a map. */
#ifndef BROKER_EPISODES_H
#define BROKER_EPISODES_H

#include <stdbool.h>
#include <stdint.h>

#include "broker/select/keymap.h"

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

/* account: as for keymap_new. False: no memory. */
bool episodes_init(struct episodes *self, uint64_t *account);
void episodes_fini(struct episodes *self);
/* Puts the count that is open back into the map and opens another one in its place. Without memory the old count is lost, and
 * the episode counts as gone. */
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

#endif
