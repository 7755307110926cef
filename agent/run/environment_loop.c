#include "agent/run/environment_loop.h"

#include <math.h>
#include <stdlib.h>

#include "agent/env/env_group.h"
#include "proto/base/error.h"
#include "replay/trace.h"

bool environment_loop_init(struct environment_loop *self, struct env *env, struct actor *actor)
{
    *self = (struct environment_loop){
        .env = env, .actor = actor, .observation = env_observation_new(env), .next = env_observation_new(env)};
    if (self->observation && self->next)
        return true;
    environment_loop_fini(self);
    return false;
}

void environment_loop_fini(struct environment_loop *self)
{
    free(self->observation);
    free(self->next);
    *self = (struct environment_loop){0};
}

rp_status environment_loop_begin(struct environment_loop *self, rp_error *err)
{
    self->episode = (struct episode){0};
    self->running = true;
    env_reset(self->env, self->observation);
    RP_TRY(env_failure(self->env, err));
    RP_TRY(env_observation_check(self->env, self->observation, err));
    return actor_observe_first(self->actor, self->observation, err);
}

rp_status environment_loop_take(struct environment_loop *self, bool *ended, rp_error *err)
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
        RP_TRY(environment_loop_begin(self, err));
    self->action = actor_select(self->actor, self->observation, &self->choice);
    env_announce(self->env, self->action);
    return environment_loop_take(self, ended, err);
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
