/* Publisher, Subscriber, Updater and Reduce: objects that exchange data with the broker over a shared client. Each owns one handle of
 * libreplay. */
#include "agent/python/src/core.h"

#define LEAVE_MS 1000 /* for the broker's answer when a member leaves its group */

typedef struct handle_object {
    struct guarded guarded;
    struct conn *conn;
    rp_publisher *publisher; /* one of these */
    rp_subscriber *subscriber;
    rp_updater *updater;
    rp_reduce *reduce;
} handle_object;

static void handle_destroy(PyObject *object)
{
    handle_object *self = (handle_object *)object;
    Py_BEGIN_ALLOW_THREADS;
    rp_publisher_destroy(&self->publisher, 0, NULL);
    rp_subscriber_destroy(&self->subscriber);
    rp_updater_destroy(&self->updater, 0, NULL);
    rp_reduce_leave(&self->reduce, LEAVE_MS, NULL);
    Py_END_ALLOW_THREADS;
    conn_drop(&self->conn);
}

/* An object without a handle yet. NULL with an exception set. */
static handle_object *handle_new(PyTypeObject *type, PyObject *client)
{
    struct conn *conn = client_share(client);
    handle_object *self = conn ? guarded_new(type, handle_destroy) : NULL;
    if (self)
        self->conn = conn;
    else
        conn_drop(&conn);
    return self;
}

/* The object if it has its handle; otherwise NULL with an exception set. */
static PyObject *handle_made(handle_object *self, const void *handle, const rp_error *err)
{
    if (handle)
        return (PyObject *)self;
    Py_DECREF(self);
    return core_raise(err->status, err->text);
}

/* ---- Publisher */

static PyObject *publisher_make(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    (void)kwargs;
    PyObject *client;
    const char *name;
    rp_error err;
    if (!PyArg_ParseTuple(args, "Os", &client, &name))
        return NULL;
    handle_object *self = handle_new(type, client);
    if (!self)
        return NULL;
    self->publisher = rp_publisher_new(self->conn->client, name, &err);
    return handle_made(self, self->publisher, &err);
}

struct publishing {
    const handle_object *object;
    Py_buffer data, bf16; /* bf16.obj NULL: there is no second form */
    uint64_t version;
};

/* Bytes that take longer to copy than other threads of Python should wait. */
#define LONG_COPY (1 << 20)

static rp_status put_attempt(void *call, int64_t timeout_ms, rp_error *err)
{
    (void)timeout_ms;
    struct publishing *self = call;
    PyThreadState *thread = self->data.len >= LONG_COPY ? PyEval_SaveThread() : NULL;
    rp_status status = rp_publisher_put_bf16(self->object->publisher, self->data.buf, (uint64_t)self->data.len,
                                             self->bf16.buf, (uint64_t)self->bf16.len, err);
    if (thread)
        PyEval_RestoreThread(thread);
    return status;
}

static rp_status publish_attempt(void *call, int64_t timeout_ms, rp_error *err)
{
    struct publishing *self = call;
    return rp_publisher_flush(self->object->publisher, timeout_ms, &self->version, err);
}

static PyObject *publisher_put(PyObject *object, PyObject *args)
{
    handle_object *self = (handle_object *)object;
    struct publishing call = {.object = self};
    PyObject *data, *bf16 = Py_None;
    if (!PyArg_ParseTuple(args, "O|O", &data, &bf16) || PyObject_GetBuffer(data, &call.data, PyBUF_SIMPLE) < 0)
        return NULL;
    bool ok = (bf16 == Py_None || PyObject_GetBuffer(bf16, &call.bf16, PyBUF_SIMPLE) == 0) &&
              guarded_call(&self->guarded, "publisher", put_attempt, &call, 0);
    PyBuffer_Release(&call.data);
    PyBuffer_Release(&call.bf16);
    return ok ? Py_NewRef(Py_None) : NULL;
}

