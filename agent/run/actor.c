#include "agent/run/actor.h"

#include <math.h>
#include <string.h>

#include "proto/base/clock.h"
#include "proto/base/error.h"
#include "proto/base/log.h"
#include "replay/trace.h"

/* Time between two checks of the stop flag. */
#define WAIT_MS 200
#define WAITS_BEFORE_LOG 25u

double actor_ladder(double base, double alpha, uint32_t index, uint32_t n)
{
    if (n < 2)
        return base;
    return pow(base, 1.0 + alpha * (double)index / (double)(n - 1));
}

void actor_init(struct actor *self, const struct actor_options *options)
{
    const struct actors_section *actors = &options->config->actors;
    *self = (struct actor){.options = *options};
    rng_seed(&self->rng, options->seed);
    self->options.environments = options->environments > 0 ? options->environments : 1;
    self->epsilon = actor_ladder(actors->epsilon, actors->epsilon_alpha, options->index,
                                 (uint32_t)actors->count * self->options.environments);
}

rp_status actor_observe_first(struct actor *self, const void *observation, rp_error *err)
{
    self->noisy = false;
    return self->options.adder ? adder_first(self->options.adder, observation, err) : RP_OK;
}

double actor_epsilon(const struct actor *self)
{
    const struct actors_section *actors = &self->options.config->actors;
    if (actors->epsilon_steps <= 0 || self->total >= (uint64_t)actors->epsilon_steps)
        return self->epsilon;
    double part = (double)self->total / (double)actors->epsilon_steps;
    return 1.0 + part * (self->epsilon - 1.0);
}

/* Noise with the standard deviation sigma at every step and the given correlation between neighbours. */
static const float *next_noise(struct actor *self)
{
    const struct actors_section *actors = &self->options.config->actors;
    uint32_t n = self->options.agent->spec.action_size;
    if (actors->noise_sigma <= 0.0 || n == 0)
        return NULL;
    double keep = self->noisy ? actors->noise_correlation : 0.0, add = sqrt(1.0 - keep * keep) * actors->noise_sigma;
    for (uint32_t i = 0; i < n; i++) {
        double normal[2];
        rng_normals(&self->rng, normal);
        self->noise[i] = (float)(keep * (double)self->noise[i] + add * normal[0]);
    }
    self->noisy = true;
    return self->noise;
}

static struct agent_explore explore_next(struct actor *self)
{
    const struct actors_section *actors = &self->options.config->actors;
    struct agent_explore explore = {.greedy = self->options.greedy};
    if (!explore.greedy) {
        explore.uniform = self->total < (uint64_t)actors->random_steps;
        explore.epsilon = actor_epsilon(self);
        explore.noise = explore.uniform ? NULL : next_noise(self);
    }
    return explore;
}

/* Keeps the choice, or holds the random one before it. */
static void settle(struct actor *self, const struct agent_explore *explore, struct agent_choice *choice)
{
    int64_t hold = self->options.config->actors.random_hold;
    if (explore->uniform && self->held > 0) {
        choice->discrete = self->choice.discrete;
        memcpy(choice->continuous, self->choice.continuous, sizeof choice->continuous);
        choice->q = choice->value;
        self->held--;
    } else {
        self->held = explore->uniform && hold > 1 ? (uint32_t)hold - 1 : 0;
    }
    self->choice = *choice;
}

const void *actor_action(const struct actor *self, const struct agent_choice *choice)
{
    return self->options.agent->spec.n_actions ? (const void *)&choice->discrete : choice->continuous;
}

void actor_select_many(struct actor *const *actors, uint32_t n, const void *observations, struct agent_choice *choices)
{
    struct agent *agent = actors[0]->options.agent;
    int64_t traced = rp_trace_begin(actor_client(actors[0]));
    size_t bytes = env_observation_bytes(&agent->spec);
    for (uint32_t from = 0; from < n; from += ACTOR_ROWS) {
        struct agent_explore explore[ACTOR_ROWS];
        struct rng *rng[ACTOR_ROWS];
        uint32_t rows = n - from < ACTOR_ROWS ? n - from : ACTOR_ROWS;
        for (uint32_t i = 0; i < rows; i++) {
            explore[i] = explore_next(actors[from + i]);
            rng[i] = &actors[from + i]->rng;
        }
        agent->ops->act(agent, &(struct agent_rows){rows, (const char *)observations + from * bytes, explore, rng},
                        choices + from);
        for (uint32_t i = 0; i < rows; i++)
            settle(actors[from + i], &explore[i], &choices[from + i]);
    }
    rp_trace_end(actor_client(actors[0]), "choose actions", traced);
}

const void *actor_select(struct actor *self, const void *observation, struct agent_choice *choice)
{
    actor_select_many(&self, 1, observation, choice);
    return actor_action(self, choice);
}

rp_client *actor_client(const struct actor *self)
{
    return self->options.variables ? self->options.variables->client : NULL;
}

static bool stopped(const struct actor *self)
{
    return self->options.stop && atomic_load(self->options.stop);
}

/* The table is full of items that were not sampled yet, or the broker is away: logs that, and waits. */
static rp_status wait_for_room(struct actor *self, rp_error *err)
{
    struct clock clock = clock_system();
    int64_t from = clock_now(&clock);
    rp_status status = RP_DEADLINE_EXCEEDED;
    for (uint32_t waits = 0; status == RP_DEADLINE_EXCEEDED; waits++) {
        if (stopped(self)) {
            status = err_set(err, RP_CANCELLED, "stopped while an insert was waiting");
            break;
        }
        if (waits == WAITS_BEFORE_LOG) {
            char why[512];
            log_line(LEVEL_INFO, "A0102", "waits to insert", "seconds=%u why=%s", waits * WAIT_MS / 1000u,
                     log_quote(why, sizeof why, err->text));
        }
        status = adder_wait(self->options.adder, WAIT_MS, err);
    }
    self->idle.ns[IDLE_CREDIT] += (uint64_t)(clock_now(&clock) - from);
    return status;
}

rp_status actor_offer(struct actor *self, const struct agent_choice *choice, const rp_env_result *result,
                      const void *next_observation, rp_error *err)
{
    self->steps++;
    self->total++;
    if (!self->options.adder)
        return RP_OK;
    struct agent *agent = self->options.agent;
    struct adder_step step = {
        .action = actor_action(self, choice),
        .reward = result->reward,
        .terminal = result->terminal,
        .truncated = result->truncated,
        .next_observation = next_observation,
        .value = choice->value,
        .q = choice->q,
        .log_prob = choice->log_prob,
    };
    if (result->truncated && self->options.config->adder.actor_priorities)
        step.last_value = agent->ops->value(agent, next_observation);
    return adder_add(self->options.adder, &step, 0, err);
}

rp_status actor_observe(struct actor *self, const struct agent_choice *choice, const rp_env_result *result,
                        const void *next_observation, rp_error *err)
{
    rp_status status = actor_offer(self, choice, result, next_observation, err);
    return status == RP_DEADLINE_EXCEEDED ? wait_for_room(self, err) : status;
}

rp_status actor_update(struct actor *self, rp_error *err)
{
    struct variables *variables = self->options.variables;
    /* With several environments each step here is one of a round. */
    uint64_t every = (uint64_t)self->options.config->actors.pull_every / self->options.environments;
    if (!variables || (every > 1 && self->steps % every != 0))
        return RP_OK;
    bool fresh;
    RP_TRY(variables_pull(variables, 0, &fresh, err));
    if (fresh && self->options.adder)
        adder_set_policy(self->options.adder, variables->steps);
    return RP_OK;
}
