/* Actor: the C actor for loops in Python, without its environments, which the caller steps. It has a connection, one network and,
 * for each of the environments, a subenv: an actor with its own stream of items.
 *
 * A call that waits is made again after RP_DEADLINE_EXCEEDED or RP_CANCELLED (see rp_wait_set), with the same arguments, until it is
 * done. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "agent/python/agent/agent.h"
#include "agent/run/actor.h"
#include "agent/run/claim.h"
#include "agent/run/worker.h"
#include "proto/base/error.h"

#define UNCLOSED_MS 200 /* for the items of an actor that nobody closed */
#define SLICE_MS 1000   /* of a wait without a deadline */

enum subenv_phase {
    SUBENV_NEW,     /* no episode has begun */
    SUBENV_RUNNING, /* inside an episode */
    SUBENV_ENDED,   /* the next observation is the first of an episode */
    SUBENV_BEGINS,  /* the present observation is the first of an episode */
};

struct subenv {
    enum subenv_phase phase;
    bool pending;            /* its step is in the adder, some of its items are not */
    enum subenv_phase after; /* the phase after that step */
    double value;            /* return of the present episode, undiscounted */
};

/* What came of the actions of the last act. */
struct outcome {
    const double *rewards; /* [n] */
    const bool *terminated, *truncated;
    const char *observations; /* [n] */
    const char *finals;       /* [n]: last observations of the episodes that `final` marks; NULL: none */
    const bool *final;        /* [n]: this subenv's environment has begun its next episode */
};

typedef struct actor_object {
    struct guarded guarded;
    bool open;     /* false before _open and after close; then all below is empty */
    uint32_t rows; /* of arrays for several environments; 0: values of one */
    struct column observation, final, rewards, flags, action;
    struct run_config config;
    rp_env_spec spec;
    size_t observation_bytes;
    bool wait; /* for a learner's parameters before the first action */
    rp_client *client;
    struct crew_options options;
    struct crew crew; /* its actors, and the choices of the last act */
    struct subenv *subenvs;
    bool chosen; /* an act came after the last observe */
    struct claim claim;
    uint64_t steps, pulled_at;
    uint64_t episodes;
    double last_value; /* return of the episode that ended last */
} actor_object;

static uint32_t n_of(const actor_object *self)
{
    return self->options.n;
}

/* Steps of all actors before the next one. */
static uint64_t total_of(const actor_object *self)
{
    return self->options.inserts ? self->claim.total : self->steps;
}

/* ---- opening ---- */

/* Where the actor is, and what its environment is. */
struct opening {
    const char *endpoint;
    bool spec_given;    /* `spec` is the environment's; otherwise the configuration states it */
    int64_t timeout_ms; /* to connect; -1: none */
};

/* The learner's networks follow the configuration, so a given spec must be the same. */
static rp_status take_spec(actor_object *self, bool given, rp_error *err)
{
    struct env env;
    const struct env_config *config = &self->config.environment;
    if (given && env_is_python(config) && config->spec.count == 0)
        return RP_OK;
    RP_TRY(env_open(&env, config, err));
    rp_env_spec stated = env.spec;
    env_close(&env);
    if (given && !env_same_spec(&self->spec, &stated))
        return err_set(
            err, RP_FAILED_PRECONDITION,
            "the environment has other spaces than environment '%s' of the configuration, from which learners build "
            "their networks: state them there, in environment.spec",
            env_name(config));
    self->spec = stated;
    return RP_OK;
}

static rp_status connect_client(actor_object *self, const struct opening *opening, rp_error *err)
{
    char name[32];
    snprintf(name, sizeof name, "actor-%u", self->options.index);
    rp_client_options client = {.struct_size = sizeof client, .name = name};
    self->client = rp_client_connect(opening->endpoint, &client, opening->timeout_ms, err);
    return self->client ? RP_OK : (rp_status)err->status;
}

