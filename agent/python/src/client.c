/* Client: a connection, and questions to the broker with one answer. Several threads may use a client at once, so its gate is only
 * asked whether it is open. */
#include "agent/python/src/core.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct client_object {
    struct guarded guarded;
    struct conn *conn;             /* NULL: not connected yet */
    struct connecting *connecting; /* NULL: no attempt to connect is running */
} client_object;

static PyTypeObject *client_type;

/* ---- the shared connection */

static struct conn *conn_take(rp_client *client)
{
    struct conn *conn = calloc(1, sizeof *conn);
    if (!conn)
        return NULL;
    conn->client = client;
    conn->refs = 1;
    return conn;
}

void conn_drop(struct conn **conn)
{
    struct conn *old = *conn;
    *conn = NULL;
    if (!old || --old->refs > 0)
        return;
    Py_BEGIN_ALLOW_THREADS;
    rp_client_destroy(&old->client);
    Py_END_ALLOW_THREADS;
    free(old);
}

/* ---- connecting */

/* An attempt to connect, in the background: it has no time-out of its own, and goes on when the wait for it has ended. */
struct connecting {
    struct job job;
    char *endpoint, *name, *key_file;
    unsigned users;       /* threads that wait for it; guarded by the GIL */
    atomic_bool unwanted; /* it is to end */
    rp_client *client;
    rp_error err;
};

static int is_unwanted(void *ctx)
{
    return atomic_load(&((struct connecting *)ctx)->unwanted);
}

static void connecting_run(struct job *job)
{
    struct connecting *self = (struct connecting *)job;
    rp_client_options options = {.struct_size = sizeof options, .name = self->name, .key_file = self->key_file};
    rp_wait_set(is_unwanted, self);
    self->client = rp_client_connect(self->endpoint, &options, -1, &self->err);
    rp_wait_set(NULL, NULL);
}

static void connecting_drop(struct job *job)
{
    struct connecting *self = (struct connecting *)job;
    rp_client_destroy(&self->client);
    free(self->endpoint);
    free(self->name);
    free(self->key_file);
    free(self);
}

static struct connecting *connecting_start(const char *endpoint, const char *name, const char *key_file)
{
    struct connecting *self = core_alloc(1, sizeof *self);
    if (!self)
        return NULL;
    self->job.run = connecting_run;
    self->job.drop = connecting_drop;
    self->endpoint = core_copy(endpoint);
    self->name = core_copy(name);
    self->key_file = core_copy(key_file);
    if (!PyErr_Occurred())
        return job_start(&self->job) ? self : NULL;
    connecting_drop(&self->job);
    return NULL;
}

/* Gives up an attempt: the last thread that waits for it drops it. */
static void stop_connecting(client_object *self)
{
    struct connecting *attempt = self->connecting;
    self->connecting = NULL;
    if (!attempt)
        return;
    atomic_store(&attempt->unwanted, true);
    if (attempt->users == 0)
        job_abandon(&attempt->job);
}

static void client_destroy(PyObject *object)
{
    client_object *self = (client_object *)object;
    stop_connecting(self);
    conn_drop(&self->conn);
}

static PyObject *client_make(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    static char *names[] = {"endpoint", "name", "key_file", NULL};
    const char *endpoint, *name = NULL, *key_file = NULL;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "s|zz", names, &endpoint, &name, &key_file))
        return NULL;
    client_object *self = guarded_new(type, client_destroy);
    if (!self)
        return NULL;
    self->connecting = connecting_start(endpoint, name, key_file);
    if (self->connecting)
        return (PyObject *)self;
    Py_DECREF(self);
    return NULL;
}

/* Takes the result of an attempt that has ended. */
static void take_result(client_object *self, struct connecting *attempt)
{
    self->connecting = NULL;
    if (attempt->client && (self->conn = conn_take(attempt->client)))
        attempt->client = NULL;
}

static void raise_late(const struct connecting *attempt, int64_t timeout_ms, bool own)
{
    char text[400];
    snprintf(text, sizeof text,
             "no broker answers at %.200s within %g s: is replay-broker running, and is this its service endpoint?%s",
             attempt->endpoint, (double)timeout_ms / 1e3, own ? "" : " The client goes on trying.");
    core_raise(own ? RP_UNAVAILABLE : RP_DEADLINE_EXCEEDED, text);
}

