/* DDPG (Lillicrap et al. 2016): a deterministic policy mu(s) = tanh(net(s)) that follows the gradient of a critic.
 *
 *   y_i = R_i + g D_i Q_target(s'_i, mu_target(s'_i))
 *   L_Q = 1/n sum_i w_i (Q(s_i, a_i) - y_i)^2 / 2
 *   J   = 1/n sum_i Q(s_i, mu(s_i))                  dJ/dmu = dQ/da at a = mu(s), the deterministic policy gradient
 *
 * With n-step returns, prioritized replay and many actors it is Ape-X DPG (Horgan et al. 2018): actors get the critic too,
 * for their priorities. Importance weights correct the critic, not the policy. */
#include <stdlib.h>

#include "agent/learn/algorithm.h"
#include "agent/learn/critic.h"
#include "proto/base/error.h"

static void gradient_of_critic(struct agent *self, const struct agent_batch *batch, struct agent_result *result)
{
    struct critic *critic = self->state;
    critic_policy_many(critic, critic->target, critic->states_next, critic->actions);
    critic_set_actions(critic, critic->next, critic->actions);
    critic_targets(critic, self, batch, NULL);
    critic_regress(critic, self, batch, result);
}

static void ddpg_gradient(struct agent *self, const struct agent_batch *batch, struct agent_result *result)
{
    critic_begin(self->state, self, batch, result);
    gradient_of_critic(self, batch, result);
    critic_climb(self, result);
}

static void ddpg_apply(struct agent *self, struct agent_result *result)
{
    struct critic *critic = self->state;
    critic_descend(self, &critic->q_optim, critic_at(critic, 0), "gradient_norm", result);
    critic_descend(self, &critic->policy_optim, 0, "policy_gradient_norm", result);
    self->steps++;
    agent_update_target(self, critic->target, self->params, self->n_params);
}

static rp_status ddpg_create(struct agent *self, rp_error *err)
{
    struct critic *critic = self->state;
    const struct critic_plan plan = {.n_q = 1, .heads = 1, .target_policy = true};
    return critic_init(critic, self, &plan, err);
}

static void ddpg_destroy(struct agent *self)
{
    critic_fini(self->state);
}

static int64_t ddpg_hidden[] = {256, 256};
static const struct agent_config ddpg_defaults = {
    .hidden = {.data = ddpg_hidden, .count = 2},
    .batch = 256,
    .discount = 0.99,
    .learning_rate = 1e-4,
    .target_period = 100,
};

const struct agent_ops agent_ddpg = {
    .name = "ddpg",
    .help = "a deterministic policy that climbs its critic; with prioritized replay and many actors Ape-X DPG",
    .data = AGENT_TRANSITIONS,
    .continuous = true,
    .defaults = &ddpg_defaults,
    .state_size = sizeof(struct critic),
    .create = ddpg_create,
    .destroy = ddpg_destroy,
    .act = critic_act,
    .value = critic_value,
    .gradient = ddpg_gradient,
    .apply = ddpg_apply,
};