static PyObject *publisher_flush(PyObject *object, PyObject *args, PyObject *kwargs)
{
    handle_object *self = (handle_object *)object;
    struct publishing call = {.object = self};
    int64_t timeout_ms;
    bool ok = core_timeout_argument(args, kwargs, &timeout_ms) &&
              guarded_call(&self->guarded, "publisher", publish_attempt, &call, timeout_ms);
    return ok ? PyLong_FromUnsignedLongLong(call.version) : NULL;
}

static PyObject *publisher_close(PyObject *object, PyObject *args, PyObject *kwargs)
{
    handle_object *self = (handle_object *)object;
    struct publishing call = {.object = self};
    int64_t timeout_ms;
    return core_timeout_argument(args, kwargs, &timeout_ms)
               ? guarded_finish(&self->guarded, publish_attempt, &call, timeout_ms)
               : NULL;
}

static PyMethodDef publisher_methods[] = {
    {"put", publisher_put, METH_VARARGS,
     "put($self, data, bf16=None, /)\n--\n\nTakes a block and returns at once. Of blocks that wait, only the newest is "
     "sent."},
    {"flush", CORE_METHOD(publisher_flush), METH_VARARGS | METH_KEYWORDS,
     "flush($self, timeout=None)\n--\n\nWaits until the newest block is stored; returns its version."},
    {"close", CORE_METHOD(publisher_close), METH_VARARGS | METH_KEYWORDS,
     "close($self, timeout=None)\n--\n\nFlushes, then gives up what is left."},
    {NULL, NULL, 0, NULL},
};

/* ---- Subscriber */

static PyObject *subscriber_make(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    (void)kwargs;
    PyObject *client;
    const char *name;
    unsigned long long have = 0;
    int bf16 = 0;
    rp_error err;
    if (!PyArg_ParseTuple(args, "Os|Kp", &client, &name, &have, &bf16))
        return NULL;
    handle_object *self = handle_new(type, client);
    if (!self)
        return NULL;
    self->subscriber = (bf16 ? rp_subscriber_new_bf16 : rp_subscriber_new)(self->conn->client, name, have, &err);
    return handle_made(self, self->subscriber, &err);
}

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
    handle_object *self = (handle_object *)object;
    int64_t timeout_ms;
    if (!core_timeout(seconds, &timeout_ms) || !gate_enter(&self->guarded.gate, "subscriber"))
        return NULL;
    rp_error err;
    struct take call = {.subscriber = self->subscriber};
    rp_status status = gate_wait(&self->guarded.gate, take_attempt, &call, timeout_ms, &err);
    gate_leave(&self->guarded.gate);
    if (status == RP_DEADLINE_EXCEEDED)
        return Py_NewRef(Py_None);
    if (status != RP_OK)
        return status == GATE_INTERRUPTED ? NULL : core_raise(status, err.text);
    return param_row(&call.params);
}

static PyObject *subscriber_close(PyObject *object, PyObject *args, PyObject *kwargs)
{
    int64_t timeout_ms;
    return core_timeout_argument(args, kwargs, &timeout_ms) ? guarded_close(object, NULL) : NULL;
}

static PyMethodDef subscriber_methods[] = {
    {"_take", subscriber_take, METH_O,
     "_take(timeout): (version, data, age in ns, bf16), or None if nothing has arrived."},
    {"close", CORE_METHOD(subscriber_close), METH_VARARGS | METH_KEYWORDS,
     "close($self, timeout=None)\n--\n\nStops asking."},
    {NULL, NULL, 0, NULL},
};

/* ---- Updater: new priorities or acknowledgements, sent in batches without waiting for the answers */

static PyObject *updater_make(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    static char *names[] = {"client", "table", "batch", "in_flight", "ack", NULL};
    rp_updater_options options = {.struct_size = sizeof options};
    PyObject *client;
    const char *table;
    int ack = 0;
    rp_error err;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "Os|O&O&p", names, &client, &table, core_u32, &options.batch,
                                     core_u32, &options.in_flight, &ack))
        return NULL;
    options.acknowledge = (uint32_t)ack;
    handle_object *self = handle_new(type, client);
    if (!self)
        return NULL;
    self->updater = rp_updater_new(self->conn->client, table, &options, &err);
    return handle_made(self, self->updater, &err);
}

