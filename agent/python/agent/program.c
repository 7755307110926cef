/* The programs of the agents inside Python, with environments in Python. The adapter (replaybus.adapter) is the Python half: it turns
 * observations and actions into rows of memory that this half owns. The program runs without the GIL; each call of an environment takes
 * it. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "agent/env/picture.h"
#include "agent/python/agent/agent.h"
#include "agent/run/program.h"
#include "proto/base/error.h"
#include "proto/base/need.h"

struct python_provider {
    struct env_provider provider; /* ctx is this struct */
    PyObject *open;               /* open(python, gym, options, n) gives the adapter's Environments; borrowed */
    PyThreadState *thread;        /* the program's thread while it does without the GIL */
};

struct whole;

struct subenv {
    struct whole *whole;
    uint32_t index;
    PyObject *object, *reset, *step; /* the adapter's subenv, and bound methods of it */
    uint64_t steps, episodes;        /* of the present episode; begun so far */
    bool fresh;                      /* together: the round's outcome was not read yet */
    rp_error failure;
};

struct whole {
    struct python_provider *provider;
    PyObject *envs;                         /* the adapter */
    PyObject *observations, *actions;       /* bytearrays, one row for each subenv */
    size_t observation_bytes, action_bytes; /* of a row */
    rp_env_spec spec;
    bool together;
    uint32_t n;
    struct subenv subenvs[];
};

static void take_gil(const struct whole *self)
{
    PyEval_RestoreThread(self->provider->thread);
}

static void release_gil(const struct whole *self)
{
    self->provider->thread = PyEval_SaveThread();
}

static void *row_of(PyObject *rows, size_t bytes, uint32_t index)
{
    return PyByteArray_AsString(rows) + bytes * index;
}

/* ---- failures ---- */

/* Takes the present exception: a new reference. */
static PyObject *take_exception(void)
{
    PyObject *type, *value, *trace;
    PyErr_Fetch(&type, &value, &trace);
    PyErr_NormalizeException(&type, &value, &trace);
    if (value && trace)
        PyException_SetTraceback(value, trace);
    Py_XDECREF(type);
    Py_XDECREF(trace);
    return value;
}

static rp_status set_text(PyObject *text, rp_error *err)
{
    const char *utf8 = text ? PyUnicode_AsUTF8AndSize(text, NULL) : NULL;
    err_set(err, RP_INTERNAL, "%s", utf8 ? utf8 : "an environment in Python failed, and Python could not say why");
    PyErr_Clear();
    return RP_INTERNAL;
}

/* The present exception as a sentence; the adapter prints the traceback. */
static void fail(struct subenv *self, const char *method)
{
    PyObject *error = take_exception();
    PyObject *text = error ? PyObject_CallMethod(self->whole->envs, "explain", "OsKK", error, method,
                                                 (unsigned long long)self->steps, (unsigned long long)self->episodes)
                           : NULL;
    set_text(text, &self->failure);
    Py_XDECREF(text);
    Py_XDECREF(error);
}

static rp_status subenv_failure(void *subenv, rp_error *err)
{
    const rp_error *failure = &((const struct subenv *)subenv)->failure;
    if (failure->status == RP_OK)
        return RP_OK;
    return err_set(err, (rp_status)failure->status, "%s", failure->text);
}

/* Refuses numbers that would spoil the networks of all processes. */
static void check_numbers(struct subenv *self, const char *method, float reward)
{
    const struct whole *whole = self->whole;
    const float *numbers = row_of(whole->observations, whole->observation_bytes, self->index);
    size_t n = whole->spec.observation_dtype == RP_DTYPE_FLOAT32 ? whole->observation_bytes / sizeof *numbers : 0,
           i = 0;
    while (i < n && isfinite(numbers[i]))
        i++;
    if (i == n && isfinite(reward))
        return;
    PyObject *name = PyObject_GetAttrString(whole->envs, "name");
    const char *text = name ? PyUnicode_AsUTF8AndSize(name, NULL) : NULL;
    if (i < n)
        err_set(&self->failure, RP_INVALID_ARGUMENT,
                "environment '%s': %s() returned an observation whose number %zu is %g (at step %llu of episode %llu)",
                text ? text : "", method, i, (double)numbers[i], (unsigned long long)self->steps,
                (unsigned long long)self->episodes);
    else
        err_set(&self->failure, RP_INVALID_ARGUMENT,
                "environment '%s': %s() returned %g as the reward (at step %llu of episode %llu)", text ? text : "",
                method, (double)reward, (unsigned long long)self->steps, (unsigned long long)self->episodes);
    Py_XDECREF(name);
    PyErr_Clear();
}

