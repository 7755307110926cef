/* Publisher and Subscriber: parameter slots without waiting. */
#include "agent/python/src/core.h"

typedef struct slot_object {
    PyObject_HEAD struct gate gate;
    struct conn *conn;
    rp_publisher *publisher;   /* of a Publisher */
    rp_subscriber *subscriber; /* of a Subscriber */
} slot_object;

static PyTypeObject *publisher_type, *subscriber_type;

/* ---- life */

static void give_up(PyObject *object)
{
    slot_object *self = (slot_object *)object;
    Py_BEGIN_ALLOW_THREADS;
    rp_publisher_destroy(&self->publisher, 0, NULL);
    rp_subscriber_destroy(&self->subscriber);
    Py_END_ALLOW_THREADS;
    conn_drop(&self->conn);
}

static PyObject *slot_make(PyTypeObject *type, PyObject *args, bool publishes)
{
    PyObject *client;
    const char *name;
    unsigned long long have = 0;
    if (!PyArg_ParseTuple(args, publishes ? "Os" : "Os|K", &client, &name, &have))
        return NULL;
    struct conn *conn = client_share(client);
    if (!conn)
        return NULL;
    allocfunc alloc = (allocfunc)PyType_GetSlot(type, Py_tp_alloc);
    slot_object *self = (slot_object *)alloc(type, 0);
    if (!self) {
        conn_drop(&conn);
        return NULL;
    }
    rp_error err;
    gate_open(&self->gate, (PyObject *)self, give_up);
    self->conn = conn;
    if (publishes)
        self->publisher = rp_publisher_new(conn->client, name, &err);
    else
        self->subscriber = rp_subscriber_new(conn->client, name, have, &err);
    if (self->publisher || self->subscriber)
        return (PyObject *)self;
    Py_DECREF(self);
    return core_raise(err.status, err.text);
}

static PyObject *publisher_make(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    (void)kwargs;
    return slot_make(type, args, true);
}

static PyObject *subscriber_make(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    (void)kwargs;
    return slot_make(type, args, false);
}

static void slot_dealloc(PyObject *object)
{
    PyTypeObject *type = Py_TYPE(object);
    give_up(object);
    ((freefunc)PyType_GetSlot(type, Py_tp_free))(object);
    Py_DECREF(type);
}

/* ---- publishing */

struct flush {
    rp_publisher *publisher;
    uint64_t version;
};

static rp_status flush_attempt(void *call, int64_t timeout_ms, rp_error *err)
{
    struct flush *self = call;
    return rp_publisher_flush(self->publisher, timeout_ms, &self->version, err);
}

static PyObject *publisher_put(PyObject *object, PyObject *data)
{
    slot_object *self = (slot_object *)object;
    Py_buffer view;
    rp_error err;
    if (PyObject_GetBuffer(data, &view, PyBUF_SIMPLE) < 0)
        return NULL;
    rp_status status = GATE_INTERRUPTED;
    if (gate_enter(&self->gate, "publisher")) {
        status = rp_publisher_put(self->publisher, view.buf, (uint64_t)view.len, &err);
        gate_leave(&self->gate);
    }
    PyBuffer_Release(&view);
    if (status == RP_OK)
        return Py_NewRef(Py_None);
    return status == GATE_INTERRUPTED ? NULL : core_raise(status, err.text);
}

static PyObject *publisher_flush(PyObject *object, PyObject *args, PyObject *kwargs)
{
    static char *names[] = {"timeout", NULL};
    slot_object *self = (slot_object *)object;
    PyObject *seconds = Py_None;
    int64_t timeout_ms;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "|O", names, &seconds) || !core_timeout(seconds, &timeout_ms) ||
        !gate_enter(&self->gate, "publisher"))
        return NULL;
    struct flush call = {.publisher = self->publisher};
    bool ok = gate_call(&self->gate, flush_attempt, &call, timeout_ms);
    gate_leave(&self->gate);
    return ok ? PyLong_FromUnsignedLongLong(call.version) : NULL;
}

