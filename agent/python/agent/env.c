/* Env and VectorEnv: one environment with Gymnasium's step, and n of them in one call, with the autoreset modes of Gymnasium's vector
 * environments. Both are the same object; an Env has values where a VectorEnv has arrays with a row for each environment. */
#include <stdlib.h>
#include <string.h>

#include "agent/env/env.h"
#include "agent/python/agent/agent.h"
#include "proto/base/error.h"

enum env_phase { ENV_PHASE_NEW, ENV_PHASE_RUNNING, ENV_PHASE_ENDED };
enum autoreset { AUTORESET_SAME_STEP, AUTORESET_NEXT_STEP, AUTORESET_DISABLED };

struct env_slot {
    struct env env;
    enum env_phase phase;
    void *guarded; /* a plug-in's observation, before it is copied; NULL for built-in environments */
};

/* The arrays that a step writes. */
enum output { OUT_OBSERVATION, OUT_REWARD, OUT_TERMINATED, OUT_TRUNCATED, N_OUTPUTS };

typedef struct envs_object {
    struct guarded guarded;
    uint32_t n; /* 0 before _open and after close */
    struct env_slot *slots;
    size_t observation_bytes, action_bytes;
    uint32_t rows; /* of arrays: n, or 0 for an Env */
    int autoreset; /* an enum autoreset */
    bool copy;     /* each call returns new arrays */
    struct column action, outputs[N_OUTPUTS];
    PyObject *kept[N_OUTPUTS]; /* the arrays of all calls unless `copy` */
    void *kept_data[N_OUTPUTS];
    char *final_rows; /* [n][observation]: last observations of episodes that ended in this step; without autoreset, the
                         present observations */
    bool *ended;      /* [n]: the rows of `final_rows` that are set */
} envs_object;

PyObject *env_list(PyObject *module, PyObject *unused)
{
    (void)module;
    (void)unused;
    PyObject *list = PyList_New(0);
    for (const rp_env_ops *const *ops = env_builtin; list && *ops; ops++)
        core_append(&list, Py_BuildValue("(ss)", (*ops)->name, (*ops)->help));
    return list;
}

/* ---- specs */

struct column env_observation_column(const char *name, const rp_env_spec *spec)
{
    struct column column = {
        .name = (char *)(uintptr_t)name, .dtype = spec->observation_dtype, .rank = spec->observation_rank};
    memcpy(column.shape, spec->observation_shape, spec->observation_rank * sizeof column.shape[0]);
    return column;
}

struct column env_action_column(const char *name, const rp_env_spec *spec)
{
    return (struct column){.name = (char *)(uintptr_t)name,
                           .dtype = spec->n_actions ? RP_DTYPE_INT64 : RP_DTYPE_FLOAT32,
                           .rank = spec->n_actions == 0,
                           .shape = {spec->action_size}};
}

static PyObject *numbers(const float *values, uint32_t n)
{
    PyObject *tuple = PyTuple_New((Py_ssize_t)n);
    for (uint32_t i = 0; tuple && i < n; i++)
        core_set(&tuple, i, PyFloat_FromDouble((double)values[i]));
    return tuple;
}

PyObject *env_spec_describe(const rp_env_spec *spec)
{
    PyObject *shape = core_shape(spec->observation_shape, spec->observation_rank);
    PyObject *low = numbers(spec->action_low, spec->action_size), *high = numbers(spec->action_high, spec->action_size);
    return Py_BuildValue("(sNINNI)", dtype_name(spec->observation_dtype), shape, spec->n_actions, low, high,
                         spec->max_steps);
}

bool env_spec_read(PyObject *value, rp_env_spec *out)
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

/* ---- environments */

/* Hands over what a plug-in has written into guarded memory. */
static rp_status take_guarded(struct env_slot *self, void *observation, rp_error *err)
{
    rp_status status = self->guarded ? env_observation_check(&self->env, self->guarded, err) : RP_OK;
    if (self->guarded && status == RP_OK)
        memcpy(observation, self->guarded, env_observation_bytes(&self->env.spec));
    return status;
}

/* Starts an episode and writes its first observation. */
static rp_status reset_slot(struct env_slot *self, void *observation, rp_error *err)
{
    env_reset(&self->env, self->guarded ? self->guarded : observation);
    rp_status status = take_guarded(self, observation, err);
    self->phase = status == RP_OK ? ENV_PHASE_RUNNING : ENV_PHASE_NEW;
    return status;
}

