/* replaybus._agent: environments, networks and adders of the agent rooms for Python, through the limited API of Python 3.11.
 *
 * An extension of its own, because it loads OpenBLAS and MuJoCo, which "import replaybus" does not need. It holds its own copy
 * of libreplay: handles of replaybus._core are never passed to it.
 *   array.c      numpy arrays in and out, by the buffer protocol
 *   env_list.c   the names of the built-in environments
 *   env_pool.c   environments that are stepped together; env.c, env_vector.c: the types Env and VectorEnv
 *   provider.c   environments in Python for the actor program; program.c: that program
 *   player.c     the C actor without its environments; actor.c, actor_open.c, actor_observe.c: the type Actor */
#ifndef AGENT_PYTHON_AGENT_H
#define AGENT_PYTHON_AGENT_H

#include "agent/env/env.h"
#include "agent/python/base/base.h"

/* ---- array.c */

/* The type and shape of an array. Kinds are those of the buffer protocol: 'f' float32, 'd' float64, 'q' int64, 'B' uint8,
 * '?' bool. */
struct array_form {
    const char *name; /* for errors: "observation" */
    char kind;
    uint32_t rank;
    uint32_t shape[RP_MAX_RANK + 1];
    PyObject *args; /* for array_new: arguments of numpy.empty; array_form_fini frees them */
};

/* An array that is read or written. view.obj is NULL while there is none. */
struct array {
    Py_buffer view;
    void *data;
};

/* The form of `n` numbers; of one observation, or with n > 0 of n observations; of one action, or of n. */
struct array_form array_form_vector(const char *name, char kind, uint32_t n);
struct array_form array_form_observation(const char *name, const rp_env_spec *spec, uint32_t n);
struct array_form array_form_action(const char *name, const rp_env_spec *spec, uint32_t n);
void array_form_fini(struct array_form *form);
/* Borrows the memory of a value, which is converted first if it is not an array of this form. False with an exception set. */
bool array_take(struct array *self, PyObject *value, const struct array_form *form);
/* Makes an array of this form, which is open for writing in *out. NULL with an exception set. */
PyObject *array_new(struct array_form *form, struct array *out);
void array_release(struct array *self);

/* ---- env_pool.c */

enum env_phase { ENV_PHASE_NEW, ENV_PHASE_RUNNING, ENV_PHASE_ENDED };

/* One environment of a pool. */
struct env_slot {
    struct env env;
    enum env_phase phase;
    void *guarded; /* a plug-in's observation, before it is copied; NULL for built-in environments */
};

struct env_pool {
    uint32_t n;
    struct env_slot *slots;
    size_t observation_bytes, action_bytes;
};

/* Reads (name, options, plugin, max_steps): text, ((name, value), ...), text, number. False with an exception set. */
bool env_pool_open(struct env_pool *self, PyObject *description, uint32_t n);
void env_pool_close(struct env_pool *self);
const rp_env_spec *env_pool_spec(const struct env_pool *self);
/* Starts an episode and writes its first observation. */
rp_status env_slot_reset(struct env_slot *self, void *observation, rp_error *err);
/* Makes one step of an episode that is running. */
rp_status env_slot_step(struct env_slot *self, const void *action, void *observation, rp_env_result *result,
                        rp_error *err);
/* The spec for Python: (dtype, shape, n_actions, low, high, max_steps); low and high are empty for discrete actions. */
PyObject *env_spec_describe(const rp_env_spec *spec);

/* ---- actor_open.c */

struct player;
/* Reads (endpoint, (path, text, overrides), spec or None, index, n, vector, greedy, insert, wait, timeout) and makes a player.
 * NULL with an exception set. */
struct player *player_open(PyObject *args, int *vector);

/* ---- types */

/* The function environments(): [(name, help)] of the built-in environments. */
PyObject *env_list(PyObject *module, PyObject *unused);
bool env_register(PyObject *module);
bool env_vector_register(PyObject *module);
bool actor_register(PyObject *module);
/* The functions run_actor(argv, open) and run_single(argv, open): replay-actor and replay-single with environments in Python; they
 * return the exit status. */
PyObject *program_run_actor(PyObject *module, PyObject *args);
PyObject *program_run_single(PyObject *module, PyObject *args);

#endif
