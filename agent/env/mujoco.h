/* What the environments on MuJoCo share: loading a model from a string and stepping it. They are classic environments; the task
 * itself is a struct mujoco_task. The state for set_state is qpos, then qvel. Option: frame_skip.
 *
 * Each environment owns its model and its data. MuJoCo's two process-wide handlers, of errors and of warnings, are
 * set once, so that the library never writes a log file, waits for a key or exits: an error inside of a step ends
 * the episode as truncated, in the state before that step.
 *
 * x points forward, z up, gravity is 9.81 m/s^2. Hinges turn about y; a positive angle turns z towards x. Damping is a force of
 * -damping * velocity. Rewards and observations come from the state after the step. Episodes are truncated after 1000 steps; an
 * unstable model truncates its episode with reward 0.
 *
 * Two of them are a cart of mass M on a rail with damping b, and a pole of mass m hinged to it, its centre of mass at distance l, moment
 * of inertia I about that centre, damping c in the hinge. The angle is 0 when the pole points up, F is the force on the cart, constant
 * during a step:
 *
 *    (M + m) x''        + m l cos(angle) angle''  =  F - b x' + m l sin(angle) angle'^2
 *    m l cos(angle) x'' + (I + m l^2) angle''     =  m g l sin(angle) - c angle' */
#pragma once

#include "agent/env/classic.h"
#include <mujoco/mujoco.h>

#define MUJOCO_MAX_STATE 32u

struct mujoco;

struct mujoco_task {
    const char *xml;
    double frame_skip; /* physics steps per environment step, unless the option says otherwise */
    uint32_t n_observation;
    /* Draws the first state of an episode. qpos and qvel hold the model's pose at rest. */
    void (*start)(struct mujoco *self, double *qpos, double *qvel);
    void (*observe)(const struct mujoco *self, float *out);
    /* Returns the reward of the step from self->before to self->data, and says whether it ended the task. */
    double (*judge)(const struct mujoco *self, const float *action, bool *terminal);
};

struct mujoco {
    struct classic base;
    const struct mujoco_task *task;
    mjModel *model;
    mjData *data;
    double frame_skip;
    double before[MUJOCO_MAX_STATE]; /* qpos, then qvel, at the start of the last step */
};

/* Compiles a model. The error has MuJoCo's message, with the line. The caller frees the model with mj_deleteModel. */
rp_status mujoco_load(const char *name, const char *xml, mjModel **out, rp_error *err);

/* As classic_create. */
void *mujoco_create(const char *name, const struct mujoco_task *task, const rp_option *options, uint32_t n_options,
                    rp_env_spec *spec, rp_error *err);
/* Defines the ops of a task. */
#define MUJOCO_ENV(symbol, of, title, text) CLASSIC_DEFINE(symbol, mujoco_create, of, title, text, NULL)

/* Numbers for start functions: uniform in [-bound, bound], and standard normal. */
double mujoco_uniform(struct mujoco *self, double bound);
double mujoco_normal(struct mujoco *self);
/* Seconds of one environment step. */
double mujoco_duration(const struct mujoco *self);
