#include "agent/python/agent/player.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "agent/run/worker.h"
#include "proto/base/error.h"
#include "proto/base/need.h"

/* ---- life ---- */

/* The learner's networks follow the configuration, so a given spec must be the same. */
static rp_status take_spec(struct player_options *options, rp_error *err)
{
    struct env env;
    const struct env_config *config = &options->config.environment;
    if (options->spec_given && env_is_python(config) && config->spec.count == 0)
        return RP_OK;
    RP_TRY(env_open(&env, config, err));
    rp_env_spec stated = env.spec;
    env_close(&env);
    if (options->spec_given && !env_same_spec(&options->spec, &stated))
        return err_set(
            err, RP_FAILED_PRECONDITION,
            "the environment has other spaces than environment '%s' of the configuration, from which learners build "
            "their networks: state them there, in environment.spec",
            env_name(config));
    options->spec = stated;
    return RP_OK;
}

static rp_status make_agent(struct player *self, rp_error *err)
{
    const struct player_options *options = &self->options;
    struct agent_config config = options->config.agent;
    config.acting_rows = options->n < ACTOR_ROWS ? options->n : ACTOR_ROWS;
    self->agent = agent_new(&config, env_name(&options->config.environment), &options->spec,
                            worker_seed(&options->config, "parameters", 0), err);
    return self->agent ? RP_OK : (rp_status)err->status;
}

static rp_status connect_client(struct player *self, rp_error *err)
{
    char name[32];
    snprintf(name, sizeof name, "actor-%u", self->options.index);
    rp_client_options client = {.struct_size = sizeof client, .name = name};
    rp_error why = {0};
    self->client = rp_client_connect(self->options.endpoint, &client, self->options.timeout_ms, &why);
    return self->client ? RP_OK : err_set(err, (rp_status)why.status, "%s", why.text);
}

static rp_status open_subenv(struct player *self, uint32_t i, rp_error *err)
{
    const struct player_options *options = &self->options;
    uint32_t index = options->index * options->n + i;
    struct adder **adder = &self->subenvs[i].adder;
    char name[48];
    snprintf(name, sizeof name, i ? "actor-%u.%u" : "actor-%u", options->index, i);
    if (options->insert &&
        !(*adder = actor_adder(&options->config, self->agent, self->client, name, options->timeout_ms, err)))
        return (rp_status)err->status;
    const struct actor_options actor = {.config = &options->config,
                                        .agent = self->agent,
                                        .adder = *adder,
                                        .index = index,
                                        .environments = options->n,
                                        .seed = worker_seed(&options->config, "actor", index),
                                        .greedy =
                                            options->greedy < 0 ? options->config.actors.greedy : options->greedy != 0};
    actor_init(&self->subenvs[i].actor, &actor);
    self->actors[i] = &self->subenvs[i].actor;
    return RP_OK;
}

/* Parameters come from a file, or follow a learner. */
static rp_status open_variables(struct player *self, rp_error *err)
{
    const char *weights = self->options.config.actors.weights;
    variables_init(&self->variables, self->client, self->agent);
    if (!weights[0])
        return variables_subscribe(&self->variables, err);
    self->options.wait = false;
    return variables_load(&self->variables, weights, err);
}

static rp_status open_all(struct player *self, rp_error *err)
{
    struct player_options *options = &self->options;
    RP_TRY(take_spec(options, err));
    RP_TRY(make_agent(self, err));
    self->subenvs = calloc(options->n, sizeof *self->subenvs);
    self->actors = calloc(options->n, sizeof(struct actor *));
    self->choices = calloc(options->n, sizeof *self->choices);
    if (!self->subenvs || !self->actors || !self->choices) /* the user's program goes on */
        return err_set(err, RP_NO_MEMORY, "no memory for %u environments", options->n);
    RP_TRY(connect_client(self, err));
    RP_TRY(open_variables(self, err));
    for (uint32_t i = 0; i < options->n; i++)
        RP_TRY(open_subenv(self, i, err));
    claim_init_actor(&self->claim, self->client, &options->config, options->n, NULL);
    return RP_OK;
}

void player_options_free(struct player_options *options)
{
    run_config_free(&options->config);
    free(options->endpoint);
    *options = (struct player_options){0};
}

