#include "agent/run/environment_round.h"

#include <stdlib.h>
#include <string.h>

#include "agent/env/env_group.h"
#include "proto/base/error.h"

bool environment_round_init(struct environment_round *self, struct environment_loop *loops, uint32_t n)
{
    size_t bytes = env_observation_bytes(&loops[0].env->spec);
    *self = (struct environment_round){.loops = loops,
                                       .n = n,
                                       .actors = calloc(n, sizeof(*self->actors)),
                                       .choosing = calloc(n, sizeof(*self->choosing)),
                                       .choices = calloc(n, sizeof *self->choices),
                                       .observations = calloc(n, bytes)};
    if (self->actors && self->choosing && self->choices && self->observations)
        return true;
    environment_round_fini(self);
    return false;
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
            RP_TRY(environment_loop_begin(loop, err));
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
            RP_TRY(environment_loop_take(loop, &ended, err));
            (*taken)++;
        } else {
            RP_TRY(environment_loop_begin(loop, err));
        }
        if (ended && self->ended)
            self->ended(self->ctx, &loop->episode);
    }
    return RP_OK;
}
