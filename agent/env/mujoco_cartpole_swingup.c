/* CartPoleSwingUp: the control suite's task: swing a hanging pole up with a weak force on its cart, and keep it there, in
 * the middle, still and with little effort.
 *
 * Mass of the cart 1 kg; pole: mass 0.1 kg, centre of mass 0.5 m from the hinge, inertia 0.0094 kg m^2 about it; damping
 * 0.0005 on the rail and 0.000002 in the hinge; motor of 10 N per unit of action; Runge-Kutta of fourth order with
 * 0.01 s, one step per action. A soft limit keeps the cart within 1.8 m. mujoco.h has the equations. */
#include <math.h>

#include "agent/env/builtin.h"
#include "agent/env/mujoco.h"

static const char swingup_xml[] =
    "<mujoco model='CartPoleSwingUp'>\n"
    "  <size njmax='8' nconmax='1' nstack='2000'/>\n"
    "  <option timestep='0.01' integrator='RK4' gravity='0 0 -9.81'>\n"
    "    <flag contact='disable'/>\n"
    "  </option>\n"
    "  <worldbody>\n"
    "    <body name='cart'>\n"
    "      <joint name='rail' type='slide' axis='1 0 0' damping='0.0005' limited='true' range='-1.8 1.8'\n"
    "             solreflimit='0.08 1'/>\n"
    "      <inertial pos='0 0 0' mass='1' diaginertia='0.01 0.01 0.01'/>\n"
    "      <body name='pole'>\n"
    "        <joint name='hinge' type='hinge' axis='0 1 0' damping='0.000002'/>\n"
    "        <inertial pos='0 0 0.5' mass='0.1' diaginertia='0.0094 0.0094 0.0001'/>\n"
    "      </body>\n"
    "    </body>\n"
    "  </worldbody>\n"
    "  <actuator>\n"
    "    <motor joint='rail' gear='10' ctrllimited='true' ctrlrange='-1 1'/>\n"
    "  </actuator>\n"
    "</mujoco>\n";

static void swingup_start(struct mujoco *self, double *qpos, double *qvel)
{
    qpos[0] = 0.01 * mujoco_normal(self);
    qpos[1] = mjPI + 0.01 * mujoco_normal(self);
    for (int i = 0; i < 2; i++)
        qvel[i] = 0.01 * mujoco_normal(self);
}

static void swingup_observe(const struct mujoco *self, float *out)
{
    const mjData *data = self->data;
    out[0] = (float)data->qpos[0];
    out[1] = (float)cos(data->qpos[1]);
    out[2] = (float)sin(data->qpos[1]);
    out[3] = (float)data->qvel[0];
    out[4] = (float)data->qvel[1];
}

/* 1 at x = 0, 0.1 at the margin, falling like a Gaussian. */
static double swingup_near_zero(double x, double margin)
{
    double relative = x / margin;
    return pow(0.1, relative * relative);
}

static double swingup_judge(const struct mujoco *self, const float *action, bool *terminal)
{
    const mjData *data = self->data;
    double effort = (double)action[0] * (double)action[0];
    double upright = (1 + cos(data->qpos[1])) / 2;
    double centred = (1 + swingup_near_zero(data->qpos[0], 2)) / 2;
    double control = (4 + fmax(0, 1 - effort)) / 5;
    double velocity = (1 + swingup_near_zero(data->qvel[1], 5)) / 2;
    *terminal = false;
    return upright * centred * control * velocity;
}

static const struct mujoco_task swingup_task = {
    .xml = swingup_xml,
    .frame_skip = 1,
    .n_observation = 5,
    .start = swingup_start,
    .observe = swingup_observe,
    .judge = swingup_judge,
};

MUJOCO_ENV(env_cartpole_swingup, &swingup_task, "CartPoleSwingUp",
           "MuJoCo: swing a pole up and hold it; 5 numbers, 1 continuous action; 0 to 1 per step, 1000 steps");