static rp_status open_all(actor_object *self, const struct opening *opening, rp_error *err)
{
    RP_TRY(take_spec(self, opening->spec_given, err));
    self->observation_bytes = env_observation_bytes(&self->spec);
    self->options.config = &self->config;
    self->options.spec = &self->spec;
    self->options.join_ms = opening->timeout_ms;
    self->subenvs = calloc(n_of(self), sizeof *self->subenvs);
    if (!self->subenvs) /* the user's program goes on */
        return err_set(err, RP_NO_MEMORY, "no memory for %u environments", n_of(self));
    RP_TRY(crew_open(&self->crew, &self->options, err));
    RP_TRY(connect_client(self, opening, err));
    RP_TRY(crew_join(&self->crew, self->client, err));
    claim_init_actor(&self->claim, self->client, &self->config, n_of(self), NULL);
    if (!self->config.actors.weights[0])
        return variables_subscribe(&self->crew.variables, err);
    self->wait = false;
    return crew_begin(&self->crew, err);
}

static void release(actor_object *self)
{
    if (self->claim.options.client)
        claim_fini(&self->claim);
    (void)crew_close(&self->crew, self->open ? UNCLOSED_MS : 0, NULL);
    if (self->client)
        rp_client_destroy(&self->client);
    free(self->subenvs);
    run_config_free(&self->config);
}

static void actor_destroy(PyObject *object)
{
    actor_object *self = (actor_object *)object;
    if (!gate_is_foreign(&self->guarded.gate)) { /* the parent's threads and sockets are not in a child */
        Py_BEGIN_ALLOW_THREADS;
        release(self);
        Py_END_ALLOW_THREADS;
    }
    const size_t begin = offsetof(actor_object, open);
    memset((char *)self + begin, 0, sizeof *self - begin);
}

static struct column column_of(const char *name, int32_t dtype)
{
    return (struct column){.name = (char *)(uintptr_t)name, .dtype = dtype};
}

/* False with an exception set. */
static bool read_options(actor_object *self, PyObject *args, struct opening *opening, int *vector)
{
    PyObject *source, *spec, *seconds;
    struct crew_options *options = &self->options;
    int greedy, insert, wait; /* greedy -1: as actors.greedy says */
    if (!PyArg_ParseTuple(args, "sOOO&O&pippO", &opening->endpoint, &source, &spec, core_u32, &options->index, core_u32,
                          &options->n, vector, &greedy, &insert, &wait, &seconds) ||
        !core_count(options->n, "environments", RUN_MAX_COUNT) || !core_timeout(seconds, &opening->timeout_ms) ||
        !config_read(source, &self->config))
        return false;
    if (greedy >= 0)
        self->config.actors.greedy = greedy != 0;
    options->inserts = insert != 0;
    self->wait = wait != 0;
    opening->spec_given = spec != Py_None;
    return !opening->spec_given || env_spec_read(spec, &self->spec);
}

static bool open_actor(actor_object *self, PyObject *args)
{
    struct opening opening = {0};
    struct watch watch;
    rp_error err = {0};
    int vector = 0;
    if (self->open) {
        core_raise(RP_FAILED_PRECONDITION, "this actor is open already");
        return false;
    }
    if (!read_options(self, args, &opening, &vector))
        return false;
    watch_begin(&watch, &self->guarded.gate);
    rp_status status = open_all(self, &opening, &err);
    if (!watch_end(&watch))
        return false;
    if (status != RP_OK) {
        core_raise(status, err.text);
        return false;
    }
    self->open = true;
    self->rows = vector ? n_of(self) : 0;
    self->observation = env_observation_column("observation", &self->spec);
    self->final = env_observation_column("final_obs", &self->spec);
    self->action = env_action_column("action", &self->spec);
    self->rewards = column_of("rewards", RP_DTYPE_FLOAT64);
    self->flags = column_of("terminated and truncated", RP_DTYPE_BOOL);
    return true;
}

