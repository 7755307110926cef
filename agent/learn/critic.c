#include "agent/learn/critic.h"

#include <assert.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "agent/learn/algorithm.h"
#include "proto/base/error.h"

/* Scale of the first actions: near zero, where tanh is steep. */
#define POLICY_SCALE 0.01f

uint32_t critic_at(const struct critic *self, uint32_t q)
{
    return self->policy.n_params + q * self->q.n_params;
}

uint32_t critic_extra_at(const struct critic *self)
{
    return critic_at(self, self->plan.n_q);
}

static rp_status make_nets(struct critic *self, const struct agent *agent, rp_error *err)
{
    if (agent->config.filters > 0)
        return err_set(err, RP_INVALID_ARGUMENT,
                       "%s has no convolution, for its critics see observation and action in one row: set filters to 0",
                       agent->ops->name);
    struct net_spec spec;
    agent_net_spec(agent, &spec);
    spec.height = spec.width = spec.planes = spec.filters = spec.kernel = 0;
    spec.dueling = false;
    self->observation = spec.inputs;
    self->action = agent->spec.action_size;
    self->row = self->observation + self->action;

    spec.outputs = self->plan.heads * self->action;
    spec.output_scale = POLICY_SCALE;
    RP_TRY(net_init(&self->policy, &spec, err));
    spec.inputs = self->row;
    spec.outputs = 1;
    spec.output_scale = 0.0f;
    return net_init(&self->q, &spec, err);
}

/* Puts the buffers of a step into one block, so that nothing is allocated later. */
static bool critic_make_memory(struct critic *self)
{
    const size_t n = self->max_batch;
    struct {
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
        {&self->acting, self->max_rows * self->row},
        {&self->greedy, self->max_rows * self->action},
    };
    size_t floats = 0;
    for (size_t i = 0; i < sizeof parts / sizeof parts[0]; i++)
        floats += parts[i].floats;
    self->memory = calloc(floats, sizeof(float));
    self->priority = calloc(n, sizeof(double));
    if (!self->memory || !self->priority)
        return false;
    float *at = self->memory;
    for (size_t i = 0; i < sizeof parts / sizeof parts[0]; i++) {
        *parts[i].at = at;
        at += parts[i].floats;
    }
    uint32_t policy_rows = 2 * self->max_batch > self->max_rows ? 2 * self->max_batch : self->max_rows;
    uint32_t q_rows = self->max_batch > self->max_rows ? self->max_batch : self->max_rows;
    return net_pass_init(&self->policy_pass, &self->policy, policy_rows) &&
           net_pass_init(&self->q_pass[0], &self->q, q_rows) &&
           (self->plan.n_q < 2 || net_pass_init(&self->q_pass[1], &self->q, self->max_batch));
}

