/* DDPG, TD3 and SAC: a policy for continuous actions that climbs one or two critics Q(s, a).
 *
 * Parameters are one vector: the policy, the critics, then SAC's temperature. Gradients and targets are laid out the same,
 * so one offset serves all three. A critic's input is a row [observation, action]; actions are canonical, in [-1, 1].
 *
 * All three regress their critics on y, with importance weights w, or on the Huber form of it:
 *
 *   L_Q = sum_k 1/n sum_i w_i (Qk(s_i, a_i) - y_i)^2 / 2
 *
 * and improve the policy by the derivative of Q by the action; weights correct the critics, not the policy. Actors get the
 * first critic too, for their priorities.
 *
 * A learner's step goes: begin, targets, regress, ascend, then back through the policy. These share passes and rows, so their
 * order matters. */
#include <assert.h>
#include <math.h>
#include <string.h>

#include "agent/learn/agent.h"
#include "proto/base/error.h"

#define CRITIC_MAX 2u
/* Scale of the first actions: near zero, where tanh is steep. */
#define POLICY_SCALE 0.01f

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
    float *target;                     /* laid out like the parameters; parts without a target are unused */
    struct optim policy_optim, q_optim;
    struct net_pass policy_pass; /* two batches high: s and s' in one pass */
    struct net_pass q_pass[CRITIC_MAX];
    float *states;              /* [2 n][observation]: s, then s' */
    float *states_next;         /* the second half of it */
    float *actions, *noise;     /* [2 n][action]: of the policy at s and s'; for an algorithm's use */
    float *now, *next;          /* [n][row]: of s and s' */
    float *y;                   /* [n]: targets of the critics */
    float *d_q, *d_row;         /* [n], [n][row] */
    float *d_action, *d_policy; /* [n][action], [n][heads * action] */
    float *acting,
        *greedy;      /* [acting_rows][row], [acting_rows][action]: of the latest observations that were acted upon */
    double *priority; /* [n] */
    /* ---- SAC alone */
    struct optim alpha_optim;
    double target_entropy;
    float *log_prob; /* [2 n]: at s, then at s' */
};

/* Offsets in the vector of parameters. The policy is at 0. */
static uint32_t critic_at(const struct critic *self, uint32_t q)
{
    return self->policy.n_params + q * self->q.n_params;
}

static uint32_t critic_extra_at(const struct critic *self)
{
    return critic_at(self, self->plan.n_q);
}

/* ---- life ---- */

static rp_status make_nets(struct critic *self, struct agent *agent, rp_error *err)
{
    if (agent->config.filters > 0)
        return err_set(err, RP_INVALID_ARGUMENT,
                       "%s has no convolution, for its critics see observation and action in one row: set filters to 0",
                       agent->ops->name);
    const uint32_t rows = agent->config.acting_rows, batch = self->max_batch;
    self->action = agent->spec.action_size;
    struct net_spec spec = agent_net_spec(agent, self->plan.heads * self->action);
    self->observation = spec.inputs;
    self->row = self->observation + self->action;
    spec.output_scale = POLICY_SCALE;
    RP_TRY(net_init(&self->policy, &spec, err));
    spec.inputs = self->row;
    spec.outputs = 1;
    spec.output_scale = 0.0f;
    RP_TRY(net_init(&self->q, &spec, err));
    RP_TRY(net_pass_init(&self->policy_pass, &self->policy, 2 * batch > rows ? 2 * batch : rows, &agent->memory, err));
    for (uint32_t k = 0; k < self->plan.n_q; k++)
        RP_TRY(net_pass_init(&self->q_pass[k], &self->q, k == 0 && rows > batch ? rows : batch, &agent->memory, err));
    return RP_OK;
}

static void make_buffers(struct critic *self, struct agent *agent)
{
    const size_t n = self->max_batch, rows = agent->config.acting_rows;
    const struct {
        float **at;
        size_t floats;
    } parts[] = {
        {&self->states, 2 * n * self->observation},
        {&self->actions, 2 * n * self->action},
        {&self->noise, 2 * n * self->action},
        {&self->now, n * self->row},
        {&self->next, n * self->row},
        {&self->y, n},
        {&self->d_q, n},
        {&self->d_row, n * self->row},
        {&self->d_action, n * self->action},
        {&self->d_policy, n * self->plan.heads * self->action},
        {&self->acting, rows * self->row},
        {&self->greedy, rows * self->action},
        {&self->log_prob, 2 * n},
    };
    for (size_t i = 0; i < sizeof parts / sizeof parts[0]; i++)
        *parts[i].at = arena_take(&agent->memory, parts[i].floats, sizeof(float));
    self->priority = arena_take(&agent->memory, n, sizeof *self->priority);
}

