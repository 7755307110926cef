/* Updater: new priorities, sent in batches without waiting for the answers. */
#include "agent/python/src/core.h"

typedef struct updater_object {
    PyObject_HEAD struct gate gate;
    struct conn *conn;
    rp_updater *updater;
} updater_object;

static PyTypeObject *updater_type;

static void give_up(PyObject *object)
{
    updater_object *self = (updater_object *)object;
    Py_BEGIN_ALLOW_THREADS;
    rp_updater_destroy(&self->updater, 0, NULL);
    Py_END_ALLOW_THREADS;
    conn_drop(&self->conn);
}

static PyObject *updater_make(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    static char *names[] = {"client", "table", "batch", "in_flight", NULL};
    rp_updater_options options = {.struct_size = sizeof options};
    PyObject *client;
    const char *table;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "Os|O&O&", names, &client, &table, core_u32, &options.batch,
                                     core_u32, &options.in_flight))
        return NULL;
    struct conn *conn = client_share(client);
    if (!conn)
        return NULL;
    rp_error err;
    rp_updater *updater = rp_updater_new(conn->client, table, &options, &err);
    if (!updater) {
        conn_drop(&conn);
        return core_raise(err.status, err.text);
    }
    allocfunc alloc = (allocfunc)PyType_GetSlot(type, Py_tp_alloc);
    updater_object *self = (updater_object *)alloc(type, 0);
    if (!self) {
        rp_updater_destroy(&updater, 0, NULL);
        conn_drop(&conn);
        return NULL;
    }
    gate_open(&self->gate, (PyObject *)self, give_up);
    self->conn = conn;
    self->updater = updater;
    return (PyObject *)self;
}

/* ---- add */

struct add {
    rp_updater *updater;
    const uint64_t *keys;
    const double *priorities;
    uint32_t n;
};

static rp_status add_attempt(void *call, int64_t timeout_ms, rp_error *err)
{
    struct add *self = call;
    uint32_t taken = 0;
    rp_status status = rp_updater_add(self->updater, self->keys, self->priorities, self->n, timeout_ms, &taken, err);
    if (status == RP_DEADLINE_EXCEEDED) {
        self->keys += taken;
        self->priorities += taken;
        self->n -= taken;
    }
    return status;
}

/* Takes contiguous arrays of 8-byte elements of equal length. */
static bool take_arrays(PyObject *args, PyObject **seconds, Py_buffer *keys, Py_buffer *priorities)
{
    PyObject *key_object, *priority_object;
    if (!PyArg_ParseTuple(args, "OOO", &key_object, &priority_object, seconds) ||
        PyObject_GetBuffer(key_object, keys, PyBUF_C_CONTIGUOUS | PyBUF_FORMAT) < 0)
        return false;
    if (PyObject_GetBuffer(priority_object, priorities, PyBUF_C_CONTIGUOUS | PyBUF_FORMAT) < 0) {
        PyBuffer_Release(keys);
        return false;
    }
    if (column_dtype(keys->format, keys->itemsize) == RP_DTYPE_UINT64 &&
        column_dtype(priorities->format, priorities->itemsize) == RP_DTYPE_FLOAT64 && keys->len == priorities->len &&
        keys->len / 8 <= UINT32_MAX)
        return true;
    PyErr_SetString(PyExc_ValueError, "keys (uint64) and priorities (float64) of equal length are needed");
    PyBuffer_Release(keys);
    PyBuffer_Release(priorities);
    return false;
}

static PyObject *updater_add(PyObject *object, PyObject *args)
{
    updater_object *self = (updater_object *)object;
    PyObject *seconds;
    Py_buffer keys, priorities;
    int64_t timeout_ms;
    if (!take_arrays(args, &seconds, &keys, &priorities))
        return NULL;
    bool ok = core_timeout(seconds, &timeout_ms) && gate_enter(&self->gate, "updater");
    if (ok) {
        struct add call = {self->updater, keys.buf, priorities.buf, (uint32_t)(keys.len / 8)};
        ok = gate_call(&self->gate, add_attempt, &call, timeout_ms);
        gate_leave(&self->gate);
    }
    PyBuffer_Release(&keys);
    PyBuffer_Release(&priorities);
    return ok ? Py_NewRef(Py_None) : NULL;
}

/* ---- flush, close */

struct flush {
    rp_updater *updater;
    rp_change change;
};

static rp_status flush_attempt(void *call, int64_t timeout_ms, rp_error *err)
{
    struct flush *self = call;
    return rp_updater_flush(self->updater, timeout_ms, &self->change, err);
}

static PyObject *updater_flush(PyObject *object, PyObject *seconds)
{
    updater_object *self = (updater_object *)object;
    int64_t timeout_ms;
    if (!core_timeout(seconds, &timeout_ms) || !gate_enter(&self->gate, "updater"))
        return NULL;
    struct flush call = {.updater = self->updater};
    bool ok = gate_call(&self->gate, flush_attempt, &call, timeout_ms);
    gate_leave(&self->gate);
    return ok ? Py_BuildValue("(KKK)", call.change.applied, call.change.missing, call.change.refused) : NULL;
}

static PyObject *updater_close(PyObject *object, PyObject *seconds)
{
    updater_object *self = (updater_object *)object;
    int64_t timeout_ms;
    if (!core_timeout(seconds, &timeout_ms))
        return NULL;
    if (!gate_close(&self->gate))
        return PyErr_Occurred() ? NULL : Py_NewRef(Py_None);
    struct flush call = {.updater = self->updater};
    bool ok = gate_is_foreign(&self->gate) || gate_call(&self->gate, flush_attempt, &call, timeout_ms);
    give_up(object);
    gate_leave(&self->gate);
    return ok ? Py_NewRef(Py_None) : NULL;
}

static void updater_dealloc(PyObject *object)
{
    PyTypeObject *type = Py_TYPE(object);
    give_up(object);
    ((freefunc)PyType_GetSlot(type, Py_tp_free))(object);
    Py_DECREF(type);
}

static PyMethodDef methods[] = {
    {"_add", updater_add, METH_VARARGS, "_add(keys, priorities, timeout)"},
    {"_flush", updater_flush, METH_O, "_flush(timeout): (applied, missing, refused) so far."},
    {"_close", updater_close, METH_O, "_close(timeout): flushes, then gives up what is left."},
    {NULL, NULL, 0, NULL},
};

static PyType_Slot slots[] = {
    {Py_tp_new, (void *)updater_make},
    {Py_tp_dealloc, (void *)updater_dealloc},
    {Py_tp_methods, methods},
    {Py_tp_doc, "Collects new priorities of one table."},
    {0, NULL},
};

static PyType_Spec spec = {.name = "replaybus._core.Updater",
                           .basicsize = sizeof(updater_object),
                           .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE,
                           .slots = slots};

bool updater_register(PyObject *module)
{
    return core_add_type(module, "Updater", &spec, &updater_type);
}
