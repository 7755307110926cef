/* The run room: actors, learners and evaluators, independent of the process that they run in (actor, environment_loop, learner,
 * group, variables, best), their logs (run_log, thin), each in a process of its own (worker), all in one process (lockstep), and
 * the command lines of replay-actor, replay-learner and replay-single (program). This header: an actor
 * chooses actions, passes observations to an adder, and takes newer parameters from time to time. Without an adder,
 * and greedy, it is an evaluator. The room may use environments, adders, algorithms, the configuration, the client library, and
 * the broker, which replay-single embeds. */
#ifndef AGENT_RUN_ACTOR_H
#define AGENT_RUN_ACTOR_H

#include <stdatomic.h>

#include "agent/config/config.h"
#include "agent/learn/adder.h"
#include "agent/learn/agent.h"
#include "agent/run/idle.h"
#include "agent/run/variables.h"
#include "replay/client.h"

struct actor_options {
    const struct run_config *config;
    struct agent *agent;         /* borrowed */
    struct adder *adder;         /* borrowed; NULL: nothing is inserted */
    struct variables *variables; /* borrowed; NULL: the parameters stay as they are */
    uint32_t index;              /* among all environments of all actors */
    uint32_t environments;       /* of each actor; 0 counts as 1 */
    uint64_t seed;
    bool greedy;
    const atomic_bool *stop; /* set to end waits; may be NULL */
};

struct actor {
    struct actor_options options;
    struct rng rng;
    double epsilon;   /* epsilon of this actor, on the ladder */
    uint64_t steps;   /* steps of this actor */
    uint64_t total;   /* steps of all actors, as far as known: the owner sets it */
    struct idle idle; /* time that it has waited, by cause */
    uint32_t held;    /* further steps for which the present random action is kept */
    struct agent_choice choice;
    bool noisy; /* the noise continues from the previous step of the same episode */
    float noise[RP_ENV_MAX_ACTION];
};

void actor_init(struct actor *self, const struct actor_options *options);
/* Returns the client of its parameters, whose trace gets its spans; NULL: it has none. */
rp_client *actor_client(const struct actor *self);
rp_status actor_observe_first(struct actor *self, const void *observation, rp_error *err);
/* Gives the action as the environment takes it; *choice has details. */
const void *actor_select(struct actor *self, const void *observation, struct agent_choice *choice);
/* The same for n actors that share an agent, in passes over up to ACTOR_ROWS of the n contiguous observations: the agent must have
 * been made with acting_rows of ACTOR_ROWS, or of n if that is less. */
#define ACTOR_ROWS 64u
void actor_select_many(struct actor *const *actors, uint32_t n, const void *observations, struct agent_choice *choices);
/* The action of a choice, as the environment takes it. */
const void *actor_action(const struct actor *self, const struct agent_choice *choice);
/* Waits while the table takes no more items. RP_CANCELLED: stopped while waiting. */
rp_status actor_observe(struct actor *self, const struct agent_choice *choice, const rp_env_result *result,
                        const void *next_observation, rp_error *err);
/* The same for a caller that does not wait. RP_DEADLINE_EXCEEDED: part of the step is still to be done, by calls of adder_wait
 * until it is. */
rp_status actor_offer(struct actor *self, const struct agent_choice *choice, const rp_env_result *result,
                      const void *next_observation, rp_error *err);
rp_status actor_update(struct actor *self, rp_error *err);
/* The share of random actions at present: it decays from 1 to this actor's place on the ladder. */
double actor_epsilon(const struct actor *self);

/* The epsilon of actor i of n: base^(1 + alpha i / (n - 1)); base alone if there is one actor. */
double actor_ladder(double base, double alpha, uint32_t index, uint32_t n);

#endif
