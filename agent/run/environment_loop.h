/* The environment loop: an actor and an environment take turns, one step per call, so that the owner of several loops
 * in one thread decides when each moves. */
#ifndef AGENT_RUN_ENVIRONMENT_LOOP_H
#define AGENT_RUN_ENVIRONMENT_LOOP_H

#include "agent/env/env.h"
#include "agent/run/actor.h"

struct episode {
    uint64_t steps;
    double value; /* its return, undiscounted */
    bool truncated;
};

struct environment_loop {
    struct env *env;     /* borrowed */
    struct actor *actor; /* borrowed */
    void *observation, *next;
    bool running;               /* inside an episode */
    struct agent_choice choice; /* of the step that comes next */
    const void *action;         /* the same, as the environment takes it */
    struct episode episode;
};

/* False: no memory. */
bool environment_loop_init(struct environment_loop *self, struct env *env, struct actor *actor);
void environment_loop_fini(struct environment_loop *self);
/* Takes one step. *ended: the episode is over, and self->episode describes it. */
rp_status environment_loop_step(struct environment_loop *self, bool *ended, rp_error *err);

/* The two parts of a step, for a round of several loops (environment_round.h): begins an episode, and takes a step with
 * self->choice and self->action. */
rp_status environment_loop_begin(struct environment_loop *self, rp_error *err);
rp_status environment_loop_take(struct environment_loop *self, bool *ended, rp_error *err);
/* Runs whole episodes and gives their mean return. RP_CANCELLED: the actor was stopped. */
rp_status environment_loop_episodes(struct environment_loop *self, uint64_t n, double *mean, rp_error *err);

#endif