struct player *player_new(const struct player_options *options, rp_error *err)
{
    struct player *self = need_alloc(sizeof *self);
    self->options = *options;
    if (open_all(self, err) != RP_OK)
        player_destroy(&self, 0);
    return self;
}

void player_destroy(struct player **player, int64_t wait_ms)
{
    struct player *self = *player;
    *player = NULL;
    if (!self)
        return;
    if (self->claim.options.client) {
        claim_return(&self->claim, self->owed);
        claim_fini(&self->claim);
    }
    for (uint32_t i = 0; self->subenvs && i < self->options.n; i++)
        (void)adder_destroy(&self->subenvs[i].adder, wait_ms, NULL);
    if (self->client) {
        variables_fini(&self->variables);
        rp_client_destroy(&self->client);
    }
    agent_destroy(&self->agent);
    free(self->subenvs);
    free(self->actors);
    free(self->choices);
    player_options_free(&self->options);
    free(self);
}

/* ---- acting ---- */

/* Tells all adders which parameters act from now on. */
static void tell_policy(struct player *self)
{
    uint64_t policy = variables_stamp(&self->variables, &self->options.config);
    for (uint32_t i = 0; self->policy != policy && self->options.insert && i < self->options.n; i++)
        adder_set_policy(self->subenvs[i].adder, policy);
    self->policy = policy;
}

static rp_status await_parameters(struct player *self, int64_t timeout_ms, rp_error *err)
{
    bool fresh = false;
    if (!self->options.wait)
        return RP_OK;
    RP_TRY(variables_pull(&self->variables, timeout_ms, &fresh, err));
    if (!fresh)
        return err_set(err, RP_DEADLINE_EXCEEDED,
                       "no learner has published parameters in slot '" VARIABLES_SLOT "' yet");
    self->options.wait = false;
    tell_policy(self);
    return RP_OK;
}

rp_status player_prepare(struct player *self, int64_t timeout_ms, rp_error *err)
{
    RP_TRY(await_parameters(self, timeout_ms, err));
    if (!self->options.insert)
        return RP_OK;
    while (self->owed < self->options.n && !self->finished) {
        struct claim_steps steps;
        RP_TRY(claim_try(&self->claim, self->claim.options.least, timeout_ms, &steps, err));
        if (steps.n > 0)
            self->total = steps.total - self->owed;
        self->owed += steps.n;
        self->finished = steps.n == 0;
    }
    if (self->owed >= self->options.n)
        return RP_OK;
    return err_set(err, RP_END_OF_STREAM, "the run has taken the %lld environment steps of stop.steps",
                   (long long)self->options.config.stop.steps);
}

void player_act(struct player *self, const void *observations)
{
    for (uint32_t i = 0; i < self->options.n; i++)
        self->actors[i]->total = self->total + i;
    actor_select_many(self->actors, self->options.n, observations, self->choices);
    self->chosen = true;
}

rp_status player_first(struct player *self, uint32_t i, const void *observation, rp_error *err)
{
    struct subenv *subenv = &self->subenvs[i];
    if (subenv->phase == SUBENV_RUNNING)
        return err_set(err, RP_FAILED_PRECONDITION,
                       "environment %u is inside an episode that was neither terminated nor truncated", i);
    RP_TRY(actor_observe_first(&subenv->actor, observation, err));
    subenv->phase = SUBENV_RUNNING;
    subenv->value = 0;
    return RP_OK;
}

/* ---- observing ---- */

rp_status player_check(const struct player *self, const struct player_outcome *outcome, rp_error *err)
{
    if (!self->chosen)
        return err_set(err, RP_FAILED_PRECONDITION, "call act before observe");
    for (uint32_t i = 0; i < self->options.n; i++) {
        if (self->subenvs[i].phase == SUBENV_NEW)
            return err_set(err, RP_FAILED_PRECONDITION, "environment %u has begun no episode: call observe_first", i);
        if (!isfinite((float)outcome->rewards[i]))
            return err_set(err, RP_INVALID_ARGUMENT, "the reward of environment %u is %g", i, outcome->rewards[i]);
    }
    return RP_OK;
}

