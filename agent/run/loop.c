#include "agent/run/loop.h"

#include <stdlib.h>

#include "proto/error.h"

bool loop_init(struct loop *self, struct env *env, struct actor *actor)
{
    size_t bytes = env_observation_bytes(&env->spec);
    *self = (struct loop){.env = env, .actor = actor, .observation = calloc(1, bytes), .next = calloc(1, bytes)};
    if (self->observation && self->next)
        return true;
    loop_fini(self);
    return false;
}

void loop_fini(struct loop *self)
{
    free(self->observation);
    free(self->next);
    *self = (struct loop){0};
}

static rp_status begin(struct loop *self, rp_error *err)
{
    self->episode = (struct episode){0};
    self->running = true;
    env_reset(self->env, self->observation);
    return actor_observe_first(self->actor, self->observation, err);
}

rp_status loop_step(struct loop *self, bool *ended, rp_error *err)
{
    *ended = false;
    if (!self->running)
        RP_TRY(begin(self, err));

    struct agent_choice choice;
    rp_env_result result;
    const void *action = actor_select(self->actor, self->observation, &choice);
    env_step(self->env, action, self->next, &result);
    RP_TRY(actor_observe(self->actor, &choice, &result, self->next, err));
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

rp_status loop_episodes(struct loop *self, uint64_t n, double *mean, rp_error *err)
{
    double sum = 0.0;
    const atomic_bool *stop = self->actor->options.stop;
    for (uint64_t i = 0; i < n;) {
        bool ended;
        if (stop && atomic_load(stop))
            return err_set(err, RP_CANCELLED, "stopped after %llu of %llu episodes", (unsigned long long)i,
                           (unsigned long long)n);
        RP_TRY(loop_step(self, &ended, err));
        if (!ended)
            continue;
        sum += self->episode.value;
        i++;
    }
    *mean = n ? sum / (double)n : 0.0;
    return RP_OK;
}
