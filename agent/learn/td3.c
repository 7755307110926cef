/* TD3 (Fujimoto et al. 2018): DDPG with three remedies against values that are too high.
 *
 *   a'_i = clip(mu_target(s'_i) + clip(N(0, 0.2), -0.5, 0.5), -1, 1)    target policy smoothing
 *   y_i  = R_i + g D_i min_k Qk_target(s'_i, a'_i)                          twin critics
 *   L_Q  = sum_k 1/n sum_i w_i (Qk(s_i, a_i) - y_i)^2 / 2
 *   J    = 1/n sum_i Q1(s_i, mu(s_i))                           the policy and all targets move at each d-th step only
 *
 * Steps without a policy step leave zeros in its part of the gradient. Whether a step has one depends on the count
 * of steps alone, so parallel learners agree on it. */
#include <math.h>
#include <stdlib.h>

#include "agent/learn/algorithm.h"
#include "agent/learn/critic.h"
#include "proto/base/error.h"

/* True if the coming step, counted from 1, updates the policy. */
static bool is_policy_step(const struct agent *self)
{
    return (self->steps + 1) % (uint64_t)self->config.policy_delay == 0;
}

/* Similar actions should have similar values: noise blurs the target's action. */
static void smooth(struct agent *self, float *actions)
{
    struct critic *critic = self->state;
    const uint32_t count = critic->n * critic->action;
    critic_normals(&self->rng, critic->noise, count);
    for (uint32_t i = 0; i < count; i++) {
        float noise = fminf(fmaxf(TD3_TARGET_SIGMA * critic->noise[i], -TD3_TARGET_CLIP), TD3_TARGET_CLIP);
        actions[i] = fminf(fmaxf(actions[i] + noise, -1.0f), 1.0f);
    }
}

static void td3_gradient_of_critics(struct agent *self, const struct agent_batch *batch, struct agent_result *result)
{
    struct critic *critic = self->state;
    critic_policy_many(critic, critic->target, critic->states_next, critic->actions);
    smooth(self, critic->actions);
    critic_set_actions(critic, critic->next, critic->actions);
    critic_targets(critic, self, batch, NULL);
    critic_regress(critic, self, batch, result);
}

static void td3_gradient(struct agent *self, const struct agent_batch *batch, struct agent_result *result)
{
    critic_begin(self->state, self, batch, result);
    td3_gradient_of_critics(self, batch, result);
    if (is_policy_step(self))
        critic_climb(self, result);
}

static void td3_apply(struct agent *self, struct agent_result *result)
{
    struct critic *critic = self->state;
    const bool delayed = !is_policy_step(self);
    critic_descend(self, &critic->q_optim, critic_at(critic, 0), "gradient_norm", result);
    self->steps++;
    if (delayed)
        return;
    critic_descend(self, &critic->policy_optim, 0, "policy_gradient_norm", result);
    agent_update_target(self, critic->target, self->params, self->n_params);
}

static rp_status td3_create(struct agent *self, rp_error *err)
{
    struct critic *critic = self->state;
    const struct critic_plan plan = {.n_q = 2, .heads = 1, .target_policy = true};
    const struct agent_config *config = &self->config;
    if (config->target_period % config->policy_delay != 0)
        return err_set(
            err, RP_INVALID_ARGUMENT,
            "agent.target_period is %lld; td3 moves its targets with its policy, so it must be a multiple of "
            "policy_delay, %lld",
            (long long)config->target_period, (long long)config->policy_delay);
    return critic_init(critic, self, &plan, err);
}

static void td3_destroy(struct agent *self)
{
    critic_fini(self->state);
}

static int64_t td3_hidden[] = {256, 256};
static const struct agent_config td3_defaults = {
    .hidden = {.data = td3_hidden, .count = 2},
    .batch = 256,
    .discount = 0.99,
    .learning_rate = 3e-4,
    .tau = 0.005,
    .policy_delay = 2,
};

const struct agent_ops agent_td3 = {
    .name = "td3",
    .help = "a deterministic policy with twin critics, smoothed targets and delayed policy steps",
    .data = AGENT_TRANSITIONS,
    .continuous = true,
    .defaults = &td3_defaults,
    .state_size = sizeof(struct critic),
    .create = td3_create,
    .destroy = td3_destroy,
    .act = critic_act,
    .value = critic_value,
    .gradient = td3_gradient,
    .apply = td3_apply,
};
