/* CartPole-v1: a pole on a cart that is pushed left (0) or right (1). The equations and numbers of
 * Gymnasium. The state for set_state: x, its velocity, the pole's angle (0 is upright), its velocity. */
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

struct cartpole {
    struct classic base;
    double x, x_dot, theta, theta_dot;
};

static void cartpole_observe(const void *env, void *observation)
{
    const struct cartpole *self = env;
    float *out = observation;
    out[0] = (float)self->x;
    out[1] = (float)self->x_dot;
    out[2] = (float)self->theta;
    out[3] = (float)self->theta_dot;
}

static void cartpole_start(void *env)
{
    struct cartpole *self = env;
    self->x = classic_uniform(&self->base.rng, -0.05, 0.05);
    self->x_dot = classic_uniform(&self->base.rng, -0.05, 0.05);
    self->theta = classic_uniform(&self->base.rng, -0.05, 0.05);
    self->theta_dot = classic_uniform(&self->base.rng, -0.05, 0.05);
}

/* Explicit Euler: positions move with the old velocities. */
static double cartpole_move(void *env, const void *action, bool *terminal)
{
    struct cartpole *self = env;
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
    *terminal = fabs(self->x) > X_LIMIT || fabs(self->theta) > THETA_LIMIT;
    return 1;
}

static const struct classic_task cartpole_task = {
    .spec = {.observation_dtype = RP_DTYPE_FLOAT32,
             .observation_rank = 1,
             .observation_shape = {4},
             .n_actions = 2,
             .max_steps = 500},
    .size = sizeof(struct cartpole),
    .n_state = 4,
    .start = cartpole_start,
    .observe = cartpole_observe,
    .move = cartpole_move,
};

CLASSIC_ENV(env_cartpole, cartpole_task, "CartPole-v1",
            "balance a pole on a cart: 2 actions, 4 numbers, +1 a step, 500 steps");
