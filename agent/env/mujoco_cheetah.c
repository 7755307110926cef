/* Cheetah: a planar runner of seven bodies, nine degrees of freedom and six motors, to run forward fast with little
 * effort.
 *
 * The torso slides along x and z and turns about y. Each leg is thigh, shin and foot, from the joint above to the
 * joint below (or the tip), with springs that pull the joints towards 0. Links touch the ground and not each other.
 * Positions are x, z (relative to 0.7 m), pitch, back thigh, shin, foot, front thigh, shin, foot; the observation is these
 * without x, then the velocities. Reward: the way along x / duration of the step, less 0.1 * the sum of squared actions. */
#include "agent/env/builtin.h"
#include "agent/env/mujoco.h"

#define CHEETAH_NQ 9
#define CHEETAH_NU 6

static const char cheetah_xml[] =
    "<mujoco model='Cheetah'>\n"
    "  <compiler angle='radian'/>\n"
    "  <size njmax='120' nconmax='20' nstack='20000'/>\n"
    "  <option timestep='0.01' integrator='Euler' gravity='0 0 -9.81'/>\n"
    "  <default>\n"
    "    <joint type='hinge' axis='0 1 0' armature='0.1' limited='true' solreflimit='0.02 1' solimplimit='0 0.8 "
    "0.03'/>\n"
    "    <geom type='capsule' size='0.046' contype='1' conaffinity='0' condim='3' friction='0.4 0.1 0.1'\n"
    "          solref='0.02 1' solimp='0 0.8 0.01'/>\n"
    "    <motor ctrllimited='true' ctrlrange='-1 1'/>\n"
    "    <default class='root'>\n"
    "      <joint armature='0' damping='0' limited='false'/>\n"
    "    </default>\n"
    "  </default>\n"
    "  <worldbody>\n"
    "    <geom name='ground' type='plane' size='100 10 1' contype='0' conaffinity='1'/>\n"
    "    <body name='torso' pos='0 0 0.7'>\n"
    "      <joint name='x' class='root' type='slide' axis='1 0 0'/>\n"
    "      <joint name='z' class='root' type='slide' axis='0 0 1'/>\n"
    "      <joint name='pitch' class='root'/>\n"
    "      <geom name='trunk' fromto='-0.5 0 0 0.5 0 0' mass='4.7'/>\n"
    "      <geom name='head' fromto='0.5 0 0 0.72 0 0.2' mass='1.7'/>\n"
    "      <body name='back_thigh' pos='-0.5 0 0'>\n"
    "        <joint name='back_hip' range='-0.52 1.05' stiffness='240' damping='6'/>\n"
    "        <geom name='back_thigh' fromto='0 0 0 0.16 0 -0.25' mass='1.5'/>\n"
    "        <body name='back_shin' pos='0.16 0 -0.25'>\n"
    "          <joint name='back_knee' range='-0.785 0.785' stiffness='180' damping='4.5'/>\n"
    "          <geom name='back_shin' fromto='0 0 0 -0.28 0 -0.14' mass='1.6'/>\n"
    "          <body name='back_foot' pos='-0.28 0 -0.14'>\n"
    "            <joint name='back_ankle' range='-0.4 0.785' stiffness='120' damping='3'/>\n"
    "            <geom name='back_foot' fromto='0 0 0 0.055 0 -0.19' mass='1.1'/>\n"
    "          </body>\n"
    "        </body>\n"
    "      </body>\n"
    "      <body name='front_thigh' pos='0.5 0 0'>\n"
    "        <joint name='front_hip' range='-1 0.7' stiffness='180' damping='4.5'/>\n"
    "        <geom name='front_thigh' fromto='0 0 0 -0.14 0 -0.24' mass='1.4'/>\n"
    "        <body name='front_shin' pos='-0.14 0 -0.24'>\n"
    "          <joint name='front_knee' range='-1.2 0.87' stiffness='120' damping='3'/>\n"
    "          <geom name='front_shin' fromto='0 0 0 0.13 0 -0.18' mass='1.2'/>\n"
    "          <body name='front_foot' pos='0.13 0 -0.18'>\n"
    "            <joint name='front_ankle' range='-0.5 0.5' stiffness='60' damping='1.5'/>\n"
    "            <geom name='front_foot' fromto='0 0 0 0.085 0 -0.13' mass='0.8'/>\n"
    "          </body>\n"
    "        </body>\n"
    "      </body>\n"
    "    </body>\n"
    "  </worldbody>\n"
    "  <actuator>\n"
    "    <motor joint='back_hip' gear='120'/>\n"
    "    <motor joint='back_knee' gear='90'/>\n"
    "    <motor joint='back_ankle' gear='60'/>\n"
    "    <motor joint='front_hip' gear='120'/>\n"
    "    <motor joint='front_knee' gear='60'/>\n"
    "    <motor joint='front_ankle' gear='30'/>\n"
    "  </actuator>\n"
    "</mujoco>\n";

/* The slides are relative to the pose in the model: z is 0 at a height of 0.7 m. */
static void cheetah_start(struct mujoco *self, double *qpos, double *qvel)
{
    for (int i = 0; i < CHEETAH_NQ; i++)
        qpos[i] = mujoco_uniform(self, 0.1);
    for (int i = 0; i < CHEETAH_NQ; i++)
        qvel[i] = 0.1 * mujoco_normal(self);
}

/* A policy should not depend on x. */
static void cheetah_observe(const struct mujoco *self, float *out)
{
    for (int i = 1; i < CHEETAH_NQ; i++)
        *out++ = (float)self->data->qpos[i];
    for (int i = 0; i < CHEETAH_NQ; i++)
        *out++ = (float)self->data->qvel[i];
}

static double cheetah_judge(const struct mujoco *self, const float *action, bool *terminal)
{
    double effort = 0;
    for (int i = 0; i < CHEETAH_NU; i++)
        effort += (double)action[i] * (double)action[i];
    *terminal = false;
    return (self->data->qpos[0] - self->before[0]) / mujoco_duration(self) - 0.1 * effort;
}

static const struct mujoco_task cheetah_task = {
    .xml = cheetah_xml,
    .frame_skip = 5,
    .n_observation = 2 * CHEETAH_NQ - 1,
    .start = cheetah_start,
    .observe = cheetah_observe,
    .judge = cheetah_judge,
};

MUJOCO_ENV(env_cheetah, &cheetah_task, "Cheetah",
           "MuJoCo: a planar runner; 17 numbers, 6 continuous actions; forward velocity less effort, 1000 steps");
