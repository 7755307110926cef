/* Each built-in environment alone: steps through env_step with random actions that were drawn before, and resets as
 * episodes end. Rates are over the thread's CPU time, so other work on the machine counts little. */
#include "bench/bench_env.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "agent/env/env.h"
#include "bench/report.h"
#include "proto/base/rng.h"

#define GOAL_ENV "CartPole-v1"
#define GOAL_STEPS_PER_S 5e6
#define N_ACTIONS 1024u /* drawn before, and used repeatedly */

struct flags {
    bool json;
    double seconds;
    uint32_t repeats;
    const char *only; /* NULL: all */
};

struct bench {
    struct env env;
    size_t action_bytes;
    uint8_t *actions;
    void *observation;
    uint64_t steps, episodes;
};

static double cpu_seconds(void)
{
    struct timespec now;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
    return (double)now.tv_sec + (double)now.tv_nsec * 1e-9;
}

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
    double start = cpu_seconds(), passed = 0;
    while (passed < seconds) {
        run_actions(self);
        self->steps += N_ACTIONS;
        passed = cpu_seconds() - start;
    }
    return (double)(self->steps - before) / passed;
}

static void print_row(const struct flags *flags, const char *name, const struct spread *rate, double per_episode,
                      bool first)
{
    bool goal = strcmp(name, GOAL_ENV) == 0;
    bool met = rate->median >= GOAL_STEPS_PER_S;
    if (flags->json) {
        printf("%s\n  {\"environment\": \"%s\", \"steps_per_s\": {\"median\": %.6g, \"min\": %.6g, \"max\": %.6g}, "
               "\"ns_per_step\": %.4g, \"steps_per_episode\": %.4g",
               first ? "" : ",", name, rate->median, rate->least, rate->most, 1e9 / rate->median, per_episode);
        if (goal)
            printf(", \"goal\": %g, \"met\": %s", GOAL_STEPS_PER_S, met ? "true" : "false");
        printf("}");
    } else {
        printf("%-26s %12.0f %10.1f %14.1f", name, rate->median, 1e9 / rate->median, per_episode);
        if (goal)
            printf("   goal >= %.0f: %s", GOAL_STEPS_PER_S, met ? "met" : "missed");
        printf("\n");
    }
    fflush(stdout);
}

static bool run_env(const struct flags *flags, const char *name, bool first)
{
    struct bench bench;
    double rates[MOST_REPEATS];
    if (!bench_init(&bench, name))
        return false;
    measure(&bench, 0.1 * flags->seconds);
    bench.steps = bench.episodes = 0;
    for (uint32_t i = 0; i < flags->repeats; i++)
        rates[i] = measure(&bench, flags->seconds);
    struct spread rate = spread_of(rates, flags->repeats);
    print_row(flags, name, &rate, (double)bench.steps / (double)(bench.episodes ? bench.episodes : 1), first);
    bench_fini(&bench);
    return true;
}

static void print_help(const void *target);

#define AT(field) CLI_AT(struct flags, field)
_Static_assert(MOST_REPEATS == 101, "the help names it");
static const struct cli_option rows[] = {
    {"json", 0, NULL, "print JSON", 1, CLI_SWITCH, AT(json)},
    {"seconds", 0, "S", "length of one measurement (0.01 to 60, default 0.3)", 1, CLI_TAKE, AT(seconds), 0.01, 60,
     .take = options_take_real},
    {"repeat", 0, "N", "measure N times (1 to 101, default 5) and take the median", 1, CLI_TAKE, AT(repeats), 1,
     MOST_REPEATS, .take = options_take_whole},
    {"env", 0, "NAME", "only this environment", 1, CLI_TEXT, AT(only)},
    {.name = "help", .letter = 'h', .who = 1, .kind = CLI_HELP},
};
static const struct cli cli = {.program = "replay-bench env",
                               .options = rows,
                               .n = sizeof rows / sizeof rows[0],
                               .who = 1,
                               .width = 12,
                               .help = print_help};

static void print_help(const void *target)
{
    (void)target;
    puts("usage: replay-bench env [--json] [--seconds S] [--repeat N] [--env NAME]\n"
         "Steps per second of thread CPU time of each built-in environment, with random actions, resets included.");
    cli_print_options(&cli, 1);
}

int bench_env(int argc, char **argv)
{
    struct flags flags = {.seconds = 0.3, .repeats = 5};
    int status = options_line(&cli, &flags, argc, argv);
    if (status != CLI_GO_ON)
        return status;
    if (flags.json)
        printf(
            "{\"command\": \"env\", \"unit\": \"steps per second of thread CPU time\", \"repeats\": %u, \"seconds\": "
            "%g, \"rows\": [",
            flags.repeats, flags.seconds);
    else
        printf("steps per second of thread CPU time, median of %u x %g s\n%-26s %12s %10s %14s\n", flags.repeats,
               flags.seconds, "environment", "steps/s", "ns/step", "steps/episode");
    bool ok = true;
    if (flags.only)
        ok = run_env(&flags, flags.only, true);
    for (const rp_env_ops *const *at = env_builtin; ok && !flags.only && *at; at++)
        ok = run_env(&flags, (*at)->name, at == env_builtin);
    if (flags.json)
        printf("\n]}\n");
    return ok ? 0 : 1;
}