struct updating {
    const handle_object *object;
    Py_buffer keys, priorities;
    uint32_t done, n;
    rp_change change;
};

static rp_status update_attempt(void *call, int64_t timeout_ms, rp_error *err)
{
    struct updating *self = call;
    uint32_t taken = 0;
    const uint64_t *keys = self->keys.buf;
    const double *priorities = self->priorities.buf;
    rp_status status =
        rp_updater_add(self->object->updater, keys + self->done, priorities ? priorities + self->done : NULL,
                       self->n - self->done, timeout_ms, &taken, err);
    self->done += status == RP_DEADLINE_EXCEEDED ? taken : 0;
    return status;
}

static rp_status confirm_attempt(void *call, int64_t timeout_ms, rp_error *err)
{
    struct updating *self = call;
    return rp_updater_flush(self->object->updater, timeout_ms, &self->change, err);
}

/* Takes contiguous arrays of 8-byte elements of equal length; priorities may be None. */
static bool take_arrays(struct updating *self, PyObject *keys, PyObject *priorities)
{
    if (PyObject_GetBuffer(keys, &self->keys, PyBUF_C_CONTIGUOUS | PyBUF_FORMAT) < 0 ||
        (priorities != Py_None &&
         PyObject_GetBuffer(priorities, &self->priorities, PyBUF_C_CONTIGUOUS | PyBUF_FORMAT) < 0))
        return false;
    self->n = (uint32_t)(self->keys.len / 8);
    if (column_dtype(self->keys.format, self->keys.itemsize) == RP_DTYPE_UINT64 &&
        (!self->priorities.obj ||
         (column_dtype(self->priorities.format, self->priorities.itemsize) == RP_DTYPE_FLOAT64 &&
          self->keys.len == self->priorities.len)) &&
        self->keys.len / 8 <= UINT32_MAX)
        return true;
    PyErr_SetString(PyExc_ValueError, "keys (uint64) and priorities (float64) of equal length are needed");
    return false;
}

static PyObject *updater_add(PyObject *object, PyObject *args)
{
    handle_object *self = (handle_object *)object;
    struct updating call = {.object = self};
    PyObject *keys, *priorities, *seconds;
    int64_t timeout_ms;
    bool ok = PyArg_ParseTuple(args, "OOO", &keys, &priorities, &seconds) && core_timeout(seconds, &timeout_ms) &&
              take_arrays(&call, keys, priorities) &&
              guarded_call(&self->guarded, "updater", update_attempt, &call, timeout_ms);
    PyBuffer_Release(&call.keys);
    PyBuffer_Release(&call.priorities);
    return ok ? Py_NewRef(Py_None) : NULL;
}

static PyObject *updater_flush(PyObject *object, PyObject *seconds)
{
    handle_object *self = (handle_object *)object;
    struct updating call = {.object = self};
    int64_t timeout_ms;
    bool ok = core_timeout(seconds, &timeout_ms) &&
              guarded_call(&self->guarded, "updater", confirm_attempt, &call, timeout_ms);
    return ok ? Py_BuildValue("(KKK)", call.change.applied, call.change.missing, call.change.refused) : NULL;
}

static PyObject *updater_close(PyObject *object, PyObject *seconds)
{
    handle_object *self = (handle_object *)object;
    struct updating call = {.object = self};
    int64_t timeout_ms;
    return core_timeout(seconds, &timeout_ms) ? guarded_finish(&self->guarded, confirm_attempt, &call, timeout_ms)
                                              : NULL;
}

static PyMethodDef updater_methods[] = {
    {"_add", updater_add, METH_VARARGS, "_add(keys, priorities, timeout)"},
    {"_flush", updater_flush, METH_O, "_flush(timeout): (applied, missing, refused) so far."},
    {"_close", updater_close, METH_O, "_close(timeout): flushes, then gives up what is left."},
    {NULL, NULL, 0, NULL},
};

