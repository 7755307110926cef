/* CartPole-v1: a pole on a cart that is pushed left (0) or right (1). The equations and numbers of
 * Gymnasium. The state for set_state: x, its velocity, the pole's angle (0 is upright), its velocity.
 *
 * Option: velocities (default 1; 0: observations are x and the angle alone, so that a policy needs a memory). */
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
    double velocities; /* 0: observations are without them */
};

static void cartpole_observe(const void *env, void *observation)
{
    const struct cartpole *self = env;
    float *out = observation;
    if (self->velocities == 0) {
        out[0] = (float)self->x;
        out[1] = (float)self->theta;
        return;
    }
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

static void cartpole_draw(const void *env, rp_drawing *out)
{
    const struct cartpole *self = env;
    double x = self->x, tip = 2 * HALF_LENGTH;
    *out = (rp_drawing){.left = -X_LIMIT - 0.3, .right = X_LIMIT + 0.3, .bottom = -0.5, .top = 1.5, .step_s = TAU};
    rp_draw(out, (rp_shape){RP_SHAPE_LINE, RP_ROLE_SCENE, -X_LIMIT, 0, X_LIMIT, 0, 0.02});
    for (int side = -1; side <= 1; side += 2)
        rp_draw(out, (rp_shape){RP_SHAPE_LINE, RP_ROLE_SCENE, side * X_LIMIT, -0.1, side * X_LIMIT, 0.1, 0.02});
    rp_draw(out, (rp_shape){RP_SHAPE_BOX, RP_ROLE_BODY, x - 0.25, -0.12, x + 0.25, 0.12, 0});
    rp_draw(out,
            (rp_shape){RP_SHAPE_LINE, RP_ROLE_LIMB, x, 0, x + tip * sin(self->theta), tip * cos(self->theta), 0.08});
    rp_draw(out, (rp_shape){RP_SHAPE_CIRCLE, RP_ROLE_JOINT, x, 0, 0, 0, 0.05});
}

static rp_status cartpole_prepare(void *env, rp_env_spec *spec, rp_error *err)
{
    (void)err;
    spec->observation_shape[0] = ((struct cartpole *)env)->velocities == 0 ? 2 : 4;
    return RP_OK;
}

static const struct classic_task cartpole_task = {
    .spec = {CLASSIC_NUMBERS(4), .n_actions = 2, .max_steps = 500},
    .size = sizeof(struct cartpole),
    .options = (const struct classic_option[]){{"velocities", 0, 1, 1, true, offsetof(struct cartpole, velocities)}},
    .n_options = 1,
    .prepare = cartpole_prepare,
    .n_state = 4,
    .start = cartpole_start,
    .observe = cartpole_observe,
    .move = cartpole_move,
    .draw = cartpole_draw,
};

CLASSIC_ENV(env_cartpole, &cartpole_task, "CartPole-v1",
            "balance a pole on a cart: 2 actions, 4 numbers, +1 a step, 500 steps; option velocities");
