/* The built-in environments. To add one: a file with its task and its ops, a line here, a line in env_builtin (env.c),
 * a model and scenes in tests/golden. */
#pragma once

#include "replay/env.h"

extern const rp_env_ops env_cartpole;               /* CartPole-v1 */
extern const rp_env_ops env_acrobot;                /* Acrobot-v1 */
extern const rp_env_ops env_mountaincar;            /* MountainCar-v0 */
extern const rp_env_ops env_mountaincar_continuous; /* MountainCarContinuous-v0 */
extern const rp_env_ops env_pendulum;               /* Pendulum-v1 */
extern const rp_env_ops env_catch;                  /* Catch */
extern const rp_env_ops env_deepsea;                /* DeepSea */
extern const rp_env_ops env_breakout;               /* Breakout */
extern const rp_env_ops env_freeway;                /* Freeway */
extern const rp_env_ops env_asterix;                /* Asterix */
extern const rp_env_ops env_space_invaders;         /* SpaceInvaders */
extern const rp_env_ops env_memory;                 /* Memory */

/* on the MuJoCo library */
extern const rp_env_ops env_inverted_pendulum; /* InvertedPendulum */
extern const rp_env_ops env_cartpole_swingup;  /* CartPoleSwingUp */
extern const rp_env_ops env_cheetah;           /* Cheetah */
