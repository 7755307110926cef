/* What is behind replaybus.Actor: the C actor without its environments, which the caller steps.
 *
 * A player has a connection, one network and, for each of its environments, a subenv: an actor with its own stream of items. Nothing
 * here knows of Python. A call that may wait takes a time-out of at least 0; after RP_DEADLINE_EXCEEDED or RP_CANCELLED (see
 * rp_wait_set) it may be called again with the same arguments until it is done. */
#ifndef AGENT_PYTHON_PLAYER_H
#define AGENT_PYTHON_PLAYER_H

#include "agent/run/actor.h"
#include "agent/run/claim.h"

struct player_options {
    struct run_config config;
    rp_env_spec spec;
    bool spec_given; /* `spec` is the environment's; otherwise the configuration states it */
    char *endpoint;
    uint32_t index, n;  /* index of the actor; number of its environments */
    int32_t greedy;     /* 0 or 1; -1: as actors.greedy says */
    bool insert;        /* items and steps go to the broker */
    bool wait;          /* for a learner's parameters before the first action */
    int64_t timeout_ms; /* to connect; -1: none */
};

enum subenv_phase {
    SUBENV_NEW,     /* no episode has begun */
    SUBENV_RUNNING, /* inside an episode */
    SUBENV_ENDED,   /* the next observation is the first of an episode */
};

struct subenv {
    struct adder *adder; /* NULL without insert */
    struct actor actor;
    enum subenv_phase phase;
    double value; /* return of the present episode, undiscounted */
};

struct player {
    struct player_options options; /* owns what is in it */
    rp_client *client;
    struct agent *agent;
    struct variables variables;
    struct subenv *subenvs;
    struct actor **actors;        /* of the subenvs */
    struct agent_choice *choices; /* of the last player_act */
    bool chosen;                  /* player_act came after the last player_observe */
    struct claim claim;
    uint64_t owed, total; /* steps that are claimed and not taken; steps of all actors before them */
    bool finished;        /* stop.steps is reached */
    uint64_t policy;      /* stamp of the parameters that the adders know */
    uint64_t steps, pulled_at;
    uint64_t episodes;
    double last_value; /* return of the episode that ended last */
};

/* Takes what is in the options, also when it fails. Waits up to timeout_ms for the broker. NULL with err set. */
struct player *player_new(const struct player_options *options, rp_error *err);
/* Items that are not confirmed get wait_ms. Nulls *self. */
void player_destroy(struct player **self, int64_t wait_ms);
void player_options_free(struct player_options *options);

/* RP_DEADLINE_EXCEEDED until the first parameters are there and there are steps to take. RP_END_OF_STREAM: the run has taken
 * all its steps. */
rp_status player_prepare(struct player *self, int64_t timeout_ms, rp_error *err);
/* Chooses an action for each subenv. observations: [n]. */
void player_act(struct player *self, const void *observations);
/* Begins an episode of a subenv. */
rp_status player_first(struct player *self, uint32_t i, const void *observation, rp_error *err);

/* What came of the actions of the last player_act. */
struct player_outcome {
    const double *rewards; /* [n] */
    const bool *terminated, *truncated;
    const void *observations; /* [n] */
    const void *finals;       /* [n]: last observations of the episodes that `final` marks; NULL: none */
    const bool *final;        /* [n]: this subenv's environment has begun its next episode */
    /* ---- progress */
    uint32_t next;    /* the first subenv that is not done */
    bool pending;     /* its step is in the adder, its items are not */
    rp_status status; /* the first error */
    rp_error err;
};

/* Checks rewards and phases. */
rp_status player_check(const struct player *self, const struct player_outcome *outcome, rp_error *err);
/* Adds the steps, and takes newer parameters from time to time. Errors of one subenv do not stop the others. */
rp_status player_observe(struct player *self, struct player_outcome *outcome, int64_t timeout_ms, rp_error *err);
/* Waits until all items are confirmed. */
rp_status player_flush(struct player *self, int64_t timeout_ms, rp_error *err);
/* Items of all subenvs. */
uint64_t player_items(const struct player *self);
/* Whether there are fewer steps of stop.steps left than the player has environments. */
bool player_finished(const struct player *self);

#endif
