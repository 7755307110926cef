/* VectorEnv: n environments in one call, with the autoreset modes of Gymnasium's vector environments. */
#include <stdlib.h>
#include <string.h>

#include "agent/python/agent/agent.h"

enum autoreset { AUTORESET_SAME_STEP, AUTORESET_NEXT_STEP, AUTORESET_DISABLED };

/* The arrays that a step writes. */
enum output { OUT_OBSERVATION, OUT_REWARD, OUT_TERMINATED, OUT_TRUNCATED, N_OUTPUTS };

typedef struct vector_object {
    PyObject_HEAD struct gate gate;
    struct env_pool pool; /* empty before _open and after close */
    int autoreset;        /* an enum autoreset */
    bool copy;            /* each call returns new arrays */
    struct array_form actions, forms[N_OUTPUTS];
    PyObject *kept[N_OUTPUTS];           /* the arrays of all calls unless `copy` */
    struct array kept_memory[N_OUTPUTS]; /* of `kept` */
    char *final_rows; /* [n][observation]: last observations of episodes that ended in this step; without autoreset, the
                         present observations */
    bool *ended;      /* [n]: the rows of `final_rows` that are set */
} vector_object;

/* One call. */
struct vector_step {
    vector_object *self;
    const void *actions;
    char *observations;
    double *rewards;
    bool *terminated, *truncated;
    uint32_t n_ended; /* rows of final_rows */
    rp_error err;
};

static bool enter(vector_object *self)
{
    gate_adopt(&self->gate);
    if (!gate_enter(&self->gate, "vector environment"))
        return false;
    if (self->pool.n > 0)
        return true;
    core_raise(RP_FAILED_PRECONDITION, "this vector environment is not open: replaybus.envs.make_vec opens one");
    gate_leave(&self->gate);
    return false;
}

/* ---- arrays */

static PyObject *get_output(vector_object *self, enum output which, struct array *out)
{
    if (self->copy)
        return array_new(&self->forms[which], out);
    if (!self->kept[which])
        self->kept[which] = array_new(&self->forms[which], &self->kept_memory[which]);
    out->view.obj = NULL;
    out->data = self->kept_memory[which].data;
    return Py_XNewRef(self->kept[which]);
}

/* A copy of rows that the extension keeps. */
static PyObject *copy_rows(struct array_form *form, const void *rows, size_t bytes)
{
    struct array out;
    PyObject *array = array_new(form, &out);
    if (array) {
        memcpy(out.data, rows, bytes);
        array_release(&out);
    }
    return array;
}

/* ---- step */

static rp_status step_one(struct vector_step *step, uint32_t i, const void *action)
{
    vector_object *self = step->self;
    struct env_slot *slot = &self->pool.slots[i];
    char *observation = step->observations + i * self->pool.observation_bytes;
    char *row = self->final_rows + i * self->pool.observation_bytes;
    rp_env_result result = {0};
    rp_status status = RP_OK;
    if (slot->phase == ENV_PHASE_ENDED)
        status = env_slot_reset(slot, observation, &step->err); /* AUTORESET_NEXT_STEP: the action is ignored */
    else
        status = env_slot_step(slot, action, observation, &result, &step->err);
    step->rewards[i] = (double)result.reward;
    step->terminated[i] = result.terminal;
    step->truncated[i] = result.truncated;
    self->ended[i] = false;
    if (status == RP_OK && self->autoreset == AUTORESET_DISABLED) {
        memcpy(row, observation, self->pool.observation_bytes);
    } else if (status == RP_OK && slot->phase == ENV_PHASE_ENDED && self->autoreset == AUTORESET_SAME_STEP) {
        memcpy(row, observation, self->pool.observation_bytes);
        self->ended[i] = true;
        step->n_ended++;
        status = env_slot_reset(slot, observation, &step->err);
    }
    return status;
}

/* Without the GIL. */
static rp_status step_all(struct vector_step *step)
{
    const struct env_pool *pool = &step->self->pool;
    bool discrete = env_pool_spec(pool)->n_actions > 0;
    rp_status status = RP_OK;
    for (uint32_t i = 0; i < pool->n && status == RP_OK; i++) {
        int32_t chosen = discrete ? (int32_t)((const int64_t *)step->actions)[i] : 0;
        const void *continuous = discrete ? NULL : (const char *)step->actions + i * pool->action_bytes;
        status = step_one(step, i, discrete ? &chosen : continuous);
    }
    return status;
}

static bool check_phases(const vector_object *self)
{
    for (uint32_t i = 0; i < self->pool.n; i++) {
        enum env_phase phase = self->pool.slots[i].phase;
        if (phase == ENV_PHASE_NEW || (phase == ENV_PHASE_ENDED && self->autoreset == AUTORESET_DISABLED)) {
            char text[120];
            PyOS_snprintf(text, sizeof text, "environment %u %s", i,
                          phase == ENV_PHASE_NEW ? "has not begun an episode: call reset before the first step"
                                                 : "has ended its episode: call reset with a reset_mask");
            core_raise(RP_FAILED_PRECONDITION, text);
            return false;
        }
    }
    return true;
}

