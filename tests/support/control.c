#include "tests/support/control.h"
#include "tests/support/test.h"

#include <stddef.h>
#include <stdint.h>

#include <math.h>
#include <stdlib.h>
#include <string.h>

static int64_t small[] = {6, 5};

struct agent_config control_config(const char *algorithm)
{
    return (struct agent_config){
        .algorithm = (char *)(uintptr_t)algorithm,
        .hidden = {.data = small, .count = 2},
        .activation = 1,
        .batch = 7,
        .discount = 0.9,
        .learning_rate = 1e-2,
    };
}

const rp_env_spec control_spec = {
    .observation_dtype = RP_DTYPE_FLOAT32,
    .observation_rank = 1,
    .observation_shape = {CONTROL_OBSERVATION},
    .action_size = CONTROL_ACTION,
    .action_low = {-2, -2},
    .action_high = {3, 3},
};

static float between(struct rng *rng, double low, double high)
{
    return (float)(low + (high - low) * rng_unit(rng));
}

static void fill(float *out, size_t n, struct rng *rng, double low, double high)
{
    for (size_t i = 0; i < n; i++)
        out[i] = between(rng, low, high);
}

void control_fill(struct control_batch *self, struct rng *rng, uint32_t n)
{
    fill(self->observation, (size_t)n * CONTROL_OBSERVATION, rng, -1, 1);
    fill(self->next_observation, (size_t)n * CONTROL_OBSERVATION, rng, -1, 1);
    fill(self->action, (size_t)n * CONTROL_ACTION, rng, -1, 1);
    fill(self->reward, n, rng, -1, 1);
    fill(self->discount, n, rng, 0.5, 1);
    fill(self->weight, n, rng, 0.1, 1);
    for (uint32_t i = 3; i < n; i += 4)
        self->discount[i] = 0.0f;
    self->view = (struct agent_batch){
        .n = n,
        .length = 1,
        .observation = self->observation,
        .next_observation = self->next_observation,
        .action = self->action,
        .reward = self->reward,
        .discount = self->discount,
        .weight = self->weight,
    };
}

/* ---- losses in double ---- */

static double *doubles(const float *from, uint32_t n)
{
    double *out = malloc(n * sizeof *out);
    assert_non_null(out);
    for (uint32_t i = 0; i < n; i++)
        out[i] = (double)from[i];
    return out;
}

void control_case_init(struct control_case *self, struct agent *agent, uint64_t seed)
{
    struct critic *critic = agent->state; /* the first member of each algorithm's state */
    struct rng rng;
    rng_seed(&rng, seed);
    memset(self, 0, sizeof *self);
    self->critic = critic;
    self->n = (uint32_t)agent->config.batch;
    self->config = &agent->config;
    fill(agent->params, agent->n_params, &rng, -0.8, 0.8);
    fill(critic->target, agent->n_params, &rng, -0.8, 0.8);
    fill(agent->grads, agent->n_params, &rng, -9, 9); /* to be overwritten */
    control_fill(&self->batch, &rng, self->n);
    self->params = doubles(agent->params, agent->n_params);
    self->target = doubles(critic->target, agent->n_params);
}

void control_case_fini(struct control_case *self)
{
    free(self->params);
    free(self->target);
}

void control_net(const struct net *net, const double *params, const double *in, double *out)
{
    double x[64], y[64];
    memcpy(x, in, net->spec.inputs * sizeof *x);
    for (uint32_t l = 0; l < net->n_layers; l++) {
        const struct net_layer *layer = &net->layers[l];
        for (uint32_t o = 0; o < layer->outputs; o++) {
            double sum = params[layer->bias + o];
            for (uint32_t i = 0; i < layer->inputs; i++)
                sum += x[i] * params[layer->weight + i * layer->outputs + o];
            y[o] = l + 1 < net->n_layers ? tanh(sum) : sum;
        }
        memcpy(x, y, layer->outputs * sizeof *x);
    }
    memcpy(out, x, net->spec.outputs * sizeof *out);
}

