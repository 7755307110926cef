/* MountainCar-v0 and MountainCarContinuous-v0: a car too weak for the hill swings back and forth to get up. The
 * equations and numbers of Gymnasium. The state for set_state of both: position, velocity. */
#include <stdlib.h>

#include "agent/env/builtin.h"
#include "agent/env/classic.h"

#define POSITION_LOW (-1.2)
#define POSITION_HIGH 0.6
#define MOST_SPEED 0.07
#define SLOPE 0.0025

#define PUSH 0.001
#define GOAL 0.5
#define MOUNTAINCAR_MAX_STEPS 200u

#define CONTINUOUS_POWER 0.0015
#define CONTINUOUS_GOAL 0.45
#define CONTINUOUS_MAX_STEPS 999u

struct car {
    struct rng rng;
    double position, velocity;
    uint32_t steps;
};

static struct car *car_new(const char *name, const rp_option *options, uint32_t n_options, rp_error *err)
{
    struct car *self = classic_new(name, sizeof *self, options, n_options, NULL, err);
    if (self)
        rng_seed(&self->rng, 0);
    return self;
}

static void *car_create(const rp_option *options, uint32_t n_options, rp_env_spec *spec, rp_error *err)
{
    *spec = (rp_env_spec){.observation_dtype = RP_DTYPE_FLOAT32,
                          .observation_rank = 1,
                          .observation_shape = {2},
                          .n_actions = 3,
                          .max_steps = MOUNTAINCAR_MAX_STEPS};
    return car_new("MountainCar-v0", options, n_options, err);
}

static void *continuous_create(const rp_option *options, uint32_t n_options, rp_env_spec *spec, rp_error *err)
{
    *spec = (rp_env_spec){.observation_dtype = RP_DTYPE_FLOAT32,
                          .observation_rank = 1,
                          .observation_shape = {2},
                          .action_size = 1,
                          .action_low = {-1},
                          .action_high = {1},
                          .max_steps = CONTINUOUS_MAX_STEPS};
    return car_new("MountainCarContinuous-v0", options, n_options, err);
}

static void car_seed(void *state, uint64_t seed)
{
    rng_seed(&((struct car *)state)->rng, seed);
}

static void mountaincar_observe(const struct car *self, float *out)
{
    out[0] = (float)self->position;
    out[1] = (float)self->velocity;
}

static void car_reset(void *state, void *observation)
{
    struct car *self = state;
    self->steps = 0;
    self->position = classic_uniform(&self->rng, -0.6, -0.4);
    self->velocity = 0;
    mountaincar_observe(self, observation);
}

/* The left end is a wall that stops the car. */
static void move(struct car *self, double push)
{
    self->velocity += push - SLOPE * cos(3 * self->position);
    self->velocity = classic_clip(self->velocity, -MOST_SPEED, MOST_SPEED);
    self->position = classic_clip(self->position + self->velocity, POSITION_LOW, POSITION_HIGH);
    if (self->position <= POSITION_LOW && self->velocity < 0)
        self->velocity = 0;
}

static void car_step(void *state, const void *action, void *observation, rp_env_result *result)
{
    struct car *self = state;
    move(self, (*(const int32_t *)action - 1) * PUSH);
    mountaincar_observe(self, observation);
    bool terminal = self->position >= GOAL && self->velocity >= 0;
    classic_result(result, -1, terminal, &self->steps, MOUNTAINCAR_MAX_STEPS);
}

static void continuous_step(void *state, const void *action, void *observation, rp_env_result *result)
{
    struct car *self = state;
    double force = classic_clip((double)*(const float *)action, -1, 1);
    move(self, force * CONTINUOUS_POWER);
    mountaincar_observe(self, observation);
    bool terminal = self->position >= CONTINUOUS_GOAL && self->velocity >= 0;
    classic_result(result, (terminal ? 100 : 0) - 0.1 * force * force, terminal, &self->steps, CONTINUOUS_MAX_STEPS);
}

static rp_status car_set_state(void *state, const double *values, uint32_t n, void *observation)
{
    struct car *self = state;
    if (!classic_finite(values, n, 2))
        return RP_INVALID_ARGUMENT;
    self->steps = 0;
    self->position = values[0];
    self->velocity = values[1];
    mountaincar_observe(self, observation);
    return RP_OK;
}

const rp_env_ops env_mountaincar = {
    .name = "MountainCar-v0",
    .help = "swing a weak car up a hill: 3 actions, 2 numbers, -1 a step, 200 steps",
    .create = car_create,
    .destroy = free,
    .seed = car_seed,
    .reset = car_reset,
    .step = car_step,
    .set_state = car_set_state,
};

const rp_env_ops env_mountaincar_continuous = {
    .name = "MountainCarContinuous-v0",
    .help = "the same with a throttle: 1 continuous action, 2 numbers, +100 at the top less the effort, 999 steps",
    .create = continuous_create,
    .destroy = free,
    .seed = car_seed,
    .reset = car_reset,
    .step = continuous_step,
    .set_state = car_set_state,
};
