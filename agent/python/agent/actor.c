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
};

struct subenv {
    struct adder *adder; /* NULL without insert */
    struct actor actor;
    enum subenv_phase phase;
    double value; /* return of the present episode, undiscounted */
};

/* What came of the actions of the last act. */
struct outcome {
    const double *rewards; /* [n] */
    const bool *terminated, *truncated;
    const void *observations; /* [n] */
    const void *finals;       /* [n]: last observations of the episodes that `final` marks; NULL: none */
    const bool *final;        /* [n]: this subenv's environment has begun its next episode */
    /* ---- progress */
    uint32_t next;    /* the first subenv that is not done */
    bool pending;     /* its step is in the adder, its items are not */
    rp_status status; /* the first error */
    rp_error err;
};

typedef struct actor_object {
    struct guarded guarded;
    bool open;         /* false before _open and after close; then all below is empty */
    uint32_t index, n; /* index of the actor; number of its environments */
    uint32_t rows;     /* of arrays for several environments; 0: values of one */
    struct column observation, final, rewards, flags, action;
    struct run_config config;
    rp_env_spec spec;
    size_t observation_bytes;
    int greedy;  /* 0 or 1; -1: as actors.greedy says */
    bool insert; /* items and steps go to the broker */
    bool wait;   /* for a learner's parameters before the first action */
    rp_client *client;
    struct agent *agent;
    struct variables variables;
    struct subenv *subenvs;
    struct actor **actors;        /* of the subenvs */
    struct agent_choice *choices; /* of the last act */
    bool chosen;                  /* an act came after the last observe */
    struct claim claim;
    uint64_t owed, total; /* steps that are claimed and not taken; steps of all actors before them */
    bool finished;        /* stop.steps is reached */
    uint64_t policy;      /* stamp of the parameters that the adders know */
    uint64_t steps, pulled_at;
    uint64_t episodes;
    double last_value;       /* return of the episode that ended last */
    struct outcome *outcome; /* of the observe that waits */
    struct outcome kept;     /* of an observe that a signal interrupted: the next call finishes it */
    void *kept_memory;       /* its arrays; NULL: there is none */
} actor_object;

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

static rp_status make_agent(actor_object *self, rp_error *err)
{
    struct agent_config config = self->config.agent;
    config.acting_rows = self->n < ACTOR_ROWS ? self->n : ACTOR_ROWS;
    self->agent = agent_new(&config, env_name(&self->config.environment), &self->spec,
                            worker_seed(&self->config, "parameters", 0), err);
    return self->agent ? RP_OK : (rp_status)err->status;
}

static rp_status connect_client(actor_object *self, const struct opening *opening, rp_error *err)
{
    char name[32];
    snprintf(name, sizeof name, "actor-%u", self->index);
    rp_client_options client = {.struct_size = sizeof client, .name = name};
    self->client = rp_client_connect(opening->endpoint, &client, opening->timeout_ms, err);
    return self->client ? RP_OK : (rp_status)err->status;
}

static rp_status open_subenv(actor_object *self, uint32_t i, int64_t timeout_ms, rp_error *err)
{
    uint32_t index = self->index * self->n + i;
    struct adder **adder = &self->subenvs[i].adder;
    char name[48];
    snprintf(name, sizeof name, i ? "actor-%u.%u" : "actor-%u", self->index, i);
    if (self->insert && !(*adder = actor_adder(&self->config, self->agent, self->client, name, timeout_ms, err)))
        return (rp_status)err->status;
    const struct actor_options actor = {.config = &self->config,
                                        .agent = self->agent,
                                        .adder = *adder,
                                        .index = index,
                                        .environments = self->n,
                                        .seed = worker_seed(&self->config, "actor", index),
                                        .greedy = self->greedy < 0 ? self->config.actors.greedy : self->greedy != 0};
    actor_init(&self->subenvs[i].actor, &actor);
    self->actors[i] = &self->subenvs[i].actor;
    return RP_OK;
}

/* Parameters come from a file, or follow a learner. */
static rp_status open_variables(actor_object *self, rp_error *err)
{
    const char *weights = self->config.actors.weights;
    variables_init(&self->variables, self->client, self->agent);
    if (!weights[0])
        return variables_subscribe(&self->variables, err);
    self->wait = false;
    return variables_load(&self->variables, weights, err);
}