/* ---- Reduce: the sum of float vectors over the members of a group, round by round */

static PyObject *reduce_make(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    static char *names[] = {"client", "group", "timeout", NULL};
    PyObject *client, *seconds = Py_None;
    const char *group;
    int64_t timeout_ms;
    struct watch watch;
    rp_error err;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "Os|O", names, &client, &group, &seconds) ||
        !core_timeout(seconds, &timeout_ms))
        return NULL;
    handle_object *self = handle_new(type, client);
    if (!self)
        return NULL;
    watch_begin(&watch, &self->guarded.gate);
    self->reduce = rp_reduce_join(self->conn->client, group, timeout_ms, &err);
    if (watch_end(&watch))
        return handle_made(self, self->reduce, &err);
    Py_DECREF(self);
    return NULL;
}

struct adding {
    const handle_object *object;
    Py_buffer values;
    int64_t round_ms;
    rp_reduced reduced;
};

/* After a time-out the vector stays in its round, and the next call takes up the wait. */
static rp_status add_attempt(void *call, int64_t timeout_ms, rp_error *err)
{
    struct adding *self = call;
    return rp_reduce_add(self->object->reduce, self->values.buf, (uint64_t)self->values.len / sizeof(float),
                         self->round_ms, timeout_ms, &self->reduced, err);
}

static bool take_vector(struct adding *self, PyObject *array)
{
    if (PyObject_GetBuffer(array, &self->values, PyBUF_C_CONTIGUOUS | PyBUF_WRITABLE | PyBUF_FORMAT) < 0)
        return false;
    if (column_dtype(self->values.format, self->values.itemsize) == RP_DTYPE_FLOAT32)
        return true;
    PyErr_SetString(PyExc_ValueError, "a contiguous array of float32 is needed");
    return false;
}

static PyObject *reduce_add(PyObject *object, PyObject *args)
{
    handle_object *self = (handle_object *)object;
    struct adding call = {.object = self};
    PyObject *array, *round_seconds, *seconds;
    int64_t timeout_ms;
    bool ok = PyArg_ParseTuple(args, "OOO", &array, &round_seconds, &seconds) &&
              core_timeout(round_seconds, &call.round_ms) && core_timeout(seconds, &timeout_ms) &&
              take_vector(&call, array) && guarded_call(&self->guarded, "member", add_attempt, &call, timeout_ms);
    PyBuffer_Release(&call.values);
    const rp_reduced *out = &call.reduced;
    return ok ? Py_BuildValue("(KIIO)", out->round, out->contributors, out->members, out->counted ? Py_True : Py_False)
              : NULL;
}

static PyMethodDef reduce_methods[] = {
    {"_add", reduce_add, METH_VARARGS,
     "_add(values, round_timeout, timeout): (round, contributors, members, counted)."},
    {"close", guarded_close, METH_NOARGS, "close($self)\n--\n\nLeaves the group."},
    {NULL, NULL, 0, NULL},
};

/* Types over a handle differ in name, help and methods. */
#define HANDLE_TYPE(title, help, kind)                                                                                 \
    const struct core_type kind##_core = {.name = "replaybus._core." title,                                            \
                                          .doc = (help),                                                               \
                                          .size = sizeof(handle_object),                                               \
                                          .make = kind##_make,                                                         \
                                          .dealloc = guarded_dealloc,                                                  \
                                          .methods = kind##_methods,                                                   \
                                          .is_base = true}

HANDLE_TYPE("Publisher", "Stores versions of a slot in the background.", publisher);
HANDLE_TYPE("Subscriber", "Receives versions of a slot in the background.", subscriber);
HANDLE_TYPE("Updater", "Collects new priorities or acknowledgements of one table.", updater);
HANDLE_TYPE("Reduce", "A member of a group that sums vectors.", reduce);