/* Waits for the attempt that is running. False with an exception set. */
static bool await_connection(client_object *self, int64_t timeout_ms, bool own)
{
    struct connecting *attempt = self->connecting;
    attempt->users++;
    enum job_state state = job_await(&attempt->job, timeout_ms);
    attempt->users--;
    if (state == JOB_DONE && self->connecting == attempt)
        take_result(self, attempt);
    if (state == JOB_RUNNING && gate_check(&self->guarded.gate))
        raise_late(attempt, timeout_ms, own);
    else if (state == JOB_DONE && !self->conn && gate_check(&self->guarded.gate))
        core_raise(attempt->client ? RP_NO_MEMORY : attempt->err.status,
                   attempt->client ? "no memory for a client" : attempt->err.text);
    if (attempt->users == 0 && self->connecting != attempt)
        job_abandon(&attempt->job);
    return state == JOB_DONE && self->conn;
}

static PyObject *client_wait(PyObject *object, PyObject *args)
{
    client_object *self = (client_object *)object;
    PyObject *seconds;
    int64_t timeout_ms;
    int own;
    if (!PyArg_ParseTuple(args, "Op", &seconds, &own) || !core_timeout(seconds, &timeout_ms) ||
        !gate_enter(&self->guarded.gate, "client"))
        return NULL;
    gate_leave(&self->guarded.gate);
    if (self->connecting && !await_connection(self, timeout_ms, own != 0))
        return NULL;
    return Py_NewRef(Py_None);
}

struct conn *client_share(PyObject *client)
{
    if (!PyObject_TypeCheck(client, client_type)) {
        PyErr_SetString(PyExc_TypeError, "a _core.Client is needed");
        return NULL;
    }
    client_object *self = (client_object *)client;
    if (!gate_enter(&self->guarded.gate, "client"))
        return NULL;
    gate_leave(&self->guarded.gate);
    if (self->conn)
        self->conn->refs++;
    else
        core_raise(RP_FAILED_PRECONDITION, "this client is not connected yet: call wait first");
    return self->conn;
}

static PyObject *client_state(PyObject *object, PyObject *unused)
{
    (void)unused;
    struct conn *conn = client_share(object);
    if (!conn)
        return NULL;
    rp_client_info info = {.struct_size = sizeof info};
    rp_error err;
    PyObject *tables = PyList_New(0), *out = NULL;
    rp_status status = rp_client_get_info(conn->client, &info, &err);
    const char *name;
    for (uint32_t i = 0; tables && (name = rp_client_table(conn->client, i)); i++)
        core_append(&tables, PyUnicode_FromString(name));
    if (status != RP_OK)
        core_raise(status, err.text);
    else if (tables)
        out = Py_BuildValue("{s:O,s:K,s:K,s:K,s:I,s:s,s:s,s:I,s:I,s:O}", "connected",
                            info.state == RP_CLIENT_CONNECTED ? Py_True : Py_False, "id", info.id, "broker",
                            info.broker, "reconnects", info.reconnects, "max_batch", info.max_batch, "endpoint",
                            info.endpoint, "release", info.release, "shards", info.shards, "connected_shards",
                            info.connected_shards, "tables", tables);
    Py_XDECREF(tables);
    conn_drop(&conn);
    return out;
}

static PyObject *client_usable(PyObject *object, void *unused)
{
    (void)unused;
    const client_object *self = (client_object *)object;
    return PyBool_FromLong(!self->guarded.gate.closed && !gate_is_foreign(&self->guarded.gate) &&
                           (self->conn || self->connecting));
}

/* ---- questions */

/* A value of this size is not copied. */
#define LARGE_VALUE (4u << 20)

/* The memory of a large value. */
typedef struct value_object {
    PyObject_HEAD rp_params *params;
} value_object;

static PyTypeObject *value_type;

static void value_dealloc(PyObject *object)
{
    rp_params_release(&((value_object *)object)->params);
    core_free(object);
}

static int value_buffer(PyObject *object, Py_buffer *view, int flags)
{
    const rp_param *slot = rp_params_slot(((value_object *)object)->params);
    return PyBuffer_FillInfo(view, object, (void *)(uintptr_t)slot->data, (Py_ssize_t)slot->bytes, 1, flags);
}

