/* Acrobot-v1: two links that hang from a fixed point; a motor in the joint between them swings the tip up. The
 * equations of the book (not those of the older paper), with the numbers of Gymnasium. The state for set_state: the
 * angles of the first link (0 hangs down) and of the second to the first, and their velocities. */
#include "agent/env/builtin.h"
#include "agent/env/classic.h"

/* Both links: length 1, mass 1, centre of mass in the middle, moment of inertia 1. */
#define LENGTH 1.0
#define CENTRE 0.5
#define MASS 1.0
#define INERTIA 1.0
#define GRAVITY 9.8
#define DT 0.2
#define MOST_DTHETA1 (4 * M_PI)
#define MOST_DTHETA2 (9 * M_PI)

enum { THETA1, THETA2, DTHETA1, DTHETA2, SIZE };

struct acrobot {
    struct classic base;
    double state[SIZE];
};

static void acrobot_observe(const void *env, void *observation)
{
    const struct acrobot *self = env;
    float *out = observation;
    out[0] = (float)cos(self->state[THETA1]);
    out[1] = (float)sin(self->state[THETA1]);
    out[2] = (float)cos(self->state[THETA2]);
    out[3] = (float)sin(self->state[THETA2]);
    out[4] = (float)self->state[DTHETA1];
    out[5] = (float)self->state[DTHETA2];
}

static void acrobot_start(void *env)
{
    struct acrobot *self = env;
    for (int i = 0; i < SIZE; i++)
        self->state[i] = classic_uniform(&self->base.rng, -0.1, 0.1);
}

/* The time derivative of a state under a torque. */
static void derive(const double *s, double torque, double *out)
{
    double sine2 = sin(s[THETA2]), cosine2 = cos(s[THETA2]);
    double d1 = MASS * CENTRE * CENTRE + MASS * (LENGTH * LENGTH + CENTRE * CENTRE + 2 * LENGTH * CENTRE * cosine2) +
                2 * INERTIA;
    double d2 = MASS * (CENTRE * CENTRE + LENGTH * CENTRE * cosine2) + INERTIA;
    /* cos(a - pi / 2) of the book is sin(a). */
    double phi2 = MASS * CENTRE * GRAVITY * sin(s[THETA1] + s[THETA2]);
    double phi1 = -MASS * LENGTH * CENTRE * s[DTHETA2] * s[DTHETA2] * sine2 -
                  2 * MASS * LENGTH * CENTRE * s[DTHETA2] * s[DTHETA1] * sine2 +
                  (MASS * CENTRE + MASS * LENGTH) * GRAVITY * sin(s[THETA1]) + phi2;
    double acc2 = (torque + d2 / d1 * phi1 - MASS * LENGTH * CENTRE * s[DTHETA1] * s[DTHETA1] * sine2 - phi2) /
                  (MASS * CENTRE * CENTRE + INERTIA - d2 * d2 / d1);
    out[THETA1] = s[DTHETA1];
    out[THETA2] = s[DTHETA2];
    out[DTHETA1] = -(d2 * acc2 + phi1) / d1;
    out[DTHETA2] = acc2;
}

static void shift(const double *from, const double *slope, double dt, double *out)
{
    for (int i = 0; i < SIZE; i++)
        out[i] = from[i] + dt * slope[i];
}

/* One step of the classic Runge-Kutta method. */
static void integrate(double *s, double torque)
{
    double k1[SIZE], k2[SIZE], k3[SIZE], k4[SIZE], at[SIZE];
    derive(s, torque, k1);
    shift(s, k1, DT / 2, at);
    derive(at, torque, k2);
    shift(s, k2, DT / 2, at);
    derive(at, torque, k3);
    shift(s, k3, DT, at);
    derive(at, torque, k4);
    for (int i = 0; i < SIZE; i++)
        s[i] += DT / 6 * (k1[i] + 2 * k2[i] + 2 * k3[i] + k4[i]);
}

static double wrap(double angle)
{
    if (angle >= -M_PI && angle <= M_PI)
        return angle;
    return angle - 2 * M_PI * floor((angle + M_PI) / (2 * M_PI));
}

static double acrobot_move(void *env, const void *action, bool *terminal)
{
    struct acrobot *self = env;
    double *s = self->state;
    integrate(s, *(const int32_t *)action - 1.0);
    s[THETA1] = wrap(s[THETA1]);
    s[THETA2] = wrap(s[THETA2]);
    s[DTHETA1] = classic_clip(s[DTHETA1], -MOST_DTHETA1, MOST_DTHETA1);
    s[DTHETA2] = classic_clip(s[DTHETA2], -MOST_DTHETA2, MOST_DTHETA2);
    *terminal = -cos(s[THETA1]) - cos(s[THETA2] + s[THETA1]) > 1;
    return *terminal ? 0 : -1;
}

/* The tip is to come above the line. */
static void acrobot_draw(const void *env, rp_drawing *out)
{
    const double *s = ((const struct acrobot *)env)->state;
    double x = LENGTH * sin(s[THETA1]), y = -LENGTH * cos(s[THETA1]), angle = s[THETA1] + s[THETA2];
    *out = (rp_drawing){.left = -2.3, .right = 2.3, .bottom = -2.2, .top = 2.2, .step_s = DT};
    rp_draw(out, (rp_shape){RP_SHAPE_LINE, RP_ROLE_GOAL, -2.3, LENGTH, 2.3, LENGTH, 0.03});
    rp_draw(out, (rp_shape){RP_SHAPE_LINE, RP_ROLE_BODY, 0, 0, x, y, 0.16});
    rp_draw(out, (rp_shape){RP_SHAPE_LINE, RP_ROLE_LIMB, x, y, x + LENGTH * sin(angle), y - LENGTH * cos(angle), 0.16});
    rp_draw(out, (rp_shape){RP_SHAPE_CIRCLE, RP_ROLE_JOINT, 0, 0, 0, 0, 0.1});
    rp_draw(out, (rp_shape){RP_SHAPE_CIRCLE, RP_ROLE_JOINT, x, y, 0, 0, 0.1});
}

static const struct classic_task acrobot_task = {
    .spec = {CLASSIC_NUMBERS(6), .n_actions = 3, .max_steps = 500},
    .size = sizeof(struct acrobot),
    .n_state = SIZE,
    .start = acrobot_start,
    .observe = acrobot_observe,
    .move = acrobot_move,
    .draw = acrobot_draw,
};

CLASSIC_ENV(env_acrobot, &acrobot_task, "Acrobot-v1",
            "swing up two links by the joint between them: 3 actions, 6 numbers, -1 a step, 500 steps");
