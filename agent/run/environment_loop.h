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

/* Takes one step in each of n loops whose environments may step together: all actions are chosen before the first
 * step. A loop whose environment begins an episode within the round takes no step. */
struct environment_round {
    struct environment_loop *loops; /* borrowed */
    uint32_t n;
    uint64_t total; /* steps of all actors before this round */
    /* Called for each episode that ended; may be NULL. */
    void (*ended)(void *ctx, const struct episode *episode);
    void *ctx;
};
/* *taken: number of steps. */
rp_status environment_round_step(const struct environment_round *self, uint32_t *taken, rp_error *err);
/* Runs whole episodes and gives their mean return. RP_CANCELLED: the actor was stopped. */
rp_status environment_loop_episodes(struct environment_loop *self, uint64_t n, double *mean, rp_error *err);

#endif
