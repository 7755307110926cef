/* An example of a loadable environment: "Corridor". A walker starts somewhere in a corridor and steps left (0) or right
 * (1). At the right end it finds a prize of +1, at the left end a pit of -1; both end the episode (terminal). After 4 x
 * length steps without either the episode is cut off (truncated). With probability `slip` a step goes the wrong way.
 *
 * To make your own, copy this file, change what is in it, and build it against the public header only:
 *
 *     cc -std=c11 -O2 -fPIC -shared -I/usr/local/include my_env.c -o my_env.so
 *
 * Then name the object and the environment in the configuration of actors and evaluators:
 *
 *     environment:
 *       name: Corridor
 *       plugin: ./my_env.so
 *       options: {length: 9, slip: 0.1}
 *
 * What the caller promises: an environment is used from one thread at a time; actions are within their bounds; step is
 * not called after `terminal` before reset. What it expects: everything random comes from the environment's own
 * generator, so that a seed gives the same episodes each time; nothing global is touched, for several may live in one
 * process; the observation is written in full each time, exactly as large as the spec says.
 *
 * A continuous environment sets action_size, action_low and action_high instead of n_actions, and gets so many floats
 * as its action, within the bounds. Agents see [-1, 1] for every one of them; the mapping is not your concern. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "replay/env.h"

#define LENGTH_LEAST 3
#define LENGTH_MOST 1000

struct corridor {
    uint32_t length;
    double slip;
    uint64_t random;
    uint32_t place, steps;
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

static int read_option(struct corridor *self, const rp_option *option)
{
    char *end = NULL;
    if (strcmp(option->name, "length") == 0) {
        unsigned long length = strtoul(option->value, &end, 10);
        self->length = (uint32_t)length;
        return end != option->value && *end == '\0' && length >= LENGTH_LEAST && length <= LENGTH_MOST;
    }
    if (strcmp(option->name, "slip") == 0) {
        self->slip = strtod(option->value, &end);
        return end != option->value && *end == '\0' && self->slip >= 0.0 && self->slip <= 1.0;
    }
    return 0;
}

static void *corridor_create(const rp_option *options, uint32_t n_options, rp_env_spec *spec, rp_error *err)
{
    struct corridor *self = calloc(1, sizeof *self);
    if (!self)
        return fail(err, RP_NO_MEMORY, "environment Corridor: out of %s", "memory");
    self->length = 7;
    for (uint32_t i = 0; i < n_options; i++)
        if (!read_option(self, &options[i])) {
            free(self);
            return fail(err, RP_INVALID_ARGUMENT,
                        "environment Corridor: option '%s' is not understood; it takes length (3 to 1000) and slip (0 "
                        "to 1)",
                        options[i].name);
        }
    spec->observation_dtype = RP_DTYPE_FLOAT32;
    spec->observation_rank = 1;
    spec->observation_shape[0] = self->length;
    spec->n_actions = 2;
    spec->max_steps = 4 * self->length;
    return self;
}

static void corridor_destroy(void *state)
{
    free(state);
}

static void corridor_seed(void *state, uint64_t seed)
{
    ((struct corridor *)state)->random = seed;
}

static void observe(const struct corridor *self, float *out)
{
    for (uint32_t i = 0; i < self->length; i++)
        out[i] = i == self->place ? 1.0f : 0.0f;
}

static void corridor_reset(void *state, void *observation)
{
    struct corridor *self = state;
    self->steps = 0;
    self->place = 1 + (uint32_t)(next_unit(&self->random) * (self->length - 2));
    observe(self, observation);
}

static void corridor_step(void *state, const void *action, void *observation, rp_env_result *result)
{
    struct corridor *self = state;
    int right = *(const int32_t *)action == 1;
    if (next_unit(&self->random) < self->slip)
        right = !right;
    self->place = right ? self->place + 1 : self->place - 1;
    self->steps++;
    observe(self, observation);
    result->terminal = self->place == 0 || self->place == self->length - 1;
    result->truncated = !result->terminal && self->steps >= 4 * self->length;
    result->reward = !result->terminal ? 0.0f : right ? 1.0f : -1.0f;
}

/* Optional, and of use for tests: one number, the place. */
static rp_status corridor_set_state(void *state, const double *values, uint32_t n, void *observation)
{
    struct corridor *self = state;
    if (n != 1 || !(values[0] >= 1 && values[0] < self->length - 1))
        return RP_INVALID_ARGUMENT;
    self->steps = 0;
    self->place = (uint32_t)values[0];
    observe(self, observation);
    return RP_OK;
}

static const rp_env_ops corridor = {
    .name = "Corridor",
    .help = "find the right end of a corridor: 2 actions, one number a cell, +1 or -1 at its ends",
    .create = corridor_create,
    .destroy = corridor_destroy,
    .seed = corridor_seed,
    .reset = corridor_reset,
    .step = corridor_step,
    .set_state = corridor_set_state,
};

static const rp_env_ops *const environments[] = {&corridor, NULL};

static const rp_env_plugin plugin = {
    .abi = RP_ENV_ABI,
    .name = "env_example",
    .environments = environments,
};

const rp_env_plugin *rp_env_plugin_entry(void)
{
    return &plugin;
}
