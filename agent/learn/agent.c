/* Makes agents: finds the algorithm, completes and checks its configuration. Then what the algorithms share: memory, optimisers,
 * targets, exploring, and names for every part that changes while learning, so that a learner can be saved and an actor can follow
 * it. */
#include "agent/learn/agent.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "agent/env/classic.h"
#include "agent/env/env.h"
#include "agent/learn/kernel.h"
#include "proto/base/crc32c.h"
#include "proto/base/error.h"
#include "proto/base/need.h"

const struct agent_ops *const agent_algorithms[] = {&agent_dqn,    &agent_ddpg, &agent_td3, &agent_sac,
                                                    &agent_impala, &agent_bc,   NULL};

#define MAX_ALGORITHMS 32u

/* Returns a cost: 0 takes the algorithm's, and below 0 means none. */
static double cost_of(double given, double own)
{
    return given < 0.0 ? 0.0 : given == 0.0 ? own : given;
}

#define FILL(field, missing)                                                                                           \
    if (config->field missing)                                                                                         \
    config->field = defaults->field

/* The schema has checked the bounds of what a file may say. */
static void fill_in(struct agent_config *config, const struct agent_config *defaults)
{
    FILL(batch, == 0);
    FILL(discount, == 0.0);
    FILL(learning_rate, == 0.0);
    FILL(importance_exponent, < 0.0);
    FILL(huber, < 0.0);
    FILL(policy_delay, == 0);
    FILL(alpha, < 0.0);
    FILL(target_entropy, == 0.0);
    FILL(hidden, .count == 0);
    config->clip_norm = cost_of(config->clip_norm, defaults->clip_norm);
    config->entropy_cost = cost_of(config->entropy_cost, defaults->entropy_cost);
    config->value_cost = cost_of(config->value_cost, defaults->value_cost);
    if (config->target_period == 0 && config->tau == 0.0) {
        config->target_period = defaults->target_period;
        config->tau = defaults->tau;
    }
}

