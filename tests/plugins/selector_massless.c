/* A plug-in with a selector that has no mass: it picks the last slot that was inserted. */
#include "replay/plugin.h"

#include <stdlib.h>

struct last {
    uint32_t slot, count;
};

static void *last_create(const rp_option *options, uint32_t n_options, uint32_t capacity, uint64_t seed, rp_error *err)
{
    (void)options, (void)n_options, (void)capacity, (void)seed, (void)err;
    return calloc(1, sizeof(struct last));
}

static void last_insert(void *state, uint32_t slot, double priority)
{
    struct last *self = state;
    (void)priority;
    self->slot = slot;
    self->count++;
}

static void last_remove(void *state, uint32_t slot)
{
    struct last *self = state;
    (void)slot;
    self->count--;
}

static uint32_t last_pick(void *state, uint32_t n, uint32_t *slots, double *probabilities)
{
    const struct last *self = state;
    for (uint32_t i = 0; i < n && self->count; i++) {
        slots[i] = self->slot;
        probabilities[i] = 1;
    }
    return self->count ? n : 0;
}

static const rp_selector_ops last = {
    .name = "last",
    .create = last_create,
    .destroy = free,
    .insert = last_insert,
    .remove = last_remove,
    .pick = last_pick,
};

static const rp_selector_ops *const selectors[] = {&last, NULL};

static const rp_plugin plugin = {.abi = RP_PLUGIN_ABI, .name = "selector_massless", .selectors = selectors};

const rp_plugin *rp_plugin_entry(void)
{
    return &plugin;
}
