/* What the algorithms for continuous actions share: a policy, one or two critics Q(s, a), their targets, their
 * optimisers, and the steps of which a learner's step is made.
 *
 * Parameters are one vector: the policy, the critics, then what an algorithm adds. Gradients and targets are laid
 * out the same, so one offset serves all three. A critic's input is a row [observation, action]; actions are
 * canonical, in [-1, 1].
 *
 * A learner's step goes: critic_begin, critic_targets, critic_regress, critic_ascend, then back through the policy.
 * They share passes and rows, so the order is part of the contract. */
#ifndef AGENT_LEARN_CRITIC_H
#define AGENT_LEARN_CRITIC_H

#include "agent/learn/agent.h"

#define CRITIC_MAX 2u
/* TD3: standard deviation and bound of the noise on the target policy's action, as published. */
#define TD3_TARGET_SIGMA 0.2f
#define TD3_TARGET_CLIP 0.5f

struct critic_plan {
    uint32_t n_q;     /* critics: 1, or 2 for twins whose smaller value counts */
    uint32_t heads;   /* outputs of the policy per number of an action: 1 mean; 2 also a deviation */
    uint32_t n_extra; /* further parameters at the end of the vector */
    bool target_policy;
};

struct critic {
    struct net policy, q;
    struct critic_plan plan;
    uint32_t observation, action, row; /* floats in each */
    uint32_t n, max_batch;             /* items of the present batch; the most items of a batch */
    uint32_t max_rows;                 /* most observations that are acted upon at once */
    float *target;                     /* laid out like the parameters; parts without a target are unused */
    struct optim policy_optim, q_optim;
    struct net_pass policy_pass; /* two batches high: s and s' in one pass */
    struct net_pass q_pass[CRITIC_MAX];
    float *memory;              /* all buffers below */
    float *states;              /* [2 n][observation]: s, then s' */
    float *states_next;         /* the second half of it */
    float *actions, *noise;     /* [2 n][action]: of the policy at s and s'; for an algorithm's use */
    float *now, *next;          /* [n][row]: of s and s' */
    float *y;                   /* [n]: targets of the critics */
    float *d_q, *d_row;         /* [n], [n][row] */
    float *d_action, *d_policy; /* [n][action], [n][heads * action] */
    float *acting, *greedy; /* [max_rows][row], [max_rows][action]: of the latest observations that were acted upon */
    double *priority;       /* [n] */
};

/* Offsets in the vector of parameters. The policy is at 0. */
uint32_t critic_at(const struct critic *self, uint32_t q);
uint32_t critic_extra_at(const struct critic *self);

/* self is zeroed. Makes the networks and gives the agent its parameters, gradients and tensors; an algorithm's own
 * tensors follow. */
rp_status critic_init(struct critic *self, struct agent *agent, const struct critic_plan *plan, rp_error *err);
/* Safe after a failed init of a zeroed struct. */
void critic_fini(struct critic *self);

/* ---- acting ---- */

/* n observations through the policy: its outputs, and in self->greedy tanh of the first ones of each. */
const float *critic_policy_rows(struct critic *self, const struct agent *agent, const void *observations, uint32_t n);
/* Chooses the policy's action, a random one, or the policy's with noise, within bounds. */
void critic_choose(const struct critic *self, const float *action, const struct agent_explore *explore, struct rng *rng,
                   struct agent_choice *choice);
/* Fills in value and q of n choices by the first critic, for the observations given to critic_policy_rows. */
void critic_judge(struct critic *self, const struct agent *agent, uint32_t n, struct agent_choice *choices);
/* agent_ops.value: Q(s, tanh mean(s)). The state of such an agent begins with its critic. */
float critic_value(struct agent *agent, const void *observation);
/* agent_ops.act of a deterministic policy. */
void critic_act(struct agent *agent, const struct agent_rows *rows, struct agent_choice *out);

/* ---- learning ---- */

/* Zeroes the gradient and takes a batch. */
void critic_begin(struct critic *self, struct agent *agent, const struct agent_batch *batch,
                  struct agent_result *result);
/* actions = tanh of the policy at n states: deterministic policies. */
void critic_policy_many(struct critic *self, const float *params, const float *states, float *actions);
/* Replaces the actions in rows (now or next) by [n][action]. */
void critic_set_actions(const struct critic *self, float *rows, const float *actions);
/* y = R + g D (min Q'(next) + bonus). bonus: [n] or NULL. */
void critic_targets(struct critic *self, const struct agent *agent, const struct agent_batch *batch,
                    const float *bonus);
/* Gradient of the sum over critics of the mean of w (Q(now) - y)^2 / 2, or of its Huber form. Sets priorities to the
 * larger |TD| of the critics, and the scalars "loss", "q" and "td_error". */
void critic_regress(struct critic *self, struct agent *agent, const struct agent_batch *batch,
                    struct agent_result *result);
/* The mean over items of the smallest Q(now) among the first n_q critics, and its derivative by the actions in
 * d_action. */
double critic_ascend(struct critic *self, const struct agent *agent, uint32_t n_q);
/* The deterministic policy gradient: the policy's part of the gradient of -J, J = 1/n sum_i Q1(s_i, mu(s_i)). */
void critic_climb(struct agent *agent, struct agent_result *result);
/* Clips one part of the gradient and lets its optimiser take a step; the norm before clipping is a scalar. */
void critic_descend(struct agent *agent, struct optim *optim, uint32_t offset, const char *norm_name,
                    struct agent_result *result);

/* Standard normal numbers. An odd n draws and drops one. */
void critic_normals(struct rng *rng, float *out, uint32_t n);

#endif