/* An actor needs the policy, and the first critic for its priorities. */
static void add_tensors(struct critic *self, struct agent *agent)
{
    static const char *const names[CRITIC_MAX] = {"q1", "q2"};
    static const char *const target_names[CRITIC_MAX] = {"target/q1", "target/q2"};
    assert(self->plan.n_q >= 1 && self->plan.n_q <= CRITIC_MAX);
    agent_add_net(agent, "policy", &self->policy, agent->params);
    agent_add_net(agent, names[0], &self->q, agent->params + critic_at(self, 0));
    agent_end_policy(agent);
    for (uint32_t k = 1; k < self->plan.n_q; k++)
        agent_add_net(agent, names[k], &self->q, agent->params + critic_at(self, k));
    if (self->plan.target_policy)
        agent_add_net(agent, "target/policy", &self->policy, self->target);
    for (uint32_t k = 0; k < self->plan.n_q; k++)
        agent_add_net(agent, target_names[k], &self->q, self->target + critic_at(self, k));
    agent_add_optim(agent, "optimiser/policy", &self->policy_optim);
    agent_add_optim(agent, "optimiser/q", &self->q_optim);
}

/* Makes the networks and gives the agent its parameters, gradients and tensors; an algorithm's own tensors follow. */
static rp_status critic_create(struct agent *agent, const struct critic_plan *plan, rp_error *err)
{
    struct critic *self = agent->state;
    self->plan = *plan;
    self->max_batch = (uint32_t)agent->config.batch;
    RP_TRY(make_nets(self, agent, err));
    make_buffers(self, agent);
    agent_alloc(agent, critic_extra_at(self) + plan->n_extra);
    agent_optim(agent, &self->policy_optim, self->policy.n_params);
    agent_optim(agent, &self->q_optim, plan->n_q * self->q.n_params);
    net_fill(&self->policy, agent->params, &agent->rng);
    for (uint32_t k = 0; k < plan->n_q; k++)
        net_fill(&self->q, agent->params + critic_at(self, k), &agent->rng);
    self->target = arena_copy(&agent->memory, agent->params, agent->n_params * sizeof(float));
    add_tensors(self, agent);
    return RP_OK;
}

/* ---- acting ---- */

/* Puts n observations through the policy. Returns its outputs, and in self->greedy tanh of the first ones of each. */
static const float *critic_policy_rows(struct critic *self, const struct agent *agent, const void *observations,
                                       uint32_t n)
{
    const float *floats = agent_floats(agent, observations, n, agent->scratch);
    for (uint32_t i = 0; i < n; i++)
        memcpy(self->acting + (size_t)i * self->row, floats + (size_t)i * self->observation,
               self->observation * sizeof(float));
    const float *out = net_forward(&self->policy, agent->params, &self->policy_pass, floats, n);
    for (uint32_t i = 0; i < n; i++)
        for (uint32_t j = 0; j < self->action; j++)
            self->greedy[(size_t)i * self->action + j] = tanhf(out[(size_t)i * self->plan.heads * self->action + j]);
    return out;
}

/* Returns Q(s, a) of n observations; actions follow each other at `step` floats. */
static const float *judge(struct critic *self, const struct agent *agent, uint32_t n, const float *actions, size_t step)
{
    for (uint32_t i = 0; i < n; i++)
        memcpy(self->acting + (size_t)i * self->row + self->observation, actions + i * step,
               self->action * sizeof(float));
    return net_forward(&self->q, agent->params + critic_at(self, 0), &self->q_pass[0], self->acting, n);
}

static bool is_greedy(const struct critic *self, const struct agent_choice *choices, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++)
        for (uint32_t j = 0; j < self->action; j++)
            if (choices[i].continuous[j] != self->greedy[(size_t)i * self->action + j])
                return false;
    return true;
}