/* ---- rounds ---- */

static bool attribute_is_true(PyObject *object, const char *name)
{
    PyObject *value = PyObject_GetAttrString(object, name);
    bool answer = value && PyObject_IsTrue(value) == 1;
    Py_XDECREF(value);
    PyErr_Clear();
    return answer;
}

static bool round_ready(struct subenv *self)
{
    struct whole *whole = self->whole;
    if (!whole->together || self->fresh)
        return true;
    PyObject *done = PyObject_CallMethod(whole->envs, "run", NULL);
    Py_XDECREF(done);
    for (uint32_t i = 0; done && i < whole->n; i++)
        whole->subenvs[i].fresh = true;
    return done != NULL;
}

static void subenv_announce(void *subenv, const void *action)
{
    struct subenv *self = subenv;
    struct whole *whole = self->whole;
    if (!whole->together)
        return;
    take_gil(whole);
    memcpy(row_of(whole->actions, whole->action_bytes, self->index), action, whole->action_bytes);
    release_gil(whole);
    self->fresh = false;
}

static bool subenv_resets_within_round(void *subenv)
{
    struct subenv *self = subenv;
    struct whole *whole = self->whole;
    if (!whole->together || self->episodes == 0)
        return false;
    take_gil(whole);
    bool answer = attribute_is_true(whole->envs, "resets_within_round");
    release_gil(whole);
    return answer;
}

/* ---- the environment's functions ---- */

static void subenv_seed(void *subenv, uint64_t seed)
{
    struct subenv *self = subenv;
    take_gil(self->whole);
    PyObject *done = PyObject_CallMethod(self->object, "seed", "K", (unsigned long long)seed);
    if (!done)
        fail(self, "seed");
    Py_XDECREF(done);
    release_gil(self->whole);
}

static void subenv_reset(void *subenv, void *observation)
{
    struct subenv *self = subenv;
    struct whole *whole = self->whole;
    bool late = subenv_resets_within_round(subenv);
    if (self->failure.status != RP_OK)
        return;
    take_gil(whole);
    self->steps = 0;
    self->episodes++;
    PyObject *done = !late || round_ready(self) ? PyObject_CallFunctionObjArgs(self->reset, NULL) : NULL;
    self->fresh = false;
    if (done) {
        check_numbers(self, "reset", 0.0f);
        memcpy(observation, row_of(whole->observations, whole->observation_bytes, self->index),
               whole->observation_bytes);
    } else {
        fail(self, "reset");
    }
    Py_XDECREF(done);
    release_gil(whole);
}

/* The adapter's metrics() gives pairs of a name and a number. */
static uint32_t subenv_metrics(void *subenv, struct env_metric out[ENV_MAX_METRICS])
{
    struct whole *whole = ((struct subenv *)subenv)->whole;
    uint32_t n = 0;
    take_gil(whole);
    PyObject *pairs = PyObject_CallMethod(whole->envs, "metrics", "I", ENV_MAX_METRICS);
    for (Py_ssize_t i = 0; pairs && PyList_Check(pairs) && i < PyList_Size(pairs) && n < ENV_MAX_METRICS; i++) {
        const char *name;
        if (!PyArg_ParseTuple(PyList_GetItem(pairs, i), "sd", &name, &out[n].value))
            break;
        snprintf(out[n].name, sizeof out[n].name, "%s", name);
        n++;
    }
    PyErr_Clear(); /* a report is not worth the run */
    Py_XDECREF(pairs);
    release_gil(whole);
    return n;
}

/* Reads (RGB, width, height, seconds of a step). */
static bool read_frame(PyObject *answer, struct env_picture *out)
{
    const char *rgb;
    Py_ssize_t size;
    unsigned width, height;
    if (!PyTuple_Check(answer) || !PyArg_ParseTuple(answer, "y#IId", &rgb, &size, &width, &height, &out->step_s) ||
        width == 0 || width > PICTURE_SIDE || height > PICTURE_SIDE || (size_t)size != (size_t)width * height * 3)
        return false;
    memcpy(out->rgb, rgb, (size_t)size);
    out->width = width;
    out->height = height;
    return true;
}

static bool subenv_render(void *subenv, struct env_picture *out)
{
    struct subenv *self = subenv;
    take_gil(self->whole);
    PyObject *answer = PyObject_CallMethod(self->object, "render", "i", (int)PICTURE_SIDE);
    bool ok = answer && read_frame(answer, out);
    PyErr_Clear(); /* a picture is not worth the run */
    Py_XDECREF(answer);
    release_gil(self->whole);
    return ok;
}

