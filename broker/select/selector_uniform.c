/* uniform: every item with the same probability. A bit for each slot says whether the slot is in use. A pick draws slots below
 * the highest used one until it meets a slot in use; if few slots are in use, it counts to a random one of them. So a pick
 * depends on the generator and on which slots are in use, and not on the history: a restored table continues exactly as the
 * saved table would have. */
#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "broker/select/selector.h"
#include "broker/select/slotset.h"
#include "proto/base/rng.h"

/* If at least one of this many slots is in use, drawing again is cheaper than counting. */
#define SPARSE 8u

struct uniform {
    struct slotset present;
    uint32_t capacity;
    uint32_t high; /* no slot from this one on is in use */
    struct rng rng;
    uint32_t *taken; /* scratch of pick_distinct */
    uint32_t n_taken, room;
};

struct saved {
    uint64_t rng[4];
    uint32_t high;
};

static void uniform_destroy(void *state)
{
    struct uniform *self = state;
    slotset_fini(&self->present);
    free(self->taken);
    free(self);
}

static void *uniform_create(const rp_option *options, uint32_t n_options, uint32_t capacity, uint64_t seed,
                            rp_error *err)
{
    if (selector_check_plain("uniform", options, n_options, capacity, err) != RP_OK)
        return NULL;
    struct uniform *self = calloc(1, sizeof *self);
    if (!self || !slotset_init(&self->present, capacity)) {
        free(self);
        selector_no_memory("uniform", capacity, err);
        return NULL;
    }
    self->capacity = capacity;
    rng_seed(&self->rng, seed);
    return self;
}

static void uniform_insert(void *state, uint32_t slot, double priority)
{
    struct uniform *self = state;
    (void)priority;
    assert(slot < self->capacity);
    slotset_add(&self->present, slot);
    if (slot >= self->high)
        self->high = slot + 1;
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
    assert(slot < self->capacity);
    slotset_remove(&self->present, slot);
    if (self->present.count == 0)
        self->high = 0;
}

static bool is_sparse(const struct uniform *self)
{
    return self->present.count < self->high / SPARSE;
}

static uint32_t draw(struct uniform *self)
{
    if (is_sparse(self))
        return slotset_nth(&self->present, (uint32_t)rng_below(&self->rng, self->present.count));
    uint32_t slot;
    do
        slot = (uint32_t)rng_below(&self->rng, self->high);
    while (!slotset_has(&self->present, slot));
    return slot;
}

static uint32_t uniform_pick(void *state, uint32_t n, uint32_t *slots, double *probabilities)
{
    struct uniform *self = state;
    if (self->present.count == 0)
        return 0;
    double probability = 1.0 / self->present.count;
    bool sparse = is_sparse(self);
    for (uint32_t i = 0; i < n && !sparse; i++) {
        slots[i] = (uint32_t)rng_below(&self->rng, self->high);
        __builtin_prefetch(&self->present.bits[slots[i] / 64]);
    }
    for (uint32_t i = 0; i < n; i++) {
        if (sparse || !slotset_has(&self->present, slots[i]))
            slots[i] = draw(self);
        probabilities[i] = probability;
    }
    return n;
}

static bool take(struct uniform *self, uint32_t slot)
{
    if (self->n_taken == self->room) {
        uint32_t room = self->room ? 2 * self->room : 256;
        uint32_t *taken = realloc(self->taken, room * sizeof *taken);
        if (!taken)
            return false;
        self->taken = taken;
        self->room = room;
    }
    self->taken[self->n_taken++] = slot;
    slotset_remove(&self->present, slot);
    return true;
}

/* Takes each pick out of the set, and puts all picks back at the end. */
static uint32_t uniform_pick_distinct(void *state, uint32_t n, bool (*skip)(void *ctx, uint32_t slot), void *ctx,
                                      uint32_t *slots, double *probabilities)
{
    struct uniform *self = state;
    uint32_t got = 0;
    bool memory = true;
    while (got < n && self->present.count > 0) {
        double probability = 1.0 / self->present.count;
        uint32_t slot = draw(self);
        memory = take(self, slot);
        if (!memory)
            break;
        if (skip && skip(ctx, slot))
            continue;
        slots[got] = slot;
        probabilities[got++] = probability;
    }
    while (self->n_taken > 0)
        slotset_add(&self->present, self->taken[--self->n_taken]);
    return memory || got ? got : RP_PICK_NO_MEMORY;
}

static uint32_t uniform_save(void *state, void *out, uint32_t size)
{
    const struct uniform *self = state;
    struct saved saved;
    memset(&saved, 0, sizeof saved);
    memcpy(saved.rng, self->rng.s, sizeof saved.rng);
    saved.high = self->high;
    if (size < sizeof saved)
        return 0;
    memcpy(out, &saved, sizeof saved);
    return sizeof saved;
}

static bool uniform_load(void *state, const void *data, uint32_t size)
{
    struct uniform *self = state;
    struct saved saved;
    if (size != sizeof saved)
        return false;
    memcpy(&saved, data, sizeof saved);
    if (saved.high < self->high || saved.high > self->capacity || !rng_load(&self->rng, saved.rng))
        return false;
    self->high = self->present.count ? saved.high : 0;
    return true;
}

static double uniform_mass(void *state, uint32_t n)
{
    (void)state;
    return n;
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
    .save = uniform_save,
    .load = uniform_load,
    .mass = uniform_mass,
};