static rp_status check_hidden(const struct schema_list *hidden, rp_error *err)
{
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

const struct agent_ops *agent_find(const char *name, rp_error *err)
{
    const char *names[MAX_ALGORITHMS] = {NULL};
    uint32_t n = 0;
    name = name ? name : "";
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
    const struct agent_ops *ops = agent_find(config->algorithm, err);
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

float agent_value(struct agent *self, const void *observation)
{
    struct rng *rng = &self->rng;
    struct agent_choice choice = {0};
    self->ops->act(self, &(struct agent_rows){1, observation, &(struct agent_explore){.greedy = true}, &rng}, &choice);
    return choice.value;
}

void agent_learn(struct agent *self, const struct agent_batch *batch, struct agent_result *result)
{
    result->n_scalars = 0;
    self->ops->gradient(self, batch, result);
    self->ops->apply(self, result);
}

/* ---- for the algorithms ---- */

void agent_alloc(struct agent *self, uint32_t n_params)
{
    self->n_params = n_params;
    self->params = arena_take(&self->memory, n_params, sizeof *self->params);
    self->grads = arena_take(&self->memory, n_params, sizeof *self->grads);
}

void agent_optim(struct agent *self, struct optim *out, uint32_t n)
{
    optim_init(out, &self->memory, self->config.learning_rate, (uint64_t)self->config.anneal, n);
}

double agent_descend(struct agent *self, struct optim *optim, uint32_t offset)
{
    double norm = optim_clip(self->grads + offset, optim->n, self->config.clip_norm);
    optim_step(optim, self->params + offset, self->grads + offset);
    return norm;
}

void agent_update_target(const struct agent *self, float *target, const float *params, uint32_t n)
{
    if (self->config.target_period == 0)
        optim_track(target, params, n, self->config.tau);
    else if (self->steps % (uint64_t)self->config.target_period == 0)
        memcpy(target, params, n * sizeof *target);
}

/* Returns the next free tensor. Networks are bounded, so running out is a mistake of an algorithm, never of a user. */
static struct tensor *next_tensor(struct agent *self)
{
    if (self->n_tensors == AGENT_MAX_TENSORS)
        abort();
    struct tensor *tensor = &self->tensors[self->n_tensors++];
    memset(tensor, 0, sizeof *tensor);
    return tensor;
}

void agent_add_net(struct agent *self, const char *prefix, const struct net *net, float *params)
{
    for (uint32_t i = 0; i < net_n_tensors(net); i++) {
        struct tensor *tensor = next_tensor(self);
        const struct net_tensor part = net_tensor(net, i);
        snprintf(tensor->name, sizeof tensor->name, "%s/%s", prefix, part.name);
        tensor->rank = part.rank;
        memcpy(tensor->shape, part.shape, part.rank * sizeof part.shape[0]);
        tensor->dtype = RP_DTYPE_FLOAT32;
        tensor->data = params + part.offset;
    }
}

void agent_add_vector(struct agent *self, const char *name, int32_t dtype, void *data, uint64_t n)
{
    *next_tensor(self) = tensor_vector(name, dtype, data, n);
}

void agent_add_optim(struct agent *self, const char *prefix, struct optim *optim)
{
    char name[WEIGHTS_MAX_NAME + 1];
    snprintf(name, sizeof name, "%s/first", prefix);
    agent_add_vector(self, name, RP_DTYPE_FLOAT32, optim->first, optim->n);
    snprintf(name, sizeof name, "%s/second", prefix);
    agent_add_vector(self, name, RP_DTYPE_FLOAT32, optim->second, optim->n);
    snprintf(name, sizeof name, "%s/steps", prefix);
    agent_add_vector(self, name, RP_DTYPE_UINT64, &optim->steps, 1);
}

void agent_end_policy(struct agent *self)
{
    self->n_policy = self->n_tensors;
}

const float *agent_floats(const struct agent *self, const void *observation, uint32_t n, float *scratch)
{
    const rp_env_spec *spec = &self->spec;
    if (spec->observation_dtype == RP_DTYPE_FLOAT32)
        return observation;
    const uint8_t *bytes = observation;
    size_t count = (size_t)n * env_observation_count(spec);
    float scale = self->config.scale > 0.0 ? (float)self->config.scale : 1.0f;
    for (size_t i = 0; i < count; i++)
        scratch[i] = scale * (float)bytes[i];
    return scratch;
}

void agent_copy_floats(const struct agent *self, const void *observation, uint32_t n, float *out)
{
    const float *floats = agent_floats(self, observation, n, out);
    if (floats != out)
        memcpy(out, floats, (size_t)n * env_observation_bytes(&self->spec));
}

struct net_spec agent_net_spec(const struct agent *self, uint32_t outputs)
{
    const struct agent_config *config = &self->config;
    const rp_env_spec *spec = &self->spec;
    struct net_spec out = {.inputs = (uint32_t)env_observation_count(spec),
                           .n_hidden = config->hidden.count,
                           .activation = config->activation == 1 ? NET_TANH : NET_RELU,
                           .outputs = outputs};
    if (config->filters > 0) {
        out.height = spec->observation_shape[0];
        out.width = spec->observation_shape[1];
        out.planes = spec->observation_shape[2];
        out.filters = (uint32_t)config->filters;
        out.kernel = AGENT_KERNEL;
    }
    const int64_t *sizes = config->hidden.data;
    for (uint32_t i = 0; i < out.n_hidden; i++)
        out.hidden[i] = (uint32_t)sizes[i];
    return out;
}

uint32_t agent_fingerprint(const struct agent *self)
{
    return crc32c(0, self->params, self->n_params * sizeof(float));
}

uint32_t agent_choose_discrete(const float *scores, uint32_t n, const struct agent_explore *explore, struct rng *rng)
{
    if (!explore->greedy && (explore->uniform || rng_unit(rng) < explore->epsilon))
        return (uint32_t)rng_below(rng, n);
    return kernel_argmax(scores, n);
}

void agent_choose_continuous(const struct agent *self, const float *action, const struct agent_explore *explore,
                             struct rng *rng, struct agent_choice *out)
{
    for (uint32_t j = 0; j < self->spec.action_size; j++) {
        float a = action[j];
        if (explore->uniform && !explore->greedy)
            a = (float)(2.0 * rng_unit(rng) - 1.0);
        else if (explore->noise && !explore->greedy)
            a = fminf(fmaxf(a + explore->noise[j], -1.0f), 1.0f);
        out->continuous[j] = a;
    }
}

void agent_scalar(struct agent_result *self, const char *name, double value)
{
    uint32_t i = 0;
    while (i < self->n_scalars && strcmp(self->scalars[i].name, name) != 0)
        i++;
    if (i == AGENT_MAX_SCALARS)
        return;
    self->scalars[i] = (struct agent_scalar){.name = name, .value = value};
    if (i == self->n_scalars)
        self->n_scalars++;
}