static PyObject *value_view(rp_params **params)
{
    value_object *object = (value_object *)PyType_GenericAlloc(value_type, 0);
    if (!object)
        return NULL;
    object->params = *params;
    *params = NULL;
    PyObject *view = PyMemoryView_FromObject((PyObject *)object);
    Py_DECREF(object);
    return view;
}

PyObject *param_row(rp_params **params)
{
    const rp_param slot = *rp_params_slot(*params);
    PyObject *data =
        slot.bytes > LARGE_VALUE ? value_view(params) : PyBytes_FromStringAndSize(slot.data, (Py_ssize_t)slot.bytes);
    rp_params_release(params);
    return data ? Py_BuildValue("(KNKO)", slot.version, data, slot.age_ns, slot.bf16 ? Py_True : Py_False) : NULL;
}

/* What is asked: which members are used depends on the kind. The answer, likewise. */
struct request {
    rp_client *client;
    int64_t timeout_ms;
    const char *text;
    int64_t number;
    uint32_t count;
    Py_buffer data, keys, values; /* obj NULL: none */
    uint64_t n_keys;
    rp_error err;
    rp_info *info;
    rp_params *params;
    rp_batch *batch;
    rp_change change;
    uint64_t version;
    int64_t value;
};

static rp_status set_limiter(struct request *self)
{
    rp_limiter_change change = {.struct_size = sizeof change, .set = (uint32_t)self->number};
    const double *values = self->values.buf;
    if (self->values.len == 6 * sizeof *values) {
        change.samples_per_insert = values[0];
        change.min_size = values[1];
        change.min_diff = values[2];
        change.max_diff = values[3];
        change.error_buffer = values[4];
        change.max_lag = values[5];
    }
    return rp_admin_set_limiter(self->client, self->text, &change, self->timeout_ms, &self->info, &self->err);
}

enum kind { INFO, WHY, LIST, RESET, LIMITER, CHECKPOINT, FETCH, PUT, GET, ADD, READ, UPDATE, DELETE, LEASE, KINDS };
static const char *const kinds[KINDS] = {"info", "why", "list", "reset", "limiter", "checkpoint", "fetch",
                                         "put",  "get", "add",  "read",  "update",  "delete",     "lease"};

/* Without the GIL. */
static rp_status ask(struct request *self, enum kind kind)
{
    rp_client *client = self->client;
    const char *text = self->text;
    const uint64_t *keys = self->keys.buf;
    int64_t ms = self->timeout_ms;
    rp_error *err = &self->err;
    switch (kind) {
    case INFO:
        return rp_admin_info(client, text, (uint32_t)self->number, ms, &self->info, err);
    case WHY:
        return rp_admin_why(client, ms, &self->info, err);
    case LIST:
        return rp_admin_list(client, text, (uint64_t)self->number, self->count, ms, &self->info, err);
    case RESET:
        return rp_admin_reset(client, text, ms, &self->info, err);
    case LIMITER:
        return set_limiter(self);
    case CHECKPOINT:
        return rp_admin_checkpoint(client, ms, &self->info, err);
    case FETCH:
        return rp_admin_fetch(client, text, keys, (uint32_t)self->n_keys, ms, &self->batch, err);
    case PUT:
        return rp_params_put(client, text, self->data.buf, (uint64_t)self->data.len, ms, &self->version, err);
    case GET:
        return rp_params_get(client, text, (uint64_t)self->number, ms, &self->params, err);
    case ADD:
        return rp_counter_add(client, text, self->number, ms, &self->value, err);
    case READ:
        return rp_counter_read(client, text, ms, &self->value, err);
    case UPDATE:
        return rp_priorities_update(client, text, keys, self->values.buf, self->n_keys, ms, &self->change, err);
    case DELETE:
        return rp_items_delete(client, text, keys, self->n_keys, ms, &self->change, err);
    default:
        return rp_items_lease(client, text, (rp_lease_op)self->number, keys, self->n_keys, self->count, ms,
                              &self->change, err);
    }
}

static PyObject *answer_json(struct request *self)
{
    char *json = NULL;
    rp_status status = rp_info_json(self->info, &json, &self->err);
    PyObject *text = status == RP_OK ? PyUnicode_FromString(json) : core_raise(status, self->err.text);
    rp_string_free(&json);
    return text;
}

