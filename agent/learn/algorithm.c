#include "agent/learn/algorithm.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "agent/env/env.h"
#include "proto/base/error.h"

rp_status agent_alloc(struct agent *self, uint32_t n_params, rp_error *err)
{
    self->n_params = n_params;
    self->params = calloc(n_params, sizeof *self->params);
    self->grads = calloc(n_params, sizeof *self->grads);
    if (!self->params || !self->grads)
        return err_set(err, RP_NO_MEMORY, "no memory for %u parameters", n_params);
    return RP_OK;
}

rp_status agent_optim(const struct agent *self, struct optim *out, uint32_t n, rp_error *err)
{
    if (!optim_init(out, self->config.learning_rate, (uint64_t)self->config.anneal, n))
        return err_set(err, RP_NO_MEMORY, "no memory for the optimiser of %u parameters", n);
    return RP_OK;
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

void agent_net_spec(const struct agent *self, struct net_spec *out)
{
    const struct agent_config *config = &self->config;
    const rp_env_spec *spec = &self->spec;
    memset(out, 0, sizeof *out);
    out->inputs = (uint32_t)env_observation_count(spec);
    if (config->filters > 0) {
        out->height = spec->observation_shape[0];
        out->width = spec->observation_shape[1];
        out->planes = spec->observation_shape[2];
        out->filters = (uint32_t)config->filters;
        out->kernel = AGENT_KERNEL;
    }
    const int64_t *sizes = config->hidden.data;
    out->n_hidden = config->hidden.count;
    for (uint32_t i = 0; i < out->n_hidden; i++)
        out->hidden[i] = (uint32_t)sizes[i];
    out->activation = config->activation == 1 ? NET_TANH : NET_RELU;
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