static rp_status open_all(actor_object *self, const struct opening *opening, rp_error *err)
{
    RP_TRY(take_spec(self, opening->spec_given, err));
    self->observation_bytes = env_observation_bytes(&self->spec);
    RP_TRY(make_agent(self, err));
    self->subenvs = calloc(self->n, sizeof *self->subenvs);
    self->actors = calloc(self->n, sizeof(struct actor *));
    self->choices = calloc(self->n, sizeof *self->choices);
    if (!self->subenvs || !self->actors || !self->choices) /* the user's program goes on */
        return err_set(err, RP_NO_MEMORY, "no memory for %u environments", self->n);
    RP_TRY(connect_client(self, opening, err));
    RP_TRY(open_variables(self, err));
    for (uint32_t i = 0; i < self->n; i++)
        RP_TRY(open_subenv(self, i, opening->timeout_ms, err));
    claim_init_actor(&self->claim, self->client, &self->config, self->n, NULL);
    return RP_OK;
}

static void release(actor_object *self)
{
    if (self->claim.options.client) {
        claim_return(&self->claim, self->owed);
        claim_fini(&self->claim);
    }
    for (uint32_t i = 0; self->subenvs && i < self->n; i++)
        (void)adder_destroy(&self->subenvs[i].adder, self->open ? UNCLOSED_MS : 0, NULL);
    if (self->client) {
        variables_fini(&self->variables);
        rp_client_destroy(&self->client);
    }
    agent_destroy(&self->agent);
    free(self->subenvs);
    free(self->actors);
    free(self->choices);
    free(self->kept_memory);
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
    int insert, wait;
    if (!PyArg_ParseTuple(args, "sOOO&O&pippO", &opening->endpoint, &source, &spec, core_u32, &self->index, core_u32,
                          &self->n, vector, &self->greedy, &insert, &wait, &seconds) ||
        !core_timeout(seconds, &opening->timeout_ms) || !config_read(source, &self->config))
        return false;
    self->insert = insert != 0;
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
    self->rows = vector ? self->n : 0;
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

/* Tells all adders which parameters act from now on. */
static void tell_policy(actor_object *self)
{
    uint64_t policy = variables_stamp(&self->variables, &self->config);
    for (uint32_t i = 0; self->policy != policy && self->insert && i < self->n; i++)
        adder_set_policy(self->subenvs[i].adder, policy);
    self->policy = policy;
}

static rp_status await_parameters(actor_object *self, int64_t timeout_ms, rp_error *err)
{
    bool fresh = false;
    if (!self->wait)
        return RP_OK;
    RP_TRY(variables_pull(&self->variables, timeout_ms, &fresh, err));
    if (!fresh)
        return err_set(err, RP_DEADLINE_EXCEEDED,
                       "no learner has published parameters in slot '" VARIABLES_SLOT "' yet");
    self->wait = false;
    tell_policy(self);
    return RP_OK;
}

/* Waits for the first parameters, and for steps to take. RP_END_OF_STREAM: the run has taken all its steps. */
static rp_status prepare_attempt(void *object, int64_t timeout_ms, rp_error *err)
{
    actor_object *self = object;
    RP_TRY(await_parameters(self, timeout_ms, err));
    if (!self->insert)
        return RP_OK;
    while (self->owed < self->n && !self->finished) {
        struct claim_steps steps;
        RP_TRY(claim_try(&self->claim, self->claim.options.least, timeout_ms, &steps, err));
        if (steps.n > 0)
            self->total = steps.total - self->owed;
        self->owed += steps.n;
        self->finished = steps.n == 0;
    }
    if (self->owed >= self->n)
        return RP_OK;
    return err_set(err, RP_END_OF_STREAM, "the run has taken the %lld environment steps of stop.steps",
                   (long long)self->config.stop.steps);
}

static bool prepare(actor_object *self, int64_t timeout_ms)
{
    rp_error err = {0};
    return check(wait_for(self, prepare_attempt, timeout_ms, &err), &err);
}

/* ---- episodes and steps ---- */

/* Begins an episode of a subenv. */
static rp_status begin_episode(actor_object *self, uint32_t i, const void *observation, rp_error *err)
{
    struct subenv *subenv = &self->subenvs[i];
    if (subenv->phase == SUBENV_RUNNING)
        return err_set(err, RP_FAILED_PRECONDITION,
                       "environment %u is inside an episode that was neither terminated nor truncated", i);
    RP_TRY(actor_observe_first(&subenv->actor, observation, err));
    subenv->phase = SUBENV_RUNNING;
    subenv->value = 0;
    return RP_OK;
}

/* The observation that the step of subenv i led to. */
static const char *row_of(const actor_object *self, const struct outcome *outcome, uint32_t i)
{
    bool final = outcome->finals && outcome->final[i];
    return (const char *)(final ? outcome->finals : outcome->observations) + i * self->observation_bytes;
}

/* After the step of subenv i is in the adder. */
static rp_status finish_step(actor_object *self, const struct outcome *outcome, uint32_t i, rp_error *err)
{
    struct subenv *subenv = &self->subenvs[i];
    subenv->value += outcome->rewards[i];
    self->steps++;
    self->total++;
    self->owed -= self->insert ? 1 : 0;
    if (!outcome->terminated[i] && !outcome->truncated[i])
        return RP_OK;
    self->episodes++;
    self->last_value = subenv->value;
    subenv->phase = SUBENV_ENDED;
    if (!outcome->finals || !outcome->final[i])
        return RP_OK;
    return begin_episode(self, i, (const char *)outcome->observations + i * self->observation_bytes, err);
}

static rp_status observe_subenv(actor_object *self, struct outcome *outcome, int64_t timeout_ms, rp_error *err)
{
    uint32_t i = outcome->next;
    struct subenv *subenv = &self->subenvs[i];
    /* An environment that resets in the step after the end of an episode ignores its action. */
    if (subenv->phase == SUBENV_ENDED)
        return begin_episode(self, i, row_of(self, outcome, i), err);
    rp_status status;
    if (outcome->pending) {
        status = adder_wait(subenv->adder, timeout_ms, err);
    } else {
        rp_env_result result = {.reward = (float)outcome->rewards[i],
                                .terminal = outcome->terminated[i],
                                .truncated = outcome->truncated[i] && !outcome->terminated[i]};
        status = actor_offer(&subenv->actor, &self->choices[i], &result, row_of(self, outcome, i), err);
    }
    outcome->pending = status == RP_DEADLINE_EXCEEDED || status == RP_CANCELLED;
    if (outcome->pending)
        return status;
    rp_status finished = finish_step(self, outcome, i, status == RP_OK ? err : NULL);
    return status == RP_OK ? finished : status;
}

static rp_status update(actor_object *self, rp_error *err)
{
    if (self->config.actors.weights[0] || self->steps - self->pulled_at < (uint64_t)self->config.actors.pull_every)
        return RP_OK;
    self->pulled_at = self->steps;
    bool fresh;
    RP_TRY(variables_pull(&self->variables, 0, &fresh, err));
    self->wait = self->wait && !fresh;
    tell_policy(self);
    return RP_OK;
}

/* Adds the steps, and takes newer parameters from time to time. Errors of one subenv do not stop the others. */
static rp_status observe_attempt(void *object, int64_t timeout_ms, rp_error *err)
{
    actor_object *self = object;
    struct outcome *outcome = self->outcome;
    self->chosen = false;
    for (; outcome->next < self->n; outcome->next++) {
        rp_error why = {0};
        rp_status status = observe_subenv(self, outcome, timeout_ms, &why);
        if (outcome->pending)
            return err_set(err, status, "%s", why.text);
        if (status != RP_OK && outcome->status == RP_OK) {
            outcome->status = status;
            outcome->err = why;
        }
    }
    if (outcome->status == RP_OK)
        return update(self, err);
    return err_set(err, outcome->status, "%s", outcome->err.text);
}

static rp_status observe_for(actor_object *self, struct outcome *outcome, int64_t timeout_ms, rp_error *err)
{
    self->outcome = outcome;
    return wait_for(self, observe_attempt, timeout_ms, err);
}

/* Waits until all items are confirmed. */
static rp_status flush_attempt(void *object, int64_t timeout_ms, rp_error *err)
{
    actor_object *self = object;
    int64_t start = clock_ns();
    for (uint32_t i = 0; self->insert && i < self->n; i++)
        RP_TRY(adder_flush(self->subenvs[i].adder, 0, core_left_ms(start, timeout_ms), err));
    return RP_OK;
}

/* ---- an observe that was interrupted ---- */

/* Copies the outcome, whose arrays are the caller's. Without memory the rest of the step is lost. */
static void keep(actor_object *self, const struct outcome *outcome)
{
    uint32_t n = self->n;
    size_t rows = n * self->observation_bytes;
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
    rp_status status = observe_for(self, &self->kept, timeout_ms, &err);
    if (!self->kept.pending) {
        free(self->kept_memory);
        self->kept_memory = NULL;
    }
    return check(status, &err);
}

static bool confirm(actor_object *self, int64_t timeout_ms)
{
    rp_error err = {0};
    return finish_kept(self, timeout_ms) && check(wait_for(self, flush_attempt, timeout_ms, &err), &err);
}

/* ---- act ---- */

static PyObject *choices(actor_object *self)
{
    const rp_env_spec *spec = &self->spec;
    if (spec->n_actions && self->rows == 0)
        return PyLong_FromLong(self->choices[0].discrete);
    void *data;
    PyObject *actions = numpy_empty(&self->action, self->rows, &data);
    for (uint32_t i = 0; actions && i < self->n; i++)
        if (spec->n_actions)
            ((int64_t *)data)[i] = self->choices[i].discrete;
        else
            env_native_action(spec, self->choices[i].continuous, (float *)data + (size_t)i * spec->action_size);
    return actions;
}

static bool has_begun(const actor_object *self)
{
    for (uint32_t i = 0; i < self->n; i++) {
        enum subenv_phase phase = self->subenvs[i].phase;
        if (phase == SUBENV_NEW || (phase == SUBENV_ENDED && self->rows == 0)) {
            core_raise(RP_FAILED_PRECONDITION, "no episode has begun: call observe_first with its first observation");
            return false;
        }
    }
    return true;
}

static void select_actions(actor_object *self, const void *observations)
{
    for (uint32_t i = 0; i < self->n; i++)
        self->actors[i]->total = self->total + i;
    actor_select_many(self->actors, self->n, observations, self->choices);
    self->chosen = true;
}

static PyObject *act(actor_object *self, PyObject *value)
{
    struct cell observations = {0};
    if (!finish_kept(self, -1) || !has_begun(self) || !prepare(self, -1) ||
        !cell_take(&observations, &self->observation, value, self->rows))
        return NULL;
    if (self->n == 1) {
        select_actions(self, observations.data);
    } else {
        Py_BEGIN_ALLOW_THREADS;
        select_actions(self, observations.data);
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
    for (uint32_t i = 0; i < self->n; i++) {
        if (self->subenvs[i].phase == SUBENV_NEW)
            return err_set(err, RP_FAILED_PRECONDITION, "environment %u has begun no episode: call observe_first", i);
        if (!isfinite((float)outcome->rewards[i]))
            return err_set(err, RP_INVALID_ARGUMENT, "the reward of environment %u is %g", i, outcome->rewards[i]);
    }
    return RP_OK;
}

static bool observe(actor_object *self, struct outcome *outcome)
{
    rp_error err = {0};
    rp_status status = check_outcome(self, outcome, &err);
    if (status != RP_OK)
        return check(status, &err);
    status = observe_for(self, outcome, -1, &err);
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
    struct outcome outcome = {0};
    bool ok = finish_kept(self, -1) && read_inputs(self, &in, args, info, &outcome) && observe(self, &outcome);
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
    for (uint32_t i = 0; i < self->n && status == RP_OK; i++)
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
    bool ok = finish_kept(self, -1) && cell_take(&cells[0], &self->observation, value, self->rows) &&
              (which == Py_None || cell_take(&cells[1], &self->flags, which, self->n)) &&
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
    if (!gate_reopen(&self->guarded.gate))
        actor_destroy(object);
    gate_leave(&self->guarded.gate);
    return ok ? Py_NewRef(Py_None) : NULL;
}

/* ---- state ---- */

/* Whether there are fewer steps of stop.steps left than the actor has environments. */
static bool is_finished(const actor_object *self)
{
    return self->finished || (self->claim.full && self->owed + self->claim.left < self->n);
}

static PyObject *actor_state(PyObject *object, PyObject *unused)
{
    (void)unused;
    actor_object *self = (actor_object *)object;
    if (!enter(self))
        return NULL;
    uint64_t items = 0;
    for (uint32_t i = 0; self->insert && i < self->n; i++) {
        struct adder_stats stats;
        adder_get_stats(self->subenvs[i].adder, &stats);
        items += stats.items;
    }
    PyObject *state =
        Py_BuildValue("{s:K,s:K,s:K,s:K,s:K,s:d,s:d,s:O}", "steps", self->steps, "episodes", self->episodes, "items",
                      items, "version", self->variables.version, "learner_steps", self->variables.steps, "epsilon",
                      actor_epsilon(&self->subenvs[0].actor), "last_return", self->last_value, "finished",
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
    for (uint32_t i = 0; seeds && i < self->n; i++) {
        uint64_t seed = worker_seed(&self->config, "environment", self->index * self->n + i);
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
    {"_give_up", guarded_close, METH_NOARGS, "Closes the connection without waiting for all items."},
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
