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

rp_status environment_loop_init(struct environment_loop *self, struct env *env, struct actor *actor, rp_error *err);
void environment_loop_fini(struct environment_loop *self);
/* Takes one step. *ended: the episode is over, and self->episode describes it. */
rp_status environment_loop_step(struct environment_loop *self, bool *ended, rp_error *err);
/* Runs whole episodes and gives their mean return. RP_CANCELLED: the actor was stopped. */
rp_status environment_loop_episodes(struct environment_loop *self, uint64_t n, double *mean, rp_error *err);

/* A round: one step in each of several environment loops whose actors share an agent. The agent chooses all actions in
 * one pass, and environments of a provider may step in one call. */
struct environment_round {
    struct environment_loop *loops; /* borrowed */
    uint32_t n;
    /* Called for each episode that ended; may be NULL. */
    void (*ended)(void *ctx, const struct episode *episode);
    void *ctx;
    /* ---- of the loops that choose an action in this round */
    struct actor **actors;
    struct environment_loop **choosing;
    struct agent_choice *choices;
    char *observations;
};

/* The agent of the loops must have been made with acting_rows of n, or of ACTOR_ROWS if that is less. */
rp_status environment_round_init(struct environment_round *self, struct environment_loop *loops, uint32_t n,
                                 rp_error *err);
void environment_round_fini(struct environment_round *self);
/* Takes one step in each of the first n loops. A loop whose environment begins an episode within the round takes none.
 * total: steps of all actors before. *taken: number of steps. */
rp_status environment_round_step(struct environment_round *self, uint32_t n, uint64_t total, uint32_t *taken,
                                 rp_error *err);

#endif
