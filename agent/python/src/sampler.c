/* Sampler: batches that are requested and decoded ahead. */
#include "agent/python/src/core.h"

#include <stdlib.h>

/* The share of time spent waiting is that of the last 10 to 20 seconds. */
#define SPAN_NS INT64_C(10000000000)

struct span {
    int64_t start_ns, waited_ns;
};

typedef struct sampler_object {
    struct guarded guarded;
    struct conn **conns; /* of the sources */
    Py_ssize_t n_conns;
    rp_sampler *sampler;
    bool on_demand;
    PyObject *pool;        /* of the batches' memory, or None */
    rp_batch *kept;        /* of a call that a signal has ended: for the next one */
    struct span last, now; /* guarded by the GIL */
} sampler_object;

static bool read_options(PyObject *args, PyObject *kwargs, PyObject **sources, PyObject **pool,
                         rp_sampler_options *options)
{
    static char *names[] = {"sources", "batch_size",       "in_flight", "beta",  "distinct",
                            "timeout", "max_samples",      "flexible",  "whole", "pool",
                            "seed",    "tokens_per_batch", "lease_ms",  NULL};
    PyObject *seconds = Py_None, *beta = NULL;
    int distinct = 0, flexible = 0, whole = 0;
    long long batch_size = 256, in_flight = 4, max_samples = 0, tokens = 0, lease_ms = 0;
    int64_t timeout_ms;
    unsigned long long seed = 0;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "O!|LLOpOLppOKLL", names, &PyTuple_Type, sources, &batch_size,
                                     &in_flight, &beta, &distinct, &seconds, &max_samples, &flexible, &whole, pool,
                                     &seed, &tokens, &lease_ms) ||
        (beta && !core_number(beta, "beta", &options->beta)) || !pool_memory(*pool, &options->memory) ||
        !core_count(batch_size, "batch_size", 1, UINT32_MAX) || !core_count(in_flight, "in_flight", 0, UINT32_MAX) ||
        !core_count(max_samples, "max_samples", 0, INT64_MAX) ||
        !core_count(tokens, "tokens_per_batch", 0, INT32_MAX) || !core_count(lease_ms, "lease", 0, UINT32_MAX) ||
        !core_timeout(seconds, &timeout_ms))
        return false;
    if (flexible && whole) {
        core_raise(RP_INVALID_ARGUMENT, "a sample cannot be both whole (all or nothing) and flexible");
        return false;
    }
    options->batch_size = (uint32_t)batch_size;
    options->in_flight = (uint32_t)in_flight;
    options->on_demand = in_flight == 0;
    options->distinct = (uint32_t)distinct;
    options->seed = seed;
    options->tokens = (uint64_t)tokens;
    options->lease_ms = (uint32_t)lease_ms;
    options->fill = whole ? RP_FILL_WHOLE : flexible ? RP_FILL_AT_ONCE : RP_FILL_WAIT;
    options->max_samples = (uint64_t)max_samples;
    options->end_after_ms = timeout_ms < 0 || in_flight == 0 ? 0 : timeout_ms > 0 ? timeout_ms : -1;
    return true;
}

static void sampler_destroy(PyObject *object)
{
    sampler_object *self = (sampler_object *)object;
    Py_BEGIN_ALLOW_THREADS;
    rp_batch_release(&self->kept);
    rp_sampler_destroy(&self->sampler);
    Py_END_ALLOW_THREADS;
    Py_CLEAR(self->pool);
    for (Py_ssize_t i = 0; i < self->n_conns; i++)
        conn_drop(&self->conns[i]);
    free(self->conns);
    self->conns = NULL;
    self->n_conns = 0;
}

/* Reads (client, table, share). False with an exception set. */
static bool read_source(PyObject *item, rp_source *source, struct conn **conn)
{
    PyObject *client;
    if (!PyTuple_Check(item)) {
        PyErr_SetString(PyExc_TypeError, "a source is a tuple: (client, table, share)");
        return false;
    }
    if (!PyArg_ParseTuple(item, "Osd;a source is (client, table, share)", &client, &source->table, &source->share))
        return false;
    *conn = client_share(client);
    if (!*conn)
        return false;
    source->client = (*conn)->client;
    return true;
}

/* Starts the sampler. False with an exception set. The tuple keeps the names of the tables. */
static bool start(sampler_object *self, PyObject *items, const rp_sampler_options *options)
{
    Py_ssize_t n = PyTuple_Size(items);
    rp_source *sources = core_alloc((size_t)n, sizeof *sources);
    rp_error err;
    self->conns = core_alloc((size_t)n, sizeof *self->conns);
    bool ok = sources && self->conns;
    for (; ok && self->n_conns < n; self->n_conns++)
        ok = read_source(PyTuple_GetItem(items, self->n_conns), &sources[self->n_conns], &self->conns[self->n_conns]);
    if (ok) {
        Py_BEGIN_ALLOW_THREADS;
        self->sampler = rp_sampler_new_mixed(sources, n > UINT32_MAX ? UINT32_MAX : (uint32_t)n, options, &err);
        Py_END_ALLOW_THREADS;
        if (!self->sampler)
            core_raise(err.status, err.text);
    }
    free(sources);
    return self->sampler;
}

