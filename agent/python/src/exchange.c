/* Publisher, Subscriber, Updater and Reduce: objects that exchange data with the broker over a shared client. Each owns one handle of
 * libreplay and has one thing to do; what that takes and gives is all that differs. */
#include "agent/python/src/core.h"

#define LEAVE_MS 1000 /* for the broker's answer when a member leaves its group */

typedef struct handle_object {
    struct guarded guarded;
    const char *what; /* it is, for errors */
    struct conn *conn;
    rp_publisher *publisher; /* one of these */
    rp_subscriber *subscriber;
    rp_updater *updater; /* of new priorities or acknowledgements */
    rp_reduce *reduce;   /* a member of a group that sums vectors */
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

/* ---- making one */

/* An object without a handle yet. NULL with an exception set. */
static handle_object *handle_new(PyTypeObject *type, PyObject *client, const char *what)
{
    struct conn *conn = client_share(client);
    handle_object *self = conn ? guarded_new(type, handle_destroy) : NULL;
    if (!self) {
        conn_drop(&conn);
        return NULL;
    }
    self->conn = conn;
    self->what = what;
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

static PyObject *publisher_make(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    (void)kwargs;
    PyObject *client;
    const char *name;
    rp_error err;
    handle_object *self = PyArg_ParseTuple(args, "Os", &client, &name) ? handle_new(type, client, "publisher") : NULL;
    if (!self)
        return NULL;
    self->publisher = rp_publisher_new(self->conn->client, name, &err);
    return handle_made(self, self->publisher, &err);
}

static PyObject *subscriber_make(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    (void)kwargs;
    PyObject *client;
    const char *name;
    unsigned long long have = 0;
    int bf16 = 0;
    rp_error err = {0};
    handle_object *self =
        PyArg_ParseTuple(args, "Os|Kp", &client, &name, &have, &bf16) ? handle_new(type, client, "subscriber") : NULL;
    if (!self)
        return NULL;
    self->subscriber = (bf16 ? rp_subscriber_new_bf16 : rp_subscriber_new)(self->conn->client, name, have, &err);
    return handle_made(self, self->subscriber, &err);
}

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
    handle_object *self = handle_new(type, client, "updater");
    if (!self)
        return NULL;
    self->updater = rp_updater_new(self->conn->client, table, &options, &err);
    return handle_made(self, self->updater, &err);
}

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
    handle_object *self = handle_new(type, client, "member");
    if (!self)
        return NULL;
    watch_begin(&watch, &self->guarded.gate);
    self->reduce = rp_reduce_join(self->conn->client, group, timeout_ms, &err);
    if (watch_end(&watch))
        return handle_made(self, self->reduce, &err);
    Py_DECREF(self);
    return NULL;
}

/* ---- one call */

struct exchange {
    const handle_object *object;
    Py_buffer first, second; /* a block and its second form, keys and priorities, or a vector; obj NULL: none */
    uint32_t done;           /* keys that were taken */
    int64_t round_ms;
    rp_params *params;
    rp_change change;
    rp_reduced reduced;
    uint64_t version;
};

/* Bytes that take longer to copy than other threads of Python should wait. */
#define LONG_COPY (1 << 20)

static rp_status put(struct exchange *self, rp_error *err)
{
    PyThreadState *thread = self->first.len >= LONG_COPY ? PyEval_SaveThread() : NULL;
    rp_status status = rp_publisher_put_bf16(self->object->publisher, self->first.buf, (uint64_t)self->first.len,
                                             self->second.buf, (uint64_t)self->second.len, err);
    if (thread)
        PyEval_RestoreThread(thread);
    return status;
}

static rp_status update(struct exchange *self, int64_t timeout_ms, rp_error *err)
{
    const uint64_t *keys = self->first.buf;
    const double *priorities = self->second.buf;
    uint32_t n = (uint32_t)(self->first.len / 8) - self->done, taken = 0;
    rp_status status = rp_updater_add(self->object->updater, keys + self->done,
                                      priorities ? priorities + self->done : NULL, n, timeout_ms, &taken, err);
    self->done += status == RP_DEADLINE_EXCEEDED ? taken : 0;
    return status;
}

static rp_status call_attempt(void *call, int64_t timeout_ms, rp_error *err)
{
    struct exchange *self = call;
    const handle_object *object = self->object;
    if (object->publisher)
        return put(self, err); /* the first attempt, with the GIL: it does not wait */
    if (object->subscriber)
        return rp_subscriber_take(object->subscriber, timeout_ms, &self->params, err);
    if (object->updater)
        return update(self, timeout_ms, err);
    /* After a time-out the vector stays in its round, and the next call takes up the wait. */
    return rp_reduce_add(object->reduce, self->first.buf, (uint64_t)self->first.len / sizeof(float), self->round_ms,
                         timeout_ms, &self->reduced, err);
}

/* A subscriber and a member of a group hold nothing back. */
static rp_status flush_attempt(void *call, int64_t timeout_ms, rp_error *err)
{
    struct exchange *self = call;
    if (self->object->publisher)
        return rp_publisher_flush(self->object->publisher, timeout_ms, &self->version, err);
    if (self->object->updater)
        return rp_updater_flush(self->object->updater, timeout_ms, &self->change, err);
    return RP_OK;
}

