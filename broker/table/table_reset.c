/* A reset: a table gets empty contents at once, and a chore frees the old contents in slices. */
#include <stdlib.h>

#include "broker/loop/loop.h"
#include "broker/table/tables.h"
#include "proto/base/error.h"

/* Items that are freed in one slice. */
#define SLICE_ITEMS 256u

/* A new selector continues the random numbers of the old one from its state; if the old one has no state to show, it starts
 * from `otherwise`. */
static uint64_t seed_after(const rp_selector_ops *ops, void *selector, uint64_t otherwise)
{
    uint8_t state[4096];
    uint32_t n = ops->save ? ops->save(selector, state, sizeof state) : 0;
    uint64_t hash = UINT64_C(0xcbf29ce484222325);
    for (uint32_t i = 0; i < n; i++)
        hash = (hash ^ state[i]) * UINT64_C(0x100000001b3);
    return n ? hash : otherwise;
}

static struct contents_seeds seeds_after(const struct table *self)
{
    uint64_t other = self->seed + (self->resets + 1) * UINT64_C(0xd1342543de82ef95);
    return (struct contents_seeds){seed_after(self->sampler_ops, self->in.sampler, other),
                                   seed_after(self->remover_ops, self->in.remover, other ^ 1)};
}

/* The chore that frees the old contents of a table. */
struct old_contents {
    struct chore chore;
    struct table *table;
    struct contents in;
    uint32_t at; /* slots before this one are free */
};

static bool old_contents_step(struct chore *chore)
{
    struct old_contents *self = (struct old_contents *)chore;
    uint32_t end = self->in.high - self->at > SLICE_ITEMS ? self->at + SLICE_ITEMS : self->in.high;
    for (; self->at < end; self->at++)
        if (self->in.items[self->at].span.n)
            table_release_item(self->table, &self->in, &self->in.items[self->at]);
    if (self->at < self->in.high || contents_fini_step(&self->in, self->table))
        return true;
    free(self);
    return false;
}

rp_status table_reset(struct table *self, rp_error *err)
{
    struct contents fresh;
    struct old_contents *old = calloc(1, sizeof *old);
    if (!old)
        return err_set(err, RP_NO_MEMORY, "no memory to reset table '%s'", self->name);
    rp_status status = contents_init(&fresh, self, seeds_after(self), err);
    if (status != RP_OK) {
        free(old);
        return status;
    }
    *old = (struct old_contents){.chore = {.step = old_contents_step}, .table = self, .in = self->in};
    contents_uncount_slots(&old->in, self->store);
    self->in = fresh;
    self->bytes = 0;
    self->resets++;
    table_newest_layout(self, NO_LAYOUT);
    self->stats.episodes = self->stats.unique_samples = 0;
    EFFECT(self->loop, reset, self);
    const struct marks *marks = old->in.marks;
    bool kept = marks && marks->copying && marks->copier->keep(marks->copying, &old->in, &old->chore);
    if (!kept)
        chores_add(&self->loop->chores, &old->chore);
    limiter_reset(&self->limiter);
    for (uint32_t i = 0; i < self->n_extensions; i++)
        if (self->extensions[i].ops->on_reset)
            self->extensions[i].ops->on_reset(self->extensions[i].self);
    return RP_OK;
}
