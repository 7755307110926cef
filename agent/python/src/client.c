/* Client: a connection. Several threads may use it at once, so its gate is only asked whether it is open. */
#include "agent/python/src/core.h"

#include <stdlib.h>
#include <string.h>

PyTypeObject *client_type;

struct connect {
    struct job job;
    char *endpoint, *name;
    int64_t timeout_ms;
    rp_client *client;
    rp_error err;
};

static void connect_run(struct job *job)
{
    struct connect *self = (struct connect *)job;
    rp_client_options options = {.struct_size = sizeof options, .name = self->name};
    self->client = rp_client_connect(self->endpoint, &options, self->timeout_ms, &self->err);
}

static void connect_drop(struct job *job)
{
    struct connect *self = (struct connect *)job;
    rp_client_destroy(&self->client);
    free(self->endpoint);
    free(self->name);
    free(self);
}

static struct conn *connect_now(const char *endpoint, const char *name, int64_t timeout_ms)
{
    struct connect *call = calloc(1, sizeof *call);
    if (!call)
        return (struct conn *)PyErr_NoMemory();
    call->job.run = connect_run;
    call->job.drop = connect_drop;
    call->endpoint = strdup(endpoint);
    call->name = name ? strdup(name) : NULL;
    call->timeout_ms = timeout_ms;
    if (!job_wait(&call->job))
        return NULL;
    struct conn *conn = call->client ? conn_take(call->client) : NULL;
    if (conn)
        call->client = NULL;
    else
        core_raise(call->client ? RP_NO_MEMORY : call->err.status, call->err.text);
    Py_BEGIN_ALLOW_THREADS;
    connect_drop(&call->job);
    Py_END_ALLOW_THREADS;
    return conn;
}

static PyObject *client_make(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    static char *names[] = {"endpoint", "name", "timeout", NULL};
    const char *endpoint, *name = NULL;
    PyObject *seconds = Py_None;
    int64_t timeout_ms;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "s|zO", names, &endpoint, &name, &seconds) ||
        !core_timeout(seconds, &timeout_ms))
        return NULL;
    struct conn *conn = connect_now(endpoint, name, timeout_ms);
    if (!conn)
        return NULL;
    client_object *self = PyObject_New(client_object, type);
    if (!self) {
        conn_drop(&conn);
        return NULL;
    }
    gate_open(&self->gate, (PyObject *)self, NULL);
    self->conn = conn;
    return (PyObject *)self;
}

static PyObject *client_close(PyObject *object, PyObject *unused)
{
    (void)unused;
    client_object *self = (client_object *)object;
    if (gate_close(&self->gate)) {
        conn_drop(&self->conn);
        gate_leave(&self->gate);
    }
    return PyErr_Occurred() ? NULL : Py_NewRef(Py_None);
}

static void client_dealloc(PyObject *object)
{
    client_object *self = (client_object *)object;
    PyTypeObject *type = Py_TYPE(object);
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
    struct conn *conn = conn_ref(self->conn);
    gate_leave(&self->gate);
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
        out = Py_BuildValue("{s:O,s:K,s:K,s:K,s:I,s:s,s:s,s:O}", "connected",
                            info.state == RP_CLIENT_CONNECTED ? Py_True : Py_False, "id", info.id, "broker",
                            info.broker, "reconnects", info.reconnects, "max_batch", info.max_batch, "endpoint",
                            info.endpoint, "release", info.release, "tables", tables);
    Py_XDECREF(tables);
    conn_drop(&conn);
    return out;
}

static PyObject *client_usable(PyObject *object, void *unused)
{
    (void)unused;
    const struct gate *gate = &((client_object *)object)->gate;
    return PyBool_FromLong(!gate->closed && !gate_is_foreign(gate));
}

static PyMethodDef methods[] = {
    {"close", client_close, METH_NOARGS, "Gives up the connection; objects that use it keep it until they close."},
    {"state", client_state, METH_NOARGS,
     "A dict: connected, id, broker, reconnects, max_batch, endpoint, release, tables."},
    {"request", request_call, METH_VARARGS, "request(kind, timeout, text, number, count, data, keys, values)"},
    {NULL, NULL, 0, NULL},
};

static PyGetSetDef getters[] = {
    {"usable", client_usable, NULL, "False once it is closed, and in a process that was forked since.", NULL},
    {NULL, NULL, NULL, NULL, NULL},
};

static PyType_Slot slots[] = {
    {Py_tp_new, (void *)client_make},
    {Py_tp_dealloc, (void *)client_dealloc},
    {Py_tp_methods, methods},
    {Py_tp_getset, getters},
    {Py_tp_doc, "Client(endpoint, name=None, timeout=None): connects."},
    {0, NULL},
};

static PyType_Spec spec = {
    .name = "replaybus._core.Client", .basicsize = sizeof(client_object), .flags = Py_TPFLAGS_DEFAULT, .slots = slots};

bool client_register(PyObject *module)
{
    return core_add_type(module, "Client", &spec, &client_type);
}
