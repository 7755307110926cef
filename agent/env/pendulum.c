/* Pendulum-v1: swing up a rod by a torque at its end, and hold it there. The equations and numbers of Gymnasium. Never
 * terminal. The state for set_state: angle (0 is upright), its velocity. */
#include "agent/env/builtin.h"
#include "agent/env/classic.h"

#define PENDULUM_GRAVITY 10.0
#define MASS 1.0
#define LENGTH 1.0
#define PENDULUM_DT 0.05
#define PENDULUM_MOST_SPEED 8.0
#define MOST_TORQUE 2.0

struct pendulum {
    struct classic base;
    double theta, theta_dot;
};

static void pendulum_v1_observe(const void *env, void *observation)
{
    const struct pendulum *self = env;
    float *out = observation;
    out[0] = (float)cos(self->theta);
    out[1] = (float)sin(self->theta);
    out[2] = (float)self->theta_dot;
}

static void pendulum_v1_start(void *env)
{
    struct pendulum *self = env;
    self->theta = classic_uniform(&self->base.rng, -M_PI, M_PI);
    self->theta_dot = classic_uniform(&self->base.rng, -1, 1);
}

/* To [-pi, pi). */
static double normalise(double angle)
{
    return angle - 2 * M_PI * floor((angle + M_PI) / (2 * M_PI));
}

/* The reward is that of the state before the step. */
static double pendulum_v1_move(void *env, const void *action, bool *terminal)
{
    struct pendulum *self = env;
    double torque = classic_clip((double)*(const float *)action, -MOST_TORQUE, MOST_TORQUE);
    double angle = normalise(self->theta);
    double cost = angle * angle + 0.1 * self->theta_dot * self->theta_dot + 0.001 * torque * torque;
    double acc = 3 * PENDULUM_GRAVITY / (2 * LENGTH) * sin(self->theta) + 3 / (MASS * LENGTH * LENGTH) * torque;
    self->theta_dot = classic_clip(self->theta_dot + acc * PENDULUM_DT, -PENDULUM_MOST_SPEED, PENDULUM_MOST_SPEED);
    self->theta += self->theta_dot * PENDULUM_DT;
    *terminal = false;
    return -cost;
}

static void pendulum_v1_draw(const void *env, rp_drawing *out)
{
    const struct pendulum *self = env;
    *out = (rp_drawing){.left = -1.3, .right = 1.3, .bottom = -1.2, .top = 1.2, .step_s = PENDULUM_DT};
    rp_draw(out, (rp_shape){RP_SHAPE_CIRCLE, RP_ROLE_GOAL, 0, LENGTH, 0, 0, 0.04});
    rp_draw(out,
            (rp_shape){RP_SHAPE_LINE, RP_ROLE_LIMB, 0, 0, -LENGTH * sin(self->theta), LENGTH * cos(self->theta), 0.16});
    rp_draw(out, (rp_shape){RP_SHAPE_CIRCLE, RP_ROLE_JOINT, 0, 0, 0, 0, 0.06});
}

static const struct classic_task pendulum_v1_task = {
    .spec = {CLASSIC_NUMBERS(3), .action_size = 1, .action_low = {-(float)MOST_TORQUE},
             .action_high = {(float)MOST_TORQUE}, .max_steps = 200},
    .size = sizeof(struct pendulum),
    .n_state = 2,
    .start = pendulum_v1_start,
    .observe = pendulum_v1_observe,
    .move = pendulum_v1_move,
    .draw = pendulum_v1_draw,
};

CLASSIC_ENV(env_pendulum, &pendulum_v1_task, "Pendulum-v1",
            "swing up a rod and hold it: 1 continuous action, 3 numbers, a cost each step, 200 steps");