static bool check_actions(const vector_object *self, const void *actions)
{
    uint32_t n = env_pool_spec(&self->pool)->n_actions;
    const int64_t *numbers = actions;
    for (uint32_t i = 0; n > 0 && i < self->pool.n; i++)
        if (numbers[i] < 0 || numbers[i] >= (int64_t)n) {
            PyErr_Format(PyExc_ValueError, "action %u is %lld; it may be 0 to %u", i, (long long)numbers[i], n - 1);
            return false;
        }
    return true;
}

/* The last observations of episodes that ended, under the names of both versions of Gymnasium. */
static PyObject *make_info(vector_object *self, uint32_t n_ended)
{
    if (n_ended == 0)
        return PyDict_New();
    PyObject *rows =
        copy_rows(&self->forms[OUT_OBSERVATION], self->final_rows, self->pool.n * self->pool.observation_bytes);
    PyObject *mask = rows ? copy_rows(&self->forms[OUT_TERMINATED], self->ended, self->pool.n) : NULL;
    PyObject *info = NULL;
    if (mask)
        info = Py_BuildValue("{s:O,s:O,s:O,s:O}", "final_obs", rows, "_final_obs", mask, "final_observation", rows,
                             "_final_observation", mask);
    Py_XDECREF(rows);
    Py_XDECREF(mask);
    return info;
}

static PyObject *run_step(struct vector_step *step, PyObject *const outputs[N_OUTPUTS])
{
    rp_status status;
    Py_BEGIN_ALLOW_THREADS;
    status = step_all(step);
    Py_END_ALLOW_THREADS;
    if (status != RP_OK)
        return core_raise(status, step->err.text);
    PyObject *info = make_info(step->self, step->n_ended);
    return info ? Py_BuildValue("(OOOON)", outputs[0], outputs[1], outputs[2], outputs[3], info) : NULL;
}

static PyObject *step_with(vector_object *self, const void *actions)
{
    PyObject *outputs[N_OUTPUTS] = {NULL}, *answer = NULL;
    struct array memory[N_OUTPUTS];
    uint32_t n = 0;
    while (n < N_OUTPUTS && (outputs[n] = get_output(self, (enum output)n, &memory[n])))
        n++;
    if (n == N_OUTPUTS) {
        struct vector_step step = {.self = self,
                                   .actions = actions,
                                   .observations = memory[OUT_OBSERVATION].data,
                                   .rewards = memory[OUT_REWARD].data,
                                   .terminated = memory[OUT_TERMINATED].data,
                                   .truncated = memory[OUT_TRUNCATED].data};
        answer = run_step(&step, outputs);
    }
    for (uint32_t i = 0; i < n; i++) {
        array_release(&memory[i]);
        Py_DECREF(outputs[i]);
    }
    return answer;
}

static PyObject *vector_step(PyObject *object, PyObject *value)
{
    vector_object *self = (vector_object *)object;
    if (!enter(self))
        return NULL;
    struct array actions;
    PyObject *answer = NULL;
    if (check_phases(self) && array_take(&actions, value, &self->actions)) {
        answer = check_actions(self, actions.data) ? step_with(self, actions.data) : NULL;
        array_release(&actions);
    }
    gate_leave(&self->gate);
    return answer;
}

/* ---- reset */

/* Seeds are NULL, or one number or None for each environment; the mask is NULL, or says which are reset. */
static bool seed_all(vector_object *self, PyObject *seeds)
{
    for (uint32_t i = 0; i < self->pool.n; i++) {
        PyObject *seed = PyTuple_GetItem(seeds, (Py_ssize_t)i);
        if (!seed)
            return false;
        if (seed == Py_None)
            continue;
        unsigned long long value = PyLong_AsUnsignedLongLong(seed);
        if (PyErr_Occurred())
            return false;
        env_seed(&self->pool.slots[i].env, value);
    }
    return true;
}

static PyObject *reset_with(vector_object *self, const bool *mask)
{
    struct array out;
    PyObject *observations = get_output(self, OUT_OBSERVATION, &out);
    if (!observations)
        return NULL;
    rp_error err = {0};
    rp_status status = RP_OK;
    size_t bytes = self->pool.observation_bytes;
    Py_BEGIN_ALLOW_THREADS;
    for (uint32_t i = 0; i < self->pool.n && status == RP_OK; i++) {
        char *row = (char *)out.data + i * bytes;
        if (mask && !mask[i]) {
            memcpy(row, self->final_rows + i * bytes, bytes);
            continue;
        }
        status = env_slot_reset(&self->pool.slots[i], row, &err);
        memcpy(self->final_rows + i * bytes, row, bytes);
    }
    Py_END_ALLOW_THREADS;
    array_release(&out);
    if (status == RP_OK)
        return observations;
    Py_DECREF(observations);
    return core_raise(status, err.text);
}