/* The observation that the step of subenv i led to. */
static const char *row_of(const struct player *self, const struct player_outcome *outcome, uint32_t i)
{
    bool final = outcome->finals && outcome->final[i];
    size_t bytes = env_observation_bytes(&self->options.spec);
    return (const char *)(final ? outcome->finals : outcome->observations) + i * bytes;
}

/* After the step of subenv i is in the adder. */
static rp_status finish_step(struct player *self, const struct player_outcome *outcome, uint32_t i, rp_error *err)
{
    struct subenv *subenv = &self->subenvs[i];
    subenv->value += outcome->rewards[i];
    self->steps++;
    self->total++;
    self->owed -= self->options.insert ? 1 : 0;
    if (!outcome->terminated[i] && !outcome->truncated[i])
        return RP_OK;
    self->episodes++;
    self->last_value = subenv->value;
    subenv->phase = SUBENV_ENDED;
    if (!outcome->finals || !outcome->final[i])
        return RP_OK;
    size_t bytes = env_observation_bytes(&self->options.spec);
    return player_first(self, i, (const char *)outcome->observations + i * bytes, err);
}

static rp_status observe_subenv(struct player *self, struct player_outcome *outcome, int64_t timeout_ms, rp_error *err)
{
    uint32_t i = outcome->next;
    struct subenv *subenv = &self->subenvs[i];
    /* An environment that resets in the step after the end of an episode ignores its action. */
    if (subenv->phase == SUBENV_ENDED)
        return player_first(self, i, row_of(self, outcome, i), err);
    rp_status status;
    if (outcome->pending) {
        status = adder_wait(subenv->adder, timeout_ms, err);
    } else {
        rp_env_result result = {.reward = (float)outcome->rewards[i],
                                .terminal = outcome->terminated[i],
                                .truncated = outcome->truncated[i] && !outcome->terminated[i]};
        status = actor_offer(&subenv->actor, &self->choices[i], &result, row_of(self, outcome, i), err);
    }
    outcome->pending = status == RP_DEADLINE_EXCEEDED || status == RP_CANCELLED;
    if (outcome->pending)
        return status;
    rp_status finished = finish_step(self, outcome, i, status == RP_OK ? err : NULL);
    return status == RP_OK ? finished : status;
}

static rp_status update(struct player *self, rp_error *err)
{
    if (self->options.config.actors.weights[0] ||
        self->steps - self->pulled_at < (uint64_t)self->options.config.actors.pull_every)
        return RP_OK;
    self->pulled_at = self->steps;
    bool fresh;
    RP_TRY(variables_pull(&self->variables, 0, &fresh, err));
    self->options.wait = self->options.wait && !fresh;
    tell_policy(self);
    return RP_OK;
}

rp_status player_observe(struct player *self, struct player_outcome *outcome, int64_t timeout_ms, rp_error *err)
{
    self->chosen = false;
    for (; outcome->next < self->options.n; outcome->next++) {
        rp_error why = {0};
        rp_status status = observe_subenv(self, outcome, timeout_ms, &why);
        if (outcome->pending)
            return err_set(err, status, "%s", why.text);
        if (status != RP_OK && outcome->status == RP_OK) {
            outcome->status = status;
            outcome->err = why;
        }
    }
    if (outcome->status == RP_OK)
        return update(self, err);
    return err_set(err, outcome->status, "%s", outcome->err.text);
}

rp_status player_flush(struct player *self, int64_t timeout_ms, rp_error *err)
{
    struct clock clock = clock_system();
    int64_t end_ns = clock_now(&clock) + timeout_ms * NS_PER_MS;
    for (uint32_t i = 0; self->options.insert && i < self->options.n; i++) {
        int64_t left_ms = timeout_ms == 0 ? 0 : (end_ns - clock_now(&clock)) / NS_PER_MS;
        RP_TRY(adder_flush(self->subenvs[i].adder, 0, left_ms > 0 ? left_ms : 0, err));
    }
    return RP_OK;
}

uint64_t player_items(const struct player *self)
{
    uint64_t items = 0;
    for (uint32_t i = 0; self->options.insert && i < self->options.n; i++) {
        struct adder_stats stats;
        adder_get_stats(self->subenvs[i].adder, &stats);
        items += stats.items;
    }
    return items;
}

bool player_finished(const struct player *self)
{
    return self->finished || (self->claim.full && self->owed + self->claim.left < self->options.n);
}
