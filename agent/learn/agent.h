/* The learn room: algorithms, and the adders that make their items. It may use networks, the formats of observations (env) and,
 * for adders, the client library; algorithms know nothing of brokers, processes or files.
 *
 * An agent is networks, a way to act and a way to learn. Each algorithm is one file with an agent_ops, found by name.
 *
 * Actors, evaluators and learners all make the same agent from the same configuration; an actor only acts with it, a
 * learner only learns. What they exchange is tensors by name.
 *
 * A learner's step is split in two so that several learners can stay identical: `gradient` turns a batch into one
 * vector of derivatives (all networks of the algorithm in it, at the parameters before the step), which may be
 * averaged over learners, and `apply` does everything that changes parameters: clipping, optimisers, targets, step
 * count. After the same sequence of vectors, two learners have the same bits. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "agent/learn/net.h"
#include "agent/learn/optim.h"
#include "agent/learn/weights.h"
#include "proto/base/arena.h"
#include "proto/base/rng.h"
#include "proto/config/schema.h"
#include "replay/env.h"

#define AGENT_MAX_TENSORS 256u
#define AGENT_MAX_SCALARS 16u
/* Width and height of the filters of a convolution: the images here are small grids. */
#define AGENT_KERNEL 3u

enum agent_data { AGENT_TRANSITIONS, AGENT_SEQUENCES };

/* Numbers that are 0 (or negative where 0 means something) take the algorithm's own default: agent_ops.defaults. For
 * costs and clip_norm 0 is the default and a negative number is none; an agent's own copy then says 0. */
struct agent_config {
    char *algorithm;
    struct schema_list hidden; /* int64_t */
    int32_t activation;        /* net_activation of the hidden layers: linear is not offered; 0 relu, 1 tanh */
    int64_t filters;           /* a convolution for images; 0: none */
    int64_t batch;             /* items, or sequences */
    double discount;
    double learning_rate;
    int64_t anneal;                  /* steps of the optimiser over which its rate falls to a tenth; 0: never */
    double clip_norm;                /* bound of the gradient's norm; negative: none */
    int64_t target_period;           /* learner steps between copies into the target; 0 with tau > 0: soft updates */
    double tau;                      /* not together with target_period; both 0: the algorithm's */
    double importance_exponent;      /* 0: no weights */
    bool double_q, dueling;          /* DQN */
    double huber;                    /* TD errors beyond this count linearly; 0: squared */
    int64_t policy_delay;            /* TD3: learner steps per policy step */
    double alpha;                    /* SAC: temperature; 0: learned */
    double target_entropy;           /* SAC: 0: minus the size of an action */
    double entropy_cost, value_cost; /* IMPALA */
    double scale;                    /* no key of a file: factor of uint8 observations; 0: 1 */
    uint32_t acting_rows;            /* no key of a file: most observations that act takes at once; 0: 1 */
};

/* How an actor explores. Filled by the actor for each step. */
struct agent_explore {
    bool greedy;        /* evaluation: no randomness at all */
    bool uniform;       /* warm-up: any action */
    double epsilon;     /* discrete, value-based */
    const float *noise; /* continuous: added to the canonical action before clipping; NULL: none */
};

/* What an agent returns for one observation. */
struct agent_choice {
    int32_t discrete;
    float continuous[RP_ENV_MAX_ACTION]; /* canonical */
    float value;    /* value of the observation under the greedy policy: bootstrap for priorities */
    float q;        /* value of the action taken; equal to `value` if the algorithm has none */
    float log_prob; /* log probability of the action under the policy that took it (IMPALA) */
};

/* A batch as an algorithm sees it: arrays, items first; sequences as [n][length]. */
struct agent_batch {
    uint32_t n;
    uint32_t length;              /* steps of a sequence; 1 for transitions */
    const void *observation;      /* in the environment's dtype */
    const void *next_observation; /* transitions */
    const void *action;           /* int32_t, or floats */
    const float *reward;          /* n-step return for transitions */
    const float *discount;    /* transitions: g^(k-1) times the environment's; sequences: the environment's, 0 or 1 */
    const float *weight;      /* importance, at most 1; NULL: all 1 */
    const float *log_prob;    /* sequences */
    const uint8_t *step_type; /* sequences: see adder.h; NULL otherwise */
    const uint32_t *lengths;  /* sequences: real steps of each; NULL: all */
};

struct agent_scalar {
    const char *name;
    double value;
};

struct agent_result {
    double *priority; /* [n], filled by the algorithm: absolute TD errors; owned by the agent */
    uint32_t n_scalars;
    struct agent_scalar scalars[AGENT_MAX_SCALARS]; /* "loss", "q", "entropy", ... */
};

/* The observations that an agent acts on in one pass. */
struct agent_rows {
    uint32_t n;
    const void *observations;            /* [n], in the environment's dtype */
    const struct agent_explore *explore; /* [n] */
    struct rng *const *rng;              /* [n] */
};

struct agent;

