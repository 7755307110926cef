/* Each built-in environment alone: steps through env_step with random actions that were drawn before, and resets as
 * episodes end. Rates are over the thread's CPU time, so other work on the machine counts little. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "agent/env/env.h"
#include "bench/bench.h"
#include "proto/base/rng.h"

#define GOAL_ENV "CartPole-v1"
#define GOAL_STEPS_PER_S 5e6
#define N_ACTIONS 1024u /* drawn before, and used repeatedly */

struct bench {
    struct env env;
    size_t action_bytes;
    uint8_t *actions;
    void *observation;
    uint64_t steps, episodes;
};

static void draw_actions(struct bench *self)
{
    const rp_env_spec *spec = &self->env.spec;
    struct rng rng;
    rng_seed(&rng, 1);
    for (uint32_t i = 0; i < N_ACTIONS; i++) {
        void *at = self->actions + i * self->action_bytes;
        if (spec->n_actions)
            *(int32_t *)at = (int32_t)rng_below(&rng, spec->n_actions);
        for (uint32_t k = 0; k < spec->action_size; k++)
            ((float *)at)[k] = (float)(2 * rng_unit(&rng) - 1);
    }
}

static void bench_fini(struct bench *self)
{
    env_close(&self->env);
    free(self->actions);
    free(self->observation);
}

static bool bench_init(struct bench *self, const char *name)
{
    *self = (struct bench){0};
    rp_error err = {0};
    struct env_config config = {.name = (char *)name};
    if (env_open(&self->env, &config, &err) != RP_OK) {
        fprintf(stderr, "replay-bench env: %s\n", err.text);
        return false;
    }
    self->action_bytes = env_action_bytes(&self->env.spec);
    self->actions = malloc(N_ACTIONS * self->action_bytes);
    self->observation = malloc(env_observation_bytes(&self->env.spec));
    if (!self->actions || !self->observation) {
        fprintf(stderr, "replay-bench env: no memory for %s\n", name);
        bench_fini(self);
        return false;
    }
    draw_actions(self);
    env_seed(&self->env, 1);
    env_reset(&self->env, self->observation);
    return true;
}

static void run_actions(struct bench *self)
{
    rp_env_result result;
    for (uint32_t i = 0; i < N_ACTIONS; i++) {
        env_step(&self->env, self->actions + i * self->action_bytes, self->observation, &result);
        if (result.terminal || result.truncated) {
            env_reset(&self->env, self->observation);
            self->episodes++;
        }
    }
}

/* Steps per second. */
static double measure(struct bench *self, double seconds)
{
    uint64_t before = self->steps;
    double start = thread_seconds(), passed = 0;
    while (passed < seconds) {
        run_actions(self);
        self->steps += N_ACTIONS;
        passed = thread_seconds() - start;
    }
    return (double)(self->steps - before) / passed;
}

static bool run_env(const struct options *options, const char *name)
{
    struct bench bench;
    double rates[MOST_REPEATS];
    if (!bench_init(&bench, name))
        return false;
    measure(&bench, 0.1 * options->seconds);
    bench.steps = bench.episodes = 0;
    for (uint32_t i = 0; i < options->repeats; i++)
        rates[i] = measure(&bench, options->seconds);
    double rate = spread_of(rates, options->repeats).median;
    report_value(options, name, rate, strcmp(name, GOAL_ENV) == 0 ? GOAL_STEPS_PER_S : 0, "steps/s");
    report_value(options, "  each step", 1e9 / rate, 0, "ns");
    report_value(options, "  an episode", (double)bench.steps / (double)(bench.episodes ? bench.episodes : 1), 0,
                 "steps");
    bench_fini(&bench);
    return true;
}

bool command_env(struct options *options)
{
    bool ok = true, found = false;
    for (const rp_env_ops *const *at = env_builtin; ok && *at; at++)
        if (!options->only || strcmp((*at)->name, options->only) == 0) {
            found = true;
            ok = run_env(options, (*at)->name);
        }
    if (!found)
        fprintf(stderr, "replay-bench env: there is no environment '%s'\n", options->only);
    return ok && found;
}