/* Fills in value and q of n choices by the first critic, for the observations given to critic_policy_rows. */
static void critic_judge(struct critic *self, const struct agent *agent, uint32_t n, struct agent_choice *choices)
{
    const float *values = judge(self, agent, n, self->greedy, self->action);
    for (uint32_t i = 0; i < n; i++) {
        choices[i].discrete = 0;
        choices[i].log_prob = 0.0f;
        choices[i].value = choices[i].q = values[i];
    }
    if (is_greedy(self, choices, n))
        return;
    values = judge(self, agent, n, choices[0].continuous, sizeof *choices / sizeof(float));
    for (uint32_t i = 0; i < n; i++)
        choices[i].q = values[i];
}

/* ---- learning ---- */

static void fill_rows(const struct critic *self, float *rows, const float *states)
{
    for (uint32_t i = 0; i < self->n; i++)
        memcpy(rows + (size_t)i * self->row, states + (size_t)i * self->observation, self->observation * sizeof(float));
}

/* Replaces the actions in rows (now or next) by [n][action]. */
static void critic_set_actions(const struct critic *self, float *rows, const float *actions)
{
    for (uint32_t i = 0; i < self->n; i++)
        memcpy(rows + (size_t)i * self->row + self->observation, actions + (size_t)i * self->action,
               self->action * sizeof(float));
}

/* Zeroes the gradient and takes a batch. */
static void critic_begin(struct critic *self, struct agent *agent, const struct agent_batch *batch,
                         struct agent_result *result)
{
    assert(batch->n > 0 && batch->n <= self->max_batch);
    self->n = batch->n;
    self->states_next = self->states + (size_t)self->n * self->observation;
    agent_copy_floats(agent, batch->observation, self->n, self->states);
    agent_copy_floats(agent, batch->next_observation, self->n, self->states_next);
    fill_rows(self, self->now, self->states);
    fill_rows(self, self->next, self->states_next);
    critic_set_actions(self, self->now, batch->action);
    memset(agent->grads, 0, agent->n_params * sizeof(float));
    result->priority = self->priority;
}

/* Sets y = R + g D (min Q'(next) + bonus) for these next actions. bonus: [n] or NULL. */
static void critic_targets(struct critic *self, const struct agent *agent, const struct agent_batch *batch,
                           const float *actions, const float *bonus)
{
    const double g = agent->config.discount;
    const float *q[CRITIC_MAX] = {0};
    assert(self->plan.n_q >= 1 && self->plan.n_q <= CRITIC_MAX);
    critic_set_actions(self, self->next, actions);
    for (uint32_t k = 0; k < self->plan.n_q; k++)
        q[k] = net_forward(&self->q, self->target + critic_at(self, k), &self->q_pass[k], self->next, self->n);
    for (uint32_t i = 0; i < self->n; i++) {
        double value = q[0][i];
        for (uint32_t k = 1; k < self->plan.n_q; k++)
            value = fmin(value, q[k][i]);
        if (bonus)
            value += bonus[i];
        self->y[i] = (float)(batch->reward[i] + g * batch->discount[i] * value);
    }
}

/* Adds the gradient of L_Q. Sets priorities to the larger |TD| of the critics, and the scalars "loss", "q" and "td_error". */
static void critic_regress(struct critic *self, struct agent *agent, const struct agent_batch *batch,
                           struct agent_result *result)
{
    const double limit = agent->config.huber > 0 ? agent->config.huber : INFINITY;
    double loss = 0.0, q_sum = 0.0, td_sum = 0.0;
    memset(self->priority, 0, self->n * sizeof(double));
    for (uint32_t k = 0; k < self->plan.n_q; k++) {
        const float *params = agent->params + critic_at(self, k);
        const float *q = net_forward(&self->q, params, &self->q_pass[k], self->now, self->n);
        for (uint32_t i = 0; i < self->n; i++) {
            double td = (double)q[i] - self->y[i];
            double size = fabs(td);
            double weight = (batch->weight ? batch->weight[i] : 1.0) / self->n;
            double slope =
                size > limit ? limit : size; /* a value that is not a number stays so, and voids the gradient */
            loss += weight * slope * (size - 0.5 * slope);
            self->d_q[i] = (float)(weight * copysign(slope, td));
            /* Written so that a difference that is not a number survives. */
            self->priority[i] = size <= self->priority[i] ? self->priority[i] : size;
            q_sum += q[i];
            td_sum += size;
        }
        net_backward(&self->q, params, &self->q_pass[k], self->d_q, agent->grads + critic_at(self, k), NULL);
    }
    agent_scalar(result, "loss", loss);
    agent_scalar(result, "q", q_sum / self->n / self->plan.n_q);
    agent_scalar(result, "td_error", td_sum / self->n / self->plan.n_q);
}

