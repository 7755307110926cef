/* The run room: actors, learners and evaluators, independent of the process that they run in (actor, learner, group, variables,
 * best), their logs (run_log, thin), each in a process of its own (worker), all in one process (lockstep), and
 * the command lines of replay-actor, replay-learner and replay-single (program). This header: an actor
 * chooses actions, passes observations to an adder, and takes newer parameters from time to time. Without an adder,
 * and greedy, it is an evaluator. An environment loop is an actor and an environment that take turns. The room may use environments, adders, algorithms, the configuration, the client library, and
 * the broker, which replay-single embeds. */
#pragma once

#include <stdatomic.h>

#include "agent/config/config.h"
#include "agent/env/env.h"
#include "agent/learn/adder.h"
#include "agent/learn/agent.h"
#include "agent/run/best.h"
#include "agent/run/idle.h"
#include "agent/run/recording.h"
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

/* Makes the adder of an actor. NULL with err set. */
struct adder *actor_adder(const struct run_config *config, const struct agent *agent, rp_client *client,
                          const char *name, int64_t timeout_ms, rp_error *err);
void actor_init(struct actor *self, const struct actor_options *options);
rp_status actor_observe_first(struct actor *self, const void *observation, rp_error *err);
/* Gives the action as the environment takes it; *choice has details. */
const void *actor_select(struct actor *self, const void *observation, struct agent_choice *choice);
/* The same for n actors that share an agent, in passes over up to ACTOR_ROWS of the n contiguous observations: the agent must have
 * been made with acting_rows of ACTOR_ROWS, or of n if that is less. */
#define ACTOR_ROWS 64u
void actor_select_many(struct actor *const *actors, uint32_t n, const void *observations, struct agent_choice *choices);
/* The action of a choice, as the environment takes it. */
const void *actor_action(const struct actor *self, const struct agent_choice *choice);
/* Adds a step without waiting. RP_DEADLINE_EXCEEDED: part of it is still to be done, by calls of adder_wait until it is. */
rp_status actor_offer(struct actor *self, const struct agent_choice *choice, const rp_env_result *result,
                      const void *next_observation, rp_error *err);
/* The share of random actions at present: it decays from 1 to this actor's place on the ladder. */
double actor_epsilon(const struct actor *self);

/* The epsilon of actor i of n: base^(1 + alpha i / (n - 1)); base alone if there is one actor. */
double actor_ladder(double base, double alpha, uint32_t index, uint32_t n);

/* ---- the environment loop: one step per call, so that the owner of several loops in one thread decides when each moves ---- */

struct episode {
    uint64_t steps;
    double value; /* its return, undiscounted */
    bool truncated;
};

struct environment_loop {
    struct env *env; /* borrowed */
    struct actor actor;
    void *observation, *next;
    bool running;                /* inside an episode */
    struct agent_choice choice;  /* of the step that comes next */
    const void *action;          /* the same, as the environment takes it */
    struct recording *recording; /* owned; gets the last of environment_loop_episodes; NULL: nothing is recorded */
    bool recorded;               /* the present episode is */
    struct episode episode;
};

void environment_loop_init(struct environment_loop *self, struct env *env, const struct actor_options *options);
void environment_loop_fini(struct environment_loop *self);
/* Takes one step. *ended: the episode is over, and self->episode describes it. */
rp_status environment_loop_step(struct environment_loop *self, bool *ended, rp_error *err);
struct measured {
    uint64_t episodes, steps;
    double sum, squares, lowest, highest; /* of the returns */
};

struct show;
/* Runs whole episodes, and records the last. show: draws them; may be NULL. RP_CANCELLED: the actor was stopped. */
rp_status environment_loop_episodes(struct environment_loop *self, uint64_t n, struct show *show, struct measured *out,
                                    rp_error *err);

/* ---- a crew: environment loops that share a network, as an actor or an evaluator has them ---- */

struct crew_options {
    const struct run_config *config;
    const struct env_provider *provider; /* makes environments in Python; NULL: there are none */
    /* The program of the Python package that could do this with an environment in Python: "actor"; NULL: nothing is stepped. */
    const char *python;
    uint32_t index;        /* of the actor or evaluator */
    uint32_t n;            /* environments, unless the environment itself is many */
    uint32_t environments; /* of each actor; 0: n */
    bool evaluates;        /* greedy, and nothing is inserted */
    const atomic_bool *stop;
};

struct crew {
    struct crew_options options;
    struct env_group envs;
    struct agent *agent;
    struct variables variables;
    struct environment_loop *loops; /* each with an adder of its own, but for an evaluator; NULL before crew_join */
    uint32_t n;
    uint64_t policy;       /* stamp of the parameters that the adders know */
    struct best_file best; /* of an evaluator */
    /* Called for each episode that ended; may be NULL. */
    void (*ended)(void *ctx, const struct episode *episode);
    void *ctx;
    /* ---- of the loops that choose an action in this round */
    struct actor **actors;
    struct environment_loop **choosing;
    struct agent_choice *choices;
    char *observations;
};

/* Makes environments and network. crew_close must follow in any case. */
rp_status crew_open(struct crew *self, const struct crew_options *options, rp_error *err);
/* Makes loops, with adders at the broker. client: NULL for an evaluator without a broker. */
rp_status crew_join(struct crew *self, rp_client *client, rp_error *err);
/* Waits for the confirmation of items for at most timeout_ms. Returns the first error. */
rp_status crew_close(struct crew *self, int64_t timeout_ms, rp_error *err);
/* Takes the first parameters: of actors.weights, or of a learner. RP_CANCELLED: stopped while waiting. */
rp_status crew_begin(struct crew *self, rp_error *err);
/* Takes one step in each of the first n loops. The network chooses all actions in one pass, and environments of a provider may
 * step in one call. A loop whose environment begins an episode within the round takes none. total: steps of all actors before.
 * *taken: number of steps. */
rp_status crew_step(struct crew *self, uint32_t n, uint64_t total, uint32_t *taken, rp_error *err);
/* Tells all adders which parameters act from now on. */
void crew_tell_policy(struct crew *self);
/* Keeps the best parameters and the last episodes of evaluations in a folder; NULL or "": nowhere. fresh: from nothing. */
void crew_keep(struct crew *self, const char *folder, bool fresh);
/* Evaluates the present parameters. steps: of all actors; learner_steps: of the parameters. */
rp_status crew_evaluate(struct crew *self, uint64_t steps, uint64_t learner_steps, struct best *out, rp_error *err);
