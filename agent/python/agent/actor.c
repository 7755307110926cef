/* Actor: the C actor for loops in Python. player.c does the work; this file has arrays, waits and the life of the object. */
#include <stdlib.h>
#include <string.h>

#include "agent/program/worker.h"
#include "agent/python/agent/agent.h"
#include "agent/python/agent/player.h"

#define UNCLOSED_MS 200 /* for the items of an actor that nobody closed */

typedef struct actor_object {
    PyObject_HEAD struct gate gate;
    struct player *player; /* NULL before _open and after close */
    bool vector;           /* arrays for several environments; otherwise values of one */
    struct array_form observation, rewards, flags, action;
    struct player_outcome kept; /* of an observe that a signal interrupted: the next call finishes it */
    void *kept_memory;          /* its arrays; NULL: there is none */
} actor_object;

static bool enter(actor_object *self)
{
    if (!gate_enter(&self->gate, "actor"))
        return false;
    if (self->player)
        return true;
    core_raise(RP_FAILED_PRECONDITION, "this actor is not open");
    gate_leave(&self->gate);
    return false;
}

/* ---- waits */

struct wait {
    actor_object *self;
    struct player_outcome *outcome;
};

static rp_status prepare_attempt(void *call, int64_t timeout_ms, rp_error *err)
{
    return player_prepare(((struct wait *)call)->self->player, timeout_ms, err);
}

static rp_status observe_attempt(void *call, int64_t timeout_ms, rp_error *err)
{
    struct wait *wait = call;
    return player_observe(wait->self->player, wait->outcome, timeout_ms, err);
}

static rp_status flush_attempt(void *call, int64_t timeout_ms, rp_error *err)
{
    return player_flush(((struct wait *)call)->self->player, timeout_ms, err);
}

static bool run(actor_object *self, gate_attempt *attempt, struct player_outcome *outcome, int64_t timeout_ms)
{
    struct wait wait = {.self = self, .outcome = outcome};
    return gate_call(&self->gate, attempt, &wait, timeout_ms);
}

/* ---- an observe that was interrupted */

/* Copies the outcome, whose arrays are the caller's. */
static bool keep(actor_object *self, const struct player_outcome *outcome)
{
    uint32_t n = self->player->options.n;
    size_t rows = n * env_observation_bytes(&self->player->options.spec);
    char *memory = malloc(2 * rows + n * (sizeof(double) + 3 * sizeof(bool)));
    if (!memory)
        return false;
    char *finals = memory + n * sizeof(double), *observations = finals + rows, *flags = observations + rows;
    self->kept = *outcome;
    self->kept.rewards = memcpy(memory, outcome->rewards, n * sizeof(double));
    self->kept.observations = memcpy(observations, outcome->observations, rows);
    self->kept.terminated = memcpy(flags, outcome->terminated, n);
    self->kept.truncated = memcpy(flags + n, outcome->truncated, n);
    if (outcome->finals) {
        self->kept.finals = memcpy(finals, outcome->finals, rows);
        self->kept.final = memcpy(flags + 2 * (size_t)n, outcome->final, n);
    }
    self->kept_memory = memory;
    return true;
}

static bool finish_kept(actor_object *self, int64_t timeout_ms)
{
    if (!self->kept_memory)
        return true;
    rp_error err;
    struct wait wait = {.self = self, .outcome = &self->kept};
    rp_status status = gate_wait(&self->gate, observe_attempt, &wait, timeout_ms, &err);
    if (status == GATE_INTERRUPTED)
        return false;
    if (status != RP_DEADLINE_EXCEEDED) {
        free(self->kept_memory);
        self->kept_memory = NULL;
    }
    if (status != RP_OK)
        core_raise(status, err.text);
    return status == RP_OK;
}

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
    if (!finish_kept(self, -1) || !has_begun(self) || !run(self, prepare_attempt, NULL, -1) ||
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
    if (!enter(self))
        return NULL;
    PyObject *actions = act(self, observation);
    gate_leave(&self->gate);
    return actions;
}

/* ---- observe */

enum { IN_REWARD, IN_TERMINATED, IN_TRUNCATED, IN_OBSERVATION, IN_FINAL, IN_MASK, N_INPUTS };

/* The arrays of one call; for one environment, the numbers. */
struct inputs {
    struct array arrays[N_INPUTS];
    double reward;
    bool terminated, truncated;
};

static bool read_numbers(struct inputs *in, PyObject *const *args, struct player_outcome *out)
{
    in->reward = PyFloat_AsDouble(args[IN_REWARD]);
    if (in->reward == -1.0 && PyErr_Occurred())
        return false;
    int terminated = PyObject_IsTrue(args[IN_TERMINATED]), truncated = PyObject_IsTrue(args[IN_TRUNCATED]);
    if (terminated < 0 || truncated < 0)
        return false;
    in->terminated = terminated != 0;
    in->truncated = truncated != 0;
    out->rewards = &in->reward;
    out->terminated = &in->terminated;
    out->truncated = &in->truncated;
    return true;
}

static bool read_arrays(const actor_object *self, struct inputs *in, PyObject *const *args, struct player_outcome *out)
{
    if (!array_take(&in->arrays[IN_REWARD], args[IN_REWARD], &self->rewards) ||
        !array_take(&in->arrays[IN_TERMINATED], args[IN_TERMINATED], &self->flags) ||
        !array_take(&in->arrays[IN_TRUNCATED], args[IN_TRUNCATED], &self->flags))
        return false;
    out->rewards = in->arrays[IN_REWARD].data;
    out->terminated = in->arrays[IN_TERMINATED].data;
    out->truncated = in->arrays[IN_TRUNCATED].data;
    return true;
}

