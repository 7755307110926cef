/* uniform: every item with the same probability. The slots in use lie densely in one array, and a second one tells each
 * slot's place in it. */
#include <assert.h>
#include <stdlib.h>

#include "broker/reserve.h"
#include "broker/selector.h"
#include "proto/rng.h"

struct uniform {
    uint32_t *slots; /* the first `count` are in use */
    uint32_t *place; /* of a slot in slots */
    uint32_t count;
    uint32_t capacity;
    struct rng rng;
};

static void uniform_destroy(void *state)
{
    struct uniform *self = state;
    reserve_unmap(self->slots, self->capacity * sizeof *self->slots);
    reserve_unmap(self->place, self->capacity * sizeof *self->place);
    free(self);
}

static void *uniform_create(const rp_option *options, uint32_t n_options, uint32_t capacity, uint64_t seed,
                            rp_error *err)
{
    if (selector_check_plain("uniform", options, n_options, capacity, err) != RP_OK)
        return NULL;
    struct uniform *self = calloc(1, sizeof *self);
    if (!self) {
        selector_no_memory("uniform", capacity, err);
        return NULL;
    }
    self->capacity = capacity;
    self->slots = reserve_map(capacity * sizeof *self->slots);
    self->place = reserve_map(capacity * sizeof *self->place);
    if (!self->slots || !self->place) {
        uniform_destroy(self);
        selector_no_memory("uniform", capacity, err);
        return NULL;
    }
    rng_seed(&self->rng, seed);
    return self;
}

static void put(struct uniform *self, uint32_t at, uint32_t slot)
{
    self->slots[at] = slot;
    self->place[slot] = at;
}

static void uniform_insert(void *state, uint32_t slot, double priority)
{
    struct uniform *self = state;
    (void)priority;
    assert(slot < self->capacity && self->count < self->capacity);
    put(self, self->count++, slot);
}

static void uniform_update(void *state, uint32_t slot, double priority)
{
    (void)state;
    (void)slot;
    (void)priority;
}

static void uniform_remove(void *state, uint32_t slot)
{
    struct uniform *self = state;
    assert(slot < self->capacity && self->count > 0 && self->slots[self->place[slot]] == slot);
    uint32_t last = self->slots[--self->count];
    put(self, self->place[slot], last);
}

static uint32_t uniform_pick(void *state, uint32_t n, uint32_t *slots, double *probabilities)
{
    struct uniform *self = state;
    if (self->count == 0)
        return 0;
    double probability = 1.0 / self->count;
    for (uint32_t i = 0; i < n; i++) {
        slots[i] = (uint32_t)rng_below(&self->rng, self->count);
        __builtin_prefetch(&self->slots[slots[i]]);
    }
    for (uint32_t i = 0; i < n; i++) {
        slots[i] = self->slots[slots[i]];
        probabilities[i] = probability;
    }
    return n;
}

/* Brings each pick to the front of the array, where the next ones do not look. The order in the array means nothing, so
 * it may stay that way. */
static uint32_t uniform_pick_distinct(void *state, uint32_t n, bool (*skip)(void *ctx, uint32_t slot), void *ctx,
                                      uint32_t *slots, double *probabilities)
{
    struct uniform *self = state;
    uint32_t got = 0;
    for (uint32_t taken = 0; taken < self->count && got < n; taken++) {
        uint32_t at = taken + (uint32_t)rng_below(&self->rng, self->count - taken);
        uint32_t slot = self->slots[at];
        put(self, at, self->slots[taken]);
        put(self, taken, slot);
        if (skip && skip(ctx, slot))
            continue;
        slots[got] = slot;
        probabilities[got++] = 1.0 / (self->count - taken);
    }
    return got;
}

const rp_selector_ops selector_uniform = {
    .name = "uniform",
    .create = uniform_create,
    .destroy = uniform_destroy,
    .insert = uniform_insert,
    .update = uniform_update,
    .remove = uniform_remove,
    .pick = uniform_pick,
    .pick_distinct = uniform_pick_distinct,
};