/* Returns the mean over items of the smallest Q(s, self->actions) among the first n_q critics, and its derivative by the
 * actions in d_action. */
static double critic_ascend(struct critic *self, const struct agent *agent, uint32_t n_q)
{
    const float *q[CRITIC_MAX];
    critic_set_actions(self, self->now, self->actions);
    for (uint32_t k = 0; k < n_q; k++)
        q[k] = net_forward(&self->q, agent->params + critic_at(self, k), &self->q_pass[k], self->now, self->n);
    double sum = 0.0;
    memset(self->d_action, 0, (size_t)self->n * self->action * sizeof(float));
    for (uint32_t k = 0; k < n_q; k++) {
        for (uint32_t i = 0; i < self->n; i++) {
            bool smallest = n_q == 1 || (k == 0 ? q[0][i] <= q[1][i] : q[1][i] < q[0][i]);
            self->d_q[i] = smallest ? 1.0f / (float)self->n : 0.0f;
            sum += smallest ? q[k][i] : 0.0;
        }
        net_backward(&self->q, agent->params + critic_at(self, k), &self->q_pass[k], self->d_q, NULL, self->d_row);
        for (uint32_t i = 0; i < self->n; i++)
            for (uint32_t j = 0; j < self->action; j++)
                self->d_action[(size_t)i * self->action + j] +=
                    self->d_row[(size_t)i * self->row + self->observation + j];
    }
    return sum / self->n;
}

static void critic_descend(struct agent *agent, struct agent_result *result)
{
    struct critic *self = agent->state;
    agent_scalar(result, "gradient_norm", agent_descend(agent, &self->q_optim, critic_at(self, 0)));
}

static void policy_descend(struct agent *agent, struct agent_result *result)
{
    struct critic *self = agent->state;
    agent_scalar(result, "policy_gradient_norm", agent_descend(agent, &self->policy_optim, 0));
}

/* Draws standard normal numbers by Box and Muller, in pairs: an odd n draws and drops one. */
static void draw_normals(struct rng *rng, float *out, uint32_t n)
{
    for (uint32_t i = 0; i < n; i += 2) {
        double normal[2];
        rng_normals(rng, normal);
        out[i] = (float)normal[0];
        if (i + 1 < n)
            out[i + 1] = (float)normal[1];
    }
}

/* ---- DDPG and TD3: a deterministic policy mu(s) = tanh(net(s)) ----
 *
 * DDPG (Lillicrap et al. 2016); with n-step returns, prioritized replay and many actors it is Ape-X DPG (Horgan et al. 2018):
 *
 *   y_i = R_i + g D_i Q_target(s'_i, mu_target(s'_i))
 *   J   = 1/n sum_i Q1(s_i, mu(s_i))                  dJ/dmu = dQ/da at a = mu(s), the deterministic policy gradient
 *
 * TD3 (Fujimoto et al. 2018) has three remedies against values that are too high:
 *
 *   a'_i = clip(mu_target(s'_i) + clip(N(0, 0.2), -0.5, 0.5), -1, 1)    target policy smoothing
 *   y_i  = R_i + g D_i min_k Qk_target(s'_i, a'_i)                      twin critics
 *   the policy and all targets move at each d-th step only
 *
 * Steps without a policy step leave zeros in its part of the gradient. Whether a step has one depends on the count
 * of steps alone, so parallel learners agree on it. */

/* TD3: standard deviation and bound of the noise on the target policy's action, as published. */
#define TARGET_SIGMA 0.2f
#define TARGET_CLIP 0.5f

/* True if the coming step, counted from 1, updates the policy. DDPG has no delay. */
static bool is_policy_step(const struct agent *self)
{
    const uint64_t delay = (uint64_t)self->config.policy_delay;
    return self->ops != &agent_td3 || (self->steps + 1) % delay == 0;
}

