/* Actor: the C actor for loops in Python. player.c does the work; this file has act, the life of the object, and its state. */
#include <stdlib.h>
#include <string.h>

#include "agent/python/agent/actor_object.h"
#include "agent/run/worker.h"

#define UNCLOSED_MS 200 /* for the items of an actor that nobody closed */

/* ---- act */

static PyObject *discrete_actions(actor_object *self)
{
    if (!self->vector)
        return PyLong_FromLong(self->player->choices[0].discrete);
    struct array out;
    PyObject *actions = array_new(&self->action, &out);
    for (uint32_t i = 0; actions && i < self->player->options.n; i++)
        ((int64_t *)out.data)[i] = self->player->choices[i].discrete;
    if (actions)
        array_release(&out);
    return actions;
}

static PyObject *continuous_actions(actor_object *self)
{
    const rp_env_spec *spec = &self->player->options.spec;
    struct array out;
    PyObject *actions = array_new(&self->action, &out);
    for (uint32_t i = 0; actions && i < self->player->options.n; i++)
        env_native_action(spec, self->player->choices[i].continuous, (float *)out.data + (size_t)i * spec->action_size);
    if (actions)
        array_release(&out);
    return actions;
}

static bool has_begun(const actor_object *self)
{
    for (uint32_t i = 0; i < self->player->options.n; i++) {
        enum seat_phase phase = self->player->seats[i].phase;
        if (phase == SEAT_NEW || (phase == SEAT_ENDED && !self->vector)) {
            core_raise(RP_FAILED_PRECONDITION, "no episode has begun: call observe_first with its first observation");
            return false;
        }
    }
    return true;
}

static PyObject *act(actor_object *self, PyObject *value)
{
    struct array observations;
    if (!actor_finish_kept(self, -1) || !has_begun(self) || !actor_prepare(self, -1) ||
        !array_take(&observations, value, &self->observation))
        return NULL;
    if (self->player->options.n == 1) {
        player_act(self->player, observations.data);
    } else {
        Py_BEGIN_ALLOW_THREADS;
        player_act(self->player, observations.data);
        Py_END_ALLOW_THREADS;
    }
    array_release(&observations);
    return self->player->options.spec.n_actions ? discrete_actions(self) : continuous_actions(self);
}

static PyObject *actor_act(PyObject *object, PyObject *observation)
{
    actor_object *self = (actor_object *)object;
    if (!actor_enter(self))
        return NULL;
    PyObject *actions = act(self, observation);
    gate_leave(&self->gate);
    return actions;
}

/* ---- life */

static void make_forms(actor_object *self)
{
    const rp_env_spec *spec = &self->player->options.spec;
    uint32_t n = self->vector ? self->player->options.n : 0;
    self->observation = array_form_observation("observation", spec, n);
    self->action = array_form_action("action", spec, n);
    self->rewards = array_form_vector("rewards", 'd', n);
    self->flags = array_form_vector("terminated and truncated", '?', n);
}

/* _open(endpoint, (path, text, overrides), spec or None, index, n, vector, greedy, insert, wait, timeout): the spec. */
static PyObject *actor_open(PyObject *object, PyObject *args)
{
    actor_object *self = (actor_object *)object;
    if (self->player)
        return core_raise(RP_FAILED_PRECONDITION, "this actor is open already");
    int vector = 0;
    self->player = player_open(args, &vector);
    if (!self->player)
        return NULL;
    self->vector = vector != 0;
    make_forms(self);
    return env_spec_describe(&self->player->options.spec);
}

static void give_up(PyObject *object)
{
    actor_object *self = (actor_object *)object;
    struct player *player = self->player;
    self->player = NULL;
    free(self->kept_memory);
    self->kept_memory = NULL;
    array_form_fini(&self->observation);
    array_form_fini(&self->action);
    if (gate_is_foreign(&self->gate))
        return; /* the parent's threads and sockets are not in this process */
    Py_BEGIN_ALLOW_THREADS;
    player_destroy(&player, UNCLOSED_MS);
    Py_END_ALLOW_THREADS;
}

static PyObject *actor_make(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    (void)args;
    (void)kwargs;
    actor_object *self = (actor_object *)PyType_GenericAlloc(type, 0);
    if (self)
        gate_open(&self->gate, (PyObject *)self, give_up);
    return (PyObject *)self;
}

static PyObject *actor_flush(PyObject *object, PyObject *args)
{
    actor_object *self = (actor_object *)object;
    PyObject *seconds = Py_None;
    int64_t timeout_ms;
    if (!PyArg_ParseTuple(args, "|O", &seconds) || !core_timeout(seconds, &timeout_ms) || !actor_enter(self))
        return NULL;
    bool ok = actor_finish_kept(self, timeout_ms) && actor_confirm(self, timeout_ms);
    gate_leave(&self->gate);
    return ok ? Py_NewRef(Py_None) : NULL;
}

static PyObject *actor_wait(PyObject *object, PyObject *args)
{
    actor_object *self = (actor_object *)object;
    PyObject *seconds = Py_None;
    int64_t timeout_ms;
    if (!PyArg_ParseTuple(args, "|O", &seconds) || !core_timeout(seconds, &timeout_ms) || !actor_enter(self))
        return NULL;
    bool ok = actor_prepare(self, timeout_ms);
    gate_leave(&self->gate);
    return ok ? Py_NewRef(Py_None) : NULL;
}