static PyObject *reset(vector_object *self, PyObject *seeds, PyObject *mask)
{
    if (seeds != Py_None && !seed_all(self, seeds))
        return NULL;
    if (mask == Py_None)
        return reset_with(self, NULL);
    struct array which;
    struct array_form form = array_form_vector("reset_mask", '?', self->pool.n);
    if (!array_take(&which, mask, &form))
        return NULL;
    PyObject *observations = reset_with(self, which.data);
    array_release(&which);
    return observations;
}

static PyObject *vector_reset(PyObject *object, PyObject *args)
{
    vector_object *self = (vector_object *)object;
    PyObject *seeds, *mask;
    if (!PyArg_ParseTuple(args, "OO", &seeds, &mask) || !enter(self))
        return NULL;
    PyObject *observations = reset(self, seeds, mask);
    gate_leave(&self->gate);
    return observations;
}

/* ---- life */

static void give_up(PyObject *object)
{
    vector_object *self = (vector_object *)object;
    env_pool_close(&self->pool);
    free(self->final_rows);
    free(self->ended);
    self->final_rows = NULL;
    self->ended = NULL;
    array_form_fini(&self->actions);
    for (uint32_t i = 0; i < N_OUTPUTS; i++) {
        array_form_fini(&self->forms[i]);
        array_release(&self->kept_memory[i]);
        Py_CLEAR(self->kept[i]);
    }
}

static PyObject *vector_make(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    (void)args;
    (void)kwargs;
    vector_object *self = (vector_object *)PyType_GenericAlloc(type, 0);
    if (self)
        gate_open(&self->gate, (PyObject *)self, give_up);
    return (PyObject *)self;
}

static PyObject *vector_open(PyObject *object, PyObject *args)
{
    vector_object *self = (vector_object *)object;
    PyObject *description;
    uint32_t n;
    int copy;
    if (self->pool.n > 0)
        return core_raise(RP_FAILED_PRECONDITION, "this vector environment is open already");
    if (!PyArg_ParseTuple(args, "OO&ip", &description, core_u32, &n, &self->autoreset, &copy) ||
        !env_pool_open(&self->pool, description, n))
        return NULL;
    const rp_env_spec *spec = env_pool_spec(&self->pool);
    self->copy = copy != 0;
    self->actions = array_form_action("actions", spec, n);
    self->forms[OUT_OBSERVATION] = array_form_observation("observations", spec, n);
    self->forms[OUT_REWARD] = array_form_vector("rewards", 'd', n);
    self->forms[OUT_TERMINATED] = array_form_vector("terminated", '?', n);
    self->forms[OUT_TRUNCATED] = array_form_vector("truncated", '?', n);
    self->final_rows = calloc(n, self->pool.observation_bytes);
    self->ended = calloc(n, sizeof *self->ended);
    if (self->final_rows && self->ended)
        return env_spec_describe(spec);
    give_up(object);
    return PyErr_NoMemory();
}

static PyObject *vector_close(PyObject *object, PyObject *unused)
{
    (void)unused;
    vector_object *self = (vector_object *)object;
    gate_adopt(&self->gate);
    if (gate_close(&self->gate)) {
        give_up(object);
        gate_leave(&self->gate);
    }
    return PyErr_Occurred() ? NULL : Py_NewRef(Py_None);
}

static void vector_dealloc(PyObject *object)
{
    PyTypeObject *type = Py_TYPE(object);
    give_up(object);
    ((freefunc)PyType_GetSlot(type, Py_tp_free))(object);
    Py_DECREF(type);
}

static PyObject *vector_closed(PyObject *object, void *unused)
{
    (void)unused;
    return PyBool_FromLong(((vector_object *)object)->gate.closed);
}

static PyMethodDef methods[] = {
    {"_open", vector_open, METH_VARARGS, "_open(description, n, autoreset, copy): the spec as a tuple."},
    {"_reset", vector_reset, METH_VARARGS, "_reset(seeds or None, mask or None): the first observations."},
    {"step", vector_step, METH_O,
     "step($self, actions, /)\n--\n\n"
     "Takes one step in every environment. Returns (observations, rewards, terminated, truncated, info)."},
    {"close", vector_close, METH_NOARGS, "close($self, /)\n--\n\nFrees the environments."},
    {NULL, NULL, 0, NULL},
};

static PyGetSetDef getters[] = {
    {"closed", vector_closed, NULL, "Whether close was called.", NULL},
    {NULL, NULL, NULL, NULL, NULL},
};

static PyType_Slot slots[] = {
    {Py_tp_new, (void *)vector_make}, {Py_tp_dealloc, (void *)vector_dealloc},  {Py_tp_methods, methods},
    {Py_tp_getset, getters},          {Py_tp_doc, "Environments in one call."}, {0, NULL},
};

static PyType_Spec spec = {.name = "replaybus._agent.VectorEnv",
                           .basicsize = sizeof(vector_object),
                           .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE,
                           .slots = slots};

bool env_vector_register(PyObject *module)
{
    static PyTypeObject *type;
    return core_add_type(module, "VectorEnv", &spec, &type);
}
