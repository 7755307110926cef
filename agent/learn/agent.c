/* Makes agents: finds the algorithm, completes and checks its configuration. What the algorithms share is in algorithm.c. */
#include "agent/learn/agent.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "agent/env/classic.h"
#include "agent/env/env.h"
#include "proto/base/error.h"
#include "proto/base/need.h"

const struct agent_ops *const agent_algorithms[] = {&agent_dqn,    &agent_ddpg, &agent_td3, &agent_sac,
                                                    &agent_impala, &agent_bc,   NULL};

#define MAX_ALGORITHMS 32u

/* When the algorithm's default replaces a value of the configuration. */
enum fill {
    FILL_ZERO,     /* 0 */
    FILL_NEGATIVE, /* below 0, because 0 has a meaning */
    FILL_COST,     /* 0; a value below 0 becomes 0, which means none */
    FILL_NEVER
};

struct number {
    const char *name;
    size_t offset;
    bool whole; /* int64_t, else double */
    enum fill fill;
    double min, max;
};

#define WHOLE(field) #field, offsetof(struct agent_config, field), true
#define REAL(field) #field, offsetof(struct agent_config, field), false

static const struct number numbers[] = {
    {WHOLE(filters), FILL_NEVER, 0, 1024},
    {WHOLE(batch), FILL_ZERO, 1, 1 << 20},
    {REAL(discount), FILL_ZERO, 0, 1},
    {REAL(learning_rate), FILL_ZERO, 0, 10},
    {WHOLE(anneal), FILL_NEVER, 0, 1e12},
    {REAL(clip_norm), FILL_COST, 0, 1e9},
    {WHOLE(target_period), FILL_NEVER, 0, 1e12},
    {REAL(tau), FILL_NEVER, 0, 1},
    {REAL(importance_exponent), FILL_NEGATIVE, 0, 1},
    {REAL(huber), FILL_NEGATIVE, 0, 1e9},
    {WHOLE(policy_delay), FILL_ZERO, 0, 1e6},
    {REAL(alpha), FILL_NEGATIVE, 0, 1e6},
    {REAL(target_entropy), FILL_ZERO, -1e6, 1e6},
    {REAL(entropy_cost), FILL_COST, 0, 1e6},
    {REAL(value_cost), FILL_COST, 0, 1e6},
};

#define N_NUMBERS (sizeof numbers / sizeof numbers[0])

static double number_get(const struct number *number, const struct agent_config *config)
{
    const char *at = (const char *)config + number->offset;
    if (!number->whole)
        return *(const double *)(const void *)at;
    return (double)*(const int64_t *)(const void *)at;
}

static void number_put(const struct number *number, struct agent_config *config, double value)
{
    char *at = (char *)config + number->offset;
    if (number->whole)
        *(int64_t *)(void *)at = (int64_t)value;
    else
        *(double *)(void *)at = value;
}

static void number_fill(const struct number *number, struct agent_config *config, const struct agent_config *defaults)
{
    double value = number_get(number, config);
    bool use_default = number->fill == FILL_NEGATIVE ? value < 0.0 : value == 0.0;
    if (use_default && number->fill != FILL_NEVER)
        number_put(number, config, number_get(number, defaults));
    else if (number->fill == FILL_COST && value < 0.0)
        number_put(number, config, 0.0);
}

static void fill_in(struct agent_config *config, const struct agent_config *defaults)
{
    for (size_t i = 0; i < N_NUMBERS; i++)
        number_fill(&numbers[i], config, defaults);
    if (config->hidden.count == 0)
        config->hidden = defaults->hidden;
    if (config->target_period == 0 && config->tau == 0.0) {
        config->target_period = defaults->target_period;
        config->tau = defaults->tau;
    }
}

static rp_status check_numbers(const struct agent_config *config, rp_error *err)
{
    for (size_t i = 0; i < N_NUMBERS; i++) {
        const struct number *number = &numbers[i];
        double value = number_get(number, config);
        if (!(value >= number->min && value <= number->max))
            return err_set(err, RP_INVALID_ARGUMENT, "agent.%s is %g; it must lie between %g and %g", number->name,
                           value, number->min, number->max);
    }
    if (!(config->learning_rate > 0.0))
        return err_set(err, RP_INVALID_ARGUMENT, "agent.learning_rate must be more than 0");
    if (config->target_period > 0 && config->tau > 0.0)
        return err_set(err, RP_INVALID_ARGUMENT,
                       "agent.target copies the target from time to time or moves it at each step: give one of them");
    if (config->activation != 0 && config->activation != 1)
        return err_set(err, RP_INVALID_ARGUMENT, "agent.activation is %d; it is 0 (relu) or 1 (tanh)",
                       (int)config->activation);
    return RP_OK;
}

static rp_status check_hidden(const struct schema_list *hidden, rp_error *err)
{
    if (hidden->count > NET_MAX_HIDDEN)
        return err_set(err, RP_INVALID_ARGUMENT, "agent.hidden has %u layers; at most %u are possible", hidden->count,
                       NET_MAX_HIDDEN);
    const int64_t *sizes = hidden->data;
    for (uint32_t i = 0; i < hidden->count; i++)
        if (sizes[i] < 1 || sizes[i] > 1 << 16)
            return err_set(err, RP_INVALID_ARGUMENT, "agent.hidden[%u] is %lld; a layer has 1 to %d units", i,
                           (long long)sizes[i], 1 << 16);
    return RP_OK;
}

