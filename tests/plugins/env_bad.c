/* Environments that must be refused, each for a reason of its own; "Loose", which ends both ways at once; and four that are
 * found out when they run. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "replay/env.h"

static int object; /* stands for the state of all of them */

static rp_env_spec usable(void)
{
    rp_env_spec spec = {.observation_dtype = RP_DTYPE_FLOAT32,
                        .observation_rank = 1,
                        .observation_shape = {1},
                        .action_size = 2,
                        .action_low = {-3, 10},
                        .action_high = {1, 30}};
    return spec;
}

/* A usable environment but for one thing. */
#define CREATE(title, change)                                                                                          \
    static void *title(const rp_option *options, uint32_t n_options, rp_env_spec *spec, rp_error *err)                 \
    {                                                                                                                  \
        (void)options, (void)n_options, (void)err;                                                                     \
        *spec = usable();                                                                                              \
        change;                                                                                                        \
        return &object;                                                                                                \
    }
CREATE(create_loose, spec->observation_shape[0] = 2)
CREATE(create_no_actions, spec->action_size = 0)
CREATE(create_bad_bounds, spec->action_high[1] = INFINITY)
CREATE(create_long, (void)0) /* its spec says one number */

static void *create_silent(const rp_option *options, uint32_t n_options, rp_env_spec *spec, rp_error *err)
{
    (void)options, (void)n_options, (void)err, (void)spec;
    return NULL;
}

static void destroy(void *self)
{
    (void)self;
}

static void seed(void *self, uint64_t value)
{
    (void)self, (void)value;
}

static void reset(void *self, void *observation)
{
    (void)self;
    memset(observation, 0, 2 * sizeof(float));
}

/* Shows the action that came in. */
static void step(void *self, const void *action, void *observation, rp_env_result *result)
{
    (void)self;
    memcpy(observation, action, 2 * sizeof(float));
    result->terminal = result->truncated = 1;
}

static void step_nan(void *self, const void *action, void *observation, rp_env_result *result)
{
    step(self, action, observation, result);
    result->truncated = 0;
    memcpy(observation, &(float){NAN}, sizeof(float));
}

static void step_bad_reward(void *self, const void *action, void *observation, rp_env_result *result)
{
    step(self, action, observation, result);
    result->reward = NAN;
}

/* Crashes in the third step. */
static void step_crash(void *self, const void *action, void *observation, rp_env_result *result)
{
    static int steps;
    step(self, action, observation, result);
    if (++steps == 3)
        abort();
}

#define OPS(title, maker, stepper)                                                                                     \
    {                                                                                                                  \
        .name = title, .help = "", .create = maker, .destroy = destroy, .seed = seed, .reset = reset, .step = stepper  \
    }

static const rp_env_ops crash = OPS("Crash", create_loose, step_crash);
static const rp_env_ops bad_reward = OPS("BadReward", create_loose, step_bad_reward);
static const rp_env_ops too_long = OPS("TooLong", create_long, step);
static const rp_env_ops not_finite = OPS("NotFinite", create_loose, step_nan);
static const rp_env_ops loose = OPS("Loose", create_loose, step);
static const rp_env_ops no_actions = OPS("NoActions", create_no_actions, step);
static const rp_env_ops bad_bounds = OPS("BadBounds", create_bad_bounds, step);
static const rp_env_ops silent = OPS("Silent", create_silent, step);
static const rp_env_ops no_step = OPS("NoStep", create_loose, NULL);
static const rp_env_ops taken = OPS("CartPole-v1", create_loose, step);

static const rp_env_ops *const environments[] = {&loose,    &no_actions, &bad_bounds, &silent, &no_step, &taken,
                                                 &too_long, &not_finite, &bad_reward, &crash,  NULL};

static const rp_env_plugin plugin = {.abi = RP_ENV_ABI, .name = "env_bad", .environments = environments};

const rp_env_plugin *rp_env_plugin_entry(void)
{
    return &plugin;
}
