/* Sampler: batches that are requested and decoded ahead. */
#include "agent/python/src/core.h"

#include <stdlib.h>

typedef struct sampler_object {
    PyObject_HEAD struct gate gate;
    struct conn **conns; /* of the sources */
    Py_ssize_t n_conns;
    rp_sampler *sampler;
} sampler_object;

static PyTypeObject *sampler_type;

static bool read_options(PyObject *args, PyObject *kwargs, PyObject **sources, rp_sampler_options *options)
{
    static char *names[] = {"sources", "batch_size",  "in_flight", "beta",  "distinct",
                            "timeout", "max_samples", "flexible",  "whole", NULL};
    PyObject *seconds = Py_None;
    int distinct = 0, flexible = 0, whole = 0;
    long long batch_size = 256, in_flight = 4, max_samples = 0;
    int64_t timeout_ms;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "O!|LLdpOLpp", names, &PyTuple_Type, sources, &batch_size,
                                     &in_flight, &options->beta, &distinct, &seconds, &max_samples, &flexible,
                                     &whole) ||
        !core_count(batch_size, "batch_size", UINT32_MAX) || !core_count(in_flight, "in_flight", UINT32_MAX) ||
        !core_count(max_samples, "max_samples", INT64_MAX) || !core_timeout(seconds, &timeout_ms))
        return false;
    if (batch_size == 0 || in_flight == 0 || (flexible && whole)) { /* zero is a default in C */
        core_raise(RP_INVALID_ARGUMENT, flexible && whole
                                            ? "a sample cannot be both whole (all or nothing) and flexible"
                                        : batch_size == 0 ? "batch_size is 0; it must be 1 or more"
                                                          : "in_flight is 0; it must be 1 or more");
        return false;
    }
    options->batch_size = (uint32_t)batch_size;
    options->in_flight = (uint32_t)in_flight;
    options->distinct = (uint32_t)distinct;
    options->fill = whole ? RP_FILL_WHOLE : flexible ? RP_FILL_AT_ONCE : RP_FILL_WAIT;
    options->max_samples = (uint64_t)max_samples;
    options->end_after_ms = timeout_ms < 0 ? 0 : timeout_ms > 0 ? timeout_ms : -1;
    return true;
}

static void drop_conns(struct conn **conns, Py_ssize_t n)
{
    for (Py_ssize_t i = 0; i < n; i++)
        conn_drop(&conns[i]);
    free(conns);
}

