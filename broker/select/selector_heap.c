/* min_heap and max_heap: pick the item of lowest or highest priority; among equals the item that was inserted or updated least
 * recently. A 4-ary heap of entries, and for each slot its place in the heap. */
#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "broker/select/selector.h"
#include "broker/store/reserve.h"

#define FANOUT 4u

struct entry {
    double rank;       /* the priority, or its negative in a max_heap: the smallest rank is on top */
    uint64_t sequence; /* of the last insert or update: breaks ties */
    uint32_t slot;
};

struct heap {
    struct entry *entries;
    uint32_t *place; /* of a slot in entries */
    uint32_t count;
    uint32_t capacity;
    uint64_t sequence;
    double sign;
};

static void heap_destroy(void *state)
{
    struct heap *self = state;
    reserve_unmap(self->entries, self->capacity * sizeof *self->entries);
    reserve_unmap(self->place, self->capacity * sizeof *self->place);
    free(self);
}

static void *heap_create(const char *name, double sign, const rp_option *options, uint32_t n_options, uint32_t capacity,
                         rp_error *err)
{
    if (selector_check_plain(name, options, n_options, capacity, err) != RP_OK)
        return NULL;
    struct heap *self = calloc(1, sizeof *self);
    if (!self) {
        selector_no_memory(name, capacity, err);
        return NULL;
    }
    self->capacity = capacity;
    self->sign = sign;
    self->entries = reserve_map(capacity * sizeof *self->entries);
    self->place = reserve_map(capacity * sizeof *self->place);
    if (!self->entries || !self->place) {
        heap_destroy(self);
        selector_no_memory(name, capacity, err);
        return NULL;
    }
    return self;
}

static void *min_heap_create(const rp_option *options, uint32_t n_options, uint32_t capacity, uint64_t seed,
                             rp_error *err)
{
    (void)seed;
    return heap_create("min_heap", 1.0, options, n_options, capacity, err);
}

static void *max_heap_create(const rp_option *options, uint32_t n_options, uint32_t capacity, uint64_t seed,
                             rp_error *err)
{
    (void)seed;
    return heap_create("max_heap", -1.0, options, n_options, capacity, err);
}

static bool before(const struct entry *a, const struct entry *b)
{
    return a->rank < b->rank || (a->rank == b->rank && a->sequence < b->sequence);
}

static void put(struct heap *self, uint32_t at, struct entry entry)
{
    self->entries[at] = entry;
    self->place[entry.slot] = at;
}

static void sift_up(struct heap *self, uint32_t at, struct entry entry)
{
    while (at > 0) {
        uint32_t parent = (at - 1) / FANOUT;
        if (!before(&entry, &self->entries[parent]))
            break;
        put(self, at, self->entries[parent]);
        at = parent;
    }
    put(self, at, entry);
}

static void sift_down(struct heap *self, uint32_t at, struct entry entry)
{
    for (;;) {
        uint64_t first = (uint64_t)at * FANOUT + 1;
        if (first >= self->count)
            break;
        uint32_t end = first + FANOUT < self->count ? (uint32_t)first + FANOUT : self->count;
        uint32_t best = (uint32_t)first;
        for (uint32_t child = best + 1; child < end; child++) {
            if (before(&self->entries[child], &self->entries[best]))
                best = child;
        }
        if (!before(&self->entries[best], &entry))
            break;
        put(self, at, self->entries[best]);
        at = best;
    }
    put(self, at, entry);
}

/* Puts an entry in the place of another that may rank above or below it. */
static void replace(struct heap *self, uint32_t at, struct entry entry)
{
    if (at > 0 && before(&entry, &self->entries[(at - 1) / FANOUT]))
        sift_up(self, at, entry);
    else
        sift_down(self, at, entry);
}

static struct entry new_entry(struct heap *self, uint32_t slot, double priority)
{
    return (struct entry){.rank = self->sign * priority, .sequence = self->sequence++, .slot = slot};
}

static void heap_insert(void *state, uint32_t slot, double priority)
{
    struct heap *self = state;
    assert(slot < self->capacity && self->count < self->capacity);
    self->count++;
    sift_up(self, self->count - 1, new_entry(self, slot, priority));
}

static void heap_update(void *state, uint32_t slot, double priority)
{
    struct heap *self = state;
    assert(slot < self->capacity && self->entries[self->place[slot]].slot == slot);
    replace(self, self->place[slot], new_entry(self, slot, priority));
}

static void heap_remove(void *state, uint32_t slot)
{
    struct heap *self = state;
    assert(slot < self->capacity && self->count > 0 && self->entries[self->place[slot]].slot == slot);
    uint32_t at = self->place[slot];
    self->count--;
    if (at < self->count)
        replace(self, at, self->entries[self->count]);
}

static uint32_t heap_pick(void *state, uint32_t n, uint32_t *slots, double *probabilities)
{
    struct heap *self = state;
    if (self->count == 0)
        return 0;
    for (uint32_t i = 0; i < n; i++) {
        slots[i] = self->entries[0].slot;
        probabilities[i] = 1.0;
    }
    return n;
}

/* Takes entries off the top and keeps each in the place that becomes free at the end of the array, as heapsort does; then lets
 * the heap grow over these entries again. */
static uint32_t heap_pick_distinct(void *state, uint32_t n, bool (*skip)(void *ctx, uint32_t slot), void *ctx,
                                   uint32_t *slots, double *probabilities)
{
    struct heap *self = state;
    uint32_t all = self->count;
    uint32_t got = 0;
    while (self->count > 0 && got < n) {
        struct entry top = self->entries[0];
        struct entry last = self->entries[--self->count];
        if (self->count > 0)
            sift_down(self, 0, last);
        put(self, self->count, top);
        if (skip && skip(ctx, top.slot))
            continue;
        slots[got] = top.slot;
        probabilities[got++] = 1.0;
    }
    while (self->count < all) {
        struct entry entry = self->entries[self->count++];
        sift_up(self, self->count - 1, entry);
    }
    return got;
}

static uint64_t heap_order(void *state, uint32_t slot)
{
    const struct heap *self = state;
    return self->entries[self->place[slot]].sequence;
}

static uint32_t heap_save(void *state, void *out, uint32_t size)
{
    const struct heap *self = state;
    if (size < sizeof self->sequence)
        return 0;
    memcpy(out, &self->sequence, sizeof self->sequence);
    return sizeof self->sequence;
}

static bool heap_load(void *state, const void *data, uint32_t size)
{
    struct heap *self = state;
    uint64_t sequence;
    if (size != sizeof sequence)
        return false;
    memcpy(&sequence, data, sizeof sequence);
    if (sequence < self->sequence)
        return false;
    self->sequence = sequence;
    return true;
}

const rp_selector_ops selector_min_heap = {
    .name = "min_heap",
    .create = min_heap_create,
    .destroy = heap_destroy,
    .insert = heap_insert,
    .update = heap_update,
    .remove = heap_remove,
    .pick = heap_pick,
    .pick_distinct = heap_pick_distinct,
    .order = heap_order,
    .save = heap_save,
    .load = heap_load,
};

const rp_selector_ops selector_max_heap = {
    .name = "max_heap",
    .create = max_heap_create,
    .destroy = heap_destroy,
    .insert = heap_insert,
    .update = heap_update,
    .remove = heap_remove,
    .pick = heap_pick,
    .pick_distinct = heap_pick_distinct,
    .order = heap_order,
    .save = heap_save,
    .load = heap_load,
};
