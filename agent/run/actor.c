#include "agent/run/actor.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "agent/run/show.h"
#include "agent/run/stop.h"
#include "agent/run/worker.h"
#include "proto/base/clock.h"
#include "proto/base/error.h"
#include "proto/base/log.h"
#include "proto/base/need.h"
#include "replay/trace.h"

/* Time between two checks of the stop flag. */
#define WAIT_MS 200
#define WAITS_BEFORE_LOG 25u
/* How long to wait for the broker when adders are made. */
#define JOIN_MS 30000

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

rp_status environment_loop_episodes(struct environment_loop *self, uint64_t n, struct show *show, struct measured *out,
                                    rp_error *err)
{
    *out = (struct measured){.lowest = INFINITY, .highest = -INFINITY};
    while (out->episodes < n) {
        double before = self->running ? self->episode.value : 0.0;
        bool ended;
        if (is_stopped(self->actor.options.stop))
            return err_set(err, RP_CANCELLED, "stopped after %llu of %llu episodes", (unsigned long long)out->episodes,
                           (unsigned long long)n);
        self->recorded = self->recording && out->episodes + 1 == n;
        RP_TRY(environment_loop_step(self, &ended, err));
        if (show)
            show_step(show, self, self->episode.value - before, ended);
        if (!ended)
            continue;
        double value = self->episode.value;
        out->episodes++;
        out->steps += self->episode.steps;
        out->sum += value;
        out->squares += value * value;
        out->lowest = fmin(out->lowest, value);
        out->highest = fmax(out->highest, value);
    }
    return RP_OK;
}

/* ---- a crew ---- */

rp_status crew_open(struct crew *self, const struct crew_options *options, rp_error *err)
{
    const struct run_config *config = options->config;
    const struct env_config *env = &config->environment;
    *self = (struct crew){.options = *options};
    if (options->python && env_is_python(env) && !options->provider)
        return err_set(err, RP_FAILED_PRECONDITION,
                       "environment '%s' is Python, which this program cannot run: start '%s -m replaybus.%s' with the "
                       "same options instead, or the whole run with replay-launch",
                       env_name(env), env->interpreter, options->python);
    RP_TRY(env_group_open(&self->envs, env, options->n, options->provider, err));
    self->n = self->envs.n;
    for (uint32_t i = 0; i < self->n; i++)
        env_seed(&self->envs.envs[i], worker_seed(config, options->evaluates ? "evaluator-environment" : "environment",
                                                  options->index * self->n + i));
    struct agent_config agent = config->agent;
    agent.acting_rows = self->n < ACTOR_ROWS ? self->n : ACTOR_ROWS;
    self->agent = agent_new(&agent, env_name(env), &self->envs.envs[0].spec, worker_seed(config, "parameters", 0), err);
    return self->agent ? RP_OK : (rp_status)err->status;
}

static rp_status open_loop(struct crew *self, rp_client *client, uint32_t i, rp_error *err)
{
    const struct crew_options *options = &self->options;
    const struct run_config *config = options->config;
    bool acts = !options->evaluates;
    uint32_t index = options->index * self->n + i;
    struct adder *adder = NULL;
    char name[48];
    snprintf(name, sizeof name, i ? "actor-%u.%u" : "actor-%u", options->index, i);
    if (acts && !(adder = actor_adder(config, self->agent, client, name, JOIN_MS, err)))
        return (rp_status)err->status;
    const struct actor_options actor = {.config = config,
                                        .agent = self->agent,
                                        .adder = adder,
                                        .variables =
                                            acts && i == 0 && !config->actors.weights[0] ? &self->variables : NULL,
                                        .index = index,
                                        .environments = options->environments > 0 ? options->environments : self->n,
                                        .seed = worker_seed(config, acts ? "actor" : "evaluator", index),
                                        .greedy = !acts || config->actors.greedy,
                                        .stop = options->stop};
    environment_loop_init(&self->loops[i], &self->envs.envs[i], &actor);
    return RP_OK;
}

rp_status crew_join(struct crew *self, rp_client *client, rp_error *err)
{
    variables_init(&self->variables, client, self->agent);
    self->loops = need_alloc(self->n * sizeof *self->loops);
    self->actors = need_alloc(self->n * sizeof(*self->actors));
    self->choosing = need_alloc(self->n * sizeof(*self->choosing));
    self->choices = need_alloc(self->n * sizeof *self->choices);
    self->observations = need_alloc(self->n * env_observation_bytes(&self->agent->spec));
    for (uint32_t i = 0; i < self->n; i++)
        RP_TRY(open_loop(self, client, i, err));
    return RP_OK;
}

rp_status crew_close(struct crew *self, int64_t timeout_ms, rp_error *err)
{
    int64_t end_ns = clock_ns() + timeout_ms * NS_PER_MS;
    rp_status status = RP_OK;
    for (uint32_t i = 0; self->loops && i < self->n; i++) {
        int64_t left_ms = (end_ns - clock_ns()) / NS_PER_MS;
        rp_status closing =
            adder_destroy(&self->loops[i].actor.options.adder, left_ms > 0 ? left_ms : 0, status == RP_OK ? err : NULL);
        status = status == RP_OK ? closing : status;
        environment_loop_fini(&self->loops[i]);
    }
    free(self->loops);
    free(self->actors);
    free(self->choosing);
    free(self->choices);
    free(self->observations);
    variables_fini(&self->variables);
    agent_destroy(&self->agent);
    env_group_close(&self->envs);
    *self = (struct crew){0};
    return status;
}

void crew_tell_policy(struct crew *self)
{
    uint64_t policy = variables_stamp(&self->variables, self->options.config);
    for (uint32_t i = 0; self->policy != policy && i < self->n; i++)
        adder_set_policy(self->loops[i].actor.options.adder, policy);
    self->policy = policy;
}

rp_status crew_begin(struct crew *self, rp_error *err)
{
    const char *weights = self->options.config->actors.weights;
    return weights[0] ? variables_load(&self->variables, weights, err)
                      : variables_wait(&self->variables, self->options.stop, err);
}

/* Begins episodes, and gathers the loops that take a step with their observations. */
static rp_status gather(struct crew *self, uint32_t n, uint64_t total, uint32_t *n_choosing, rp_error *err)
{
    size_t bytes = env_observation_bytes(&self->agent->spec);
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

static void choose(struct crew *self, uint32_t n)
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

rp_status crew_step(struct crew *self, uint32_t n, uint64_t total, uint32_t *taken, rp_error *err)
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

/* ---- evaluations ---- */

void crew_keep(struct crew *self, const char *folder, bool fresh)
{
    best_file_open(&self->best, folder, fresh);
    self->loops[0].recording = recording_new(folder, fresh);
}

rp_status crew_evaluate(struct crew *self, uint64_t steps, uint64_t learner_steps, struct best *out, rp_error *err)
{
    *out = (struct best){.episodes = (uint64_t)self->options.config->evaluator.episodes,
                         .environment_steps = steps,
                         .learner_steps = learner_steps};
    struct measured measured;
    RP_TRY(environment_loop_episodes(&self->loops[0], out->episodes, NULL, &measured, err));
    out->value = measured.sum / (double)measured.episodes; /* of no episodes NaN */
    best_file_offer(&self->best, self->agent->tensors, self->agent->n_policy, out);
    recording_save(self->loops[0].recording, env_name(&self->options.config->environment), out);
    return RP_OK;
}
