/* InvertedPendulum: keep a pole upright on a cart, with a force on the cart.
 *
 * Mass of the cart 10.5 kg; pole: mass 5 kg, centre of mass 0.3 m above the hinge, inertia 0.19 kg m^2 about it; damping 1
 * in both joints; motor of 100 N per unit of action; Runge-Kutta of fourth order with 0.02 s, two steps per action. A soft
 * limit keeps the cart within 1 m. mujoco.h has the equations. */
#include <math.h>

#include "agent/env/builtin.h"
#include "agent/env/mujoco.h"

static const char pendulum_xml[] =
    "<mujoco model='InvertedPendulum'>\n"
    "  <size njmax='8' nconmax='1' nstack='2000'/>\n"
    "  <option timestep='0.02' integrator='RK4' gravity='0 0 -9.81'>\n"
    "    <flag contact='disable'/>\n"
    "  </option>\n"
    "  <worldbody>\n"
    "    <body name='cart'>\n"
    "      <joint name='rail' type='slide' axis='1 0 0' damping='1' limited='true' range='-1 1'/>\n"
    "      <inertial pos='0 0 0' mass='10.5' diaginertia='0.1 0.1 0.1'/>\n"
    "      <body name='pole'>\n"
    "        <joint name='hinge' type='hinge' axis='0 1 0' damping='1'/>\n"
    "        <inertial pos='0 0 0.3' mass='5' diaginertia='0.19 0.19 0.01'/>\n"
    "      </body>\n"
    "    </body>\n"
    "  </worldbody>\n"
    "  <actuator>\n"
    "    <motor joint='rail' gear='100' ctrllimited='true' ctrlrange='-3 3'/>\n"
    "  </actuator>\n"
    "</mujoco>\n";

static void pendulum_start(struct mujoco *self, double *qpos, double *qvel)
{
    for (int i = 0; i < 2; i++)
        qpos[i] = mujoco_uniform(self, 0.01);
    for (int i = 0; i < 2; i++)
        qvel[i] = mujoco_uniform(self, 0.01);
}

static void pendulum_observe(const struct mujoco *self, float *out)
{
    for (int i = 0; i < 2; i++) {
        out[i] = (float)self->data->qpos[i];
        out[2 + i] = (float)self->data->qvel[i];
    }
}

static double pendulum_judge(const struct mujoco *self, const float *action, bool *terminal)
{
    (void)action;
    *terminal = fabs(self->data->qpos[1]) > 0.2;
    return 1;
}

static const struct mujoco_task pendulum_task = {
    .xml = pendulum_xml,
    .frame_skip = 2,
    .n_observation = 4,
    .start = pendulum_start,
    .observe = pendulum_observe,
    .judge = pendulum_judge,
};

MUJOCO_ENV(env_inverted_pendulum, &pendulum_task, "InvertedPendulum",
           "MuJoCo: balance a pole on a cart; 4 numbers, 1 continuous action; 1 per step until it falls");
