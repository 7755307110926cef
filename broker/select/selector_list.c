/* fifo and lifo: one list in the order of insertion, picked from its oldest or its newest end. An update of the priority keeps
 * the order. */
#include <assert.h>
#include <stdlib.h>

#include "broker/select/selector.h"
#include "broker/store/reserve.h"

/* Neighbours as slot + 1; 0 means none, so that zeroed memory needs no initialization. */
struct link {
    uint32_t older;
    uint32_t newer;
};

struct list {
    struct link *links;
    uint32_t oldest; /* slot + 1, or 0 */
    uint32_t newest;
    uint32_t capacity;
    bool newest_first; /* lifo */
};

static void list_destroy(void *state)
{
    struct list *self = state;
    reserve_unmap(self->links, self->capacity * sizeof *self->links);
    free(self);
}

static struct list *list_create(const char *name, const rp_option *options, uint32_t n_options, uint32_t capacity,
                                rp_error *err)
{
    if (selector_check_plain(name, options, n_options, capacity, err) != RP_OK)
        return NULL;
    struct list *self = calloc(1, sizeof *self);
    struct link *links = reserve_map(capacity * sizeof *links);
    if (!self || !links) {
        reserve_unmap(links, capacity * sizeof *links);
        free(self);
        selector_no_memory(name, capacity, err);
        return NULL;
    }
    self->links = links;
    self->capacity = capacity;
    return self;
}

static void *fifo_create(const rp_option *options, uint32_t n_options, uint32_t capacity, uint64_t seed, rp_error *err)
{
    (void)seed;
    return list_create("fifo", options, n_options, capacity, err);
}

static void *lifo_create(const rp_option *options, uint32_t n_options, uint32_t capacity, uint64_t seed, rp_error *err)
{
    (void)seed;
    struct list *self = list_create("lifo", options, n_options, capacity, err);
    if (self)
        self->newest_first = true;
    return self;
}

static void list_insert(void *state, uint32_t slot, double priority)
{
    struct list *self = state;
    (void)priority;
    assert(slot < self->capacity);
    self->links[slot] = (struct link){.older = self->newest};
    if (self->newest)
        self->links[self->newest - 1].newer = slot + 1;
    else
        self->oldest = slot + 1;
    self->newest = slot + 1;
}

static void list_update(void *state, uint32_t slot, double priority)
{
    (void)state;
    (void)slot;
    (void)priority;
}

static void list_remove(void *state, uint32_t slot)
{
    struct list *self = state;
    assert(slot < self->capacity);
    struct link at = self->links[slot];
    if (at.older)
        self->links[at.older - 1].newer = at.newer;
    else
        self->oldest = at.newer;
    if (at.newer)
        self->links[at.newer - 1].older = at.older;
    else
        self->newest = at.older;
}

static uint32_t list_pick(void *state, uint32_t n, uint32_t *slots, double *probabilities)
{
    const struct list *self = state;
    uint32_t end = self->newest_first ? self->newest : self->oldest;
    if (!end)
        return 0;
    for (uint32_t i = 0; i < n; i++) {
        slots[i] = end - 1;
        probabilities[i] = 1.0;
    }
    return n;
}

static uint32_t list_pick_distinct(void *state, uint32_t n, bool (*skip)(void *ctx, uint32_t slot), void *ctx,
                                   uint32_t *slots, double *probabilities)
{
    const struct list *self = state;
    uint32_t got = 0;
    uint32_t at = self->newest_first ? self->newest : self->oldest;
    while (at && got < n) {
        uint32_t slot = at - 1;
        if (!skip || !skip(ctx, slot)) {
            slots[got] = slot;
            probabilities[got++] = 1.0;
        }
        at = self->newest_first ? self->links[slot].older : self->links[slot].newer;
    }
    return got;
}

const rp_selector_ops selector_fifo = {
    .name = "fifo",
    .create = fifo_create,
    .destroy = list_destroy,
    .insert = list_insert,
    .update = list_update,
    .remove = list_remove,
    .pick = list_pick,
    .pick_distinct = list_pick_distinct,
};

const rp_selector_ops selector_lifo = {
    .name = "lifo",
    .create = lifo_create,
    .destroy = list_destroy,
    .insert = list_insert,
    .update = list_update,
    .remove = list_remove,
    .pick = list_pick,
    .pick_distinct = list_pick_distinct,
};
