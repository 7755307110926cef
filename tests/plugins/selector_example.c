/* An example of a loadable selector: "softmax" picks an item in proportion to exp(priority / temperature).
 *
 * To make your own, copy this file, change what is in it, and build it against the public header only:
 *
 *     cc -std=c11 -O2 -fPIC -shared -I/usr/local/include my_selector.c -o my_selector.so -lm
 *
 * Then name the object in the broker's configuration and use the selector like a built-in one:
 *
 *     plugins: [./my_selector.so]
 *     tables:
 *       - name: replay
 *         sampler: {kind: softmax, temperature: 0.5}
 *
 * What the broker promises: a slot is below `capacity`, it is inserted once before it is updated or removed, and all
 * calls come from one thread. What it expects: no call blocks, and a seed gives the same picks each time.
 *
 * This one looks at every item for each call of pick, which is fine for some thousands of items. Optional functions that
 * are left out here: pick_distinct (without it the table refuses batches without repetition), total, and prefetch. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "replay/plugin.h"

struct softmax {
    uint32_t *slots;  /* the first `count` are in use, in any order */
    uint32_t *place;  /* of a slot in slots */
    double *priority; /* of a slot */
    uint32_t count;
    double temperature;
    uint64_t random;
};

/* splitmix64: a number in [0, 1) from a state that counts up. */
static double next_unit(uint64_t *state)
{
    uint64_t z = (*state += UINT64_C(0x9e3779b97f4a7c15));
    z = (z ^ (z >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
    z = (z ^ (z >> 27)) * UINT64_C(0x94d049bb133111eb);
    return (double)((z ^ (z >> 31)) >> 11) * 0x1.0p-53;
}

static void *fail(rp_error *err, rp_status status, const char *text, const char *value)
{
    if (err) {
        err->status = (int32_t)status;
        snprintf(err->text, sizeof err->text, text, value);
    }
    return NULL;
}

static void softmax_destroy(void *state)
{
    struct softmax *self = state;
    free(self->slots);
    free(self->place);
    free(self->priority);
    free(self);
}

static void *softmax_create(const rp_option *options, uint32_t n_options, uint32_t capacity, uint64_t seed,
                            rp_error *err)
{
    double temperature = 1.0;
    for (uint32_t i = 0; i < n_options; i++) {
        char *end;
        if (strcmp(options[i].name, "temperature") != 0)
            return fail(err, RP_INVALID_ARGUMENT, "selector softmax has no option '%s'; its only one is temperature",
                        options[i].name);
        temperature = strtod(options[i].value, &end);
        if (end == options[i].value || *end != '\0' || !(temperature > 0.0) || !isfinite(temperature))
            return fail(err, RP_INVALID_ARGUMENT, "selector softmax: temperature is '%s'; write a number above 0",
                        options[i].value);
    }
    struct softmax *self = calloc(1, sizeof *self);
    if (!self)
        return fail(err, RP_NO_MEMORY, "selector softmax: out of %s", "memory");
    self->slots = calloc(capacity, sizeof *self->slots);
    self->place = calloc(capacity, sizeof *self->place);
    self->priority = calloc(capacity, sizeof *self->priority);
    self->temperature = temperature;
    self->random = seed;
    if (!self->slots || !self->place || !self->priority) {
        softmax_destroy(self);
        return fail(err, RP_NO_MEMORY, "selector softmax: out of %s", "memory");
    }
    return self;
}

static void softmax_insert(void *state, uint32_t slot, double priority)
{
    struct softmax *self = state;
    self->priority[slot] = priority;
    self->place[slot] = self->count;
    self->slots[self->count++] = slot;
}

static void softmax_update(void *state, uint32_t n, const uint32_t *slots, const double *priorities)
{
    struct softmax *self = state;
    for (uint32_t i = 0; i < n; i++)
        self->priority[slots[i]] = priorities[i];
}

/* The last one takes the place of the one that goes. */
static void softmax_remove(void *state, uint32_t slot)
{
    struct softmax *self = state;
    uint32_t last = self->slots[--self->count];
    self->slots[self->place[slot]] = last;
    self->place[last] = self->place[slot];
}

static double weight(const struct softmax *self, uint32_t slot, double highest)
{
    return exp((self->priority[slot] - highest) / self->temperature);
}

static uint32_t softmax_pick(void *state, uint32_t n, uint32_t *slots, double *probabilities)
{
    struct softmax *self = state;
    double highest = 0.0;
    double total = 0.0;
    if (self->count == 0)
        return 0;
    /* Less the highest priority no weight is above 1, and one is 1: nothing overflows. */
    for (uint32_t i = 0; i < self->count; i++)
        highest = fmax(highest, self->priority[self->slots[i]]);
    for (uint32_t i = 0; i < self->count; i++)
        total += weight(self, self->slots[i], highest);
    for (uint32_t k = 0; k < n; k++) {
        double point = next_unit(&self->random) * total;
        uint32_t i = 0;
        double w = weight(self, self->slots[0], highest);
        while (point >= w && i + 1 < self->count) {
            point -= w;
            w = weight(self, self->slots[++i], highest);
        }
        slots[k] = self->slots[i];
        probabilities[k] = w / total;
    }
    return n;
}

static const rp_selector_ops softmax = {
    .name = "softmax",
    .create = softmax_create,
    .destroy = softmax_destroy,
    .insert = softmax_insert,
    .update = softmax_update,
    .remove = softmax_remove,
    .pick = softmax_pick,
};

static const rp_selector_ops *const selectors[] = {&softmax, NULL};

static const rp_plugin plugin = {
    .abi = RP_PLUGIN_ABI,
    .name = "selector_example",
    .selectors = selectors,
};

const rp_plugin *rp_plugin_entry(void)
{
    return &plugin;
}
