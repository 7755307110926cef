/* Environments that are stepped together: what Env and VectorEnv share. */
#include <stdlib.h>
#include <string.h>

#include "agent/python/agent/agent.h"

/* ---- making */

/* Reads ((name, value), ...); the texts are borrowed from the tuple. */
static bool read_options(PyObject *pairs, struct schema_list *out)
{
    Py_ssize_t n = PyTuple_Size(pairs);
    rp_option *options = n > 0 ? calloc((size_t)n, sizeof *options) : NULL;
    if (n > 0 && !options) {
        PyErr_NoMemory();
        return false;
    }
    *out = (struct schema_list){.data = options, .count = (uint32_t)n};
    for (Py_ssize_t i = 0; i < n; i++)
        if (!PyArg_ParseTuple(PyTuple_GetItem(pairs, i), "ss", &options[i].name, &options[i].value))
            return false;
    return true;
}

static rp_status open_slot(struct env_slot *slot, const struct env_config *config, rp_error *err)
{
    rp_status status = env_open(&slot->env, config, err);
    if (status != RP_OK || !slot->env.library)
        return status;
    slot->guarded = env_observation_new(&slot->env);
    return slot->guarded ? RP_OK : RP_NO_MEMORY;
}

static bool open_slots(struct env_pool *self, const struct env_config *config, uint32_t n)
{
    rp_error err = {0};
    self->slots = calloc(n, sizeof *self->slots);
    rp_status status = self->slots ? RP_OK : RP_NO_MEMORY;
    Py_BEGIN_ALLOW_THREADS;
    for (; status == RP_OK && self->n < n; self->n++)
        status = open_slot(&self->slots[self->n], config, &err);
    Py_END_ALLOW_THREADS;
    if (status == RP_NO_MEMORY)
        PyErr_NoMemory();
    else if (status != RP_OK)
        core_raise(status, err.text);
    return status == RP_OK;
}

bool env_pool_open(struct env_pool *self, PyObject *description, uint32_t n)
{
    struct env_config config = {0};
    PyObject *options;
    long long max_steps;
    if (!PyArg_ParseTuple(description, "sO!sL", (const char **)&config.name, &PyTuple_Type, &options,
                          (const char **)&config.plugin, &max_steps))
        return false;
    config.max_steps = max_steps;
    bool ok = read_options(options, &config.options) && open_slots(self, &config, n);
    free(config.options.data);
    if (!ok) {
        env_pool_close(self);
        return false;
    }
    self->observation_bytes = env_observation_bytes(env_pool_spec(self));
    self->action_bytes = env_action_bytes(env_pool_spec(self));
    return true;
}

void env_pool_close(struct env_pool *self)
{
    for (uint32_t i = 0; i < self->n; i++) {
        env_close(&self->slots[i].env);
        free(self->slots[i].guarded);
    }
    free(self->slots);
    *self = (struct env_pool){0};
}

const rp_env_spec *env_pool_spec(const struct env_pool *self)
{
    return &self->slots[0].env.spec;
}

/* ---- use */

/* Hands over what a plug-in has written into guarded memory. */
static rp_status take_guarded(struct env_slot *self, void *observation, rp_error *err)
{
    rp_status status = self->guarded ? env_observation_check(&self->env, self->guarded, err) : RP_OK;
    if (self->guarded && status == RP_OK)
        memcpy(observation, self->guarded, env_observation_bytes(&self->env.spec));
    return status;
}

rp_status env_slot_reset(struct env_slot *self, void *observation, rp_error *err)
{
    env_reset(&self->env, self->guarded ? self->guarded : observation);
    rp_status status = take_guarded(self, observation, err);
    self->phase = status == RP_OK ? ENV_PHASE_RUNNING : ENV_PHASE_NEW;
    return status;
}

rp_status env_slot_step(struct env_slot *self, const void *action, void *observation, rp_env_result *result,
                        rp_error *err)
{
    env_step_native(&self->env, action, self->guarded ? self->guarded : observation, result);
    rp_status status = take_guarded(self, observation, err);
    if (status != RP_OK)
        self->phase = ENV_PHASE_NEW;
    else if (result->terminal || result->truncated)
        self->phase = ENV_PHASE_ENDED;
    return status;
}

/* ---- description */

static PyObject *numbers(const float *values, uint32_t n)
{
    PyObject *tuple = PyTuple_New((Py_ssize_t)n);
    for (uint32_t i = 0; tuple && i < n; i++) {
        PyObject *number = PyFloat_FromDouble((double)values[i]);
        if (!number || PyTuple_SetItem(tuple, (Py_ssize_t)i, number) < 0)
            Py_CLEAR(tuple);
    }
    return tuple;
}

PyObject *env_spec_describe(const rp_env_spec *spec)
{
    PyObject *shape = PyTuple_New((Py_ssize_t)spec->observation_rank);
    for (uint32_t i = 0; shape && i < spec->observation_rank; i++)
        if (PyTuple_SetItem(shape, (Py_ssize_t)i, PyLong_FromUnsignedLong(spec->observation_shape[i])) < 0)
            Py_CLEAR(shape);
    PyObject *low = numbers(spec->action_low, spec->action_size), *high = numbers(spec->action_high, spec->action_size);
    PyObject *all = NULL;
    if (shape && low && high)
        all = Py_BuildValue("(sOIOOI)", spec->observation_dtype == RP_DTYPE_FLOAT32 ? "float32" : "uint8", shape,
                            spec->n_actions, low, high, spec->max_steps);
    Py_XDECREF(shape);
    Py_XDECREF(low);
    Py_XDECREF(high);
    return all;
}
