/* A round: one step in each of several environment loops whose actors share an agent. The agent chooses all actions in
 * one pass, and environments of a provider may step in one call. */
#ifndef AGENT_RUN_ENVIRONMENT_ROUND_H
#define AGENT_RUN_ENVIRONMENT_ROUND_H

#include "agent/run/environment_loop.h"

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

/* The agent of the loops must have been made with acting_rows of n, or of ACTOR_ROWS if that is less. False: no
 * memory. */
bool environment_round_init(struct environment_round *self, struct environment_loop *loops, uint32_t n);
void environment_round_fini(struct environment_round *self);
/* Takes one step in each of the first n loops. A loop whose environment begins an episode within the round takes none.
 * total: steps of all actors before. *taken: number of steps. */
rp_status environment_round_step(struct environment_round *self, uint32_t n, uint64_t total, uint32_t *taken,
                                 rp_error *err);

#endif
