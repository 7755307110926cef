/* Client: a connection, and questions to the broker with one answer. Several threads may use a client at once, so its gate is only
 * asked whether it is open. */
#include "agent/python/src/core.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct client_object {
    struct guarded guarded;
    struct conn *conn; /* NULL: closed, or it could not connect */
    bool connected;
} client_object;

static PyTypeObject *client_type;

/* ---- the shared connection */

static struct conn *conn_take(rp_client *client)
{
    struct conn *conn = core_alloc(1, sizeof *conn);
    if (conn)
        *conn = (struct conn){.client = client, .refs = 1};
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

/* ---- connecting: in the background, without an end; it goes on when the wait for it has ended */

static void client_destroy(PyObject *object)
{
    conn_drop(&((client_object *)object)->conn);
}

static PyObject *client_make(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    static char *names[] = {"endpoint", "name", "key_file", NULL};
    rp_client_options options = {.struct_size = sizeof options};
    const char *endpoint;
    rp_error err;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "s|zz", names, &endpoint, &options.name, &options.key_file))
        return NULL;
    client_object *self = guarded_new(type, client_destroy);
    rp_client *client = self ? rp_client_open(endpoint, &options, &err) : NULL;
    if (client && (self->conn = conn_take(client)))
        return (PyObject *)self;
    if (self && !client)
        core_raise(err.status, err.text);
    rp_client_destroy(&client);
    Py_XDECREF((PyObject *)self);
    return NULL;
}

/* Takes the result of a wait. own: the time-out is the client's, not that of a call. False with an exception set. */
static bool take_result(client_object *self, struct conn *conn, rp_status status, const rp_error *err, bool own)
{
    bool late = status == RP_UNAVAILABLE;
    if (!gate_check(&self->guarded.gate))
        return false;
    self->connected = self->connected || status == RP_OK;
    if (status == RP_OK)
        return true;
    if (!late && self->conn == conn && !self->connected)
        conn_drop(&self->conn); /* whoever waits, too, has it for as long */
    char text[sizeof err->text + 32];
    snprintf(text, sizeof text, "%s%s", err->text, late && !own ? " The client goes on trying." : "");
    core_raise(late && !own ? RP_DEADLINE_EXCEEDED : status, text);
    return false;
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
    struct conn *conn = self->conn;
    bool ok = self->connected;
    if (!ok && conn) {
        struct watch watch;
        rp_error err;
        conn->refs++;
        watch_begin(&watch, &self->guarded.gate);
        rp_status status = rp_client_wait(conn->client, timeout_ms, &err);
        ok = watch_end(&watch) && take_result(self, conn, status, &err, own != 0);
        conn_drop(&conn);
    } else if (!ok) {
        core_raise(RP_FAILED_PRECONDITION, "this client could not connect: make a new one");
    }
    return ok ? Py_NewRef(Py_None) : NULL;
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
    if (!self->connected || !self->conn) {
        core_raise(RP_FAILED_PRECONDITION, "this client is not connected yet: call wait first");
        return NULL;
    }
    self->conn->refs++;
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
    return PyBool_FromLong(!self->guarded.gate.closed && !gate_is_foreign(&self->guarded.gate) && self->conn);
}

/* ---- questions */

/* A value of this size is not copied. */
#define LARGE_VALUE (4u << 20)

static void release_value(PyObject *owner)
{
    rp_params *params = PyCapsule_GetPointer(owner, NULL);
    rp_params_release(&params);
}

/* A read-only memoryview of the value, which keeps it. */
static PyObject *value_view(rp_params **params)
{
    const rp_param *slot = rp_params_slot(*params);
    PyObject *owner = PyCapsule_New(*params, NULL, release_value);
    if (!owner)
        return NULL;
    *params = NULL;
    PyObject *array = numpy_array(owner, slot->data, RP_DTYPE_UINT8, 1, &slot->bytes);
    PyObject *fixed = array ? PyObject_CallMethod(array, "setflags", "O", Py_False) : NULL;
    PyObject *view = fixed ? PyMemoryView_FromObject(array) : NULL;
    Py_XDECREF(fixed);
    Py_XDECREF(array);
    Py_DECREF(owner);
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
    PyObject *seconds, *text = Py_None, *data = Py_None, *keys = Py_None, *values = Py_None;
    long long number = 0;
    if (!PyArg_ParseTuple(args, "sO|OLO&OOO", &name, &seconds, &text, &number, core_u32, &self->count, &data, &keys,
                          &values) ||
        (text != Py_None && !(self->text = core_text(text, "the name of a table, slot or counter"))) ||
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
