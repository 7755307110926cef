#include "agent/env/env_group.h"

#include <stdlib.h>
#include <string.h>

#include "proto/base/error.h"

/* The configuration states a spec if the environment was described before: both must agree, or the learner would read
 * observations of another size. */
static rp_status check_description(const struct env_config *config, const rp_env_spec *spec, rp_error *err)
{
    struct env stated = {0};
    if (config->spec.shape.count == 0)
        return RP_OK;
    RP_TRY(env_open_described(&stated, config, err));
    bool same = stated.spec.observation_dtype == spec->observation_dtype &&
                stated.spec.observation_rank == spec->observation_rank &&
                memcmp(stated.spec.observation_shape, spec->observation_shape, sizeof spec->observation_shape) == 0 &&
                stated.spec.n_actions == spec->n_actions && stated.spec.action_size == spec->action_size;
    for (uint32_t i = 0; same && i < spec->action_size; i++)
        same = stated.spec.action_low[i] == spec->action_low[i] && stated.spec.action_high[i] == spec->action_high[i];
    if (!same)
        return err_set(err, RP_FAILED_PRECONDITION,
                       "environment '%s' has other shapes than environment.spec states: it has changed since it was "
                       "described; start a new run",
                       env_name(config));
    return RP_OK;
}

static rp_status open_provided(struct env_group *self, const struct env_config *config,
                               const struct env_provider *provider, rp_error *err)
{
    rp_env_spec spec = {0};
    self->whole = provider->create(provider->ctx, config, &self->n, &spec, err);
    if (!self->whole)
        return (rp_status)err->status;
    self->provider = provider;
    RP_TRY(check_description(config, &spec, err));
    self->envs = calloc(self->n, sizeof *self->envs);
    if (!self->envs)
        return err_set(err, RP_NO_MEMORY, "no memory for %u environments", self->n);
    for (uint32_t i = 0; i < self->n; i++) {
        struct env *env = &self->envs[i];
        *env = (struct env){
            .ops = provider->ops, .self = provider->seat(self->whole, i), .spec = spec, .provider = provider};
        RP_TRY(env_finish_open(env, config, err));
    }
    return RP_OK;
}

static rp_status open_copies(struct env_group *self, const struct env_config *config, rp_error *err)
{
    uint32_t wanted = self->n;
    self->envs = calloc(wanted, sizeof *self->envs);
    if (!self->envs)
        return err_set(err, RP_NO_MEMORY, "no memory for %u environments", wanted);
    for (self->n = 0; self->n < wanted; self->n++)
        RP_TRY(env_open(&self->envs[self->n], config, err));
    return RP_OK;
}

rp_status env_group_open(struct env_group *self, const struct env_config *config, uint32_t n,
                         const struct env_provider *provider, rp_error *err)
{
    *self = (struct env_group){.n = n};
    rp_status status =
        provider && env_is_python(config) ? open_provided(self, config, provider, err) : open_copies(self, config, err);
    if (status != RP_OK)
        env_group_close(self);
    return status;
}

void env_group_close(struct env_group *self)
{
    for (uint32_t i = 0; self->envs && i < self->n; i++)
        env_close(&self->envs[i]);
    free(self->envs);
    if (self->whole)
        self->provider->ops->destroy(self->whole);
    *self = (struct env_group){0};
}

rp_status env_failure(const struct env *self, rp_error *err)
{
    return self->provider ? self->provider->failure(self->self, err) : RP_OK;
}

bool env_resets_within_round(const struct env *self)
{
    return self->provider && self->provider->resets_within_round(self->self);
}
