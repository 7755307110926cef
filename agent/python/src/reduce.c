/* Reduce: the sum of float vectors over the members of a group, round by round. */
#include "agent/python/src/core.h"

#define LEAVE_MS 1000

typedef struct reduce_object {
    PyObject_HEAD struct gate gate;
    struct conn *conn;
    rp_reduce *reduce;
} reduce_object;

static PyTypeObject *reduce_type;

static void leave(PyObject *object)
{
    reduce_object *self = (reduce_object *)object;
    Py_BEGIN_ALLOW_THREADS;
    rp_reduce_leave(&self->reduce, LEAVE_MS, NULL);
    Py_END_ALLOW_THREADS;
    conn_drop(&self->conn);
}

static PyObject *reduce_make(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    static char *names[] = {"client", "group", "timeout", NULL};
    PyObject *client, *seconds = Py_None;
    const char *group;
    int64_t timeout_ms;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "Os|O", names, &client, &group, &seconds) ||
        !core_timeout(seconds, &timeout_ms))
        return NULL;
    struct conn *conn = client_share(client);
    if (!conn)
        return NULL;
    allocfunc alloc = (allocfunc)PyType_GetSlot(type, Py_tp_alloc);
    reduce_object *self = (reduce_object *)alloc(type, 0);
    if (!self) {
        conn_drop(&conn);
        return NULL;
    }
    gate_open(&self->gate, (PyObject *)self, leave);
    self->conn = conn;
    struct watch watch;
    rp_error err;
    watch_begin(&watch, &self->gate);
    self->reduce = rp_reduce_join(conn->client, group, timeout_ms, &err);
    bool ok = watch_end(&watch);
    if (!ok || !self->reduce) {
        if (ok)
            core_raise(err.status, err.text);
        Py_DECREF(self);
        return NULL;
    }
    return (PyObject *)self;
}

/* ---- rounds */

struct add {
    rp_reduce *reduce;
    float *values;
    uint64_t n;
    int64_t round_ms;
    rp_reduced reduced;
};

/* After a time-out the vector stays in its round, and the next call takes up the wait. */
static rp_status add_attempt(void *call, int64_t timeout_ms, rp_error *err)
{
    struct add *self = call;
    return rp_reduce_add(self->reduce, self->values, self->n, self->round_ms, timeout_ms, &self->reduced, err);
}

static PyObject *reduce_add(PyObject *object, PyObject *args)
{
    reduce_object *self = (reduce_object *)object;
    PyObject *array, *round_seconds, *seconds;
    Py_buffer view;
    int64_t round_ms, timeout_ms;
    if (!PyArg_ParseTuple(args, "OOO", &array, &round_seconds, &seconds) || !core_timeout(round_seconds, &round_ms) ||
        !core_timeout(seconds, &timeout_ms) ||
        PyObject_GetBuffer(array, &view, PyBUF_C_CONTIGUOUS | PyBUF_WRITABLE | PyBUF_FORMAT) < 0)
        return NULL;
    struct add call = {.values = view.buf, .n = (uint64_t)view.len / sizeof(float), .round_ms = round_ms};
    bool ok = column_dtype(view.format, view.itemsize) == RP_DTYPE_FLOAT32;
    if (!ok)
        PyErr_SetString(PyExc_ValueError, "a contiguous array of float32 is needed");
    ok = ok && gate_enter(&self->gate, "member");
    if (ok) {
        call.reduce = self->reduce;
        ok = gate_call(&self->gate, add_attempt, &call, timeout_ms);
        gate_leave(&self->gate);
    }
    PyBuffer_Release(&view);
    const rp_reduced *out = &call.reduced;
    return ok ? Py_BuildValue("(KIIO)", out->round, out->contributors, out->members, out->counted ? Py_True : Py_False)
              : NULL;
}

static PyObject *reduce_close(PyObject *object, PyObject *unused)
{
    (void)unused;
    reduce_object *self = (reduce_object *)object;
    if (gate_close(&self->gate)) {
        leave(object);
        gate_leave(&self->gate);
    }
    return PyErr_Occurred() ? NULL : Py_NewRef(Py_None);
}

static void reduce_dealloc(PyObject *object)
{
    PyTypeObject *type = Py_TYPE(object);
    leave(object);
    ((freefunc)PyType_GetSlot(type, Py_tp_free))(object);
    Py_DECREF(type);
}

static PyMethodDef methods[] = {
    {"_add", reduce_add, METH_VARARGS,
     "_add(values, round_timeout, timeout): (round, contributors, members, counted)."},
    {"close", reduce_close, METH_NOARGS, "close($self)\n--\n\nLeaves the group."},
    {NULL, NULL, 0, NULL},
};

static PyType_Slot slots[] = {
    {Py_tp_new, (void *)reduce_make},
    {Py_tp_dealloc, (void *)reduce_dealloc},
    {Py_tp_methods, methods},
    {Py_tp_doc, "A member of a group that sums vectors."},
    {0, NULL},
};

static PyType_Spec spec = {.name = "replaybus._core.Reduce",
                           .basicsize = sizeof(reduce_object),
                           .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE,
                           .slots = slots};

bool reduce_register(PyObject *module)
{
    return core_add_type(module, "Reduce", &spec, &reduce_type);
}
