#include "tests/support/learning.h"

#include "agent/learn/adder.h"

const rp_env_spec learning_discrete = {.observation_dtype = RP_DTYPE_FLOAT32,
                                       .observation_rank = 1,
                                       .observation_shape = {LEARNING_INPUTS},
                                       .n_actions = LEARNING_ACTIONS};
const rp_env_spec learning_continuous = {.observation_dtype = RP_DTYPE_FLOAT32,
                                         .observation_rank = 1,
                                         .observation_shape = {LEARNING_INPUTS},
                                         .action_size = LEARNING_SIZE,
                                         .action_low = {-2, 0},
                                         .action_high = {3, 1}};

void learning_data(struct learning_data *self, struct rng *rng, bool discrete, uint32_t n, uint32_t length)
{
    assert_true(n * length <= LEARNING_ROWS);
    for (uint32_t i = 0; i < n * length; i++) {
        for (uint32_t k = 0; k < LEARNING_INPUTS; k++) {
            self->observation[i][k] = learning_uniform(rng);
            self->next[i][k] = learning_uniform(rng);
        }
        for (uint32_t k = 0; k < LEARNING_SIZE; k++)
            self->continuous[i][k] = learning_uniform(rng);
        self->discrete[i] = (int32_t)rng_below(rng, LEARNING_ACTIONS);
        self->reward[i] = 2.0f * learning_uniform(rng);
        self->discount[i] = i % 3 == 0 ? 0.0f : (float)(0.5 + 0.5 * rng_unit(rng));
        self->weight[i] = (float)(0.1 + 0.9 * rng_unit(rng));
        self->log_prob[i] = -0.7f;
        self->step_type[i] = STEP_MID;
    }
    self->batch = (struct agent_batch){.n = n,
                                       .length = length,
                                       .observation = self->observation,
                                       .next_observation = self->next,
                                       .action = discrete ? (const void *)self->discrete : self->continuous,
                                       .reward = self->reward,
                                       .discount = self->discount,
                                       .weight = self->weight,
                                       .log_prob = self->log_prob,
                                       .step_type = self->step_type};
}

static void destroy(void *agent)
{
    agent_destroy(&(struct agent *){agent});
}

struct agent *learning_agent(const struct agent_config *config, const rp_env_spec *spec, uint64_t seed)
{
    struct agent *agent = agent_new(config, "Test", spec, seed, &err);
    if (!agent)
        fail_msg("%s: %s", config->algorithm, err.text);
    at_end(destroy, agent);
    return agent;
}

void learning_act(struct agent *agent, const void *observation, const struct agent_explore *explore, struct rng *rng,
                  struct agent_choice *out)
{
    agent->ops->act(agent, &(struct agent_rows){1, observation, explore, &rng}, out);
}

float learning_uniform(struct rng *rng)
{
    return (float)(2.0 * rng_unit(rng) - 1.0);
}

void learning_shake(struct agent *agent, struct rng *rng, float by)
{
    for (uint32_t k = 0; k < agent->n_params; k++)
        agent->params[k] += by * learning_uniform(rng);
}

void learning_shake_target(struct agent *agent, struct rng *rng)
{
    for (uint32_t i = 0; i < agent->n_tensors; i++) {
        struct tensor *tensor = &agent->tensors[i];
        if (strncmp(tensor->name, "target/", 7) != 0)
            continue;
        for (uint64_t k = 0; k < tensor_bytes(tensor) / sizeof(float); k++)
            ((float *)tensor->data)[k] += learning_uniform(rng);
    }
}

double learning_scalar(const struct agent_result *result, const char *name)
{
    for (uint32_t i = 0; i < result->n_scalars; i++)
        if (strcmp(result->scalars[i].name, name) == 0)
            return result->scalars[i].value;
    fail_msg("no scalar '%s'", name);
    return NAN;
}

struct tensor *learning_tensor(struct agent *agent, const char *name)
{
    for (uint32_t i = 0; i < agent->n_tensors; i++)
        if (strcmp(agent->tensors[i].name, name) == 0)
            return &agent->tensors[i];
    fail_msg("no tensor '%s'", name);
    return NULL;
}

void learning_check_derivatives(const struct agent *agent, const struct dense *net, double (*loss)(const void *ctx),
                                const void *ctx)
{
    const double step = 1e-6;
    double largest = 0.0;
    for (uint32_t k = 0; k < net->n_params; k++) {
        double at = net->params[k];
        net->params[k] = at + step;
        double more = loss(ctx);
        net->params[k] = at - step;
        double less = loss(ctx);
        net->params[k] = at;
        double want = (more - less) / (2.0 * step), got = (double)agent->grads[net->source[k] - agent->params];
        if (!(fabs(got - want) <= 1e-4 * fabs(want) + 2e-6))
            fail_msg("parameter %u: derivative %.9g, by differences %.9g", k, got, want);
        largest = fmax(largest, fabs(want));
    }
    assert_true(largest > 1e-3); /* the loss does depend on these */
}
