/* What the tests of DDPG, TD3 and SAC share: a small agent, random batches, and their losses in double precision. */
#ifndef TESTS_SUPPORT_CONTROL_H
#define TESTS_SUPPORT_CONTROL_H

#include "agent/learn/critic.h"
#include "tests/support/learning.h"

#define CONTROL_OBSERVATION 3u
#define CONTROL_ACTION 2u
#define CONTROL_MAX 64u /* items of a batch */

struct control_batch {
    struct agent_batch view;
    float observation[CONTROL_MAX * CONTROL_OBSERVATION], next_observation[CONTROL_MAX * CONTROL_OBSERVATION];
    float action[CONTROL_MAX * CONTROL_ACTION];
    float reward[CONTROL_MAX], discount[CONTROL_MAX], weight[CONTROL_MAX];
};

/* How often each of two critics was the smaller one: in targets, and at the policy's actions. */
struct control_wins {
    uint32_t target[2], policy[2];
};

/* Everything that a loss depends on, in double: parameters that do not move, the batch, its targets y, its noise. */
struct control_case {
    const struct critic *critic;
    struct control_batch batch;
    const struct agent_config *config;
    struct control_wins *wins; /* may be NULL */
    uint32_t n;
    double *params, *target;
    double y[CONTROL_MAX];
    float noise[2 * CONTROL_MAX * CONTROL_ACTION];
};

typedef double control_loss(const struct control_case *self, const double *params);

/* tanh networks of 6 and 5 units, batches of 7. */
struct agent_config control_config(const char *algorithm);
extern const rp_env_spec control_spec;
/* Of n items; every fourth one is terminal. */
void control_fill(struct control_batch *self, struct rng *rng, uint32_t n);

/* Draws new parameters and targets, fills a batch, and keeps all of it as doubles. */
void control_case_init(struct control_case *self, struct agent *agent, uint64_t seed);
void control_case_fini(struct control_case *self);

/* One row through a network. */
void control_net(const struct net *net, const double *params, const double *in, double *out);
/* Critic k of a vector of all parameters, at an observation of the batch and an action. */
double control_q(const struct control_case *self, const double *params, uint32_t k, const float *observation,
                 const double *action);
void control_policy(const struct control_case *self, const double *params, const float *observation, double *out);
/* The sum over critics of the mean of w (Q - y)^2 / 2. */
double control_critic_loss(const struct control_case *self, const double *params);

/* Central differences against a part of the gradient. */
void control_check_gradient(const struct control_case *self, const struct agent *agent, uint32_t from, uint32_t n,
                            control_loss *loss);

/* ---- the losses of each algorithm ---- */

enum { CONTROL_DDPG, CONTROL_TD3, CONTROL_SAC, CONTROL_ALGORITHMS };

struct control_algorithm {
    const char *name;
    uint32_t noises; /* normal numbers for each component of an action in a step */
    double (*next)(const struct control_case *self, uint32_t i, const float *next); /* value of item i's next state */
    control_loss *policy_loss;
};
extern const struct control_algorithm control_algorithms[CONTROL_ALGORITHMS];

/* Draws the noise that the agent's next gradient will draw, and computes y from it. */
void control_fill_targets(struct control_case *self, const struct agent *agent);
/* SAC: its temperature; and an action tanh(mean + std e), with the log of its density: that of u, over the slope of tanh. */
double control_alpha(const struct control_case *self, const double *params);
double control_draw(const struct control_case *self, const double *params, const float *observation, const float *noise,
                    double *action);

#endif
