/* MountainCar-v0 and MountainCarContinuous-v0: a car too weak for the hill swings back and forth to get up. The
 * equations and numbers of Gymnasium. The state for set_state of both: position, velocity. */
#include "agent/env/builtin.h"
#include "agent/env/classic.h"

#define POSITION_LOW (-1.2)
#define POSITION_HIGH 0.6
#define MOST_SPEED 0.07
#define SLOPE 0.0025

#define PUSH 0.001
#define GOAL 0.5

#define CONTINUOUS_POWER 0.0015
#define CONTINUOUS_GOAL 0.45

struct car {
    struct classic base;
    double position, velocity;
};

static void car_observe(const void *env, void *observation)
{
    const struct car *self = env;
    float *out = observation;
    out[0] = (float)self->position;
    out[1] = (float)self->velocity;
}

static void car_start(void *env)
{
    struct car *self = env;
    self->position = classic_uniform(&self->base.rng, -0.6, -0.4);
    self->velocity = 0;
}

/* The left end is a wall that stops the car. */
static void drive(struct car *self, double push)
{
    self->velocity += push - SLOPE * cos(3 * self->position);
    self->velocity = classic_clip(self->velocity, -MOST_SPEED, MOST_SPEED);
    self->position = classic_clip(self->position + self->velocity, POSITION_LOW, POSITION_HIGH);
    if (self->position <= POSITION_LOW && self->velocity < 0)
        self->velocity = 0;
}

static double car_move(void *env, const void *action, bool *terminal)
{
    struct car *self = env;
    drive(self, (*(const int32_t *)action - 1) * PUSH);
    *terminal = self->position >= GOAL && self->velocity >= 0;
    return -1;
}

static double continuous_move(void *env, const void *action, bool *terminal)
{
    struct car *self = env;
    double force = classic_clip((double)*(const float *)action, -1, 1);
    drive(self, force * CONTINUOUS_POWER);
    *terminal = self->position >= CONTINUOUS_GOAL && self->velocity >= 0;
    return (*terminal ? 100 : 0) - 0.1 * force * force;
}

/* The slope of the hill is proportional to the force in drive. */
static double height_at(double position)
{
    return 0.45 * sin(3 * position) + 0.55;
}

#define HILL_PARTS 36

static void draw_car(const struct car *self, double goal, rp_drawing *out)
{
    double x = self->position, y = height_at(x), part = (POSITION_HIGH - POSITION_LOW) / HILL_PARTS;
    double slope = atan(1.35 * cos(3 * x)), along = cos(slope), up = sin(slope);
    *out = (rp_drawing){.left = POSITION_LOW - 0.05, .right = POSITION_HIGH + 0.05, .top = 1.2, .step_s = 1.0 / 30};
    for (int i = 0; i < HILL_PARTS; i++) {
        double from = POSITION_LOW + i * part, to = from + part;
        rp_draw(out, (rp_shape){RP_SHAPE_LINE, RP_ROLE_SCENE, from, height_at(from), to, height_at(to), 0.012});
    }
    rp_draw(out, (rp_shape){RP_SHAPE_LINE, RP_ROLE_GOAL, goal, height_at(goal), goal, height_at(goal) + 0.14, 0.012});
    rp_draw(out, (rp_shape){RP_SHAPE_BOX, RP_ROLE_GOAL, goal, height_at(goal) + 0.09, goal + 0.07,
                            height_at(goal) + 0.14, 0});
    rp_draw(out, (rp_shape){RP_SHAPE_LINE, RP_ROLE_BODY, x - 0.05 * along - 0.06 * up, y - 0.05 * up + 0.06 * along,
                            x + 0.05 * along - 0.06 * up, y + 0.05 * up + 0.06 * along, 0.05});
    for (int side = -1; side <= 1; side += 2)
        rp_draw(out, (rp_shape){RP_SHAPE_CIRCLE, RP_ROLE_JOINT, x + side * 0.045 * along - 0.022 * up,
                                y + side * 0.045 * up + 0.022 * along, 0, 0, 0.022});
}

static void car_draw(const void *env, rp_drawing *out)
{
    draw_car(env, GOAL, out);
}

static void continuous_draw(const void *env, rp_drawing *out)
{
    draw_car(env, CONTINUOUS_GOAL, out);
}

static const struct classic_task car_task = {
    .spec = {CLASSIC_NUMBERS(2), .n_actions = 3, .max_steps = 200},
    .size = sizeof(struct car),
    .n_state = 2,
    .start = car_start,
    .observe = car_observe,
    .move = car_move,
    .draw = car_draw,
};

static const struct classic_task continuous_task = {
    .spec = {CLASSIC_NUMBERS(2), .action_size = 1, .action_low = {-1}, .action_high = {1}, .max_steps = 999},
    .size = sizeof(struct car),
    .n_state = 2,
    .start = car_start,
    .observe = car_observe,
    .move = continuous_move,
    .draw = continuous_draw,
};

CLASSIC_ENV(env_mountaincar, &car_task, "MountainCar-v0",
            "swing a weak car up a hill: 3 actions, 2 numbers, -1 a step, 200 steps");

CLASSIC_ENV(env_mountaincar_continuous, &continuous_task, "MountainCarContinuous-v0",
            "the same with a throttle: 1 continuous action, 2 numbers, +100 at the top less the effort, 999 steps");