double control_q(const struct control_case *self, const double *params, uint32_t k, const float *observation,
                 const double *action)
{
    double row[CONTROL_OBSERVATION + CONTROL_ACTION], q;
    for (uint32_t j = 0; j < CONTROL_OBSERVATION; j++)
        row[j] = (double)observation[j];
    memcpy(row + CONTROL_OBSERVATION, action, CONTROL_ACTION * sizeof *row);
    control_net(&self->critic->q, params + critic_at(self->critic, k), row, &q);
    return q;
}

void control_policy(const struct control_case *self, const double *params, const float *observation, double *out)
{
    double in[CONTROL_OBSERVATION];
    for (uint32_t j = 0; j < CONTROL_OBSERVATION; j++)
        in[j] = (double)observation[j];
    control_net(&self->critic->policy, params, in, out);
}

double control_critic_loss(const struct control_case *self, const double *params)
{
    double loss = 0.0;
    for (uint32_t i = 0; i < self->n; i++) {
        double action[CONTROL_ACTION];
        for (uint32_t j = 0; j < CONTROL_ACTION; j++)
            action[j] = (double)self->batch.action[i * CONTROL_ACTION + j];
        for (uint32_t k = 0; k < self->critic->plan.n_q; k++) {
            double q = control_q(self, params, k, self->batch.observation + (size_t)i * CONTROL_OBSERVATION, action);
            loss += (double)self->batch.weight[i] * (q - self->y[i]) * (q - self->y[i]) / 2;
        }
    }
    return loss / self->n;
}

void control_check_gradient(const struct control_case *self, const struct agent *agent, uint32_t from, uint32_t n,
                            control_loss *loss)
{
    const double h = 1e-5;
    double *params = doubles(agent->params, agent->n_params);
    double largest = 0.0;
    for (uint32_t i = from; i < from + n; i++) {
        double was = params[i];
        params[i] = was + h;
        double above = loss(self, params);
        params[i] = was - h;
        double below = loss(self, params);
        params[i] = was;
        double want = (above - below) / (2 * h), got = (double)agent->grads[i];
        if (!(fabs(got - want) <= 1e-4 * fabs(want) + 2e-6))
            fail_msg("parameter %u: derivative %.9g, by differences %.9g", i, got, want);
        largest = fmax(largest, fabs(want));
    }
    assert_true(largest > 1e-3); /* the loss does depend on this part */
    free(params);
}

/* ---- the losses of each algorithm ---- */

static void tanh_policy(const struct control_case *c, const double *params, const float *observation, double *action)
{
    control_policy(c, params, observation, action);
    for (uint32_t j = 0; j < CONTROL_ACTION; j++)
        action[j] = tanh(action[j]);
}

static double clamp(double x, double limit)
{
    return fmin(fmax(x, -limit), limit);
}

/* The smaller of two critics. Counts which of them it was. */
static double smaller_q(const struct control_case *c, const double *params, const float *observation,
                        const double *action, uint32_t wins[2])
{
    double q1 = control_q(c, params, 0, observation, action), q2 = control_q(c, params, 1, observation, action);
    if (c->wins)
        wins[q2 < q1]++;
    return fmin(q1, q2);
}

/* y = R + g D Q'(s', mu'(s')) */
static double ddpg_next(const struct control_case *c, uint32_t i, const float *next)
{
    double action[CONTROL_ACTION];
    (void)i;
    tanh_policy(c, c->target, next, action);
    return control_q(c, c->target, 0, next, action);
}

