/* What an Actor is told: first observations, and what came of its actions. */
#include <stdlib.h>
#include <string.h>

#include "agent/python/agent/actor_object.h"

#define SLICE_MS 1000 /* of a wait without a deadline */

bool actor_enter(actor_object *self)
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

/* Calls again where the library gives up a wait early, for example while it has no connection. */
static rp_status wait_for(actor_object *self, gate_attempt *attempt, struct player_outcome *outcome, int64_t timeout_ms,
                          rp_error *err)
{
    struct wait wait = {.self = self, .outcome = outcome};
    int64_t start = core_now_ns();
    for (;;) {
        int64_t left_ms = core_left_ms(start, timeout_ms);
        rp_status status = gate_wait(&self->gate, attempt, &wait, left_ms < 0 ? SLICE_MS : left_ms, err);
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

bool actor_prepare(actor_object *self, int64_t timeout_ms)
{
    rp_error err = {0};
    return check(wait_for(self, prepare_attempt, NULL, timeout_ms, &err), &err);
}

bool actor_confirm(actor_object *self, int64_t timeout_ms)
{
    rp_error err = {0};
    return check(wait_for(self, flush_attempt, NULL, timeout_ms, &err), &err);
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

bool actor_finish_kept(actor_object *self, int64_t timeout_ms)
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
    if (status != RP_OK)
        return check(status, &err);
    status = wait_for(self, observe_attempt, outcome, -1, &err);
    if (outcome->pending)
        keep(self, outcome);
    return check(status, &err);
}

PyObject *actor_tell(PyObject *object, PyObject *const *args, Py_ssize_t n)
{
    actor_object *self = (actor_object *)object;
    PyObject *info = n == 5 && args[4] != Py_None ? args[4] : NULL;
    if (n < 4 || n > 5 || (info && !PyDict_Check(info))) {
        PyErr_SetString(PyExc_TypeError,
                        "observe(reward, terminated, truncated, observation, info=None): info is a dict");
        return NULL;
    }
    if (!actor_enter(self))
        return NULL;
    struct inputs in = {0};
    struct player_outcome outcome = {0};
    bool ok = actor_finish_kept(self, -1) && read_inputs(self, &in, args, info, &outcome) && observe(self, &outcome);
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

PyObject *actor_tell_first(PyObject *object, PyObject *args)
{
    actor_object *self = (actor_object *)object;
    PyObject *value, *which = Py_None;
    if (!PyArg_ParseTuple(args, "O|O", &value, &which) || !actor_enter(self))
        return NULL;
    struct array observations = {0}, mask = {0};
    bool ok = actor_finish_kept(self, -1) && array_take(&observations, value, &self->observation) &&
              (which == Py_None || array_take(&mask, which, &self->flags)) &&
              first(self, observations.data, which == Py_None ? NULL : mask.data);
    array_release(&observations);
    array_release(&mask);
    gate_leave(&self->gate);
    return ok ? Py_NewRef(Py_None) : NULL;
}