/* Reads (reward, terminal, truncated). False with an exception set. */
static bool read_result(PyObject *answer, rp_env_result *result)
{
    if (!PyTuple_Check(answer) || PyTuple_Size(answer) != 3)
        return false;
    double reward = PyFloat_AsDouble(PyTuple_GetItem(answer, 0));
    if (reward == -1.0 && PyErr_Occurred())
        return false;
    int terminal = PyObject_IsTrue(PyTuple_GetItem(answer, 1)), truncated = PyObject_IsTrue(PyTuple_GetItem(answer, 2));
    result->reward = (float)reward;
    result->terminal = terminal == 1;
    result->truncated = truncated == 1;
    return terminal >= 0 && truncated >= 0;
}

static PyObject *call_step(struct subenv *self, const void *action)
{
    struct whole *whole = self->whole;
    PyObject *number = Py_None;
    if (!whole->together)
        memcpy(row_of(whole->actions, whole->action_bytes, self->index), action, whole->action_bytes);
    if (!round_ready(self))
        return NULL;
    self->fresh = false;
    if (whole->spec.n_actions && !whole->together)
        number = PyLong_FromLong(*(const int32_t *)action);
    else
        Py_INCREF(number);
    PyObject *answer = number ? PyObject_CallFunctionObjArgs(self->step, number, NULL) : NULL;
    Py_XDECREF(number);
    return answer;
}

static void subenv_step(void *subenv, const void *action, void *observation, rp_env_result *result)
{
    struct subenv *self = subenv;
    struct whole *whole = self->whole;
    if (self->failure.status != RP_OK)
        return;
    take_gil(whole);
    self->steps++;
    PyObject *answer = call_step(self, action);
    if (answer && read_result(answer, result)) {
        check_numbers(self, "step", result->reward);
        memcpy(observation, row_of(whole->observations, whole->observation_bytes, self->index),
               whole->observation_bytes);
    } else {
        fail(self, "step");
    }
    Py_XDECREF(answer);
    release_gil(whole);
}

/* ---- making and ending ---- */

static void free_whole(struct whole *self)
{
    for (uint32_t i = 0; i < self->n; i++) {
        Py_XDECREF(self->subenvs[i].object);
        Py_XDECREF(self->subenvs[i].reset);
        Py_XDECREF(self->subenvs[i].step);
    }
    Py_XDECREF(self->envs);
    Py_XDECREF(self->observations);
    Py_XDECREF(self->actions);
    free(self);
}

static void whole_destroy(void *whole)
{
    struct whole *self = whole;
    struct python_provider *provider = self->provider;
    take_gil(self);
    PyObject *done = PyObject_CallMethod(self->envs, "close", NULL);
    Py_XDECREF(done);
    PyErr_Clear();
    free_whole(self);
    provider->thread = PyEval_SaveThread();
}

static bool open_subenv(struct whole *self, PyObject *subenvs, uint32_t index)
{
    struct subenv *subenv = &self->subenvs[index];
    *subenv = (struct subenv){.whole = self, .index = index, .object = Py_NewRef(PyList_GetItem(subenvs, index))};
    subenv->reset = PyObject_GetAttrString(subenv->object, "reset");
    subenv->step = PyObject_GetAttrString(subenv->object, "step");
    return subenv->reset && subenv->step;
}

/* Takes the adapter. NULL with an exception set. */
static struct whole *wrap(struct python_provider *provider, PyObject *envs, rp_env_spec *spec)
{
    PyObject *object = PyObject_GetAttrString(envs, "spec"), *subenvs = PyObject_GetAttrString(envs, "subenvs");
    PyObject *fields = object ? PyObject_CallMethod(object, "fields", NULL) : NULL;
    uint32_t n = subenvs ? (uint32_t)PyList_Size(subenvs) : 0;
    struct whole *self = need_alloc(sizeof *self + n * sizeof self->subenvs[0]);
    bool ok = fields && n > 0 && env_spec_read(fields, spec);
    *self = (struct whole){.provider = provider, .envs = envs, .n = n, .spec = *spec};
    for (uint32_t i = 0; ok && i < n; i++)
        ok = open_subenv(self, subenvs, i);
    if (ok) {
        self->together = attribute_is_true(envs, "together");
        self->observation_bytes = env_observation_bytes(spec);
        self->action_bytes = env_action_bytes(spec);
        self->observations = PyByteArray_FromStringAndSize(NULL, (Py_ssize_t)(n * self->observation_bytes));
        self->actions = PyByteArray_FromStringAndSize(NULL, (Py_ssize_t)(n * self->action_bytes));
        ok = self->observations && self->actions;
    }
    if (ok) {
        memset(PyByteArray_AsString(self->actions), 0, n * self->action_bytes);
        PyObject *bound = PyObject_CallMethod(envs, "bind", "OO", self->observations, self->actions);
        ok = bound != NULL;
        Py_XDECREF(bound);
    }
    Py_XDECREF(object);
    Py_XDECREF(subenvs);
    Py_XDECREF(fields);
    if (!ok)
        free_whole(self);
    return ok ? self : NULL;
}

