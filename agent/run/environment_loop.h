/* The environment loop: an actor and an environment take turns, one step per call, so that whoever runs several loops in
 * one thread decides when. */
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
    bool running; /* inside an episode */
    struct episode episode;
};

/* False: no memory. */
bool environment_loop_init(struct environment_loop *self, struct env *env, struct actor *actor);
void environment_loop_fini(struct environment_loop *self);
/* One step of the environment. *ended: the episode is over, and self->episode tells about it. */
rp_status environment_loop_step(struct environment_loop *self, bool *ended, rp_error *err);
/* Whole episodes; their mean return. RP_CANCELLED: the actor was stopped meanwhile. */
rp_status environment_loop_episodes(struct environment_loop *self, uint64_t n, double *mean, rp_error *err);

#endif
