/* Pendulum-v1: swing up a rod by a torque at its end, and hold it there. The equations and numbers of Gymnasium. Never
 * terminal. The state for set_state: angle (0 is upright), its velocity. */
#include <stdlib.h>

#include "agent/env/builtin.h"
#include "agent/env/classic.h"

#define PENDULUM_GRAVITY 10.0
#define MASS 1.0
#define LENGTH 1.0
#define PENDULUM_DT 0.05
#define PENDULUM_MOST_SPEED 8.0
#define MOST_TORQUE 2.0
#define PENDULUM_MAX_STEPS 200u

struct pendulum {
    struct rng rng;
    double theta, theta_dot;
    uint32_t steps;
};

static void *pendulum_v1_create(const rp_option *options, uint32_t n_options, rp_env_spec *spec, rp_error *err)
{
    struct pendulum *self = classic_new("Pendulum-v1", sizeof *self, options, n_options, NULL, err);
    if (!self)
        return NULL;
    rng_seed(&self->rng, 0);
    *spec = (rp_env_spec){.observation_dtype = RP_DTYPE_FLOAT32,
                          .observation_rank = 1,
                          .observation_shape = {3},
                          .action_size = 1,
                          .action_low = {-(float)MOST_TORQUE},
                          .action_high = {(float)MOST_TORQUE},
                          .max_steps = PENDULUM_MAX_STEPS};
    return self;
}

static void pendulum_seed(void *state, uint64_t seed)
{
    rng_seed(&((struct pendulum *)state)->rng, seed);
}

static void pendulum_v1_observe(const struct pendulum *self, float *out)
{
    out[0] = (float)cos(self->theta);
    out[1] = (float)sin(self->theta);
    out[2] = (float)self->theta_dot;
}

static void pendulum_reset(void *state, void *observation)
{
    struct pendulum *self = state;
    self->steps = 0;
    self->theta = classic_uniform(&self->rng, -M_PI, M_PI);
    self->theta_dot = classic_uniform(&self->rng, -1, 1);
    pendulum_v1_observe(self, observation);
}

/* To [-pi, pi). */
static double normalise(double angle)
{
    return angle - 2 * M_PI * floor((angle + M_PI) / (2 * M_PI));
}

/* The reward is that of the state before the step. */
static void pendulum_step(void *state, const void *action, void *observation, rp_env_result *result)
{
    struct pendulum *self = state;
    double torque = classic_clip((double)*(const float *)action, -MOST_TORQUE, MOST_TORQUE);
    double angle = normalise(self->theta);
    double cost = angle * angle + 0.1 * self->theta_dot * self->theta_dot + 0.001 * torque * torque;
    double acc = 3 * PENDULUM_GRAVITY / (2 * LENGTH) * sin(self->theta) + 3 / (MASS * LENGTH * LENGTH) * torque;
    self->theta_dot = classic_clip(self->theta_dot + acc * PENDULUM_DT, -PENDULUM_MOST_SPEED, PENDULUM_MOST_SPEED);
    self->theta += self->theta_dot * PENDULUM_DT;
    pendulum_v1_observe(self, observation);
    classic_result(result, -cost, false, &self->steps, PENDULUM_MAX_STEPS);
}

static rp_status pendulum_set_state(void *state, const double *values, uint32_t n, void *observation)
{
    struct pendulum *self = state;
    if (!classic_finite(values, n, 2))
        return RP_INVALID_ARGUMENT;
    self->steps = 0;
    self->theta = values[0];
    self->theta_dot = values[1];
    pendulum_v1_observe(self, observation);
    return RP_OK;
}

const rp_env_ops env_pendulum = {
    .name = "Pendulum-v1",
    .help = "swing up a rod and hold it: 1 continuous action, 3 numbers, a cost each step, 200 steps",
    .create = pendulum_v1_create,
    .destroy = free,
    .seed = pendulum_seed,
    .reset = pendulum_reset,
    .step = pendulum_step,
    .set_state = pendulum_set_state,
};