/* Python reads the environment of its process once, when it starts. */
static bool take_folder(void)
{
    const char *folder = getenv(PROGRAM_FOLDER);
    PyObject *os = PyImport_ImportModule("os"), *all = os ? PyObject_GetAttrString(os, "environ") : NULL;
    PyObject *text = all && folder ? PyUnicode_DecodeFSDefault(folder) : NULL;
    bool ok = all && (!folder || (text && PyMapping_SetItemString(all, PROGRAM_FOLDER, text) == 0));
    Py_XDECREF(text);
    Py_XDECREF(all);
    Py_XDECREF(os);
    return ok;
}

static void *provider_create(void *ctx, const struct env_config *config, uint32_t *n, rp_env_spec *spec, rp_error *err)
{
    struct python_provider *self = ctx;
    PyEval_RestoreThread(self->thread);
    PyObject *options = take_folder() ? config_options(&config->options) : NULL;
    PyObject *envs =
        options ? PyObject_CallFunction(self->open, "ssOI", config->python, config->gym, options, *n) : NULL;
    Py_XDECREF(options);
    struct whole *whole = envs ? wrap(self, envs, spec) : NULL;
    if (whole && whole->together && config->max_steps > 0) {
        PyErr_SetString(PyExc_ValueError,
                        "environment.max_steps cannot end the episodes of a vector environment, which begins the "
                        "next ones itself: set the limit where the environment is made");
        free_whole(whole);
        whole = NULL;
    }
    if (whole) {
        *n = whole->n;
    } else {
        PyObject *error = take_exception(), *text = error ? PyObject_Str(error) : NULL;
        set_text(text, err);
        Py_XDECREF(text);
        Py_XDECREF(error);
    }
    self->thread = PyEval_SaveThread();
    return whole;
}

static void *whole_subenv(void *whole, uint32_t index)
{
    return &((struct whole *)whole)->subenvs[index];
}

static void python_provider_init(struct python_provider *self, PyObject *open)
{
    static const rp_env_ops ops = {.name = "python",
                                   .help = "an environment in Python",
                                   .destroy = whole_destroy,
                                   .seed = subenv_seed,
                                   .reset = subenv_reset,
                                   .step = subenv_step};
    *self = (struct python_provider){.open = open};
    self->provider = (struct env_provider){.ctx = self,
                                           .ops = &ops,
                                           .create = provider_create,
                                           .subenv = whole_subenv,
                                           .failure = subenv_failure,
                                           .announce = subenv_announce,
                                           .resets_within_round = subenv_resets_within_round,
                                           .metrics = subenv_metrics,
                                           .render = subenv_render};
}

static PyObject *run(PyObject *args, enum program_kind kind, const char *name)
{
    PyObject *list, *open;
    struct python_provider provider;
    if (!PyArg_ParseTuple(args, "O!O", &PyList_Type, &list, &open))
        return NULL;
    Py_ssize_t n = PyList_Size(list);
    PyObject *kept = PyList_AsTuple(list);                      /* owns the words */
    char **words = need_alloc(((size_t)n + 1) * sizeof *words); /* getopt moves them */
    for (Py_ssize_t i = 0; kept && !PyErr_Occurred() && i < n; i++)
        words[i] = (char *)(uintptr_t)core_text(PyTuple_GetItem(kept, i), "an argument");
    int status = EXIT_FAILED;
    if (!PyErr_Occurred()) {
        python_provider_init(&provider, open);
        provider.thread = PyEval_SaveThread();
        status = program_run(kind, name, &provider.provider, (int)n, words);
        PyEval_RestoreThread(provider.thread);
    }
    free(words);
    Py_XDECREF(kept);
    return PyErr_Occurred() ? NULL : PyLong_FromLong(status);
}

PyObject *program_run_actor(PyObject *module, PyObject *args)
{
    (void)module;
    return run(args, PROGRAM_ACTOR, "replaybus.actor");
}

PyObject *program_run_single(PyObject *module, PyObject *args)
{
    (void)module;
    return run(args, PROGRAM_SINGLE, "replaybus.single");
}
