#include "tests/support/learning.h"

struct agent *learning_agent(const struct agent_config *config, const rp_env_spec *spec, uint64_t seed)
{
    struct agent *agent = agent_new(config, "Test", spec, seed, &err);
    if (!agent)
        fail_msg("%s: %s", config->algorithm, err.text);
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

void learning_near(double got, double want, double tolerance, const char *what)
{
    if (!(fabs(got - want) <= tolerance * (1.0 + fabs(want))))
        fail_msg("%s is %.9g, not %.9g", what, got, want);
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
