/* What the tests of DDPG, TD3 and SAC share: a small agent, random batches, networks in double precision for losses that
 * the tests write down themselves, and checks that hold for all three. */
#ifndef TESTS_SUPPORT_CONTROL_H
#define TESTS_SUPPORT_CONTROL_H

#include "agent/learn/agent.h"
#include "agent/learn/critic.h"

#define CONTROL_OBSERVATION 3u
#define CONTROL_ACTION 2u
#define CONTROL_MAX 64u /* items of a batch */

struct control_batch {
    struct agent_batch view;
    float observation[CONTROL_MAX * CONTROL_OBSERVATION], next_observation[CONTROL_MAX * CONTROL_OBSERVATION];
    float action[CONTROL_MAX * CONTROL_ACTION];
    float reward[CONTROL_MAX], discount[CONTROL_MAX], weight[CONTROL_MAX];
};

/* Everything that a loss depends on, in double: parameters that do not move, the batch, its targets y, its noise. */
struct control_case {
    const struct critic *critic;
    struct control_batch batch;
    uint32_t n;
    double discount;
    double *params, *target;
    double y[CONTROL_MAX];
    float noise[2 * CONTROL_MAX * CONTROL_ACTION];
};

typedef double control_loss(const struct control_case *self, const double *params);

/* tanh networks of 6 and 5 units, batches of 7. */
struct agent_config control_config(const char *algorithm);
struct agent *control_agent(const struct agent_config *config, uint64_t seed);
/* Of n items; every fourth one is terminal. */
void control_fill(struct control_batch *self, struct rng *rng, uint32_t n);

/* Draws all parameters and targets anew, fills a batch, keeps doubles of it all. */
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
double control_scalar(const struct agent_result *result, const char *name); /* fails if it is not there */
void control_check_near(double got, double want, double tolerance);

/* Acting: greedy, uniform, noise within bounds; value and q against the critic in double. */
void control_check_act(struct agent *agent, bool deterministic);
/* Learns a* (an action that depends on the observation) from rewards -|a - a*|^2 in one-step episodes. Gives the root of the
 * mean square error of greedy actions. */
double control_bandit(struct agent *agent, uint32_t steps);
/* A learner that was saved and loaded into another one goes on with the same bits. */
void control_check_saved(const struct agent_config *config);
/* Learners with different batches and noise that apply their averaged gradient keep the same bits. */
void control_check_averaged(const struct agent_config *config);

#endif
