#include "agent/run/environment_loop.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "agent/env/env.h"
#include "proto/base/error.h"
#include "proto/base/need.h"
#include "replay/trace.h"

rp_status environment_loop_init(struct environment_loop *self, struct env *env, struct actor *actor, rp_error *err)
{
    *self = (struct environment_loop){
        .env = env, .actor = actor, .observation = env_observation_new(env), .next = env_observation_new(env)};
    if (self->observation && self->next)
        return RP_OK;
    environment_loop_fini(self);
    return err_set(err, RP_NO_MEMORY, "no memory for two observations of %zu bytes", env_observation_bytes(&env->spec));
}

void environment_loop_fini(struct environment_loop *self)
{
    free(self->observation);
    free(self->next);
    *self = (struct environment_loop){0};
}

static rp_status begin_episode(struct environment_loop *self, rp_error *err)
{
    self->episode = (struct episode){0};
    self->running = true;
    env_reset(self->env, self->observation);
    RP_TRY(env_failure(self->env, err));
    RP_TRY(env_observation_check(self->env, self->observation, err));
    return actor_observe_first(self->actor, self->observation, err);
}

/* Takes a step with self->choice and self->action. */
static rp_status take_step(struct environment_loop *self, bool *ended, rp_error *err)
{
    rp_env_result result;
    rp_client *client = actor_client(self->actor);
    *ended = false;
    int64_t traced = rp_trace_begin(client);
    env_step(self->env, self->action, self->next, &result);
    rp_trace_end(client, "environment step", traced);
    RP_TRY(env_failure(self->env, err));
    RP_TRY(env_observation_check(self->env, self->next, err));
    if (!isfinite(result.reward))
        return err_set(err, RP_INVALID_ARGUMENT, "environment '%s': the reward of step %lu of the episode is %g",
                       self->env->ops->name, (unsigned long)self->env->steps, (double)result.reward);
    RP_TRY(actor_observe(self->actor, &self->choice, &result, self->next, err));
    RP_TRY(actor_update(self->actor, err));

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
    self->action = actor_select(self->actor, self->observation, &self->choice);
    env_announce(self->env, self->action);
    return take_step(self, ended, err);
}

rp_status environment_loop_episodes(struct environment_loop *self, uint64_t n, double *mean, rp_error *err)
{
    double sum = 0.0;
    const atomic_bool *stop = self->actor->options.stop;
    for (uint64_t i = 0; i < n;) {
        bool ended;
        if (stop && atomic_load(stop))
            return err_set(err, RP_CANCELLED, "stopped after %llu of %llu episodes", (unsigned long long)i,
                           (unsigned long long)n);
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

rp_status environment_round_init(struct environment_round *self, struct environment_loop *loops, uint32_t n,
                                 rp_error *err)
{
    size_t bytes = env_observation_bytes(&loops[0].env->spec);
    *self = (struct environment_round){.loops = loops,
                                       .n = n,
                                       .actors = need_alloc(n * sizeof(*self->actors)),
                                       .choosing = need_alloc(n * sizeof(*self->choosing)),
                                       .choices = need_alloc(n * sizeof *self->choices),
                                       .observations = calloc(n, bytes)};
    return self->observations ? RP_OK : err_set(err, RP_NO_MEMORY, "no memory for %u observations", n);
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
        loop->actor->total = total + i;
        if (!loop->running && env_resets_within_round(loop->env))
            continue;
        if (!loop->running)
            RP_TRY(begin_episode(loop, err));
        memcpy(self->observations + *n_choosing * bytes, loop->observation, bytes);
        self->choosing[*n_choosing] = loop;
        self->actors[(*n_choosing)++] = loop->actor;
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
        loop->action = actor_action(loop->actor, &loop->choice);
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