/* Makes one step of an episode that is running. */
static rp_status step_slot(struct env_slot *self, const void *action, void *observation, rp_env_result *result,
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

static bool enter(envs_object *self)
{
    const char *what = self->rows ? "vector environment" : "environment";
    if (!gate_enter(&self->guarded.gate, what))
        return false;
    if (self->n > 0)
        return true;
    core_raise(RP_FAILED_PRECONDITION, "this environment is not open: replaybus.envs.make opens one");
    gate_leave(&self->guarded.gate);
    return false;
}

static PyObject *get_output(envs_object *self, enum output which, void **data)
{
    if (self->copy)
        return numpy_empty(&self->outputs[which], self->rows, data);
    if (!self->kept[which])
        self->kept[which] = numpy_empty(&self->outputs[which], self->rows, &self->kept_data[which]);
    *data = self->kept_data[which];
    return Py_XNewRef(self->kept[which]);
}

static bool check_phases(const envs_object *self)
{
    for (uint32_t i = 0; i < self->n; i++) {
        enum env_phase phase = self->slots[i].phase;
        if (phase == ENV_PHASE_NEW || (phase == ENV_PHASE_ENDED && self->autoreset == AUTORESET_DISABLED)) {
            char text[120];
            PyOS_snprintf(text, sizeof text, "environment %u %s%s", i,
                          phase == ENV_PHASE_NEW ? "has not begun an episode: call reset before the first step"
                                                 : "has ended its episode: call reset",
                          phase == ENV_PHASE_ENDED && self->rows ? " with a reset_mask" : "");
            core_raise(RP_FAILED_PRECONDITION, text);
            return false;
        }
    }
    return true;
}

/* ---- steps */

/* One call. */
struct vector_step {
    envs_object *self;
    const void *actions;
    void *outputs[N_OUTPUTS];
    uint32_t n_ended; /* rows of final_rows */
    rp_error *err;
};

static rp_status step_one(struct vector_step *step, uint32_t i, const void *action)
{
    envs_object *self = step->self;
    struct env_slot *slot = &self->slots[i];
    char *observation = (char *)step->outputs[OUT_OBSERVATION] + i * self->observation_bytes;
    char *row = self->final_rows + i * self->observation_bytes;
    rp_env_result result = {0};
    rp_status status = RP_OK;
    if (slot->phase == ENV_PHASE_ENDED)
        status = reset_slot(slot, observation, step->err); /* AUTORESET_NEXT_STEP: the action is ignored */
    else
        status = step_slot(slot, action, observation, &result, step->err);
    ((double *)step->outputs[OUT_REWARD])[i] = (double)result.reward;
    ((bool *)step->outputs[OUT_TERMINATED])[i] = result.terminal;
    ((bool *)step->outputs[OUT_TRUNCATED])[i] = result.truncated;
    self->ended[i] = false;
    if (status == RP_OK && self->autoreset == AUTORESET_DISABLED && self->rows) {
        memcpy(row, observation, self->observation_bytes);
    } else if (status == RP_OK && slot->phase == ENV_PHASE_ENDED && self->autoreset == AUTORESET_SAME_STEP) {
        memcpy(row, observation, self->observation_bytes);
        self->ended[i] = true;
        step->n_ended++;
        status = reset_slot(slot, observation, step->err);
    }
    return status;
}

/* Of several environments without the GIL. */
static rp_status step_all(struct vector_step *step)
{
    const envs_object *self = step->self;
    bool discrete = self->slots[0].env.spec.n_actions > 0;
    rp_status status = RP_OK;
    for (uint32_t i = 0; i < self->n && status == RP_OK; i++) {
        int32_t chosen = discrete ? (int32_t)((const int64_t *)step->actions)[i] : 0;
        const void *continuous = discrete ? NULL : (const char *)step->actions + i * self->action_bytes;
        status = step_one(step, i, discrete ? &chosen : continuous);
    }
    return status;
}

static bool check_actions(const envs_object *self, const int64_t *actions)
{
    uint32_t n = self->slots[0].env.spec.n_actions;
    for (uint32_t i = 0; n > 0 && i < self->n; i++)
        if (actions[i] < 0 || actions[i] >= (int64_t)n) {
            char which[16] = "the action";
            if (self->rows)
                PyOS_snprintf(which, sizeof which, "action %u", i);
            PyErr_Format(PyExc_ValueError, "%s is %lld; it may be 0 to %u", which, (long long)actions[i], n - 1);
            return false;
        }
    return true;
}

/* A new array with a copy of rows that the object keeps. */
static PyObject *copy_rows(const envs_object *self, enum output which, const void *rows, size_t bytes)
{
    void *data;
    PyObject *array = numpy_empty(&self->outputs[which], self->rows, &data);
    if (array)
        memcpy(data, rows, self->n * bytes);
    return array;
}

/* The last observations of episodes that ended, under the names of both versions of Gymnasium. */
static PyObject *make_info(const envs_object *self, uint32_t n_ended)
{
    if (n_ended == 0)
        return PyDict_New();
    PyObject *rows = copy_rows(self, OUT_OBSERVATION, self->final_rows, self->observation_bytes);
    PyObject *mask = rows ? copy_rows(self, OUT_TERMINATED, self->ended, sizeof(bool)) : NULL;
    PyObject *info = NULL;
    if (mask)
        info = Py_BuildValue("{s:O,s:O,s:O,s:O}", "final_obs", rows, "_final_obs", mask, "final_observation", rows,
                             "_final_observation", mask);
    Py_XDECREF(rows);
    Py_XDECREF(mask);
    return info;
}

static PyObject *step_together(envs_object *self, const void *actions)
{
    rp_error err;
    double reward = 0;
    bool terminated = false, truncated = false;
    struct vector_step step = {self, actions, {NULL, &reward, &terminated, &truncated}, 0, &err};
    PyObject *arrays[N_OUTPUTS] = {NULL}, *answer = NULL;
    uint32_t n = 0, wanted = self->rows ? N_OUTPUTS : OUT_OBSERVATION + 1;
    while (n < wanted && (arrays[n] = get_output(self, (enum output)n, &step.outputs[n])))
        n++;
    if (n == wanted) {
        bool slow = self->rows || self->slots[0].env.library; /* a plug-in may take its time */
        PyThreadState *thread = slow ? PyEval_SaveThread() : NULL;
        rp_status status = step_all(&step);
        if (thread)
            PyEval_RestoreThread(thread);
        PyObject *info = status == RP_OK ? make_info(self, step.n_ended) : core_raise(status, err.text);
        if (info && self->rows)
            answer = Py_BuildValue("(OOOON)", arrays[0], arrays[1], arrays[2], arrays[3], info);
        else if (info)
            answer = Py_BuildValue("(OdOON)", arrays[0], reward, terminated ? Py_True : Py_False,
                                   truncated ? Py_True : Py_False, info);
    }
    while (n > 0)
        Py_DECREF(arrays[--n]);
    return answer;
}

static PyObject *envs_step(PyObject *object, PyObject *value)
{
    envs_object *self = (envs_object *)object;
    struct cell actions = {.data = NULL};
    if (!enter(self))
        return NULL;
    bool number = self->rows == 0 && self->slots[0].env.spec.n_actions; /* whatever Python takes for an index */
    PyObject *given = number ? PyNumber_Index(value) : Py_NewRef(value);
    bool ok = given && check_phases(self) && cell_take(&actions, &self->action, given, self->rows) &&
              check_actions(self, actions.data);
    PyObject *answer = ok ? step_together(self, actions.data) : NULL;
    cells_release(&actions, 1);
    Py_XDECREF(given);
    gate_leave(&self->guarded.gate);
    return answer;
}

/* ---- reset and set_state */

/* Seeds: one number or None for each environment. */
static bool seed_all(envs_object *self, PyObject *seeds)
{
    for (uint32_t i = 0; i < self->n; i++) {
        PyObject *seed = PyTuple_GetItem(seeds, (Py_ssize_t)i);
        if (!seed)
            return false;
        if (seed == Py_None)
            continue;
        unsigned long long value = PyLong_AsUnsignedLongLong(seed);
        if (PyErr_Occurred())
            return false;
        env_seed(&self->slots[i].env, value);
    }
    return true;
}

static rp_status place_slot(struct env_slot *slot, const double *state, uint32_t n, void *observation, rp_error *err)
{
    const rp_env_ops *ops = slot->env.ops;
    if (!ops->set_state)
        return err_set(err, RP_UNSUPPORTED, "environment %s cannot be put into a state", ops->name);
    if (ops->set_state(slot->env.self, state, n, slot->guarded ? slot->guarded : observation) != RP_OK)
        return err_set(err, RP_INVALID_ARGUMENT, "environment %s: these %u numbers are none of its states", ops->name,
                       n);
    slot->env.steps = 0;
    slot->phase = ENV_PHASE_RUNNING;
    return take_guarded(slot, observation, err);
}

/* Where the episodes of a call begin. */
struct beginning {
    const bool *mask;     /* the environments that begin one; NULL: all of them */
    const double *states; /* [n][size]: the state of each; NULL: a first one of its own */
    uint32_t size;
};

static PyObject *begin_all(envs_object *self, const struct beginning *from)
{
    void *data;
    PyObject *observations = get_output(self, OUT_OBSERVATION, &data);
    if (!observations)
        return NULL;
    rp_error err = {0};
    rp_status status = RP_OK;
    size_t bytes = self->observation_bytes;
    Py_BEGIN_ALLOW_THREADS;
    for (uint32_t i = 0; i < self->n && status == RP_OK; i++) {
        char *row = (char *)data + i * bytes, *last = self->final_rows + i * bytes;
        if (from->mask && !from->mask[i]) {
            memcpy(row, last, bytes);
            continue;
        }
        status = from->states
                     ? place_slot(&self->slots[i], from->states + (size_t)i * from->size, from->size, row, &err)
                     : reset_slot(&self->slots[i], row, &err);
        if (status == RP_OK)
            memcpy(last, row, bytes);
    }
    Py_END_ALLOW_THREADS;
    if (status == RP_OK)
        return observations;
    Py_DECREF(observations);
    return core_raise(status, err.text);
}

static PyObject *envs_reset(PyObject *object, PyObject *args)
{
    envs_object *self = (envs_object *)object;
    PyObject *seeds, *which, *observations = NULL;
    struct column form = {.name = "reset_mask", .dtype = RP_DTYPE_BOOL};
    struct cell mask = {.data = NULL};
    if (!PyArg_ParseTuple(args, "OO", &seeds, &which) || !enter(self))
        return NULL;
    if ((seeds == Py_None || seed_all(self, seeds)) && (which == Py_None || cell_take(&mask, &form, which, self->n)))
        observations = begin_all(self, &(struct beginning){.mask = mask.data});
    cells_release(&mask, 1);
    gate_leave(&self->guarded.gate);
    return observations;
}

static PyObject *envs_set_state(PyObject *object, PyObject *args)
{
    envs_object *self = (envs_object *)object;
    struct column form = {.name = "state", .dtype = RP_DTYPE_FLOAT64, .rank = 1};
    struct cell states = {.data = NULL};
    PyObject *value, *observations = NULL;
    if (!PyArg_ParseTuple(args, "OO&", &value, core_u32, &form.shape[0]) || !enter(self))
        return NULL;
    if (cell_take(&states, &form, value, self->rows))
        observations = begin_all(self, &(struct beginning){.states = states.data, .size = form.shape[0]});
    cells_release(&states, 1);
    gate_leave(&self->guarded.gate);
    return observations;
}

/* ---- demonstrations */

/* The expert's action in the present state of each environment; 0 where the next step begins an episode and ignores it. */
static PyObject *ask_experts(envs_object *self)
{
    void *data;
    PyObject *actions = numpy_empty(&self->action, self->rows, &data);
    for (uint32_t i = 0; actions && i < self->n; i++) {
        const struct env *env = &self->slots[i].env;
        union {
            int32_t discrete;
            float continuous[RP_ENV_MAX_ACTION];
        } action = {0};
        if (self->slots[i].phase == ENV_PHASE_RUNNING && !env_expert(env, &action)) {
            Py_CLEAR(actions);
            PyErr_Format(PyExc_NotImplementedError, "%s has no expert; record a trained policy instead",
                         env->ops->name);
        } else if (env->spec.n_actions) {
            ((int64_t *)data)[i] = action.discrete;
        } else {
            memcpy((char *)data + i * self->action_bytes, action.continuous, self->action_bytes);
        }
    }
    return actions;
}

static PyObject *envs_expert(PyObject *object, PyObject *unused)
{
    envs_object *self = (envs_object *)object;
    (void)unused;
    if (!enter(self))
        return NULL;
    PyObject *actions = check_phases(self) ? ask_experts(self) : NULL;
    gate_leave(&self->guarded.gate);
    return actions;
}

/* ---- life */

static void envs_destroy(PyObject *object)
{
    envs_object *self = (envs_object *)object;
    for (uint32_t i = 0; i < self->n; i++) {
        env_close(&self->slots[i].env);
        free(self->slots[i].guarded);
    }
    self->n = 0;
    free(self->slots);
    free(self->final_rows);
    free(self->ended);
    self->slots = NULL;
    self->final_rows = NULL;
    self->ended = NULL;
    for (uint32_t i = 0; i < N_OUTPUTS; i++)
        Py_CLEAR(self->kept[i]);
}

static PyObject *envs_make(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    (void)args;
    (void)kwargs;
    envs_object *self = guarded_new(type, envs_destroy);
    if (self)
        self->guarded.gate.adopts = true;
    return (PyObject *)self;
}

/* Reads ((name, value), ...); the texts are borrowed from the tuple. */
static bool read_options(PyObject *pairs, struct schema_list *out)
{
    Py_ssize_t n = PyTuple_Size(pairs);
    rp_option *options = core_alloc((size_t)n, sizeof *options);
    if (!options)
        return false;
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

static bool open_slots(envs_object *self, const struct env_config *config, uint32_t n)
{
    rp_error err = {0};
    self->slots = calloc(n, sizeof *self->slots);
    rp_status status = self->slots ? RP_OK : RP_NO_MEMORY;
    Py_BEGIN_ALLOW_THREADS;
    for (; status == RP_OK && self->n < n; self->n++)
        status = open_slot(&self->slots[self->n], config, &err);
    Py_END_ALLOW_THREADS;
    if (status == RP_OK) {
        self->observation_bytes = env_observation_bytes(&self->slots[0].env.spec);
        self->action_bytes = env_action_bytes(&self->slots[0].env.spec);
        self->final_rows = calloc(n, self->observation_bytes);
        self->ended = calloc(n, sizeof *self->ended);
        status = self->final_rows && self->ended ? RP_OK : RP_NO_MEMORY;
    }
    if (status == RP_NO_MEMORY)
        PyErr_NoMemory();
    else if (status != RP_OK)
        core_raise(status, err.text);
    return status == RP_OK;
}

/* _open((name, options, plugin, max_steps), rows, autoreset, copy): the spec. Options are ((name, value), ...). */
static PyObject *envs_open(PyObject *object, PyObject *args)
{
    envs_object *self = (envs_object *)object;
    struct env_config config = {0};
    PyObject *options;
    long long max_steps;
    int copy;
    if (self->n > 0)
        return core_raise(RP_FAILED_PRECONDITION, "this environment is open already");
    if (!PyArg_ParseTuple(args, "(sO!sL)O&ip", (const char **)&config.name, &PyTuple_Type, &options,
                          (const char **)&config.plugin, &max_steps, core_u32, &self->rows, &self->autoreset, &copy))
        return NULL;
    config.max_steps = max_steps;
    self->copy = copy != 0;
    bool ok = read_options(options, &config.options) && open_slots(self, &config, self->rows ? self->rows : 1);
    free(config.options.data);
    if (!ok) {
        envs_destroy(object);
        return NULL;
    }
    const rp_env_spec *spec = &self->slots[0].env.spec;
    self->action = env_action_column("action", spec);
    self->outputs[OUT_OBSERVATION] = env_observation_column("observation", spec);
    self->outputs[OUT_REWARD].dtype = RP_DTYPE_FLOAT64;
    self->outputs[OUT_TERMINATED].dtype = self->outputs[OUT_TRUNCATED].dtype = RP_DTYPE_BOOL;
    return env_spec_describe(spec);
}

static PyMethodDef methods[] = {
    {"_open", envs_open, METH_VARARGS, "_open(description, rows, autoreset, copy): the spec as a tuple."},
    {"_reset", envs_reset, METH_VARARGS, "_reset(seeds or None, mask or None): the first observations."},
    {"_set_state", envs_set_state, METH_VARARGS, "_set_state(states, n): the observations there."},
    {"expert", envs_expert, METH_NOARGS,
     "expert($self, /)\n--\n\nReturns the best action of the present state, where the environment knows it."},
    {"step", envs_step, METH_O,
     "step($self, action, /)\n--\n\n"
     "Takes one step, of each environment. Returns (observation, reward, terminated, truncated, info)."},
    {"close", guarded_close, METH_NOARGS, "close($self, /)\n--\n\nFrees what it has."},
    {NULL, NULL, 0, NULL},
};

#define ENV_TYPE(title, help)                                                                                          \
    {                                                                                                                  \
        .name = "replaybus._agent." title, .doc = (help), .size = sizeof(envs_object), .make = envs_make,              \
        .dealloc = guarded_dealloc, .methods = methods, .getters = guarded_getters, .is_base = true                    \
    }
const struct core_type env_core = ENV_TYPE("Env", "One environment.");
const struct core_type vector_core = ENV_TYPE("VectorEnv", "Environments in one call.");