static void deterministic_act(struct agent *self, const struct agent_rows *rows, struct agent_choice *out)
{
    struct critic *critic = self->state;
    critic_policy_rows(critic, self, rows->observations, rows->n);
    for (uint32_t i = 0; i < rows->n; i++)
        agent_choose_continuous(self, critic->greedy + (size_t)i * critic->action, &rows->explore[i], rows->rng[i],
                                &out[i]);
    critic_judge(critic, self, rows->n, out);
}

/* Sets actions to tanh of the policy at n states. */
static void take_policy(struct critic *self, const float *params, const float *states)
{
    const float *out = net_forward(&self->policy, params, &self->policy_pass, states, self->n);
    for (uint32_t i = 0; i < self->n * self->action; i++)
        self->actions[i] = tanhf(out[i]);
}

/* Similar actions should have similar values: noise blurs the target's action. */
static void smooth(struct agent *self)
{
    struct critic *critic = self->state;
    const uint32_t count = critic->n * critic->action;
    draw_normals(&self->rng, critic->noise, count);
    for (uint32_t i = 0; i < count; i++) {
        float noise = fminf(fmaxf(TARGET_SIGMA * critic->noise[i], -TARGET_CLIP), TARGET_CLIP);
        critic->actions[i] = fminf(fmaxf(critic->actions[i] + noise, -1.0f), 1.0f);
    }
}

static void deterministic_gradient(struct agent *self, const struct agent_batch *batch, struct agent_result *result)
{
    struct critic *critic = self->state;
    critic_begin(critic, self, batch, result);
    take_policy(critic, critic->target, critic->states_next);
    if (self->ops == &agent_td3)
        smooth(self);
    critic_targets(critic, self, batch, critic->actions, NULL);
    critic_regress(critic, self, batch, result);
    if (!is_policy_step(self))
        return;
    take_policy(critic, self->params, critic->states);
    agent_scalar(result, "policy_loss", -critic_ascend(critic, self, 1));
    for (uint32_t i = 0; i < critic->n * critic->action; i++)
        critic->d_policy[i] = -critic->d_action[i] * (1.0f - critic->actions[i] * critic->actions[i]);
    net_backward(&critic->policy, self->params, &critic->policy_pass, critic->d_policy, self->grads, NULL);
}

static void deterministic_apply(struct agent *self, struct agent_result *result)
{
    struct critic *critic = self->state;
    const bool policy_step = is_policy_step(self);
    critic_descend(self, result);
    self->steps++;
    if (!policy_step)
        return;
    policy_descend(self, result);
    agent_update_target(self, critic->target, self->params, self->n_params);
}

static rp_status ddpg_create(struct agent *self, rp_error *err)
{
    return critic_create(self, &(struct critic_plan){.n_q = 1, .heads = 1, .target_policy = true}, err);
}

static rp_status td3_create(struct agent *self, rp_error *err)
{
    const struct agent_config *config = &self->config;
    if (config->target_period % config->policy_delay != 0)
        return err_set(err, RP_INVALID_ARGUMENT,
                       "agent.target is %lld; td3 moves its targets with its policy, so it must be a multiple of "
                       "policy_delay, %lld",
                       (long long)config->target_period, (long long)config->policy_delay);
    return critic_create(self, &(struct critic_plan){.n_q = 2, .heads = 1, .target_policy = true}, err);
}

static int64_t critic_hidden[] = {256, 256};
static const struct agent_config ddpg_defaults = {
    .hidden = {.data = critic_hidden, .count = 2},
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
    .act = deterministic_act,
    .gradient = deterministic_gradient,
    .apply = deterministic_apply,
};

static const struct agent_config td3_defaults = {
    .hidden = {.data = critic_hidden, .count = 2},
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
    .act = deterministic_act,
    .gradient = deterministic_gradient,
    .apply = deterministic_apply,
};