static PyObject *answer(struct request *self, enum kind kind)
{
    rp_batch *batch = self->batch;
    switch (kind) {
    case FETCH:
        self->batch = NULL;
        return batch_wrap(batch, NULL);
    case PUT:
        return PyLong_FromUnsignedLongLong(self->version);
    case GET:
        return param_row(&self->params);
    case ADD:
    case READ:
        return PyLong_FromLongLong(self->value);
    case UPDATE:
    case DELETE:
    case LEASE:
        return Py_BuildValue("(KKK)", self->change.applied, self->change.missing, self->change.refused);
    default:
        return answer_json(self);
    }
}

static bool take_buffer(PyObject *object, Py_buffer *view)
{
    return object == Py_None || PyObject_GetBuffer(object, view, PyBUF_SIMPLE) == 0;
}

/* Borrows from the arguments. KINDS with an exception set. */
static enum kind read_request(struct request *self, PyObject *args)
{
    const char *name;
    PyObject *seconds, *data = Py_None, *keys = Py_None, *values = Py_None;
    long long number = 0;
    if (!PyArg_ParseTuple(args, "sO|zLO&OOO", &name, &seconds, &self->text, &number, core_u32, &self->count, &data,
                          &keys, &values) ||
        !core_timeout(seconds, &self->timeout_ms) || !take_buffer(data, &self->data) ||
        !take_buffer(keys, &self->keys) || !take_buffer(values, &self->values))
        return KINDS;
    self->number = number;
    self->n_keys = (uint64_t)self->keys.len / sizeof(uint64_t);
    uint32_t kind = 0;
    while (kind < KINDS && strcmp(kinds[kind], name) != 0)
        kind++;
    if (kind == KINDS)
        PyErr_Format(PyExc_ValueError, "there is no request '%s'", name);
    if (kind != UPDATE || self->values.len == self->keys.len)
        return (enum kind)kind;
    PyErr_Format(PyExc_ValueError, "there are %llu keys and %llu priorities: one priority per key is needed",
                 (unsigned long long)self->n_keys, (unsigned long long)self->values.len / sizeof(double));
    return KINDS;
}

static PyObject *client_request(PyObject *object, PyObject *args)
{
    struct conn *conn = client_share(object);
    if (!conn)
        return NULL;
    struct request request = {.client = conn->client};
    enum kind kind = read_request(&request, args);
    PyObject *out = NULL;
    if (kind != KINDS) {
        struct watch watch;
        watch_begin(&watch, NULL);
        rp_status status = ask(&request, kind);
        if (watch_end(&watch))
            out = status == RP_OK ? answer(&request, kind) : core_raise(status, request.err.text);
    }
    rp_info_free(&request.info);
    rp_params_release(&request.params);
    rp_batch_release(&request.batch);
    PyBuffer_Release(&request.data);
    PyBuffer_Release(&request.keys);
    PyBuffer_Release(&request.values);
    conn_drop(&conn);
    return out;
}

static PyMethodDef methods[] = {
    {"close", guarded_close, METH_NOARGS, "Gives up the connection; objects that use it keep it until they close."},
    {"wait", client_wait, METH_VARARGS,
     "wait(timeout, own): until it is connected. own: the time-out is the client's, not that of a call."},
    {"state", client_state, METH_NOARGS,
     "A dict: connected, id, broker, reconnects, max_batch, endpoint, release, shards, connected_shards, tables."},
    {"request", client_request, METH_VARARGS, "request(kind, timeout, text, number, count, data, keys, values)"},
    {NULL, NULL, 0, NULL},
};

static PyGetSetDef getters[] = {
    {"usable", client_usable, NULL,
     "False once it is closed or could not connect, and in a process that was forked since.", NULL},
    {NULL, NULL, NULL, NULL, NULL},
};

const struct core_type client_core = {
    .name = "replaybus._core.Client",
    .doc = "Client(endpoint, name=None): connects in the background.",
    .size = sizeof(client_object),
    .make = client_make,
    .dealloc = guarded_dealloc,
    .methods = methods,
    .getters = getters,
    .out = &client_type,
};
const struct core_type value_core = {
    .name = "replaybus._core.Value",
    .doc = "The memory of a large value of a slot.",
    .size = sizeof(value_object),
    .dealloc = value_dealloc,
    .buffer = value_buffer,
    .out = &value_type,
};