static PyObject *actor_close(PyObject *object, PyObject *args)
{
    actor_object *self = (actor_object *)object;
    PyObject *seconds = Py_None;
    int64_t timeout_ms;
    if (!PyArg_ParseTuple(args, "|O", &seconds) || !core_timeout(seconds, &timeout_ms))
        return NULL;
    if (!gate_close(&self->gate))
        return PyErr_Occurred() ? NULL : Py_NewRef(Py_None);
    bool ok = !self->player || gate_is_foreign(&self->gate) ||
              (actor_finish_kept(self, timeout_ms) && actor_confirm(self, timeout_ms));
    give_up(object);
    gate_leave(&self->gate);
    return ok ? Py_NewRef(Py_None) : NULL;
}

static void actor_dealloc(PyObject *object)
{
    PyTypeObject *type = Py_TYPE(object);
    give_up(object);
    ((freefunc)PyType_GetSlot(type, Py_tp_free))(object);
    Py_DECREF(type);
}

/* ---- state */

static PyObject *actor_state(PyObject *object, PyObject *unused)
{
    (void)unused;
    actor_object *self = (actor_object *)object;
    if (!actor_enter(self))
        return NULL;
    const struct player *player = self->player;
    PyObject *state =
        Py_BuildValue("{s:K,s:K,s:K,s:K,s:K,s:d,s:d,s:O}", "steps", player->steps, "episodes", player->episodes,
                      "items", player_items(player), "version", player->variables.version, "learner_steps",
                      player->variables.steps, "epsilon", actor_epsilon(&player->seats[0].actor), "last_return",
                      player->last_value, "finished", player_finished(player) ? Py_True : Py_False);
    gate_leave(&self->gate);
    return state;
}

static PyObject *actor_seeds(PyObject *object, PyObject *unused)
{
    (void)unused;
    actor_object *self = (actor_object *)object;
    if (!actor_enter(self))
        return NULL;
    const struct player_options *options = &self->player->options;
    PyObject *seeds = PyList_New(0);
    for (uint32_t i = 0; seeds && i < options->n; i++) {
        uint64_t seed = worker_seed(&options->config, "environment", options->index * options->n + i);
        PyObject *number = PyLong_FromUnsignedLongLong(seed);
        if (!number || PyList_Append(seeds, number) < 0)
            Py_CLEAR(seeds);
        Py_XDECREF(number);
    }
    gate_leave(&self->gate);
    return seeds;
}

static PyObject *actor_finished(PyObject *object, void *unused)
{
    (void)unused;
    const struct player *player = ((actor_object *)object)->player;
    return PyBool_FromLong(!player || player_finished(player));
}

static PyObject *actor_steps(PyObject *object, void *unused)
{
    (void)unused;
    const struct player *player = ((actor_object *)object)->player;
    return PyLong_FromUnsignedLongLong(player ? player->steps : 0);
}

static PyObject *actor_closed(PyObject *object, void *unused)
{
    (void)unused;
    return PyBool_FromLong(((actor_object *)object)->gate.closed);
}

#define METHOD(function) ((PyCFunction)(void (*)(void))(function))
static PyMethodDef methods[] = {
    {"_open", actor_open, METH_VARARGS, "Connects and opens the streams."},
    {"act", actor_act, METH_O,
     "act($self, observation, /)\n--\n\n"
     "Returns the action for an observation, or the actions for an array of them, in the environment's own units."},
    {"observe", METHOD(actor_tell), METH_FASTCALL,
     "observe($self, reward, terminated, truncated, observation, info=None, /)\n--\n\n"
     "Records what came of the last act. With several environments the arguments are arrays."},
    {"observe_first", actor_tell_first, METH_VARARGS,
     "observe_first($self, observation, mask=None, /)\n--\n\nBegins an episode, or those of the environments in mask."},
    {"wait", actor_wait, METH_VARARGS,
     "wait($self, timeout=None, /)\n--\n\nWaits for the first parameters of a learner, which act does, too."},
    {"flush", actor_flush, METH_VARARGS,
     "flush($self, timeout=None, /)\n--\n\nWaits until the broker has confirmed all items."},
    {"close", actor_close, METH_VARARGS,
     "close($self, timeout=None, /)\n--\n\nWaits until all items are confirmed, then closes the connection."},
    {"state", actor_state, METH_NOARGS,
     "state($self, /)\n--\n\n"
     "A dict: steps, episodes, items, version, learner_steps, epsilon, last_return, finished."},
    {"seeds", actor_seeds, METH_NOARGS,
     "seeds($self, /)\n--\n\nThe seeds that the C actor gives its environments in this run."},
    {NULL, NULL, 0, NULL},
};

static PyGetSetDef getters[] = {
    {"steps", actor_steps, NULL, "Environment steps that were observed.", NULL},
    {"finished", actor_finished, NULL, "Whether the run has taken the environment steps of stop.steps.", NULL},
    {"closed", actor_closed, NULL, "Whether close was called.", NULL},
    {NULL, NULL, NULL, NULL, NULL},
};

static PyType_Slot slots[] = {
    {Py_tp_new, (void *)actor_make}, {Py_tp_dealloc, (void *)actor_dealloc},          {Py_tp_methods, methods},
    {Py_tp_getset, getters},         {Py_tp_doc, "The C actor for loops in Python."}, {0, NULL},
};

static PyType_Spec spec = {.name = "replaybus._agent.Actor",
                           .basicsize = sizeof(actor_object),
                           .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE,
                           .slots = slots};

bool actor_register(PyObject *module)
{
    static PyTypeObject *type;
    return core_add_type(module, "Actor", &spec, &type);
}