/* ---- SAC (Haarnoja et al. 2018, with the learned temperature of "Algorithms and Applications"): a random policy that is
 * paid for its entropy ----
 *
 * The policy network gives a mean and a log deviation for each number of an action, and with noise e ~ N(0, 1)
 *
 *   u = mean + exp(log_std) e,   a = tanh(u)
 *   log pi(a|s) = sum_j -e_j^2 / 2 - log_std_j - log(2 pi) / 2 - log(1 - a_j^2)
 *
 *   y_i     = R_i + g D_i (min_k Qk_target(s'_i, a'_i) - alpha log pi(a'_i|s'_i))
 *   L_pi    = 1/n sum_i alpha log pi(a~_i|s_i) - min_k Qk(s_i, a~_i)          a~_i fresh from the policy at s_i
 *   L_alpha = 1/n sum_i -alpha (log pi(a~_i|s_i) + target_entropy)            alpha = exp(parameter)
 *
 * Derivatives of L_pi, with e fixed, written out for one item and one number of its action:
 *
 *   dL/du       = alpha 2 a - dQ/da (1 - a^2)       for d/du -log(1 - tanh^2 u) = 2 tanh u
 *   dL/dmean    = dL/du
 *   dL/dlog_std = dL/du exp(log_std) e - alpha      none where log_std is at its limits */

#define LOG_STD_MIN (-20.0f)
#define LOG_STD_MAX 2.0f
/* Bound of log alpha. A target entropy that no policy can reach would drive it to infinity. */
#define LOG_ALPHA_LIMIT 20.0f

static double alpha_of(const struct agent *self)
{
    return self->config.alpha > 0 ? self->config.alpha : exp((double)self->params[critic_extra_at(self->state)]);
}

static float log_std_of(float output)
{
    return fminf(fmaxf(output, LOG_STD_MIN), LOG_STD_MAX);
}

/* log(1 - tanh(u)^2), also where tanh(u) rounds to 1. */
static float log_slope(float u)
{
    return 2.0f * (0.693147181f - fabsf(u) - log1pf(expf(-2.0f * fabsf(u))));
}

/* Actions and log pi from n rows of the policy's output and their noise. */
static void sample(uint32_t n, uint32_t size, const float *output, const float *noise, float *actions, float *log_prob)
{
    for (uint32_t i = 0; i < n; i++, output += 2 * size, noise += size, actions += size) {
        double sum = 0.0;
        for (uint32_t j = 0; j < size; j++) {
            float log_std = log_std_of(output[size + j]);
            float u = output[j] + expf(log_std) * noise[j];
            actions[j] = tanhf(u);
            sum -= 0.5f * noise[j] * noise[j] + log_std + 0.918938533f + log_slope(u);
        }
        log_prob[i] = (float)sum;
    }
}

/* output: of the policy for row i. */
static void sac_choose(const struct agent *self, const struct agent_rows *rows, uint32_t i, const float *output,
                       struct agent_choice *out)
{
    const struct critic *critic = self->state;
    const struct agent_explore *explore = &rows->explore[i];
    const float *action = critic->greedy + (size_t)i * critic->action;
    float noise[RP_ENV_MAX_ACTION], drawn[RP_ENV_MAX_ACTION], log_prob;
    if (!explore->greedy && !explore->uniform) {
        draw_normals(rows->rng[i], noise, critic->action);
        sample(1, critic->action, output, noise, drawn, &log_prob);
        action = drawn;
    }
    agent_choose_continuous(self, action, explore, rows->rng[i], out);
}

static void sac_act(struct agent *self, const struct agent_rows *rows, struct agent_choice *out)
{
    struct critic *critic = self->state;
    const float *output = critic_policy_rows(critic, self, rows->observations, rows->n);
    for (uint32_t i = 0; i < rows->n; i++)
        sac_choose(self, rows, i, output + (size_t)i * 2 * critic->action, &out[i]);
    critic_judge(critic, self, rows->n, out);
}

static void gradient_of_critics(struct agent *self, const struct agent_batch *batch, struct agent_result *result)
{
    struct critic *critic = self->state;
    const float alpha = (float)alpha_of(self);
    float *bonus = critic->log_prob + critic->n;
    for (uint32_t i = 0; i < critic->n; i++)
        bonus[i] *= -alpha;
    critic_targets(critic, self, batch, critic->actions + (size_t)critic->n * critic->action, bonus);
    critic_regress(critic, self, batch, result);
}