/* Flushes first, if it publishes. */
static PyObject *slot_close(PyObject *object, PyObject *args, PyObject *kwargs)
{
    static char *names[] = {"timeout", NULL};
    slot_object *self = (slot_object *)object;
    PyObject *seconds = Py_None;
    int64_t timeout_ms;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "|O", names, &seconds) || !core_timeout(seconds, &timeout_ms))
        return NULL;
    if (!gate_close(&self->gate))
        return PyErr_Occurred() ? NULL : Py_NewRef(Py_None);
    struct flush call = {.publisher = self->publisher};
    bool ok =
        !self->publisher || gate_is_foreign(&self->gate) || gate_call(&self->gate, flush_attempt, &call, timeout_ms);
    give_up(object);
    gate_leave(&self->gate);
    return ok ? Py_NewRef(Py_None) : NULL;
}

/* ---- subscribing */

struct take {
    rp_subscriber *subscriber;
    rp_params *params;
};

static rp_status take_attempt(void *call, int64_t timeout_ms, rp_error *err)
{
    struct take *self = call;
    return rp_subscriber_take(self->subscriber, timeout_ms, &self->params, err);
}

static PyObject *subscriber_take(PyObject *object, PyObject *seconds)
{
    slot_object *self = (slot_object *)object;
    int64_t timeout_ms;
    if (!core_timeout(seconds, &timeout_ms) || !gate_enter(&self->gate, "subscriber"))
        return NULL;
    rp_error err;
    struct take call = {.subscriber = self->subscriber};
    rp_status status = gate_wait(&self->gate, take_attempt, &call, timeout_ms, &err);
    gate_leave(&self->gate);
    if (status == RP_DEADLINE_EXCEEDED)
        return Py_NewRef(Py_None);
    if (status != RP_OK)
        return status == GATE_INTERRUPTED ? NULL : core_raise(status, err.text);
    const rp_param *slot = rp_params_slot(call.params);
    PyObject *out = Py_BuildValue("(Ky#K)", slot->version, slot->data ? (const char *)slot->data : "",
                                  (Py_ssize_t)slot->bytes, slot->age_ns);
    rp_params_release(&call.params);
    return out;
}

/* ---- types */

#define METHOD(function) ((PyCFunction)(void (*)(void))(function))
static PyMethodDef publisher_methods[] = {
    {"put", publisher_put, METH_O,
     "put($self, data, /)\n--\n\nTakes a block and returns at once. Of blocks that wait, only the newest is sent."},
    {"flush", METHOD(publisher_flush), METH_VARARGS | METH_KEYWORDS,
     "flush($self, timeout=None)\n--\n\nWaits until the newest block is stored; returns its version."},
    {"close", METHOD(slot_close), METH_VARARGS | METH_KEYWORDS,
     "close($self, timeout=None)\n--\n\nFlushes, then gives up what is left."},
    {NULL, NULL, 0, NULL},
};

static PyMethodDef subscriber_methods[] = {
    {"_take", subscriber_take, METH_O, "_take(timeout): (version, data, age in ns), or None if nothing has arrived."},
    {"close", METHOD(slot_close), METH_VARARGS | METH_KEYWORDS, "close($self, timeout=None)\n--\n\nStops asking."},
    {NULL, NULL, 0, NULL},
};

static PyType_Slot publisher_slots[] = {
    {Py_tp_new, (void *)publisher_make},
    {Py_tp_dealloc, (void *)slot_dealloc},
    {Py_tp_methods, publisher_methods},
    {Py_tp_doc, "Stores versions of a slot in the background."},
    {0, NULL},
};

static PyType_Slot subscriber_slots[] = {
    {Py_tp_new, (void *)subscriber_make},
    {Py_tp_dealloc, (void *)slot_dealloc},
    {Py_tp_methods, subscriber_methods},
    {Py_tp_doc, "Receives versions of a slot in the background."},
    {0, NULL},
};

static PyType_Spec publisher_spec = {.name = "replaybus._core.Publisher",
                                     .basicsize = sizeof(slot_object),
                                     .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE,
                                     .slots = publisher_slots};

static PyType_Spec subscriber_spec = {.name = "replaybus._core.Subscriber",
                                      .basicsize = sizeof(slot_object),
                                      .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE,
                                      .slots = subscriber_slots};

bool publish_register(PyObject *module)
{
    return core_add_type(module, "Publisher", &publisher_spec, &publisher_type) &&
           core_add_type(module, "Subscriber", &subscriber_spec, &subscriber_type);
}