/* a' = clip(mu'(s') + clip(sigma e, c), 1); y = R + g D min(Q1'(s', a'), Q2'(s', a')) */
static double td3_next(const struct control_case *c, uint32_t i, const float *next)
{
    double action[CONTROL_ACTION];
    tanh_policy(c, c->target, next, action);
    for (uint32_t j = 0; j < CONTROL_ACTION; j++)
        action[j] = clamp(action[j] + clamp((double)TD3_TARGET_SIGMA * (double)c->noise[i * CONTROL_ACTION + j],
                                            (double)TD3_TARGET_CLIP),
                          1);
    return smaller_q(c, c->target, next, action, c->wins ? c->wins->target : NULL);
}

/* The first critic alone guides the policy. Only the policy's part of params moves it: the critic is the one of before the
 * step. */
static double first_critic_loss(const struct control_case *c, const double *params)
{
    double sum = 0.0;
    for (uint32_t i = 0; i < c->n; i++) {
        const float *s = c->batch.observation + (size_t)i * CONTROL_OBSERVATION;
        double action[CONTROL_ACTION];
        tanh_policy(c, params, s, action);
        sum += control_q(c, c->params, 0, s, action);
    }
    return -sum / c->n;
}

double control_alpha(const struct control_case *c, const double *params)
{
    return exp(params[critic_extra_at(c->critic)]);
}

double control_draw(const struct control_case *c, const double *params, const float *observation, const float *noise,
                    double *action)
{
    const double pi = 3.14159265358979323846;
    double out[2 * CONTROL_ACTION], log_prob = 0.0;
    control_policy(c, params, observation, out);
    for (uint32_t j = 0; j < CONTROL_ACTION; j++) {
        double std = exp(fmin(fmax(out[CONTROL_ACTION + j], -20), 2)), u = out[j] + std * (double)noise[j];
        double density = exp(-pow((u - out[j]) / std, 2) / 2) / (std * sqrt(2 * pi));
        action[j] = tanh(u);
        log_prob += log(density * cosh(u) * cosh(u)); /* 1 - tanh^2 = 1 / cosh^2 */
    }
    return log_prob;
}

static double sac_next(const struct control_case *c, uint32_t i, const float *next)
{
    double action[CONTROL_ACTION];
    double log_prob = control_draw(c, c->params, next, c->noise + (size_t)(c->n + i) * CONTROL_ACTION, action);
    return smaller_q(c, c->target, next, action, c->wins ? c->wins->target : NULL) -
           control_alpha(c, c->params) * log_prob;
}

static double sac_policy_loss(const struct control_case *c, const double *params)
{
    double sum = 0.0;
    for (uint32_t i = 0; i < c->n; i++) {
        const float *s = c->batch.observation + (size_t)i * CONTROL_OBSERVATION;
        double action[CONTROL_ACTION];
        double log_prob = control_draw(c, params, s, c->noise + (size_t)i * CONTROL_ACTION, action);
        sum += control_alpha(c, c->params) * log_prob -
               smaller_q(c, c->params, s, action, c->wins ? c->wins->policy : NULL);
    }
    return sum / c->n;
}

const struct control_algorithm control_algorithms[CONTROL_ALGORITHMS] = {
    [CONTROL_DDPG] = {"ddpg", 0, ddpg_next, first_critic_loss},
    [CONTROL_TD3] = {"td3", 1, td3_next, first_critic_loss},
    [CONTROL_SAC] = {"sac", 2, sac_next, sac_policy_loss},
};

void control_fill_targets(struct control_case *self, const struct agent *agent)
{
    struct rng same = agent->rng;
    for (uint32_t k = 0; k < CONTROL_ALGORITHMS; k++) {
        const struct control_algorithm *algorithm = &control_algorithms[k];
        if (strcmp(algorithm->name, agent->ops->name) != 0)
            continue;
        critic_normals(&same, self->noise, algorithm->noises * self->n * CONTROL_ACTION);
        for (uint32_t i = 0; i < self->n; i++)
            self->y[i] = (double)self->batch.reward[i] +
                         self->config->discount * (double)self->batch.discount[i] *
                             algorithm->next(self, i, self->batch.next_observation + (size_t)i * CONTROL_OBSERVATION);
    }
}