static PyObject *sampler_make(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    PyObject *items, *pool = Py_None;
    rp_sampler_options options = {.struct_size = sizeof options};
    if (!read_options(args, kwargs, &items, &pool, &options))
        return NULL;
    sampler_object *self = guarded_new(type, sampler_destroy);
    if (!self)
        return NULL;
    self->pool = Py_NewRef(pool);
    self->on_demand = options.on_demand != 0;
    self->last.start_ns = self->now.start_ns = clock_ns();
    if (start(self, items, &options))
        return (PyObject *)self;
    Py_DECREF(self);
    return NULL;
}

struct next {
    rp_sampler *sampler;
    rp_batch *batch;
    bool waits;       /* a try without waiting is left out: on demand, it would be a request of its own */
    int64_t waits_ns; /* since when; 0: a batch was ready */
};

static rp_status next_attempt(void *call, int64_t timeout_ms, rp_error *err)
{
    struct next *self = call;
    if (timeout_ms == 0 && self->waits)
        return RP_DEADLINE_EXCEEDED;
    if (timeout_ms != 0)
        self->waits_ns = clock_ns();
    return rp_sampler_next(self->sampler, &self->batch, timeout_ms, err);
}

static void note_wait(sampler_object *self, int64_t since_ns)
{
    int64_t now = clock_ns();
    self->now.waited_ns += since_ns ? now - since_ns : 0;
    if (now - self->now.start_ns > SPAN_NS) {
        self->last = self->now;
        self->now = (struct span){.start_ns = now};
    }
}

static PyObject *sampler_next(PyObject *object, PyObject *seconds)
{
    sampler_object *self = (sampler_object *)object;
    int64_t timeout_ms;
    if (!core_timeout(seconds, &timeout_ms) || !gate_enter(&self->guarded.gate, "sampler"))
        return NULL;
    rp_error err;
    struct next call = {.sampler = self->sampler, .batch = self->kept, .waits = self->on_demand && timeout_ms != 0};
    self->kept = NULL;
    rp_status status = call.batch ? RP_OK : gate_wait(&self->guarded.gate, next_attempt, &call, timeout_ms, &err);
    note_wait(self, call.waits_ns);
    if (call.waits_ns && status == RP_OK && !core_look()) /* a batch came with the signal */
        status = GATE_INTERRUPTED;
    PyObject *out = status == RP_OK ? batch_wrap(call.batch, self->pool) : NULL;
    if (status == GATE_INTERRUPTED)
        self->kept = call.batch;
    gate_leave(&self->guarded.gate);
    return status == RP_OK || status == GATE_INTERRUPTED ? out : core_raise(status, err.text);
}

static PyObject *sampler_stop(PyObject *object, PyObject *unused)
{
    (void)unused;
    sampler_object *self = (sampler_object *)object;
    rp_error err;
    rp_status status;
    if (!gate_enter(&self->guarded.gate, "sampler"))
        return NULL;
    Py_BEGIN_ALLOW_THREADS;
    status = rp_sampler_stop(self->sampler, &err);
    Py_END_ALLOW_THREADS;
    gate_leave(&self->guarded.gate);
    return status == RP_OK ? Py_NewRef(Py_None) : core_raise(status, err.text);
}

static PyObject *sampler_stats(PyObject *object, PyObject *unused)
{
    (void)unused;
    sampler_object *self = (sampler_object *)object;
    if (!gate_enter(&self->guarded.gate, "sampler"))
        return NULL;
    rp_sampler_stats stats = {.struct_size = sizeof stats};
    rp_sampler_get_stats(self->sampler, &stats);
    gate_leave(&self->guarded.gate);
    int64_t waited = self->last.waited_ns + self->now.waited_ns, past = clock_ns() - self->last.start_ns;
    return Py_BuildValue("{s:I,s:I,s:K,s:K,s:K,s:d,s:I,s:K,s:K}", "requested", stats.requested, "ready", stats.ready,
                         "batches", stats.batches, "items", stats.items, "decode_ns", stats.decode_ns, "wait_share",
                         past > 0 ? (double)waited / (double)past : 0.0, "shared", stats.shared, "shared_bytes",
                         stats.shared_bytes, "overtaken", stats.overtaken);
}

static PyMethodDef methods[] = {
    {"take", sampler_next, METH_O, "take(timeout): the next batch."},
    {"stats", sampler_stats, METH_NOARGS,
     "A dict: requested, ready, batches, items, decode_ns, wait_share, shared, shared_bytes, overtaken."},
    {"stop", sampler_stop, METH_NOARGS,
     "Requests nothing more. The iteration ends after the batches that were picked already."},
    {"close", guarded_close, METH_NOARGS, "Stops sampling, and drops batches that were got ahead. Others stay valid."},
    {NULL, NULL, 0, NULL},
};

const struct core_type sampler_core = {
    .name = "replaybus._core.Sampler",
    .doc = "Sampler(sources, ...): samples tables ahead of its reader.",
    .size = sizeof(sampler_object),
    .make = sampler_make,
    .dealloc = guarded_dealloc,
    .methods = methods,
    .getters = guarded_getters,
    .is_base = true,
};
