/* Env: one environment, with Gymnasium's step. */
#include "agent/python/agent/agent.h"

typedef struct env_object {
    PyObject_HEAD struct gate gate;
    struct env_pool pool; /* of one environment; empty before _open and after close */
    struct array_form observation, action;
} env_object;

static bool enter(env_object *self)
{
    gate_adopt(&self->gate);
    if (!gate_enter(&self->gate, "environment"))
        return false;
    if (self->pool.n > 0)
        return true;
    core_raise(RP_FAILED_PRECONDITION, "this environment is not open: replaybus.envs.make opens one");
    gate_leave(&self->gate);
    return false;
}

static void give_up(PyObject *object)
{
    env_object *self = (env_object *)object;
    env_pool_close(&self->pool);
    array_form_fini(&self->observation);
    array_form_fini(&self->action);
}

static PyObject *env_make(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    (void)args;
    (void)kwargs;
    env_object *self = (env_object *)PyType_GenericAlloc(type, 0);
    if (self)
        gate_open(&self->gate, (PyObject *)self, give_up);
    return (PyObject *)self;
}

static PyObject *env_open_object(PyObject *object, PyObject *description)
{
    env_object *self = (env_object *)object;
    if (self->pool.n > 0)
        return core_raise(RP_FAILED_PRECONDITION, "this environment is open already");
    if (!env_pool_open(&self->pool, description, 1))
        return NULL;
    const rp_env_spec *spec = env_pool_spec(&self->pool);
    self->observation = array_form_observation("observation", spec, 0);
    self->action = array_form_action("action", spec, 0);
    return env_spec_describe(spec);
}

/* ---- reset */

static PyObject *reset(env_object *self, PyObject *seed)
{
    if (seed != Py_None) {
        unsigned long long value = PyLong_AsUnsignedLongLong(seed);
        if (PyErr_Occurred())
            return NULL;
        env_seed(&self->pool.slots[0].env, value);
    }
    struct array out;
    PyObject *observation = array_new(&self->observation, &out);
    if (!observation)
        return NULL;
    rp_error err = {0};
    rp_status status = env_slot_reset(&self->pool.slots[0], out.data, &err);
    array_release(&out);
    if (status == RP_OK)
        return observation;
    Py_DECREF(observation);
    return core_raise(status, err.text);
}

static PyObject *env_reset_object(PyObject *object, PyObject *seed)
{
    env_object *self = (env_object *)object;
    if (!enter(self))
        return NULL;
    PyObject *observation = reset(self, seed);
    gate_leave(&self->gate);
    return observation;
}

/* ---- step */

struct action {
    int32_t discrete;
    struct array continuous;
};

/* Returns the action's memory, or NULL with an exception set. */
static const void *read_action(const env_object *self, PyObject *value, struct action *out)
{
    uint32_t n = env_pool_spec(&self->pool)->n_actions;
    out->continuous.view.obj = NULL;
    if (n == 0)
        return array_take(&out->continuous, value, &self->action) ? out->continuous.data : NULL;
    long long number = PyLong_AsLongLong(value);
    if (number == -1 && PyErr_Occurred())
        return NULL;
    if (number < 0 || number >= (long long)n) {
        PyErr_Format(PyExc_ValueError, "the action is %lld; it may be 0 to %u", number, n - 1);
        return NULL;
    }
    out->discrete = (int32_t)number;
    return &out->discrete;
}

/* A plug-in may take its time. */
static rp_status take_step(env_object *self, const void *action, void *observation, rp_env_result *result,
                           rp_error *err)
{
    struct env_slot *slot = &self->pool.slots[0];
    if (!slot->env.library)
        return env_slot_step(slot, action, observation, result, err);
    rp_status status;
    Py_BEGIN_ALLOW_THREADS;
    status = env_slot_step(slot, action, observation, result, err);
    Py_END_ALLOW_THREADS;
    return status;
}

static PyObject *step(env_object *self, PyObject *value)
{
    if (self->pool.slots[0].phase != ENV_PHASE_RUNNING)
        return core_raise(RP_FAILED_PRECONDITION, self->pool.slots[0].phase == ENV_PHASE_NEW
                                                      ? "call reset before the first step"
                                                      : "the episode has ended: call reset before the next step");
    struct action action;
    const void *chosen = read_action(self, value, &action);
    struct array out;
    PyObject *observation = chosen ? array_new(&self->observation, &out) : NULL;
    PyObject *answer = NULL;
    if (observation) {
        rp_env_result result;
        rp_error err = {0};
        rp_status status = take_step(self, chosen, out.data, &result, &err);
        array_release(&out);
        if (status != RP_OK)
            core_raise(status, err.text);
        else
            answer = Py_BuildValue("(OdOO{})", observation, (double)result.reward, result.terminal ? Py_True : Py_False,
                                   result.truncated ? Py_True : Py_False);
    }
    Py_XDECREF(observation);
    array_release(&action.continuous);
    return answer;
}

static PyObject *env_step_object(PyObject *object, PyObject *action)
{
    env_object *self = (env_object *)object;
    if (!enter(self))
        return NULL;
    PyObject *answer = step(self, action);
    gate_leave(&self->gate);
    return answer;
}

/* ---- life */

static PyObject *env_close_object(PyObject *object, PyObject *unused)
{
    (void)unused;
    env_object *self = (env_object *)object;
    gate_adopt(&self->gate);
    if (gate_close(&self->gate)) {
        give_up(object);
        gate_leave(&self->gate);
    }
    return PyErr_Occurred() ? NULL : Py_NewRef(Py_None);
}

static void env_dealloc(PyObject *object)
{
    PyTypeObject *type = Py_TYPE(object);
    give_up(object);
    ((freefunc)PyType_GetSlot(type, Py_tp_free))(object);
    Py_DECREF(type);
}

static PyObject *env_closed(PyObject *object, void *unused)
{
    (void)unused;
    return PyBool_FromLong(((env_object *)object)->gate.closed);
}

static PyMethodDef methods[] = {
    {"_open", env_open_object, METH_O, "_open((name, options, plugin, max_steps)): the spec as a tuple."},
    {"_reset", env_reset_object, METH_O, "_reset(seed or None): the first observation of an episode."},
    {"step", env_step_object, METH_O,
     "step($self, action, /)\n--\n\n"
     "Takes one step. Returns (observation, reward, terminated, truncated, info)."},
    {"close", env_close_object, METH_NOARGS, "close($self, /)\n--\n\nFrees the environment."},
    {NULL, NULL, 0, NULL},
};

static PyGetSetDef getters[] = {
    {"closed", env_closed, NULL, "Whether close was called.", NULL},
    {NULL, NULL, NULL, NULL, NULL},
};

static PyType_Slot slots[] = {
    {Py_tp_new, (void *)env_make}, {Py_tp_dealloc, (void *)env_dealloc}, {Py_tp_methods, methods},
    {Py_tp_getset, getters},       {Py_tp_doc, "One environment."},      {0, NULL},
};

static PyType_Spec spec = {.name = "replaybus._agent.Env",
                           .basicsize = sizeof(env_object),
                           .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE,
                           .slots = slots};

bool env_register(PyObject *module)
{
    static PyTypeObject *type;
    return core_add_type(module, "Env", &spec, &type);
}