/* Takes the memory of an array in C order, whose elements have this type; 0: of anything. */
static bool take_array(PyObject *array, int32_t dtype, int flags, Py_buffer *out)
{
    if (PyObject_GetBuffer(array, out, PyBUF_C_CONTIGUOUS | (dtype ? PyBUF_FORMAT : 0) | flags) < 0)
        return false;
    if (dtype == 0 || column_dtype(out->format, out->itemsize) == dtype)
        return true;
    PyErr_Format(PyExc_ValueError, "a contiguous array of %s is needed", dtype_name(dtype));
    return false;
}

/* The second one may be None. */
static bool take_arrays(struct exchange *self, PyObject *first, PyObject *second)
{
    const handle_object *object = self->object;
    if (object->subscriber)
        return true;
    if (object->reduce)
        return take_array(first, RP_DTYPE_FLOAT32, PyBUF_WRITABLE, &self->first);
    if (!take_array(first, object->updater ? RP_DTYPE_UINT64 : 0, 0, &self->first) ||
        (second != Py_None && !take_array(second, object->updater ? RP_DTYPE_FLOAT64 : 0, 0, &self->second)))
        return false;
    if (!object->updater ||
        (self->first.len / 8 <= UINT32_MAX && (!self->second.obj || self->first.len == self->second.len)))
        return true;
    PyErr_SetString(PyExc_ValueError, "keys (uint64) and priorities (float64) of equal length are needed");
    return false;
}

static PyObject *call_answer(struct exchange *self)
{
    const rp_reduced *sum = &self->reduced;
    if (self->params)
        return param_row(&self->params);
    if (!self->object->reduce)
        return Py_NewRef(Py_None);
    return Py_BuildValue("(KIIO)", sum->round, sum->contributors, sum->members, sum->counted ? Py_True : Py_False);
}

/* _call(timeout, first=None, second=None, round_timeout=None) */
static PyObject *handle_call(PyObject *object, PyObject *args)
{
    handle_object *self = (handle_object *)object;
    struct exchange call = {.object = self};
    PyObject *seconds, *first = Py_None, *second = Py_None, *round_seconds = Py_None, *answer = NULL;
    int64_t timeout_ms;
    rp_error err;
    if (PyArg_ParseTuple(args, "O|OOO", &seconds, &first, &second, &round_seconds) &&
        core_timeout(seconds, &timeout_ms) && core_timeout(round_seconds, &call.round_ms) &&
        gate_enter(&self->guarded.gate, self->what)) {
        rp_status status = GATE_INTERRUPTED;
        if (take_arrays(&call, first, second))
            status = gate_wait(&self->guarded.gate, call_attempt, &call, timeout_ms, &err);
        bool nothing = status == RP_DEADLINE_EXCEEDED && self->subscriber;
        if (status == RP_OK || nothing)
            answer = call_answer(&call);
        else if (status != GATE_INTERRUPTED)
            core_raise(status, err.text);
        gate_leave(&self->guarded.gate);
    }
    PyBuffer_Release(&call.first);
    PyBuffer_Release(&call.second);
    rp_params_release(&call.params); /* a signal came with it */
    return answer;
}

/* The version that is stored, or (applied, missing, refused) so far. */
static PyObject *handle_flush(PyObject *object, PyObject *seconds)
{
    handle_object *self = (handle_object *)object;
    struct exchange call = {.object = self};
    int64_t timeout_ms;
    if (!core_timeout(seconds, &timeout_ms) ||
        !guarded_call(&self->guarded, self->what, flush_attempt, &call, timeout_ms))
        return NULL;
    return self->publisher ? PyLong_FromUnsignedLongLong(call.version)
                           : Py_BuildValue("(KKK)", call.change.applied, call.change.missing, call.change.refused);
}

static PyObject *handle_close(PyObject *object, PyObject *seconds)
{
    handle_object *self = (handle_object *)object;
    struct exchange call = {.object = self};
    int64_t timeout_ms;
    return core_timeout(seconds, &timeout_ms) ? guarded_finish(&self->guarded, flush_attempt, &call, timeout_ms) : NULL;
}

static PyMethodDef methods[] = {
    {"_call", handle_call, METH_VARARGS, "_call(timeout, first=None, second=None, round_timeout=None)"},
    {"_flush", handle_flush, METH_O, "_flush(timeout)"},
    {"_close", handle_close, METH_O, "_close(timeout): flushes."},
    {"_give_up", guarded_close, METH_NOARGS, "Closes without waiting."},
    {NULL, NULL, 0, NULL},
};

#define HANDLE_TYPE(title, help, kind)                                                                                 \
    const struct core_type kind##_core = {.name = "replaybus._core." title,                                            \
                                          .doc = (help),                                                               \
                                          .size = sizeof(handle_object),                                               \
                                          .make = kind##_make,                                                         \
                                          .dealloc = guarded_dealloc,                                                  \
                                          .methods = methods,                                                          \
                                          .is_base = true}

HANDLE_TYPE("Publisher", "Stores versions of a slot in the background.", publisher);
HANDLE_TYPE("Subscriber", "Receives versions of a slot in the background.", subscriber);
HANDLE_TYPE("Updater", "Collects new priorities or acknowledgements of one table.", updater);
HANDLE_TYPE("Reduce", "A member of a group that sums vectors.", reduce);
