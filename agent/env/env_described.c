/* Environments of which only the description is known: programs that never step them, such as a learner, use it. */
#include <math.h>
#include <stdlib.h>

#include "agent/env/env.h"
#include "proto/base/error.h"

static bool is_set(const char *text)
{
    return text && text[0];
}

bool env_is_python(const struct env_config *config)
{
    return is_set(config->python) || is_set(config->gym);
}

const char *env_name(const struct env_config *config)
{
    return is_set(config->python) ? config->python
           : is_set(config->gym)  ? config->gym
           : is_set(config->name) ? config->name
                                  : ENV_DEFAULT_NAME;
}

static void no_seed(void *self, uint64_t seed)
{
    (void)self;
    (void)seed;
}

static void no_reset(void *self, void *observation)
{
    (void)self;
    (void)observation;
    abort(); /* programs refuse to step an environment that is only described */
}

static void no_step(void *self, const void *action, void *observation, rp_env_result *result)
{
    (void)self;
    (void)action;
    (void)observation;
    (void)result;
    abort();
}

static void no_destroy(void *self)
{
    (void)self;
}

static const rp_env_ops described = {.name = "described",
                                     .help = "an environment in Python",
                                     .destroy = no_destroy,
                                     .seed = no_seed,
                                     .reset = no_reset,
                                     .step = no_step};

static rp_status take_shape(const struct env_config *config, rp_env_spec *spec, rp_error *err)
{
    const struct env_description *from = &config->spec;
    const int64_t *shape = from->shape.data;
    if (from->shape.count == 0)
        return err_set(err, RP_FAILED_PRECONDITION,
                       "the shapes of environment '%s' are not known: replay-launch asks the environment for them; for "
                       "other programs, write what 'python3 -m replaybus.describe' prints below environment.spec",
                       env_name(config));
    if (from->shape.count > RP_MAX_RANK)
        return err_set(err, RP_INVALID_ARGUMENT, "environment.spec.shape has %u dimensions; at most %u can be used",
                       from->shape.count, RP_MAX_RANK);
    spec->observation_dtype = from->dtype == 0 ? RP_DTYPE_FLOAT32 : RP_DTYPE_UINT8;
    spec->observation_rank = from->shape.count;
    for (uint32_t i = 0; i < from->shape.count; i++) {
        if (shape[i] < 1 || shape[i] > UINT32_MAX)
            return err_set(err, RP_INVALID_ARGUMENT, "environment.spec.shape has a dimension of %lld",
                           (long long)shape[i]);
        spec->observation_shape[i] = (uint32_t)shape[i];
    }
    return RP_OK;
}

static rp_status take_actions(const struct env_config *config, rp_env_spec *spec, rp_error *err)
{
    const struct env_description *from = &config->spec;
    const double *low = from->low.data, *high = from->high.data;
    if (from->low.count != from->high.count || from->low.count > RP_ENV_MAX_ACTION)
        return err_set(err, RP_INVALID_ARGUMENT,
                       "environment.spec.low has %u numbers and environment.spec.high has %u; both need one number for "
                       "each of at most %u actions",
                       from->low.count, from->high.count, RP_ENV_MAX_ACTION);
    spec->n_actions = (uint32_t)from->actions;
    spec->action_size = from->low.count;
    for (uint32_t i = 0; i < spec->action_size; i++) {
        spec->action_low[i] = (float)low[i];
        spec->action_high[i] = (float)high[i];
    }
    spec->max_steps = (uint32_t)from->max_steps;
    return RP_OK;
}

rp_status env_open_described(struct env *self, const struct env_config *config, rp_error *err)
{
    static char nothing; /* an environment in use has a self */
    RP_TRY(take_shape(config, &self->spec, err));
    RP_TRY(take_actions(config, &self->spec, err));
    self->ops = &described;
    self->self = &nothing;
    self->described = true;
    return RP_OK;
}
