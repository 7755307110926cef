/* Actor: the C actor for loops in Python. player.c does the work; this file turns values of Python into its rows of memory. */
#include <stdlib.h>
#include <string.h>

#include "agent/python/agent/agent.h"
#include "agent/python/agent/player.h"
#include "agent/run/worker.h"
#include "proto/base/need.h"

#define UNCLOSED_MS 200 /* for the items of an actor that nobody closed */
#define SLICE_MS 1000   /* of a wait without a deadline */

typedef struct actor_object {
    struct guarded guarded;
    struct player *player; /* NULL before _open and after close */
    uint32_t rows;         /* of arrays for several environments; 0: values of one */
    struct column observation, final, rewards, flags, action;
    struct player_outcome kept; /* of an observe that a signal interrupted: the next call finishes it */
    void *kept_memory;          /* its arrays; NULL: there is none */
} actor_object;

/* Begins a call. False with an exception set. */
static bool enter(actor_object *self)
{
    if (!gate_enter(&self->guarded.gate, "actor"))
        return false;
    if (self->player)
        return true;
    core_raise(RP_FAILED_PRECONDITION, "this actor is not open");
    gate_leave(&self->guarded.gate);
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

/* Calls again where the library gives up a wait early, for example while it has no connection. */
static rp_status wait_for(actor_object *self, gate_attempt *attempt, struct player_outcome *outcome, int64_t timeout_ms,
                          rp_error *err)
{
    struct wait wait = {.self = self, .outcome = outcome};
    int64_t start = core_now_ns();
    for (;;) {
        int64_t left_ms = core_left_ms(start, timeout_ms);
        rp_status status = gate_wait(&self->guarded.gate, attempt, &wait, left_ms < 0 ? SLICE_MS : left_ms, err);
        if (status != RP_DEADLINE_EXCEEDED || left_ms == 0)
            return status;
        if (PyErr_CheckSignals() != 0)
            return GATE_INTERRUPTED;
    }
}

/* False with the exception set, unless a signal handler has set one. */
static bool check(rp_status status, const rp_error *err)
{
    if (status != RP_OK && status != GATE_INTERRUPTED)
        core_raise(status, err->text);
    return status == RP_OK;
}

static bool prepare(actor_object *self, int64_t timeout_ms)
{
    rp_error err = {0};
    return check(wait_for(self, prepare_attempt, NULL, timeout_ms, &err), &err);
}

/* ---- an observe that was interrupted */

/* Copies the outcome, whose arrays are the caller's. Without memory the rest of the step is lost. */
static void keep(actor_object *self, const struct player_outcome *outcome)
{
    uint32_t n = self->player->options.n;
    size_t rows = n * env_observation_bytes(&self->player->options.spec);
    char *memory = malloc(2 * rows + n * (sizeof(double) + 3 * sizeof(bool)));
    if (!memory)
        return;
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
}

/* Finishes an observe that a signal interrupted. False with an exception set. */
static bool finish_kept(actor_object *self, int64_t timeout_ms)
{
    if (!self->kept_memory)
        return true;
    rp_error err = {0};
    rp_status status = wait_for(self, observe_attempt, &self->kept, timeout_ms, &err);
    if (!self->kept.pending) {
        free(self->kept_memory);
        self->kept_memory = NULL;
    }
    return check(status, &err);
}

static bool confirm(actor_object *self, int64_t timeout_ms)
{
    rp_error err = {0};
    return finish_kept(self, timeout_ms) && check(wait_for(self, flush_attempt, NULL, timeout_ms, &err), &err);
}

/* ---- act */

static PyObject *choices(actor_object *self)
{
    const struct player *player = self->player;
    const rp_env_spec *spec = &player->options.spec;
    if (spec->n_actions && self->rows == 0)
        return PyLong_FromLong(player->choices[0].discrete);
    void *data;
    PyObject *actions = numpy_empty(&self->action, self->rows, &data);
    for (uint32_t i = 0; actions && i < player->options.n; i++)
        if (spec->n_actions)
            ((int64_t *)data)[i] = player->choices[i].discrete;
        else
            env_native_action(spec, player->choices[i].continuous, (float *)data + (size_t)i * spec->action_size);
    return actions;
}

static bool has_begun(const actor_object *self)
{
    for (uint32_t i = 0; i < self->player->options.n; i++) {
        enum subenv_phase phase = self->player->subenvs[i].phase;
        if (phase == SUBENV_NEW || (phase == SUBENV_ENDED && self->rows == 0)) {
            core_raise(RP_FAILED_PRECONDITION, "no episode has begun: call observe_first with its first observation");
            return false;
        }
    }
    return true;
}

static PyObject *act(actor_object *self, PyObject *value)
{
    struct cell observations = {0};
    if (!finish_kept(self, -1) || !has_begun(self) || !prepare(self, -1) ||
        !cell_take(&observations, &self->observation, value, self->rows))
        return NULL;
    if (self->player->options.n == 1) {
        player_act(self->player, observations.data);
    } else {
        Py_BEGIN_ALLOW_THREADS;
        player_act(self->player, observations.data);
        Py_END_ALLOW_THREADS;
    }
    cells_release(&observations, 1);
    return choices(self);
}

static PyObject *actor_act(PyObject *object, PyObject *observation)
{
    actor_object *self = (actor_object *)object;
    if (!enter(self))
        return NULL;
    PyObject *actions = act(self, observation);
    gate_leave(&self->guarded.gate);
    return actions;
}

/* ---- observe */

enum { IN_REWARD, IN_TERMINATED, IN_TRUNCATED, IN_OBSERVATION, IN_FINAL, IN_MASK, N_INPUTS };

/* The arrays of one call; for one environment, the numbers. */
struct inputs {
    struct cell cells[N_INPUTS];
    PyObject *finals, *mask; /* held: they are entries of the caller's dict, and cells are read in place */
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

static bool take(actor_object *self, struct inputs *in, int which, struct column *column, PyObject *value)
{
    return cell_take(&in->cells[which], column, value, self->rows);
}

static bool read_arrays(actor_object *self, struct inputs *in, PyObject *const *args, struct player_outcome *out)
{
    if (!take(self, in, IN_REWARD, &self->rewards, args[IN_REWARD]) ||
        !take(self, in, IN_TERMINATED, &self->flags, args[IN_TERMINATED]) ||
        !take(self, in, IN_TRUNCATED, &self->flags, args[IN_TRUNCATED]))
        return false;
    out->rewards = in->cells[IN_REWARD].data;
    out->terminated = in->cells[IN_TERMINATED].data;
    out->truncated = in->cells[IN_TRUNCATED].data;
    return true;
}

/* A borrowed entry of a dict under one of two names, or NULL. */
static PyObject *entry(PyObject *info, const char *name, const char *older)
{
    PyObject *value = PyDict_GetItemString(info, name);
    return value ? value : PyDict_GetItemString(info, older);
}

/* The last observations of episodes after which the environment has begun the next one. */
static bool read_finals(actor_object *self, struct inputs *in, PyObject *info, struct player_outcome *out)
{
    PyObject *finals = entry(info, "final_obs", "final_observation");
    PyObject *mask = entry(info, "_final_obs", "_final_observation");
    if (!finals || !mask)
        return true;
    in->finals = Py_NewRef(finals);
    in->mask = Py_NewRef(mask);
    if (!take(self, in, IN_FINAL, &self->final, finals) || !take(self, in, IN_MASK, &self->flags, mask))
        return false;
    out->finals = in->cells[IN_FINAL].data;
    out->final = in->cells[IN_MASK].data;
    return true;
}

static bool read_inputs(actor_object *self, struct inputs *in, PyObject *const *args, PyObject *info,
                        struct player_outcome *out)
{
    if (!(self->rows ? read_arrays(self, in, args, out) : read_numbers(in, args, out)) ||
        !take(self, in, IN_OBSERVATION, &self->observation, args[IN_OBSERVATION]))
        return false;
    out->observations = in->cells[IN_OBSERVATION].data;
    return !info || self->rows == 0 || read_finals(self, in, info, out);
}

static bool observe(actor_object *self, struct player_outcome *outcome)
{
    rp_error err = {0};
    rp_status status = player_check(self->player, outcome, &err);
    if (status != RP_OK)
        return check(status, &err);
    status = wait_for(self, observe_attempt, outcome, -1, &err);
    if (outcome->pending)
        keep(self, outcome);
    return check(status, &err);
}

static PyObject *actor_tell(PyObject *object, PyObject *const *args, Py_ssize_t n)
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
    cells_release(in.cells, N_INPUTS);
    Py_XDECREF(in.finals);
    Py_XDECREF(in.mask);
    gate_leave(&self->guarded.gate);
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
    return check(status, &err);
}

static PyObject *actor_tell_first(PyObject *object, PyObject *args)
{
    actor_object *self = (actor_object *)object;
    PyObject *value, *which = Py_None;
    if (!PyArg_ParseTuple(args, "O|O", &value, &which) || !enter(self))
        return NULL;
    struct cell cells[2] = {{.data = NULL}, {.data = NULL}};
    bool ok = finish_kept(self, -1) && cell_take(&cells[0], &self->observation, value, self->rows) &&
              (which == Py_None || cell_take(&cells[1], &self->flags, which, self->player->options.n)) &&
              first(self, cells[0].data, cells[1].data);
    cells_release(cells, 2);
    gate_leave(&self->guarded.gate);
    return ok ? Py_NewRef(Py_None) : NULL;
}

/* ---- opening */

/* False with an exception set; the options are to be freed in any case. */
static bool read_options(PyObject *args, struct player_options *out, int *vector)
{
    const char *endpoint;
    PyObject *source, *spec, *seconds;
    int greedy, insert, wait;
    if (!PyArg_ParseTuple(args, "sOOO&O&pippO", &endpoint, &source, &spec, core_u32, &out->index, core_u32, &out->n,
                          vector, &greedy, &insert, &wait, &seconds) ||
        !core_timeout(seconds, &out->timeout_ms) || !config_read(source, &out->config))
        return false;
    out->greedy = greedy;
    out->insert = insert != 0;
    out->wait = wait != 0;
    out->spec_given = spec != Py_None;
    out->endpoint = need_text(endpoint);
    return !out->spec_given || env_spec_read(spec, &out->spec);
}

static struct column column_of(const char *name, int32_t dtype)
{
    return (struct column){.name = (char *)(uintptr_t)name, .dtype = dtype};
}

/* _open(endpoint, (path, text, overrides), spec or None, index, n, vector, greedy, insert, wait, timeout): the spec. */
static PyObject *actor_open(PyObject *object, PyObject *args)
{
    actor_object *self = (actor_object *)object;
    struct player_options options = {0};
    struct watch watch;
    rp_error err = {0};
    int vector = 0;
    if (self->player)
        return core_raise(RP_FAILED_PRECONDITION, "this actor is open already");
    if (!read_options(args, &options, &vector)) {
        player_options_free(&options);
        return NULL;
    }
    watch_begin(&watch, &self->guarded.gate);
    self->player = player_new(&options, &err);
    if (!watch_end(&watch))
        return NULL;
    if (!self->player)
        return core_raise(err.status, err.text);
    const rp_env_spec *spec = &self->player->options.spec;
    self->rows = vector ? options.n : 0;
    self->observation = env_observation_column("observation", spec);
    self->final = env_observation_column("final_obs", spec);
    self->action = env_action_column("action", spec);
    self->rewards = column_of("rewards", RP_DTYPE_FLOAT64);
    self->flags = column_of("terminated and truncated", RP_DTYPE_BOOL);
    return env_spec_describe(spec);
}

/* ---- life */

static void actor_destroy(PyObject *object)
{
    actor_object *self = (actor_object *)object;
    struct player *player = self->player;
    self->player = NULL;
    free(self->kept_memory);
    self->kept_memory = NULL;
    if (gate_is_foreign(&self->guarded.gate))
        return; /* the parent's threads and sockets are not in this process */
    Py_BEGIN_ALLOW_THREADS;
    player_destroy(&player, UNCLOSED_MS);
    Py_END_ALLOW_THREADS;
}

static PyObject *actor_make(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    (void)args;
    (void)kwargs;
    return guarded_new(type, actor_destroy);
}

/* A method with an optional time-out. */
static PyObject *call_with_timeout(actor_object *self, PyObject *args, bool (*call)(actor_object *, int64_t))
{
    int64_t timeout_ms;
    if (!core_timeout_argument(args, NULL, &timeout_ms) || !enter(self))
        return NULL;
    bool ok = call(self, timeout_ms);
    gate_leave(&self->guarded.gate);
    return ok ? Py_NewRef(Py_None) : NULL;
}

static PyObject *actor_flush(PyObject *object, PyObject *args)
{
    return call_with_timeout((actor_object *)object, args, confirm);
}

static PyObject *actor_wait(PyObject *object, PyObject *args)
{
    return call_with_timeout((actor_object *)object, args, prepare);
}

static PyObject *actor_close(PyObject *object, PyObject *args)
{
    actor_object *self = (actor_object *)object;
    int64_t timeout_ms;
    if (!core_timeout_argument(args, NULL, &timeout_ms))
        return NULL;
    if (!gate_close(&self->guarded.gate))
        return PyErr_Occurred() ? NULL : Py_NewRef(Py_None);
    bool ok = !self->player || gate_is_foreign(&self->guarded.gate) || confirm(self, timeout_ms);
    actor_destroy(object);
    gate_leave(&self->guarded.gate);
    return ok ? Py_NewRef(Py_None) : NULL;
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
                      player->variables.steps, "epsilon", actor_epsilon(&player->subenvs[0].actor), "last_return",
                      player->last_value, "finished", player_finished(player) ? Py_True : Py_False);
    gate_leave(&self->guarded.gate);
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
        core_append(&seeds, PyLong_FromUnsignedLongLong(seed));
    }
    gate_leave(&self->guarded.gate);
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

static PyMethodDef methods[] = {
    {"_open", actor_open, METH_VARARGS, "Connects and opens the streams."},
    {"act", actor_act, METH_O,
     "act($self, observation, /)\n--\n\n"
     "Returns the action for an observation, or the actions for an array of them, in the environment's own units."},
    {"observe", CORE_METHOD(actor_tell), METH_FASTCALL,
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
    {"closed", guarded_closed, NULL, "Whether close was called.", NULL},
    {NULL, NULL, NULL, NULL, NULL},
};

const struct core_type actor_core = {
    .name = "replaybus._agent.Actor",
    .doc = "The C actor for loops in Python.",
    .size = sizeof(actor_object),
    .make = actor_make,
    .dealloc = guarded_dealloc,
    .methods = methods,
    .getters = getters,
    .is_base = true,
};