/* _open(endpoint, (path, text, overrides), spec or None, index, n, vector, greedy, insert, wait, timeout): the spec. */
static PyObject *actor_open(PyObject *object, PyObject *args)
{
    actor_object *self = (actor_object *)object;
    if (!gate_enter(&self->guarded.gate, "actor"))
        return NULL;
    bool was_open = self->open, ok = open_actor(self, args);
    PyObject *spec = ok ? env_spec_describe(&self->spec) : NULL;
    if (!ok && !was_open)
        actor_destroy(object);
    gate_leave(&self->guarded.gate);
    return spec;
}

/* Begins a call. False with an exception set. */
static bool enter(actor_object *self)
{
    if (!gate_enter(&self->guarded.gate, "actor"))
        return false;
    if (self->open)
        return true;
    core_raise(RP_FAILED_PRECONDITION, "this actor is not open");
    gate_leave(&self->guarded.gate);
    return false;
}

/* ---- waits ---- */

/* Calls again where the library gives up a wait early, for example while it has no connection. */
static rp_status wait_for(actor_object *self, gate_attempt *attempt, int64_t timeout_ms, rp_error *err)
{
    int64_t start = clock_ns();
    for (;;) {
        int64_t left_ms = core_left_ms(start, timeout_ms);
        rp_status status = gate_wait(&self->guarded.gate, attempt, self, left_ms < 0 ? SLICE_MS : left_ms, err);
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

static rp_status await_parameters(actor_object *self, int64_t timeout_ms, rp_error *err)
{
    bool fresh = false;
    if (!self->wait)
        return RP_OK;
    RP_TRY(variables_pull(&self->crew.variables, timeout_ms, &fresh, err));
    if (!fresh)
        return err_set(err, RP_DEADLINE_EXCEEDED,
                       "no learner has published parameters in slot '" VARIABLES_SLOT "' yet");
    self->wait = false;
    crew_tell_policy(&self->crew);
    return RP_OK;
}

/* Waits for the first parameters, and for steps to take. RP_END_OF_STREAM: the run has taken all its steps. */
static rp_status prepare_attempt(void *object, int64_t timeout_ms, rp_error *err)
{
    actor_object *self = object;
    RP_TRY(await_parameters(self, timeout_ms, err));
    if (self->options.inserts)
        RP_TRY(claim_steps(&self->claim, n_of(self), timeout_ms, err));
    if (!self->options.inserts || self->claim.left >= n_of(self))
        return RP_OK;
    return err_set(err, RP_END_OF_STREAM, "the run has taken the %lld environment steps of stop.steps",
                   (long long)self->config.stop.steps);
}

/* ---- episodes and steps ---- */

static struct adder *adder_of(const actor_object *self, uint32_t i)
{
    return self->crew.loops[i].actor.options.adder;
}

/* Begins an episode of a subenv. */
static rp_status begin_episode(actor_object *self, uint32_t i, const void *observation, rp_error *err)
{
    struct subenv *subenv = &self->subenvs[i];
    if (subenv->phase == SUBENV_RUNNING)
        return err_set(err, RP_FAILED_PRECONDITION,
                       "environment %u is inside an episode that was neither terminated nor truncated", i);
    RP_TRY(actor_observe_first(self->crew.actors[i], observation, err));
    subenv->phase = SUBENV_RUNNING;
    subenv->value = 0;
    return RP_OK;
}

/* After the step of subenv i is in the adder with all its items. */
static void finish_step(actor_object *self, uint32_t i)
{
    struct subenv *subenv = &self->subenvs[i];
    subenv->pending = false;
    subenv->phase = subenv->after;
    self->steps++;
    if (self->options.inserts)
        claim_take(&self->claim, 1);
    if (subenv->phase == SUBENV_RUNNING)
        return;
    self->episodes++;
    self->last_value = subenv->value;
}

/* Puts the step of subenv i into its adder. Its items may have to wait. */
static rp_status observe_subenv(actor_object *self, const struct outcome *outcome, uint32_t i, rp_error *err)
{
    struct subenv *subenv = &self->subenvs[i];
    bool final = outcome->finals && outcome->final[i];
    const char *row = (final ? outcome->finals : outcome->observations) + i * self->observation_bytes;
    /* An environment that resets in the step after the end of an episode ignores its action. */
    if (subenv->phase == SUBENV_ENDED)
        return begin_episode(self, i, row, err);
    const rp_env_result result = {.reward = (float)outcome->rewards[i],
                                  .terminal = outcome->terminated[i],
                                  .truncated = outcome->truncated[i] && !outcome->terminated[i]};
    subenv->value += outcome->rewards[i];
    subenv->after = !result.terminal && !result.truncated ? SUBENV_RUNNING : final ? SUBENV_BEGINS : SUBENV_ENDED;
    rp_status status = actor_offer(self->crew.actors[i], &self->crew.choices[i], &result, row, err);
    subenv->pending = status == RP_DEADLINE_EXCEEDED || status == RP_CANCELLED;
    if (subenv->pending)
        return RP_OK;
    finish_step(self, i);
    return status;
}

/* Waits for room for the items of steps that are in the adders. Goes on where an attempt that was interrupted has stopped. */
static rp_status settle_attempt(void *object, int64_t timeout_ms, rp_error *err)
{
    actor_object *self = object;
    rp_status result = RP_OK;
    for (uint32_t i = 0; i < n_of(self); i++) {
        rp_error why = {0};
        if (!self->subenvs[i].pending)
            continue;
        rp_status status = adder_wait(adder_of(self, i), timeout_ms, &why);
        if (status == RP_DEADLINE_EXCEEDED || status == RP_CANCELLED)
            return err_set(err, status, "%s", why.text);
        finish_step(self, i);
        result = result == RP_OK && status != RP_OK ? err_set(err, status, "%s", why.text) : result;
    }
    return result;
}

/* Finishes the steps of an observe that a signal interrupted, too. False with an exception set. */
static bool settle(actor_object *self, int64_t timeout_ms)
{
    rp_error err = {0};
    bool pending = false;
    for (uint32_t i = 0; i < n_of(self); i++)
        pending |= self->subenvs[i].pending;
    return !pending || check(wait_for(self, settle_attempt, timeout_ms, &err), &err);
}

static bool prepare(actor_object *self, int64_t timeout_ms)
{
    rp_error err = {0};
    return check(wait_for(self, prepare_attempt, timeout_ms, &err), &err);
}

/* Takes newer parameters from time to time. */
static rp_status update(actor_object *self, rp_error *err)
{
    if (self->config.actors.weights[0] || self->steps - self->pulled_at < (uint64_t)self->config.actors.pull_every)
        return RP_OK;
    self->pulled_at = self->steps;
    bool fresh;
    RP_TRY(variables_pull(&self->crew.variables, 0, &fresh, err));
    self->wait = self->wait && !fresh;
    crew_tell_policy(&self->crew);
    return RP_OK;
}

/* Waits until all items are confirmed. */
static rp_status flush_attempt(void *object, int64_t timeout_ms, rp_error *err)
{
    actor_object *self = object;
    int64_t start = clock_ns();
    for (uint32_t i = 0; self->options.inserts && i < n_of(self); i++)
        RP_TRY(adder_flush(adder_of(self, i), 0, core_left_ms(start, timeout_ms), err));
    return RP_OK;
}

static bool confirm(actor_object *self, int64_t timeout_ms)
{
    rp_error err = {0};
    return settle(self, timeout_ms) && check(wait_for(self, flush_attempt, timeout_ms, &err), &err);
}

/* ---- act ---- */

static PyObject *choices(actor_object *self)
{
    const rp_env_spec *spec = &self->spec;
    if (spec->n_actions && self->rows == 0)
        return PyLong_FromLong(self->crew.choices[0].discrete);
    void *data;
    PyObject *actions = numpy_empty(&self->action, self->rows, &data);
    for (uint32_t i = 0; actions && i < n_of(self); i++)
        if (spec->n_actions)
            ((int64_t *)data)[i] = self->crew.choices[i].discrete;
        else
            env_native_action(spec, self->crew.choices[i].continuous, (float *)data + (size_t)i * spec->action_size);
    return actions;
}

static bool has_begun(const actor_object *self)
{
    for (uint32_t i = 0; i < n_of(self); i++) {
        enum subenv_phase phase = self->subenvs[i].phase;
        if (phase == SUBENV_NEW || (phase == SUBENV_ENDED && self->rows == 0)) {
            core_raise(RP_FAILED_PRECONDITION, "no episode has begun: call observe_first with its first observation");
            return false;
        }
    }
    return true;
}

static rp_status select_actions(actor_object *self, const char *observations, rp_error *err)
{
    for (uint32_t i = 0; i < n_of(self); i++) {
        if (self->subenvs[i].phase == SUBENV_BEGINS)
            RP_TRY(begin_episode(self, i, observations + i * self->observation_bytes, err));
        self->crew.actors[i]->total = total_of(self) + i;
    }
    actor_select_many(self->crew.actors, n_of(self), observations, self->crew.choices);
    self->chosen = true;
    return RP_OK;
}

static PyObject *act(actor_object *self, PyObject *value)
{
    struct cell observations = {0};
    rp_error err = {0};
    if (!settle(self, -1) || !has_begun(self) || !prepare(self, -1) ||
        !cell_take(&observations, &self->observation, value, self->rows))
        return NULL;
    PyThreadState *thread = n_of(self) > 1 ? PyEval_SaveThread() : NULL;
    rp_status status = select_actions(self, observations.data, &err);
    if (thread)
        PyEval_RestoreThread(thread);
    cells_release(&observations, 1);
    return check(status, &err) ? choices(self) : NULL;
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

/* ---- observe ---- */

enum { IN_REWARD, IN_TERMINATED, IN_TRUNCATED, IN_OBSERVATION, IN_FINAL, IN_MASK, N_INPUTS };

/* The arrays of one call; for one environment, the numbers. */
struct inputs {
    struct cell cells[N_INPUTS];
    PyObject *finals, *mask; /* held: they are entries of the caller's dict, and cells are read in place */
    double reward;
    bool terminated, truncated;
};

static bool read_numbers(struct inputs *in, PyObject *const *args, struct outcome *out)
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

static bool read_arrays(actor_object *self, struct inputs *in, PyObject *const *args, struct outcome *out)
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
static bool read_finals(actor_object *self, struct inputs *in, PyObject *info, struct outcome *out)
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
                        struct outcome *out)
{
    if (!(self->rows ? read_arrays(self, in, args, out) : read_numbers(in, args, out)) ||
        !take(self, in, IN_OBSERVATION, &self->observation, args[IN_OBSERVATION]))
        return false;
    out->observations = in->cells[IN_OBSERVATION].data;
    return !info || self->rows == 0 || read_finals(self, in, info, out);
}

/* Checks rewards and phases. */
static rp_status check_outcome(const actor_object *self, const struct outcome *outcome, rp_error *err)
{
    if (!self->chosen)
        return err_set(err, RP_FAILED_PRECONDITION, "call act before observe");
    for (uint32_t i = 0; i < n_of(self); i++) {
        if (self->subenvs[i].phase == SUBENV_NEW)
            return err_set(err, RP_FAILED_PRECONDITION, "environment %u has begun no episode: call observe_first", i);
        if (!isfinite((float)outcome->rewards[i]))
            return err_set(err, RP_INVALID_ARGUMENT, "the reward of environment %u is %g", i, outcome->rewards[i]);
    }
    return RP_OK;
}

/* Adds the steps. Errors of one subenv do not stop the others. */
static bool observe(actor_object *self, const struct outcome *outcome)
{
    rp_error err = {0};
    rp_status status = check_outcome(self, outcome, &err);
    if (status != RP_OK)
        return check(status, &err);
    self->chosen = false;
    for (uint32_t i = 0; i < n_of(self); i++) {
        rp_status added = observe_subenv(self, outcome, i, status == RP_OK ? &err : NULL);
        status = status == RP_OK ? added : status;
    }
    if (!settle(self, -1))
        return false;
    return check(status == RP_OK ? update(self, &err) : status, &err);
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
    struct outcome outcome = {0};
    bool ok = settle(self, -1) && read_inputs(self, &in, args, info, &outcome) && observe(self, &outcome);
    cells_release(in.cells, N_INPUTS);
    Py_XDECREF(in.finals);
    Py_XDECREF(in.mask);
    gate_leave(&self->guarded.gate);
    return ok ? Py_NewRef(Py_None) : NULL;
}

/* ---- the beginning of episodes ---- */

static bool first(actor_object *self, const char *rows, const bool *mask)
{
    rp_error err = {0};
    rp_status status = RP_OK;
    for (uint32_t i = 0; i < n_of(self) && status == RP_OK; i++)
        if (!mask || mask[i])
            status = begin_episode(self, i, rows + i * self->observation_bytes, &err);
    return check(status, &err);
}

static PyObject *actor_tell_first(PyObject *object, PyObject *args)
{
    actor_object *self = (actor_object *)object;
    PyObject *value, *which = Py_None;
    if (!PyArg_ParseTuple(args, "O|O", &value, &which) || !enter(self))
        return NULL;
    struct cell cells[2] = {{.data = NULL}, {.data = NULL}};
    bool ok = settle(self, -1) && cell_take(&cells[0], &self->observation, value, self->rows) &&
              (which == Py_None || cell_take(&cells[1], &self->flags, which, n_of(self))) &&
              first(self, cells[0].data, cells[1].data);
    cells_release(cells, 2);
    gate_leave(&self->guarded.gate);
    return ok ? Py_NewRef(Py_None) : NULL;
}

/* ---- life ---- */

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
    bool ok = !self->open || gate_is_foreign(&self->guarded.gate) || confirm(self, timeout_ms);
    actor_destroy(object);
    gate_leave(&self->guarded.gate);
    return ok ? Py_NewRef(Py_None) : NULL;
}

/* ---- state ---- */

/* Whether there are fewer steps of stop.steps left than the actor has environments. */
static bool is_finished(const actor_object *self)
{
    return self->claim.full && self->claim.left < n_of(self);
}

static PyObject *actor_state(PyObject *object, PyObject *unused)
{
    (void)unused;
    actor_object *self = (actor_object *)object;
    if (!enter(self))
        return NULL;
    uint64_t items = 0;
    for (uint32_t i = 0; self->options.inserts && i < n_of(self); i++) {
        struct adder_stats stats;
        adder_get_stats(adder_of(self, i), &stats);
        items += stats.items;
    }
    PyObject *state =
        Py_BuildValue("{s:K,s:K,s:K,s:K,s:K,s:d,s:d,s:O}", "steps", self->steps, "episodes", self->episodes, "items",
                      items, "version", self->crew.variables.version, "learner_steps", self->crew.variables.steps,
                      "epsilon", actor_epsilon(self->crew.actors[0]), "last_return", self->last_value, "finished",
                      is_finished(self) ? Py_True : Py_False);
    gate_leave(&self->guarded.gate);
    return state;
}

static PyObject *actor_seeds(PyObject *object, PyObject *unused)
{
    (void)unused;
    actor_object *self = (actor_object *)object;
    if (!enter(self))
        return NULL;
    PyObject *seeds = PyList_New(0);
    for (uint32_t i = 0; seeds && i < n_of(self); i++) {
        uint64_t seed = worker_seed(&self->config, "environment", self->options.index * n_of(self) + i);
        core_append(&seeds, PyLong_FromUnsignedLongLong(seed));
    }
    gate_leave(&self->guarded.gate);
    return seeds;
}

static PyObject *actor_finished(PyObject *object, void *unused)
{
    (void)unused;
    const actor_object *self = (actor_object *)object;
    return PyBool_FromLong(!self->open || is_finished(self));
}

static PyObject *actor_steps(PyObject *object, void *unused)
{
    (void)unused;
    return PyLong_FromUnsignedLongLong(((actor_object *)object)->steps);
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
