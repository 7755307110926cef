/* Server: a broker inside this process. It starts and stops on a helper thread, so that a signal ends the wait. */
#include "agent/python/src/core.h"

#include <stdlib.h>
#include <string.h>

#include "replay/server.h"

typedef struct server_object {
    struct guarded guarded;
    rp_server *server;
} server_object;

struct change {
    struct job job;
    char *yaml; /* NULL: stop */
    rp_server *server;
    rp_error err;
};

static void change_run(struct job *job)
{
    struct change *self = (struct change *)job;
    if (self->yaml)
        self->server = rp_server_start(self->yaml, NULL, &self->err);
    else
        rp_server_stop(&self->server);
}

static void change_drop(struct job *job)
{
    struct change *self = (struct change *)job;
    rp_server_stop(&self->server);
    free(self->yaml);
    free(self);
}

static struct change *change_new(const char *yaml, rp_server *server)
{
    struct change *self = core_alloc(1, sizeof *self);
    if (self)
        *self =
            (struct change){.job = {.run = change_run, .drop = change_drop}, .yaml = core_copy(yaml), .server = server};
    if (self && yaml && !self->yaml) {
        free(self);
        return NULL;
    }
    return self;
}

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
    struct change *call = change_new(yaml, NULL);
    if (!call || !job_wait(&call->job))
        return NULL;
    server_object *self = NULL;
    if (!call->server)
        core_raise(call->err.status, call->err.text);
    else if ((self = guarded_new(type, server_destroy))) {
        self->server = call->server;
        call->server = NULL;
    }
    Py_BEGIN_ALLOW_THREADS;
    change_drop(&call->job);
    Py_END_ALLOW_THREADS;
    return (PyObject *)self;
}

static PyObject *server_stop(PyObject *object, PyObject *unused)
{
    (void)unused;
    server_object *self = (server_object *)object;
    if (!gate_close(&self->guarded.gate))
        return PyErr_Occurred() ? NULL : Py_NewRef(Py_None);
    rp_server *server = self->server;
    self->server = NULL;
    gate_leave(&self->guarded.gate);
    struct change *call = change_new(NULL, server);
    if (!call || !job_wait(&call->job))
        return NULL;
    change_drop(&call->job);
    return Py_NewRef(Py_None);
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
    {"stop", server_stop, METH_NOARGS, "Ends the broker; with a journal or checkpoints, its state is on disk."},
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