struct agent_ops {
    const char *name; /* "dqn" */
    const char *help;
    int32_t data; /* an agent_data */
    bool discrete, continuous;
    bool stores_log_prob;
    const struct agent_config *defaults;
    size_t state_size; /* bytes of self->state, which is zeroed before create */
    /* Builds networks and state for self->config and self->spec: sets params, grads, n_params, tensors. All memory comes from
     * self->memory. */
    rp_status (*create)(struct agent *self, rp_error *err);
    /* Acts on n observations in one pass, n at most config.acting_rows. Row i has its own explore[i], rng[i] and out[i]. The bits of a
     * row may depend on n, never on other rows. Greedy rows draw no random number. */
    void (*act)(struct agent *self, const struct agent_rows *rows, struct agent_choice *out);
    /* Overwrites self->grads. Changes no parameters. */
    void (*gradient)(struct agent *self, const struct agent_batch *batch, struct agent_result *result);
    /* Uses self->grads (and may scale it in place). Counts self->steps. */
    void (*apply)(struct agent *self, struct agent_result *result);
};

struct agent {
    const struct agent_ops *ops;
    void *state;                /* the algorithm's own */
    struct agent_config config; /* with defaults filled in; `hidden` and `algorithm` are borrowed */
    rp_env_spec spec;
    struct rng rng; /* of this learner: saved, but not shared */
    uint64_t steps; /* number of calls of apply; the last tensor */
    uint32_t n_params;
    float *params, *grads; /* all parameters that are learned */
    /* What a saved learner holds; the first n_policy of them are what an actor needs. */
    uint32_t n_tensors, n_policy;
    struct tensor tensors[AGENT_MAX_TENSORS];
    float *scratch;      /* [acting_rows] observations as floats */
    struct arena memory; /* of everything above */
    struct arena batch;  /* buffers that grow with the longest batch */
};

/* The built-in algorithms; and all of them, NULL-terminated. To add one: its file, a name here, a line in the list of agent.c, a
 * test. */
extern const struct agent_ops agent_dqn, agent_ddpg, agent_td3, agent_sac, agent_impala, agent_bc;
extern const struct agent_ops *const agent_algorithms[];
/* Finds one by its name, which may be NULL. NULL: "unknown algorithm 'dqm' (did you mean 'dqn'?)". */
const struct agent_ops *agent_find(const char *name, rp_error *err);

/* Finds the algorithm, fills in defaults, checks that it suits the environment ("ddpg needs continuous actions;
 * CartPole-v1 has 2 discrete ones: use dqn, impala or bc"), and builds the agent. `seed` decides the initial
 * parameters. config is borrowed. */
struct agent *agent_new(const struct agent_config *config, const char *env_name, const rp_env_spec *spec, uint64_t seed,
                        rp_error *err);
void agent_destroy(struct agent **self);
/* Returns the value of an observation under the greedy policy, from which a priority bootstraps. */
float agent_value(struct agent *self, const void *observation);
/* CRC-32C of the parameters: equal in learners that are in step. */
uint32_t agent_fingerprint(const struct agent *self);
/* A learner's step: gradient, then apply. */
void agent_learn(struct agent *self, const struct agent_batch *batch, struct agent_result *result);

/* ---- for the algorithms: what they share ---- */

/* Allocates params and grads, zeroed, for n_params numbers. */
void agent_alloc(struct agent *self, uint32_t n_params);
/* Returns the spec of a network over observations: inputs, image, hidden layers, activation. */
struct net_spec agent_net_spec(const struct agent *self, uint32_t outputs);
/* Makes the optimiser of the configuration for n parameters. */
void agent_optim(struct agent *self, struct optim *out, uint32_t n);
/* Clips the gradient of an optimiser's parameters, which begin at offset, and takes its step. Returns the norm before. */
double agent_descend(struct agent *self, struct optim *optim, uint32_t offset);
/* For the end of apply, after self->steps has counted this step: copies params into target every target_period steps,
 * or moves target by tau at each step. */
void agent_update_target(const struct agent *self, float *target, const float *params, uint32_t n);
/* Adds the tensors of a network's parameters, names prefixed ("q/layer0/weight"). */
void agent_add_net(struct agent *self, const char *prefix, const struct net *net, float *params);
void agent_add_vector(struct agent *self, const char *name, int32_t dtype, void *data, uint64_t n);
/* Adds m, v and steps of an optimiser. */
void agent_add_optim(struct agent *self, const char *prefix, struct optim *optim);
/* Declares that all tensors added so far are the policy. */
void agent_end_policy(struct agent *self);
/* Returns n observations as floats: the same memory if they are floats already, otherwise converted into scratch
 * (uint8: as numbers times config.scale). */
const float *agent_floats(const struct agent *self, const void *observation, uint32_t n, float *scratch);
/* The same, always into out. */
void agent_copy_floats(const struct agent *self, const void *observation, uint32_t n, float *out);
/* Returns the action with the highest score, or explores. */
uint32_t agent_choose_discrete(const float *scores, uint32_t n, const struct agent_explore *explore, struct rng *rng);
/* Sets the continuous action: the given one, a random one, or the given one with noise, within bounds. */
void agent_choose_continuous(const struct agent *self, const float *action, const struct agent_explore *explore,
                             struct rng *rng, struct agent_choice *out);
/* Sets a scalar; replaces one of the same name. The name is borrowed. */
void agent_scalar(struct agent_result *self, const char *name, double value);