static rp_status check_image(const struct agent_config *config, const char *env_name, const rp_env_spec *spec,
                             rp_error *err)
{
    if (config->filters == 0)
        return RP_OK;
    if (spec->observation_rank != 3)
        return err_set(err, RP_INVALID_ARGUMENT,
                       "agent.filters asks for a convolution over images, but observations of %s have rank %u, not 3 "
                       "(height, width, planes): leave filters out",
                       env_name, spec->observation_rank);
    uint32_t height = spec->observation_shape[0], width = spec->observation_shape[1];
    if (height < AGENT_KERNEL || width < AGENT_KERNEL)
        return err_set(err, RP_INVALID_ARGUMENT,
                       "agent.filters are %u x %u, but images of %s are %u x %u: they must fit in", AGENT_KERNEL,
                       AGENT_KERNEL, env_name, height, width);
    return RP_OK;
}

/* "dqn, impala or bc": the algorithms that take such actions. */
static void list_fitting(bool discrete, char *out, size_t size)
{
    const char *names[MAX_ALGORITHMS] = {NULL};
    uint32_t n = 0;
    for (const struct agent_ops *const *at = agent_algorithms; *at && n < MAX_ALGORITHMS; at++)
        if (discrete ? (*at)->discrete : (*at)->continuous)
            names[n++] = (*at)->name;
    size_t used = 0;
    out[0] = 0;
    for (uint32_t i = 0; i < n && used < size; i++)
        used += (size_t)snprintf(out + used, size - used, "%s%s", i == 0 ? "" : i + 1 < n ? ", " : " or ", names[i]);
}

static rp_status check_actions(const struct agent_ops *ops, const char *env_name, const rp_env_spec *spec,
                               rp_error *err)
{
    bool discrete = spec->n_actions > 0;
    if (discrete ? ops->discrete : ops->continuous)
        return RP_OK;
    char fitting[256];
    list_fitting(discrete, fitting, sizeof fitting);
    if (discrete)
        return err_set(err, RP_INVALID_ARGUMENT, "%s needs continuous actions; %s has %u discrete ones: use %s",
                       ops->name, env_name, spec->n_actions, fitting);
    return err_set(err, RP_INVALID_ARGUMENT, "%s needs discrete actions; an action of %s is %u real number%s: use %s",
                   ops->name, env_name, spec->action_size, spec->action_size == 1 ? "" : "s", fitting);
}

static const struct agent_ops *find(const char *name, rp_error *err)
{
    const char *names[MAX_ALGORITHMS] = {NULL};
    uint32_t n = 0;
    for (const struct agent_ops *const *at = agent_algorithms; *at && n < MAX_ALGORITHMS; at++) {
        if (strcmp((*at)->name, name) == 0)
            return *at;
        names[n++] = (*at)->name;
    }
    env_no_such(err, RP_NOT_FOUND, "unknown algorithm", name, names, n, "there are");
    return NULL;
}

static rp_status build(struct agent *self, const char *env_name, rp_error *err)
{
    fill_in(&self->config, self->ops->defaults);
    RP_TRY(check_numbers(&self->config, err));
    RP_TRY(check_hidden(&self->config.hidden, err));
    RP_TRY(env_check_spec(env_name, &self->spec, err));
    RP_TRY(check_actions(self->ops, env_name, &self->spec, err));
    RP_TRY(check_image(&self->config, env_name, &self->spec, err));
    if (self->config.acting_rows == 0)
        self->config.acting_rows = 1;
    self->scratch =
        arena_take(&self->memory, self->config.acting_rows * env_observation_count(&self->spec), sizeof *self->scratch);
    RP_TRY(self->ops->create(self, err));
    agent_add_vector(self, "rng", RP_DTYPE_UINT64, self->rng.s, 4);
    agent_add_vector(self, "steps", RP_DTYPE_UINT64, &self->steps, 1);
    return RP_OK;
}

struct agent *agent_new(const struct agent_config *config, const char *env_name, const rp_env_spec *spec, uint64_t seed,
                        rp_error *err)
{
    const struct agent_ops *ops = find(config->algorithm ? config->algorithm : "", err);
    if (!ops)
        return NULL;
    struct agent *self = need_alloc(sizeof *self);
    self->state = arena_take(&self->memory, 1, ops->state_size);
    self->ops = ops;
    self->config = *config;
    self->spec = *spec;
    rng_seed(&self->rng, seed);
    if (build(self, env_name, err) != RP_OK)
        agent_destroy(&self);
    return self;
}

void agent_destroy(struct agent **self)
{
    struct agent *agent = *self;
    if (!agent)
        return;
    *self = NULL;
    arena_fini(&agent->memory);
    arena_fini(&agent->batch);
    free(agent);
}

void agent_learn(struct agent *self, const struct agent_batch *batch, struct agent_result *result)
{
    result->n_scalars = 0;
    self->ops->gradient(self, batch, result);
    self->ops->apply(self, result);
}
