/* Server: a broker inside this process. Starting and stopping cannot be interrupted: replaybus.Server calls them on a thread. */
#include "agent/python/src/core.h"

#include "replay/server.h"

typedef struct server_object {
    struct guarded guarded;
    rp_server *server;
} server_object;

static void server_destroy(PyObject *object)
{
    Py_BEGIN_ALLOW_THREADS;
    rp_server_stop(&((server_object *)object)->server);
    Py_END_ALLOW_THREADS;
}

static PyObject *server_make(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    static char *names[] = {"yaml", NULL};
    const char *yaml;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "s", names, &yaml))
        return NULL;
    rp_error err;
    rp_server *server;
    Py_BEGIN_ALLOW_THREADS;
    server = rp_server_start(yaml, NULL, &err);
    Py_END_ALLOW_THREADS;
    if (!server)
        return core_raise(err.status, err.text);
    server_object *self = guarded_new(type, server_destroy);
    if (self)
        self->server = server;
    else
        rp_server_stop(&server);
    return (PyObject *)self;
}

static PyObject *server_endpoint(PyObject *object, void *unused)
{
    (void)unused;
    server_object *self = (server_object *)object;
    if (!gate_enter(&self->guarded.gate, "server"))
        return NULL;
    PyObject *endpoint = PyUnicode_FromString(rp_server_endpoint(self->server));
    gate_leave(&self->guarded.gate);
    return endpoint;
}

static PyMethodDef methods[] = {
    {"stop", guarded_close, METH_NOARGS, "Ends the broker; with a journal or checkpoints, its state is on disk."},
    {NULL, NULL, 0, NULL},
};

static PyGetSetDef getters[] = {
    {"endpoint", server_endpoint, NULL, "The service endpoint.", NULL},
    {NULL, NULL, NULL, NULL, NULL},
};

const struct core_type server_core = {
    .name = "replaybus._core.Server",
    .doc = "Server(yaml): a broker inside this process.",
    .size = sizeof(server_object),
    .make = server_make,
    .dealloc = guarded_dealloc,
    .methods = methods,
    .getters = getters,
};
