/* Groups: items with the same group key that are sampled together and leave together.
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
 * This file links slots. table.c says what becomes of the items. */
#ifndef BROKER_GROUPS_H
#define BROKER_GROUPS_H

#include <stdbool.h>
#include <stdint.h>

struct keymap;

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
    struct group_member *slots; /* NULL: the table has no groups */
    struct keymap *leaders;     /* of open groups, by their key */
    uint32_t capacity, size;
    uint32_t oldest, newest; /* leaders of open groups, in the order in which they began */
    uint32_t n_open;
    uint32_t hidden; /* items of open groups */
};

/* The slots are reserved with the table's other arrays. account: as for keymap_new. */
void groups_init(struct groups *self, uint32_t capacity, uint32_t size, uint64_t *account);
void groups_fini(struct groups *self);

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

#endif