/* A borrowed entry of a dict under one of two names, or NULL. */
static PyObject *entry(PyObject *info, const char *name, const char *older)
{
    PyObject *value = PyDict_GetItemString(info, name);
    return value ? value : PyDict_GetItemString(info, older);
}

/* The last observations of episodes after which the environment has begun the next one. */
static bool read_finals(const actor_object *self, struct inputs *in, PyObject *info, struct player_outcome *out)
{
    PyObject *finals = entry(info, "final_obs", "final_observation");
    PyObject *mask = entry(info, "_final_obs", "_final_observation");
    if (!finals || !mask)
        return true;
    struct array_form form = self->observation;
    form.name = "final_obs";
    if (!array_take(&in->arrays[IN_FINAL], finals, &form) || !array_take(&in->arrays[IN_MASK], mask, &self->flags))
        return false;
    out->finals = in->arrays[IN_FINAL].data;
    out->final = in->arrays[IN_MASK].data;
    return true;
}

static bool read_inputs(const actor_object *self, struct inputs *in, PyObject *const *args, PyObject *info,
                        struct player_outcome *out)
{
    if (!(self->vector ? read_arrays(self, in, args, out) : read_numbers(in, args, out)) ||
        !array_take(&in->arrays[IN_OBSERVATION], args[IN_OBSERVATION], &self->observation))
        return false;
    out->observations = in->arrays[IN_OBSERVATION].data;
    return !info || !self->vector || read_finals(self, in, info, out);
}

static bool observe(actor_object *self, struct player_outcome *outcome)
{
    rp_error err = {0};
    rp_status status = player_check(self->player, outcome, &err);
    if (status != RP_OK) {
        core_raise(status, err.text);
        return false;
    }
    struct wait wait = {.self = self, .outcome = outcome};
    status = gate_wait(&self->gate, observe_attempt, &wait, -1, &err);
    if (status == GATE_INTERRUPTED)
        keep(self, outcome);
    else if (status != RP_OK)
        core_raise(status, err.text);
    return status == RP_OK;
}

static PyObject *actor_observe_object(PyObject *object, PyObject *const *args, Py_ssize_t n)
{
    actor_object *self = (actor_object *)object;
    PyObject *info = n == 5 && args[4] != Py_None ? args[4] : NULL;
    if (n < 4 || n > 5 || (info && !PyDict_Check(info))) {
        PyErr_SetString(PyExc_TypeError,
                        "observe(reward, terminated, truncated, observation, info=None): info is a dict");
        return NULL;
    }
    if (!enter(self))
        return NULL;
    struct inputs in = {0};
    struct player_outcome outcome = {0};
    bool ok = finish_kept(self, -1) && read_inputs(self, &in, args, info, &outcome) && observe(self, &outcome);
    for (uint32_t i = 0; i < N_INPUTS; i++)
        array_release(&in.arrays[i]);
    gate_leave(&self->gate);
    return ok ? Py_NewRef(Py_None) : NULL;
}

/* ---- the beginning of episodes */

static bool first(actor_object *self, const char *rows, const bool *mask)
{
    size_t bytes = env_observation_bytes(&self->player->options.spec);
    rp_error err = {0};
    rp_status status = RP_OK;
    for (uint32_t i = 0; i < self->player->options.n && status == RP_OK; i++)
        if (!mask || mask[i])
            status = player_first(self->player, i, rows + i * bytes, &err);
    if (status != RP_OK)
        core_raise(status, err.text);
    return status == RP_OK;
}

static PyObject *actor_first(PyObject *object, PyObject *args)
{
    actor_object *self = (actor_object *)object;
    PyObject *value, *which = Py_None;
    if (!PyArg_ParseTuple(args, "O|O", &value, &which) || !enter(self))
        return NULL;
    struct array observations = {0}, mask = {0};
    bool ok = finish_kept(self, -1) && array_take(&observations, value, &self->observation) &&
              (which == Py_None || array_take(&mask, which, &self->flags)) &&
              first(self, observations.data, which == Py_None ? NULL : mask.data);
    array_release(&observations);
    array_release(&mask);
    gate_leave(&self->gate);
    return ok ? Py_NewRef(Py_None) : NULL;
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
    if (!PyArg_ParseTuple(args, "|O", &seconds) || !core_timeout(seconds, &timeout_ms) || !enter(self))
        return NULL;
    bool ok = finish_kept(self, timeout_ms) && run(self, flush_attempt, NULL, timeout_ms);
    gate_leave(&self->gate);
    return ok ? Py_NewRef(Py_None) : NULL;
}

static PyObject *actor_wait(PyObject *object, PyObject *args)
{
    actor_object *self = (actor_object *)object;
    PyObject *seconds = Py_None;
    int64_t timeout_ms;
    if (!PyArg_ParseTuple(args, "|O", &seconds) || !core_timeout(seconds, &timeout_ms) || !enter(self))
        return NULL;
    bool ok = run(self, prepare_attempt, NULL, timeout_ms);
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
              (finish_kept(self, timeout_ms) && run(self, flush_attempt, NULL, timeout_ms));
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
    if (!enter(self))
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
    if (!enter(self))
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
    {"observe", METHOD(actor_observe_object), METH_FASTCALL,
     "observe($self, reward, terminated, truncated, observation, info=None, /)\n--\n\n"
     "Records what came of the last act. With several environments the arguments are arrays."},
    {"observe_first", actor_first, METH_VARARGS,
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