static void give_up(PyObject *object)
{
    sampler_object *self = (sampler_object *)object;
    struct conn **conns = self->conns;
    Py_ssize_t n = self->n_conns;
    self->conns = NULL;
    self->n_conns = 0;
    Py_BEGIN_ALLOW_THREADS;
    rp_sampler_destroy(&self->sampler);
    Py_END_ALLOW_THREADS;
    drop_conns(conns, n);
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

/* Starts a sampler. NULL with an exception set. The tuple keeps the names of the tables. */
static rp_sampler *start(PyObject *items, struct conn **conns, rp_source *sources, const rp_sampler_options *options)
{
    rp_error err;
    rp_sampler *sampler;
    Py_ssize_t n = PyTuple_Size(items);
    for (Py_ssize_t i = 0; i < n; i++)
        if (!read_source(PyTuple_GetItem(items, i), &sources[i], &conns[i]))
            return NULL;
    Py_BEGIN_ALLOW_THREADS;
    sampler = rp_sampler_new_mixed(sources, n > UINT32_MAX ? UINT32_MAX : (uint32_t)n, options, &err);
    Py_END_ALLOW_THREADS;
    if (!sampler)
        core_raise(err.status, err.text);
    return sampler;
}

static PyObject *sampler_make(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    PyObject *items;
    rp_sampler_options options = {.struct_size = sizeof options};
    if (!read_options(args, kwargs, &items, &options))
        return NULL;
    size_t n = (size_t)PyTuple_Size(items);
    struct conn **conns = calloc(n + 1, sizeof *conns);
    rp_source *sources = calloc(n + 1, sizeof *sources);
    sampler_object *self = NULL;
    rp_sampler *sampler = NULL;
    if (!conns || !sources)
        PyErr_NoMemory();
    else
        sampler = start(items, conns, sources, &options);
    if (sampler)
        self = (sampler_object *)((allocfunc)PyType_GetSlot(type, Py_tp_alloc))(type, 0);
    free(sources);
    if (!self) {
        rp_sampler_destroy(&sampler);
        drop_conns(conns, conns ? (Py_ssize_t)n : 0);
        return NULL;
    }
    gate_open(&self->gate, (PyObject *)self, give_up);
    self->conns = conns;
    self->n_conns = (Py_ssize_t)n;
    self->sampler = sampler;
    return (PyObject *)self;
}

static PyObject *sampler_close(PyObject *object, PyObject *unused)
{
    (void)unused;
    sampler_object *self = (sampler_object *)object;
    if (gate_close(&self->gate)) {
        give_up(object);
        gate_leave(&self->gate);
    }
    return PyErr_Occurred() ? NULL : Py_NewRef(Py_None);
}

static void sampler_dealloc(PyObject *object)
{
    PyTypeObject *type = Py_TYPE(object);
    give_up(object);
    ((freefunc)PyType_GetSlot(type, Py_tp_free))(object);
    Py_DECREF(type);
}

struct next {
    rp_sampler *sampler;
    rp_batch *batch;
};

static rp_status next_attempt(void *call, int64_t timeout_ms, rp_error *err)
{
    struct next *self = call;
    return rp_sampler_next(self->sampler, &self->batch, timeout_ms, err);
}

static PyObject *sampler_next(PyObject *object, PyObject *seconds)
{
    sampler_object *self = (sampler_object *)object;
    int64_t timeout_ms;
    if (!core_timeout(seconds, &timeout_ms) || !gate_enter(&self->gate, "sampler"))
        return NULL;
    rp_error err;
    struct next call = {.sampler = self->sampler};
    rp_status status = gate_wait(&self->gate, next_attempt, &call, timeout_ms, &err);
    gate_leave(&self->gate);
    if (status == RP_OK)
        return batch_wrap(call.batch);
    return status == GATE_INTERRUPTED ? NULL : core_raise(status, err.text);
}

static PyObject *sampler_stop(PyObject *object, PyObject *unused)
{
    (void)unused;
    sampler_object *self = (sampler_object *)object;
    rp_error err;
    rp_status status;
    if (!gate_enter(&self->gate, "sampler"))
        return NULL;
    Py_BEGIN_ALLOW_THREADS;
    status = rp_sampler_stop(self->sampler, &err);
    Py_END_ALLOW_THREADS;
    gate_leave(&self->gate);
    return status == RP_OK ? Py_NewRef(Py_None) : core_raise(status, err.text);
}

static PyObject *sampler_stats(PyObject *object, PyObject *unused)
{
    (void)unused;
    sampler_object *self = (sampler_object *)object;
    if (!gate_enter(&self->gate, "sampler"))
        return NULL;
    rp_sampler_stats stats = {.struct_size = sizeof stats};
    rp_sampler_get_stats(self->sampler, &stats);
    gate_leave(&self->gate);
    return Py_BuildValue("{s:I,s:I,s:K,s:K,s:K}", "requested", stats.requested, "ready", stats.ready, "batches",
                         stats.batches, "items", stats.items, "decode_ns", stats.decode_ns);
}

static PyMethodDef methods[] = {
    {"take", sampler_next, METH_O, "take(timeout): the next batch."},
    {"stats", sampler_stats, METH_NOARGS, "A dict: requested, ready, batches, items, decode_ns."},
    {"stop", sampler_stop, METH_NOARGS,
     "Requests nothing more. The iteration ends after the batches that were picked already."},
    {"close", sampler_close, METH_NOARGS, "Stops sampling, and drops batches that were got ahead. Others stay valid."},
    {NULL, NULL, 0, NULL},
};

static PyObject *sampler_closed(PyObject *object, void *unused)
{
    (void)unused;
    return PyBool_FromLong(((sampler_object *)object)->gate.closed);
}

static PyGetSetDef getters[] = {
    {"closed", sampler_closed, NULL, "Whether close was called.", NULL},
    {NULL, NULL, NULL, NULL, NULL},
};

static PyType_Slot slots[] = {
    {Py_tp_new, (void *)sampler_make},
    {Py_tp_dealloc, (void *)sampler_dealloc},
    {Py_tp_methods, methods},
    {Py_tp_getset, getters},
    {Py_tp_doc, "Sampler(sources, ...): samples tables ahead of its reader."},
    {0, NULL},
};

static PyType_Spec spec = {.name = "replaybus._core.Sampler",
                           .basicsize = sizeof(sampler_object),
                           .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE,
                           .slots = slots};

bool sampler_register(PyObject *module)
{
    return core_add_type(module, "Sampler", &spec, &sampler_type);
}