static void gradient_of_policy(struct agent *self, const float *output, struct agent_result *result)
{
    struct critic *critic = self->state;
    const uint32_t n = critic->n, size = critic->action;
    const float alpha = (float)alpha_of(self), share = 1.0f / (float)n;
    double value = critic_ascend(critic, self, 2);

    double log_prob = 0.0;
    for (uint32_t i = 0; i < n; i++) {
        const float *out = output + (size_t)i * 2 * size;
        float *d_out = critic->d_policy + (size_t)i * 2 * size;
        for (uint32_t j = 0; j < size; j++) {
            size_t at = (size_t)i * size + j;
            float a = critic->actions[at], log_std = log_std_of(out[size + j]);
            float d_u = share * alpha * 2.0f * a - critic->d_action[at] * (1.0f - a * a);
            d_out[j] = d_u;
            d_out[size + j] = log_std == out[size + j] ? d_u * expf(log_std) * critic->noise[at] - share * alpha : 0.0f;
        }
        log_prob += critic->log_prob[i];
    }
    /* The pass was over s and s'; only the first n rows have a derivative. */
    critic->policy_pass.batch = n;
    net_backward(&critic->policy, self->params, &critic->policy_pass, critic->d_policy, self->grads, NULL);
    agent_scalar(result, "policy_loss", alpha_of(self) * log_prob / n - value);
}

static void gradient_of_alpha(struct agent *self, struct agent_result *result)
{
    struct critic *critic = self->state;
    double log_prob = 0.0, alpha = alpha_of(self);
    for (uint32_t i = 0; i < critic->n; i++)
        log_prob += critic->log_prob[i];
    log_prob /= critic->n;
    if (!(self->config.alpha > 0))
        self->grads[critic_extra_at(critic)] = (float)(-alpha * (log_prob + critic->target_entropy));
    agent_scalar(result, "alpha", alpha);
    agent_scalar(result, "entropy", -log_prob);
}

static void sac_gradient(struct agent *self, const struct agent_batch *batch, struct agent_result *result)
{
    struct critic *critic = self->state;
    critic_begin(critic, self, batch, result);
    const uint32_t n = critic->n;
    const float *output = net_forward(&critic->policy, self->params, &critic->policy_pass, critic->states, 2 * n);
    draw_normals(&self->rng, critic->noise, 2 * n * critic->action);
    sample(2 * n, critic->action, output, critic->noise, critic->actions, critic->log_prob);
    gradient_of_critics(self, batch, result);
    gradient_of_policy(self, output, result);
    gradient_of_alpha(self, result);
}

static void sac_apply(struct agent *self, struct agent_result *result)
{
    struct critic *critic = self->state;
    const uint32_t at = critic_extra_at(critic);
    critic_descend(self, result);
    policy_descend(self, result);
    if (!(self->config.alpha > 0)) {
        agent_scalar(result, "alpha_gradient_norm", agent_descend(self, &critic->alpha_optim, at));
        self->params[at] = fminf(fmaxf(self->params[at], -LOG_ALPHA_LIMIT), LOG_ALPHA_LIMIT);
    }
    self->steps++;
    const uint32_t q = critic_at(critic, 0);
    agent_update_target(self, critic->target + q, self->params + q, at - q);
}

static rp_status sac_create(struct agent *self, rp_error *err)
{
    struct critic *critic = self->state;
    RP_TRY(critic_create(self, &(struct critic_plan){.n_q = 2, .heads = 2, .n_extra = 1}, err));
    agent_optim(self, &critic->alpha_optim, 1);
    double entropy = self->config.target_entropy;
    critic->target_entropy = entropy != 0 ? entropy : -(double)self->spec.action_size;
    agent_add_vector(self, "log_alpha", RP_DTYPE_FLOAT32, self->params + critic_extra_at(critic), 1);
    agent_add_optim(self, "optimiser/alpha", &critic->alpha_optim);
    return RP_OK;
}

static const struct agent_config sac_defaults = {
    .hidden = {.data = critic_hidden, .count = 2},
    .batch = 256,
    .discount = 0.99,
    .learning_rate = 3e-4,
    .tau = 0.005,
};

const struct agent_ops agent_sac = {
    .name = "sac",
    .help = "a random policy that maximises return and entropy, with twin critics and a learned temperature",
    .data = AGENT_TRANSITIONS,
    .continuous = true,
    .defaults = &sac_defaults,
    .state_size = sizeof(struct critic),
    .create = sac_create,
    .act = sac_act,
    .gradient = sac_gradient,
    .apply = sac_apply,
};
