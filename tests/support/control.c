#include "tests/support/control.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

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

struct agent *control_agent(const struct agent_config *config, uint64_t seed)
{
    rp_env_spec spec = {
        .observation_dtype = RP_DTYPE_FLOAT32,
        .observation_rank = 1,
        .observation_shape = {CONTROL_OBSERVATION},
        .action_size = CONTROL_ACTION,
    };
    for (uint32_t j = 0; j < CONTROL_ACTION; j++) {
        spec.action_low[j] = -2.0f;
        spec.action_high[j] = 3.0f;
    }
    rp_error err = {0};
    struct agent *agent = agent_new(config, "Test", &spec, seed, &err);
    if (!agent)
        fail_msg("%s", err.text);
    return agent;
}

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
    self->discount = agent->config.discount;
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

void control_check_near(double got, double want, double tolerance)
{
    if (!(fabs(got - want) <= tolerance * (1 + fabs(want))))
        fail_msg("got %.9g, want %.9g within %g", got, want, tolerance);
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

double control_scalar(const struct agent_result *result, const char *name)
{
    for (uint32_t i = 0; i < result->n_scalars; i++)
        if (strcmp(result->scalars[i].name, name) == 0)
            return result->scalars[i].value;
    fail_msg("no scalar '%s'", name);
    return NAN;
}

/* ---- acting ---- */

static void check_judgement(const struct control_case *self, const float *observation,
                            const struct agent_choice *choice)
{
    double greedy[2 * CONTROL_ACTION], taken[CONTROL_ACTION];
    control_policy(self, self->params, observation, greedy);
    for (uint32_t j = 0; j < CONTROL_ACTION; j++) {
        greedy[j] = tanh(greedy[j]);
        taken[j] = (double)choice->continuous[j];
        assert_true(fabs(taken[j]) <= 1.0);
    }
    control_check_near((double)choice->value, control_q(self, self->params, 0, observation, greedy), 1e-5);
    control_check_near((double)choice->q, control_q(self, self->params, 0, observation, taken), 1e-5);
}

static void check_uniform(struct agent *agent, const float *observation, struct rng *rng)
{
    const struct agent_explore uniform = {.uniform = true};
    double sum = 0.0, squares = 0.0;
    const uint32_t n = 4000;
    for (uint32_t i = 0; i < n; i++) {
        struct agent_choice choice;
        agent->ops->act(agent, observation, &uniform, rng, &choice);
        for (uint32_t j = 0; j < CONTROL_ACTION; j++) {
            assert_true(fabsf(choice.continuous[j]) <= 1.0f);
            sum += (double)choice.continuous[j];
            squares += (double)choice.continuous[j] * (double)choice.continuous[j];
        }
    }
    assert_true(fabs(sum / n / CONTROL_ACTION) < 0.05);
    assert_true(fabs(squares / n / CONTROL_ACTION - 1.0 / 3.0) < 0.03);
}

void control_check_act(struct agent *agent, bool deterministic)
{
    struct control_case c;
    control_case_init(&c, agent, 5);
    struct rng rng;
    rng_seed(&rng, 1);
    const float *s = c.batch.observation;
    struct agent_choice greedy, again, noisy, bounded;
    struct rng before = rng;
    agent->ops->act(agent, s, &(struct agent_explore){.greedy = true}, &rng, &greedy);
    assert_memory_equal(&before, &rng, sizeof rng);
    check_judgement(&c, s, &greedy);
    control_check_near((double)greedy.q, (double)greedy.value, 0.0);
    control_check_near((double)agent->ops->value(agent, s), (double)greedy.value, 0.0);
    double mean[2 * CONTROL_ACTION];
    control_policy(&c, c.params, s, mean);
    for (uint32_t j = 0; j < CONTROL_ACTION; j++)
        control_check_near((double)greedy.continuous[j], tanh(mean[j]), 1e-5);

    agent->ops->act(agent, s, &(struct agent_explore){0}, &rng, &again);
    check_judgement(&c, s, &again);
    assert_int_equal(deterministic, memcmp(greedy.continuous, again.continuous, CONTROL_ACTION * sizeof(float)) == 0);

    /* The same random numbers again, now with noise on top; huge noise ends at the bounds. */
    float noise[CONTROL_ACTION] = {0.05f, -0.04f};
    rng = before;
    agent->ops->act(agent, s, &(struct agent_explore){.noise = noise}, &rng, &noisy);
    check_judgement(&c, s, &noisy);
    for (uint32_t j = 0; j < CONTROL_ACTION; j++)
        control_check_near((double)noisy.continuous[j],
                           fmin(fmax((double)again.continuous[j] + (double)noise[j], -1), 1), 1e-6);
    noise[0] = 50.0f;
    noise[1] = -50.0f;
    agent->ops->act(agent, s, &(struct agent_explore){.noise = noise}, &rng, &bounded);
    assert_true(bounded.continuous[0] == 1.0f && bounded.continuous[1] == -1.0f);
    check_uniform(agent, s, &rng);
    control_case_fini(&c);
}

/* ---- learning ---- */

static void best_action(const float *observation, float *out)
{
    out[0] = 0.7f * observation[0];
    out[1] = 0.2f * observation[2] - 0.5f * observation[1];
}

double control_bandit(struct agent *agent, uint32_t steps)
{
    struct control_batch batch;
    struct agent_result result = {0};
    struct rng rng;
    rng_seed(&rng, 77);
    float best[CONTROL_ACTION];
    for (uint32_t step = 0; step < steps; step++) {
        control_fill(&batch, &rng, (uint32_t)agent->config.batch);
        batch.view.weight = NULL;
        for (uint32_t i = 0; i < batch.view.n; i++) {
            best_action(batch.observation + (size_t)i * CONTROL_OBSERVATION, best);
            float a = batch.action[i * CONTROL_ACTION] - best[0], b = batch.action[i * CONTROL_ACTION + 1] - best[1];
            batch.reward[i] = -(a * a + b * b);
            batch.discount[i] = 0.0f;
        }
        agent_learn(agent, &batch.view, &result);
    }
    double error = 0.0;
    const struct agent_explore greedy = {.greedy = true};
    for (uint32_t i = 0; i < 200; i++) {
        float s[CONTROL_OBSERVATION];
        struct agent_choice choice;
        fill(s, CONTROL_OBSERVATION, &rng, -1, 1);
        best_action(s, best);
        agent->ops->act(agent, s, &greedy, &rng, &choice);
        for (uint32_t j = 0; j < CONTROL_ACTION; j++)
            error += pow((double)choice.continuous[j] - (double)best[j], 2);
    }
    return sqrt(error / 200 / CONTROL_ACTION);
}

static void check_same_tensors(const struct agent *a, const struct agent *b, bool with_rng)
{
    assert_int_equal(a->n_tensors, b->n_tensors);
    for (uint32_t i = 0; i < a->n_tensors; i++) {
        if (!with_rng && strcmp(a->tensors[i].name, "rng") == 0)
            continue;
        assert_string_equal(a->tensors[i].name, b->tensors[i].name);
        if (memcmp(a->tensors[i].data, b->tensors[i].data, tensor_bytes(&a->tensors[i])) != 0)
            fail_msg("tensor '%s' is not the same", a->tensors[i].name);
    }
    assert_memory_equal(((struct critic *)a->state)->priority, ((struct critic *)b->state)->priority,
                        with_rng ? (size_t)a->config.batch * sizeof(double) : 0);
}

void control_check_saved(const struct agent_config *config)
{
    struct agent *first = control_agent(config, 1), *second = control_agent(config, 2);
    struct control_batch batch;
    struct agent_result result = {0};
    struct rng rng;
    rng_seed(&rng, 3);
    for (uint32_t i = 0; i < 15; i++) {
        control_fill(&batch, &rng, (uint32_t)config->batch);
        agent_learn(first, &batch.view, &result);
    }
    size_t size = weights_size(first->tensors, first->n_tensors);
    void *block = malloc(size);
    assert_non_null(block);
    weights_encode(first->tensors, first->n_tensors, block);
    rp_error err = {0};
    if (weights_decode(block, size, second->tensors, second->n_tensors, &err) != RP_OK)
        fail_msg("%s", err.text);
    free(block);
    assert_int_equal(second->steps, 15);
    for (uint32_t i = 0; i < 15; i++) {
        control_fill(&batch, &rng, (uint32_t)config->batch);
        agent_learn(first, &batch.view, &result);
        agent_learn(second, &batch.view, &result);
    }
    check_same_tensors(first, second, true);
    agent_destroy(&first);
    agent_destroy(&second);
}

void control_check_averaged(const struct agent_config *config)
{
    struct agent *pair[2] = {control_agent(config, 4), control_agent(config, 4)};
    struct rng rng;
    rng_seed(&rng, 8);
    rng_seed(&pair[1]->rng, 99);
    uint32_t n = pair[0]->n_params, apart = 0;
    for (uint32_t step = 0; step < 40; step++) {
        struct agent_result result = {0};
        for (uint32_t k = 0; k < 2; k++) {
            struct control_batch batch;
            control_fill(&batch, &rng, (uint32_t)config->batch);
            pair[k]->ops->gradient(pair[k], &batch.view, &result);
        }
        for (uint32_t i = 0; i < n; i++) {
            float mean = 0.5f * (pair[0]->grads[i] + pair[1]->grads[i]);
            apart += pair[0]->grads[i] != pair[1]->grads[i];
            pair[0]->grads[i] = pair[1]->grads[i] = mean;
        }
        for (uint32_t k = 0; k < 2; k++)
            pair[k]->ops->apply(pair[k], &result);
    }
    assert_true(apart > n); /* they did differ */
    check_same_tensors(pair[0], pair[1], false);
    agent_destroy(&pair[0]);
    agent_destroy(&pair[1]);
}
