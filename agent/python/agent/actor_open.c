/* Opening an Actor: its arguments, and a connection on a helper thread, so that a signal ends the wait for it. */
#include <stdlib.h>
#include <string.h>

#include "agent/python/agent/agent.h"
#include "agent/python/agent/player.h"

struct opening {
    struct job job;
    struct player_options options;
    struct player *player;
    rp_error err;
};

static void opening_run(struct job *job)
{
    struct opening *self = (struct opening *)job;
    self->player = player_new(&self->options, &self->err);
}

static void opening_drop(struct job *job)
{
    struct opening *self = (struct opening *)job;
    player_destroy(&self->player, 0);
    free(self);
}

/* Reads (path or None, text or None, overrides): the configuration of a run. False with an exception set. */
static bool read_config(PyObject *source, struct run_config *out)
{
    const char *path, *text;
    PyObject *list;
    const char *overrides[64] = {NULL};
    if (!PyArg_ParseTuple(source, "zzO!", &path, &text, &PyTuple_Type, &list))
        return false;
    Py_ssize_t n = PyTuple_Size(list);
    if (n >= 64) {
        PyErr_SetString(PyExc_ValueError, "there are more than 63 overrides");
        return false;
    }
    for (Py_ssize_t i = 0; i < n; i++)
        if (!(overrides[i] = core_text(PyTuple_GetItem(list, i), "an override")))
            return false;
    struct schema_report *report = schema_report_new();
    if (!report)
        return PyErr_NoMemory() != NULL;
    bool ok = text ? run_config_read_text("config", text, overrides, out, report)
                   : run_config_read(path, overrides, out, report);
    if (!ok)
        core_raise(RP_INVALID_ARGUMENT, schema_report_text(report));
    schema_report_destroy(&report);
    return ok;
}

/* Reads what env_spec_describe makes. */
static bool read_spec(PyObject *value, rp_env_spec *out)
{
    const char *dtype;
    PyObject *shape, *low, *high;
    if (!PyArg_ParseTuple(value, "sO!O&O!O!O&", &dtype, &PyTuple_Type, &shape, core_u32, &out->n_actions, &PyTuple_Type,
                          &low, &PyTuple_Type, &high, core_u32, &out->max_steps))
        return false;
    Py_ssize_t rank = PyTuple_Size(shape), size = PyTuple_Size(low);
    if (rank > (Py_ssize_t)RP_MAX_RANK || size > (Py_ssize_t)RP_ENV_MAX_ACTION || PyTuple_Size(high) != size) {
        PyErr_Format(PyExc_ValueError, "observations have at most %u dimensions, and actions at most %u numbers",
                     RP_MAX_RANK, RP_ENV_MAX_ACTION);
        return false;
    }
    out->observation_dtype = strcmp(dtype, "float32") == 0 ? RP_DTYPE_FLOAT32 : RP_DTYPE_UINT8;
    out->observation_rank = (uint32_t)rank;
    out->action_size = (uint32_t)size;
    for (Py_ssize_t i = 0; i < rank; i++)
        if (!core_u32(PyTuple_GetItem(shape, i), &out->observation_shape[i]))
            return false;
    for (Py_ssize_t i = 0; i < size; i++) {
        out->action_low[i] = (float)PyFloat_AsDouble(PyTuple_GetItem(low, i));
        out->action_high[i] = (float)PyFloat_AsDouble(PyTuple_GetItem(high, i));
    }
    return !PyErr_Occurred();
}

/* False with an exception set; the options are to be freed in any case. */
static bool read_options(PyObject *args, struct player_options *out, int *vector)
{
    const char *endpoint;
    PyObject *source, *spec, *seconds;
    int greedy, insert, wait;
    if (!PyArg_ParseTuple(args, "sOOO&O&pippO", &endpoint, &source, &spec, core_u32, &out->index, core_u32, &out->n,
                          vector, &greedy, &insert, &wait, &seconds) ||
        !core_timeout(seconds, &out->timeout_ms) || !read_config(source, &out->config))
        return false;
    out->greedy = greedy;
    out->insert = insert != 0;
    out->wait = wait != 0;
    out->spec_given = spec != Py_None;
    out->endpoint = strdup(endpoint);
    if (!out->endpoint)
        return PyErr_NoMemory() != NULL;
    return !out->spec_given || read_spec(spec, &out->spec);
}

struct player *player_open(PyObject *args, int *vector)
{
    struct opening *opening = calloc(1, sizeof *opening);
    if (!opening)
        return (struct player *)PyErr_NoMemory();
    opening->job = (struct job){.run = opening_run, .drop = opening_drop};
    if (!read_options(args, &opening->options, vector)) {
        player_options_free(&opening->options);
        free(opening);
        return NULL;
    }
    if (!job_wait(&opening->job))
        return NULL;
    struct player *player = opening->player;
    if (!player)
        core_raise(opening->err.status, opening->err.text);
    free(opening);
    return player;
}
