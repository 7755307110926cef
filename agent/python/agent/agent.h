/* replaybus._agent: environments, networks and adders of the agent rooms for Python, through the limited API of Python 3.11.
 *
 * An extension of its own, because it loads OpenBLAS and MuJoCo, which "import replaybus" does not need. It holds its own copy
 * of libreplay: handles of replaybus._core are never passed to it.
 *   env.c      the types Env and VectorEnv, and specs of environments
 *   config.c   a run's configuration
 *   program.c  the actor program with environments in Python
 *   actor.c    the type Actor: the C actor without its environments */
#pragma once

#include "agent/config/config.h"
#include "agent/env/env.h"
#include "agent/python/base/base.h"

/* ---- env.c */

/* What an observation or an action is as a value of Python. Borrows the name. */
struct column env_observation_column(const char *name, const rp_env_spec *spec);
struct column env_action_column(const char *name, const rp_env_spec *spec);
/* The spec for Python: (dtype, shape, n_actions, low, high, max_steps); low and high are empty for discrete actions. */
PyObject *env_spec_describe(const rp_env_spec *spec);
/* Reads such a tuple. False with an exception set. */
bool env_spec_read(PyObject *value, rp_env_spec *out);

/* ---- config.c */

/* Reads (path or None, text or None, overrides): the configuration of a run. False with an exception set. */
bool config_read(PyObject *source, struct run_config *out);
/* A dict of rp_options. */
PyObject *config_options(const struct schema_list *list);

/* ---- functions and types of the module */

/* The function config(source): {"environment.name": ...} of what config_read takes. Times are seconds; the elements of lists of maps
 * are left out. */
PyObject *config_dict(PyObject *module, PyObject *source);

/* The function environments(): [(name, help)] of the built-in environments. */
PyObject *env_list(PyObject *module, PyObject *unused);
extern const struct core_type env_core, vector_core, actor_core;
/* The functions run_actor(argv, open) and run_single(argv, open): replay-actor and replay-single with environments in Python; they
 * return the exit status. open(python, gym, options, n) gives the adapter's Environments. */
PyObject *program_run_actor(PyObject *module, PyObject *args);
PyObject *program_run_single(PyObject *module, PyObject *args);
