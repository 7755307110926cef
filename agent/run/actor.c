#include "agent/run/actor.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "agent/run/stop.h"
#include "proto/base/clock.h"
#include "proto/base/error.h"
#include "proto/base/log.h"
#include "proto/base/need.h"
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

struct adder *actor_adder(const struct run_config *config, const struct agent *agent, rp_client *client,
                          const char *name, int64_t timeout_ms, rp_error *err)
{
    return adder_new(&(struct adder_options){.client = client,
                                             .name = name,
                                             .config = &config->adder,
                                             .spec = &agent->spec,
                                             .with_log_prob = agent->ops->stores_log_prob,
                                             .timeout_ms = timeout_ms},
                     err);
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

/* Returns the client of its parameters, whose trace gets its spans; NULL: it has none. */
static rp_client *actor_client(const struct actor *self)
{
    return self->options.variables ? self->options.variables->client : NULL;
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

/* The table is full of items that were not sampled yet, or the broker is away: logs that, and waits. */
static rp_status wait_for_room(struct actor *self, rp_error *err)
{
    int64_t from = clock_ns();
    rp_status status = RP_DEADLINE_EXCEEDED;
    for (uint32_t waits = 0; status == RP_DEADLINE_EXCEEDED; waits++) {
        if (is_stopped(self->options.stop)) {
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
    self->idle.ns[IDLE_CREDIT] += (uint64_t)(clock_ns() - from);
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
        step.last_value = agent_value(agent, next_observation);
    return adder_add(self->options.adder, &step, 0, err);
}

/* Waits while the table takes no more items. RP_CANCELLED: stopped while waiting. */
static rp_status actor_observe(struct actor *self, const struct agent_choice *choice, const rp_env_result *result,
                               const void *next_observation, rp_error *err)
{
    rp_status status = actor_offer(self, choice, result, next_observation, err);
    return status == RP_DEADLINE_EXCEEDED ? wait_for_room(self, err) : status;
}

static rp_status actor_update(struct actor *self, rp_error *err)
{
    struct variables *variables = self->options.variables;
    /* With several environments each step here is one of a round. */
    uint64_t every = (uint64_t)self->options.config->actors.pull_every / self->options.environments;
    if (!variables || (every > 1 && self->steps % every != 0))
        return RP_OK;
    bool fresh;
    RP_TRY(variables_pull(variables, 0, &fresh, err));
    if (fresh && self->options.adder)
        adder_set_policy(self->options.adder, variables_stamp(variables, self->options.config));
    return RP_OK;
}

/* ---- the environment loop ---- */

void environment_loop_init(struct environment_loop *self, struct env *env, const struct actor_options *options)
{
    *self = (struct environment_loop){
        .env = env, .observation = env_observation_new(env), .next = env_observation_new(env)};
    actor_init(&self->actor, options);
}

void environment_loop_fini(struct environment_loop *self)
{
    free(self->observation);
    free(self->next);
    recording_destroy(&self->recording);
    *self = (struct environment_loop){0};
}

static rp_status begin_episode(struct environment_loop *self, rp_error *err)
{
    self->episode = (struct episode){0};
    self->running = true;
    env_reset(self->env, self->observation);
    RP_TRY(env_failure(self->env, err));
    RP_TRY(env_observation_check(self->env, self->observation, err));
    if (self->recorded)
        recording_begin(self->recording, self->env, self->observation);
    return actor_observe_first(&self->actor, self->observation, err);
}

/* Takes a step with self->choice and self->action. */
static rp_status take_step(struct environment_loop *self, bool *ended, rp_error *err)
{
    rp_env_result result;
    rp_client *client = actor_client(&self->actor);
    *ended = false;
    int64_t traced = rp_trace_begin(client);
    env_step(self->env, self->action, self->next, &result);
    rp_trace_end(client, "environment step", traced);
    RP_TRY(env_failure(self->env, err));
    RP_TRY(env_observation_check(self->env, self->next, err));
    if (!isfinite(result.reward))
        return err_set(err, RP_INVALID_ARGUMENT, "environment '%s': the reward of step %lu of the episode is %g",
                       self->env->ops->name, (unsigned long)self->env->steps, (double)result.reward);
    if (self->recorded)
        recording_step(self->recording, self->env, self->next, self->action, &result);
    RP_TRY(actor_observe(&self->actor, &self->choice, &result, self->next, err));
    RP_TRY(actor_update(&self->actor, err));

    void *swap = self->observation;
    self->observation = self->next;
    self->next = swap;
    self->episode.steps++;
    self->episode.value += (double)result.reward;
    self->episode.truncated = result.truncated;
    if (result.terminal || result.truncated) {
        self->running = false;
        *ended = true;
    }
    return RP_OK;
}

rp_status environment_loop_step(struct environment_loop *self, bool *ended, rp_error *err)
{
    *ended = false;
    if (!self->running)
        RP_TRY(begin_episode(self, err));
    self->action = actor_select(&self->actor, self->observation, &self->choice);
    env_announce(self->env, self->action);
    return take_step(self, ended, err);
}

rp_status environment_loop_episodes(struct environment_loop *self, uint64_t n, double *mean, rp_error *err)
{
    double sum = 0.0;
    for (uint64_t i = 0; i < n;) {
        bool ended;
        if (is_stopped(self->actor.options.stop))
            return err_set(err, RP_CANCELLED, "stopped after %llu of %llu episodes", (unsigned long long)i,
                           (unsigned long long)n);
        self->recorded = self->recording && i + 1 == n;
        RP_TRY(environment_loop_step(self, &ended, err));
        if (!ended)
            continue;
        sum += self->episode.value;
        i++;
    }
    *mean = n ? sum / (double)n : 0.0;
    return RP_OK;
}

/* ---- a round ---- */

void environment_round_init(struct environment_round *self, struct environment_loop *loops, uint32_t n)
{
    size_t bytes = env_observation_bytes(&loops[0].env->spec);
    *self = (struct environment_round){.loops = loops,
                                       .n = n,
                                       .actors = need_alloc(n * sizeof(*self->actors)),
                                       .choosing = need_alloc(n * sizeof(*self->choosing)),
                                       .choices = need_alloc(n * sizeof *self->choices),
                                       .observations = need_alloc(n * bytes)};
}

void environment_round_fini(struct environment_round *self)
{
    free(self->actors);
    free(self->choosing);
    free(self->choices);
    free(self->observations);
    *self = (struct environment_round){0};
}

/* Begins episodes, and gathers the loops that take a step with their observations. */
static rp_status gather(struct environment_round *self, uint32_t n, uint64_t total, uint32_t *n_choosing, rp_error *err)
{
    size_t bytes = env_observation_bytes(&self->loops[0].env->spec);
    *n_choosing = 0;
    for (uint32_t i = 0; i < n; i++) {
        struct environment_loop *loop = &self->loops[i];
        loop->action = NULL;
        loop->actor.total = total + i;
        if (!loop->running && env_resets_within_round(loop->env))
            continue;
        if (!loop->running)
            RP_TRY(begin_episode(loop, err));
        memcpy(self->observations + *n_choosing * bytes, loop->observation, bytes);
        self->choosing[*n_choosing] = loop;
        self->actors[(*n_choosing)++] = &loop->actor;
    }
    return RP_OK;
}

static void choose(struct environment_round *self, uint32_t n)
{
    if (n > 0)
        actor_select_many(self->actors, n, self->observations, self->choices);
    for (uint32_t i = 0; i < n; i++) {
        struct environment_loop *loop = self->choosing[i];
        loop->choice = self->choices[i];
        loop->action = actor_action(&loop->actor, &loop->choice);
        env_announce(loop->env, loop->action);
    }
}

rp_status environment_round_step(struct environment_round *self, uint32_t n, uint64_t total, uint32_t *taken,
                                 rp_error *err)
{
    uint32_t n_choosing;
    *taken = 0;
    RP_TRY(gather(self, n, total, &n_choosing, err));
    choose(self, n_choosing);
    for (uint32_t i = 0; i < n; i++) {
        struct environment_loop *loop = &self->loops[i];
        bool ended = false;
        if (loop->action) {
            RP_TRY(take_step(loop, &ended, err));
            (*taken)++;
        } else {
            RP_TRY(begin_episode(loop, err));
        }
        if (ended && self->ended)
            self->ended(self->ctx, &loop->episode);
    }
    return RP_OK;
}