static rp_status make_params(struct critic *self, struct agent *agent, rp_error *err)
{
    const uint32_t n_q = self->plan.n_q * self->q.n_params;
    RP_TRY(agent_alloc(agent, critic_extra_at(self) + self->plan.n_extra, err));
    RP_TRY(agent_optim(agent, &self->policy_optim, self->policy.n_params, err));
    RP_TRY(agent_optim(agent, &self->q_optim, n_q, err));
    self->target = calloc(agent->n_params, sizeof(float));
    if (!self->target || !critic_make_memory(self))
        return err_set(err, RP_NO_MEMORY, "no memory for %s with batches of %u", agent->ops->name, self->max_batch);
    net_fill(&self->policy, agent->params, &agent->rng);
    for (uint32_t k = 0; k < self->plan.n_q; k++)
        net_fill(&self->q, agent->params + critic_at(self, k), &agent->rng);
    memcpy(self->target, agent->params, agent->n_params * sizeof(float));
    return RP_OK;
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

rp_status critic_init(struct critic *self, struct agent *agent, const struct critic_plan *plan, rp_error *err)
{
    self->plan = *plan;
    self->max_batch = (uint32_t)agent->config.batch;
    self->max_rows = agent->config.acting_rows;
    RP_TRY(make_nets(self, agent, err));
    RP_TRY(make_params(self, agent, err));
    add_tensors(self, agent);
    return RP_OK;
}

void critic_fini(struct critic *self)
{
    optim_fini(&self->policy_optim);
    optim_fini(&self->q_optim);
    net_pass_fini(&self->policy_pass);
    for (uint32_t k = 0; k < CRITIC_MAX; k++)
        net_pass_fini(&self->q_pass[k]);
    free(self->memory);
    free(self->priority);
    free(self->target);
}

/* ---- acting ---- */

const float *critic_policy_rows(struct critic *self, const struct agent *agent, const void *observations, uint32_t n)
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

void critic_choose(const struct critic *self, const float *action, const struct agent_explore *explore, struct rng *rng,
                   struct agent_choice *choice)
{
    choice->discrete = 0;
    choice->log_prob = 0.0f;
    for (uint32_t j = 0; j < self->action; j++) {
        float a = action[j];
        if (explore->uniform && !explore->greedy)
            a = (float)(2.0 * rng_unit(rng) - 1.0);
        else if (explore->noise && !explore->greedy)
            a = fminf(fmaxf(a + explore->noise[j], -1.0f), 1.0f);
        choice->continuous[j] = a;
    }
}

/* Q(s, a) of n observations; actions follow each other at `step` floats. */
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

void critic_judge(struct critic *self, const struct agent *agent, uint32_t n, struct agent_choice *choices)
{
    const float *values = judge(self, agent, n, self->greedy, self->action);
    for (uint32_t i = 0; i < n; i++)
        choices[i].value = choices[i].q = values[i];
    if (is_greedy(self, choices, n))
        return;
    values = judge(self, agent, n, choices[0].continuous, sizeof *choices / sizeof(float));
    for (uint32_t i = 0; i < n; i++)
        choices[i].q = values[i];
}

float critic_value(struct agent *agent, const void *observation)
{
    struct critic *self = agent->state;
    critic_policy_rows(self, agent, observation, 1);
    return *judge(self, agent, 1, self->greedy, 0);
}

void critic_act(struct agent *agent, const struct agent_rows *rows, struct agent_choice *out)
{
    struct critic *self = agent->state;
    critic_policy_rows(self, agent, rows->observations, rows->n);
    for (uint32_t i = 0; i < rows->n; i++)
        critic_choose(self, self->greedy + (size_t)i * self->action, &rows->explore[i], rows->rng[i], &out[i]);
    critic_judge(self, agent, rows->n, out);
}

/* ---- learning ---- */

static void fill_rows(const struct critic *self, float *rows, const float *states)
{
    for (uint32_t i = 0; i < self->n; i++)
        memcpy(rows + (size_t)i * self->row, states + (size_t)i * self->observation, self->observation * sizeof(float));
}

void critic_set_actions(const struct critic *self, float *rows, const float *actions)
{
    for (uint32_t i = 0; i < self->n; i++)
        memcpy(rows + (size_t)i * self->row + self->observation, actions + (size_t)i * self->action,
               self->action * sizeof(float));
}

static void take_states(const struct agent *agent, const void *observation, uint32_t n, uint32_t size, float *out)
{
    const float *floats = agent_floats(agent, observation, n, out);
    if (floats != out)
        memcpy(out, floats, (size_t)n * size * sizeof(float));
}

void critic_begin(struct critic *self, struct agent *agent, const struct agent_batch *batch,
                  struct agent_result *result)
{
    assert(batch->n > 0 && batch->n <= self->max_batch);
    self->n = batch->n;
    self->states_next = self->states + (size_t)self->n * self->observation;
    take_states(agent, batch->observation, self->n, self->observation, self->states);
    take_states(agent, batch->next_observation, self->n, self->observation, self->states_next);
    fill_rows(self, self->now, self->states);
    fill_rows(self, self->next, self->states_next);
    critic_set_actions(self, self->now, batch->action);
    memset(agent->grads, 0, agent->n_params * sizeof(float));
    result->priority = self->priority;
}

void critic_policy_many(struct critic *self, const float *params, const float *states, float *actions)
{
    const float *out = net_forward(&self->policy, params, &self->policy_pass, states, self->n);
    for (uint32_t i = 0; i < self->n * self->action; i++)
        actions[i] = tanhf(out[i]);
}

/* Adds the policy's part of the gradient of -J, from d_action = dJ/da at self->actions. */
static void critic_policy_back(struct critic *self, struct agent *agent)
{
    for (uint32_t i = 0; i < self->n * self->action; i++)
        self->d_policy[i] = -self->d_action[i] * (1.0f - self->actions[i] * self->actions[i]);
    net_backward(&self->policy, agent->params, &self->policy_pass, self->d_policy, agent->grads, NULL);
}

void critic_climb(struct agent *agent, struct agent_result *result)
{
    struct critic *self = agent->state;
    critic_policy_many(self, agent->params, self->states, self->actions);
    critic_set_actions(self, self->now, self->actions);
    double value = critic_ascend(self, agent, 1);
    critic_policy_back(self, agent);
    agent_scalar(result, "policy_loss", -value);
}

void critic_targets(struct critic *self, const struct agent *agent, const struct agent_batch *batch, const float *bonus)
{
    const double g = agent->config.discount;
    const float *q[CRITIC_MAX] = {0};
    assert(self->plan.n_q >= 1 && self->plan.n_q <= CRITIC_MAX);
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

void critic_regress(struct critic *self, struct agent *agent, const struct agent_batch *batch,
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

double critic_ascend(struct critic *self, const struct agent *agent, uint32_t n_q)
{
    const float *q[CRITIC_MAX];
    assert(n_q >= 1 && n_q <= self->plan.n_q);
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

void critic_descend(struct agent *agent, struct optim *optim, uint32_t offset, const char *norm_name,
                    struct agent_result *result)
{
    agent_scalar(result, norm_name, optim_clip(agent->grads + offset, optim->n, agent->config.clip_norm));
    optim_step(optim, agent->params + offset, agent->grads + offset);
}

/* Box and Muller, in pairs. */
void critic_normals(struct rng *rng, float *out, uint32_t n)
{
    for (uint32_t i = 0; i < n; i += 2) {
        double normal[2];
        rng_normals(rng, normal);
        out[i] = (float)normal[0];
        if (i + 1 < n)
            out[i + 1] = (float)normal[1];
    }
}
