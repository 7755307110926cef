/* Client: a connection. Several threads may use it at once, so its gate is only asked whether it is open. */
#include "agent/python/src/core.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

PyTypeObject *client_type;

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
    struct connecting *self = calloc(1, sizeof *self);
    if (!self)
        return (struct connecting *)PyErr_NoMemory();
    self->job.run = connecting_run;
    self->job.drop = connecting_drop;
    self->endpoint = strdup(endpoint);
    self->name = name ? strdup(name) : NULL;
    self->key_file = key_file ? strdup(key_file) : NULL;
    if (self->endpoint && (self->name || !name) && (self->key_file || !key_file))
        return job_start(&self->job) ? self : NULL;
    connecting_drop(&self->job);
    return (struct connecting *)PyErr_NoMemory();
}

static PyObject *client_make(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    static char *names[] = {"endpoint", "name", "key_file", NULL};
    const char *endpoint, *name = NULL, *key_file = NULL;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "s|zz", names, &endpoint, &name, &key_file))
        return NULL;
    client_object *self = PyObject_New(client_object, type);
    if (!self)
        return NULL;
    gate_open(&self->gate, (PyObject *)self, NULL);
    self->conn = NULL;
    self->connecting = connecting_start(endpoint, name, key_file);
    if (self->connecting)
        return (PyObject *)self;
    Py_DECREF(self);
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
    if (state == JOB_RUNNING && gate_check(&self->gate))
        raise_late(attempt, timeout_ms, own);
    else if (state == JOB_DONE && !self->conn && gate_check(&self->gate))
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
        !gate_enter(&self->gate, "client"))
        return NULL;
    gate_leave(&self->gate);
    if (self->connecting && !await_connection(self, timeout_ms, own != 0))
        return NULL;
    return Py_NewRef(Py_None);
}

static PyObject *client_close(PyObject *object, PyObject *unused)
{
    (void)unused;
    client_object *self = (client_object *)object;
    if (gate_close(&self->gate)) {
        stop_connecting(self);
        conn_drop(&self->conn);
        gate_leave(&self->gate);
    }
    return PyErr_Occurred() ? NULL : Py_NewRef(Py_None);
}

static void client_dealloc(PyObject *object)
{
    client_object *self = (client_object *)object;
    PyTypeObject *type = Py_TYPE(object);
    stop_connecting(self);
    conn_drop(&self->conn);
    PyObject_Free(object);
    Py_DECREF(type);
}

struct conn *client_share(PyObject *client)
{
    if (!PyObject_TypeCheck(client, client_type)) {
        PyErr_SetString(PyExc_TypeError, "a _core.Client is needed");
        return NULL;
    }
    client_object *self = (client_object *)client;
    if (!gate_enter(&self->gate, "client"))
        return NULL;
    struct conn *conn = self->conn ? conn_ref(self->conn) : NULL;
    gate_leave(&self->gate);
    if (!conn)
        core_raise(RP_FAILED_PRECONDITION, "this client is not connected yet: call wait first");
    return conn;
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
    for (uint32_t i = 0; tables && (name = rp_client_table(conn->client, i)); i++) {
        PyObject *text = PyUnicode_FromString(name);
        if (!text || PyList_Append(tables, text) < 0)
            Py_CLEAR(tables);
        Py_XDECREF(text);
    }
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
    return PyBool_FromLong(!self->gate.closed && !gate_is_foreign(&self->gate) && (self->conn || self->connecting));
}

static PyMethodDef methods[] = {
    {"close", client_close, METH_NOARGS, "Gives up the connection; objects that use it keep it until they close."},
    {"wait", client_wait, METH_VARARGS,
     "wait(timeout, own): until it is connected. own: the time-out is the client's, not that of a call."},
    {"state", client_state, METH_NOARGS,
     "A dict: connected, id, broker, reconnects, max_batch, endpoint, release, shards, connected_shards, tables."},
    {"request", request_call, METH_VARARGS, "request(kind, timeout, text, number, count, data, keys, values)"},
    {NULL, NULL, 0, NULL},
};

static PyGetSetDef getters[] = {
    {"usable", client_usable, NULL,
     "False once it is closed or could not connect, and in a process that was forked since.", NULL},
    {NULL, NULL, NULL, NULL, NULL},
};

static PyType_Slot slots[] = {
    {Py_tp_new, (void *)client_make},
    {Py_tp_dealloc, (void *)client_dealloc},
    {Py_tp_methods, methods},
    {Py_tp_getset, getters},
    {Py_tp_doc, "Client(endpoint, name=None): connects in the background."},
    {0, NULL},
};

static PyType_Spec spec = {
    .name = "replaybus._core.Client", .basicsize = sizeof(client_object), .flags = Py_TPFLAGS_DEFAULT, .slots = slots};

bool client_register(PyObject *module)
{
    return core_add_type(module, "Client", &spec, &client_type);
}
