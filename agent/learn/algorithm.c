/* What the algorithms share: memory, optimisers, targets, exploring, and names for every part that changes while learning, so that
 * a learner can be saved and an actor can follow it. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "agent/env/env.h"
#include "agent/learn/agent.h"
#include "agent/learn/kernel.h"

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
    struct tensor *tensor = next_tensor(self);
    snprintf(tensor->name, sizeof tensor->name, "%s", name);
    tensor->dtype = dtype;
    tensor->rank = 1;
    tensor->shape[0] = n;
    tensor->data = data;
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
