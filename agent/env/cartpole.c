/* CartPole-v1: a pole on a cart that is pushed left (0) or right (1). The equations and numbers of
 * Gymnasium. The state for set_state: x, its velocity, the pole's angle (0 is upright), its velocity. */
#include <stdlib.h>

#include "agent/env/builtin.h"
#include "agent/env/classic.h"

#define GRAVITY 9.8
#define MASS_POLE 0.1
#define MASS_TOTAL (1.0 + MASS_POLE)
#define HALF_LENGTH 0.5
#define FORCE 10.0
#define TAU 0.02
#define X_LIMIT 2.4
#define THETA_LIMIT (12 * 2 * M_PI / 360)
#define CARTPOLE_MAX_STEPS 500u

struct cartpole {
    struct rng rng;
    double x, x_dot, theta, theta_dot;
    uint32_t steps;
};

static void *cartpole_create(const rp_option *options, uint32_t n_options, rp_env_spec *spec, rp_error *err)
{
    struct cartpole *self = classic_new("CartPole-v1", sizeof *self, options, n_options, NULL, err);
    if (!self)
        return NULL;
    rng_seed(&self->rng, 0);
    *spec = (rp_env_spec){.observation_dtype = RP_DTYPE_FLOAT32,
                          .observation_rank = 1,
                          .observation_shape = {4},
                          .n_actions = 2,
                          .max_steps = CARTPOLE_MAX_STEPS};
    return self;
}

static void cartpole_seed(void *state, uint64_t seed)
{
    rng_seed(&((struct cartpole *)state)->rng, seed);
}

static void cartpole_observe(const struct cartpole *self, float *out)
{
    out[0] = (float)self->x;
    out[1] = (float)self->x_dot;
    out[2] = (float)self->theta;
    out[3] = (float)self->theta_dot;
}

static void cartpole_reset(void *state, void *observation)
{
    struct cartpole *self = state;
    self->steps = 0;
    self->x = classic_uniform(&self->rng, -0.05, 0.05);
    self->x_dot = classic_uniform(&self->rng, -0.05, 0.05);
    self->theta = classic_uniform(&self->rng, -0.05, 0.05);
    self->theta_dot = classic_uniform(&self->rng, -0.05, 0.05);
    cartpole_observe(self, observation);
}

/* Explicit Euler: positions move with the old velocities. */
static void cartpole_step(void *state, const void *action, void *observation, rp_env_result *result)
{
    struct cartpole *self = state;
    double force = *(const int32_t *)action ? FORCE : -FORCE;
    double sine = sin(self->theta), cosine = cos(self->theta);
    double push = (force + MASS_POLE * HALF_LENGTH * self->theta_dot * self->theta_dot * sine) / MASS_TOTAL;
    double theta_acc =
        (GRAVITY * sine - cosine * push) / (HALF_LENGTH * (4.0 / 3.0 - MASS_POLE * cosine * cosine / MASS_TOTAL));
    double x_acc = push - MASS_POLE * HALF_LENGTH * theta_acc * cosine / MASS_TOTAL;
    self->x += TAU * self->x_dot;
    self->x_dot += TAU * x_acc;
    self->theta += TAU * self->theta_dot;
    self->theta_dot += TAU * theta_acc;
    cartpole_observe(self, observation);
    bool terminal = fabs(self->x) > X_LIMIT || fabs(self->theta) > THETA_LIMIT;
    classic_result(result, 1, terminal, &self->steps, CARTPOLE_MAX_STEPS);
}

static rp_status cartpole_set_state(void *state, const double *values, uint32_t n, void *observation)
{
    struct cartpole *self = state;
    if (!classic_finite(values, n, 4))
        return RP_INVALID_ARGUMENT;
    self->steps = 0;
    self->x = values[0];
    self->x_dot = values[1];
    self->theta = values[2];
    self->theta_dot = values[3];
    cartpole_observe(self, observation);
    return RP_OK;
}

const rp_env_ops env_cartpole = {
    .name = "CartPole-v1",
    .help = "balance a pole on a cart: 2 actions, 4 numbers, +1 a step, 500 steps",
    .create = cartpole_create,
    .destroy = free,
    .seed = cartpole_seed,
    .reset = cartpole_reset,
    .step = cartpole_step,
    .set_state = cartpole_set_state,
};
