/* Writer: steps and items. It opens its stream when its columns are known: from a spec, or from the first step. */
#include "agent/python/src/core.h"

#include <stdio.h>

#define UNCLOSED_MS 2000 /* for the items of a writer that nobody closed */
#define GOODBYE_MS 1000  /* for the broker's answer when a writer whose items are confirmed closes */
#define DOOMED_MS 200 /* for the items of a writer that was closed from within a call; a vector has many such writers */

PyTypeObject *writer_type;

static void give_up(writer_object *self, int64_t timeout_ms)
{
    Py_BEGIN_ALLOW_THREADS;
    rp_writer_destroy(&self->writer, timeout_ms, NULL);
    Py_END_ALLOW_THREADS;
    conn_drop(&self->conn);
    writer_forget_columns(self);
}

static void destroy(PyObject *object)
{
    give_up((writer_object *)object, DOOMED_MS);
}

static PyObject *writer_make(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    (void)kwargs; /* for __init__ of the subclass */
    PyObject *client = PyTuple_Size(args) > 0 ? PyTuple_GetItem(args, 0) : Py_None;
    struct conn *conn = client_share(client);
    if (!conn)
        return NULL;
    allocfunc alloc = (allocfunc)PyType_GetSlot(type, Py_tp_alloc);
    writer_object *self = (writer_object *)alloc(type, 0);
    if (!self) {
        conn_drop(&conn);
        return NULL;
    }
    gate_open(&self->gate, (PyObject *)self, destroy);
    self->conn = conn;
    return (PyObject *)self;
}

/* ---- steps */

/* Opens the stream from a first step, if it is not open; then enters the gate. */
static bool enter_open(writer_object *self, PyObject *step)
{
    if (!self->writer && !self->gate.closed && !gate_is_foreign(&self->gate)) {
        if (!step) {
            core_raise(RP_FAILED_PRECONDITION, "the writer has no steps yet");
            return false;
        }
        PyObject *done = PyObject_CallMethod((PyObject *)self, "_first", "(O)", step);
        if (!done)
            return false;
        Py_DECREF(done);
    }
    return gate_enter(&self->gate, "writer");
}

static rp_status append_attempt(void *call, int64_t timeout_ms, rp_error *err)
{
    writer_object *self = call;
    return rp_writer_append(self->writer, self->values, timeout_ms, err);
}

static bool append_step(writer_object *self, PyObject *step, int64_t timeout_ms)
{
    if (!nest_flatten(self->nest, step, self->leaves))
        return false;
    uint32_t n = 0;
    bool ok = true;
    for (; ok && n < self->n_columns; n++) {
        ok = cell_take(&self->cells[n], &self->columns[n], self->leaves[n], 0);
        self->values[n] = self->cells[n].data;
    }
    ok = ok && gate_call(&self->gate, append_attempt, self, timeout_ms);
    cells_release(self->cells, n);
    nest_release(self->leaves, self->n_columns);
    self->episode_steps += ok;
    return ok;
}

/* Reads positional and keyword arguments into out, by the names; NULL where none is given. */
static bool read_fast(const char *const *names, Py_ssize_t n, PyObject *const *args, Py_ssize_t n_args,
                      PyObject *keywords, PyObject **out)
{
    if (n_args > n) {
        PyErr_Format(PyExc_TypeError, "at most %zd arguments are possible, not %zd", n, n_args);
        return false;
    }
    for (Py_ssize_t i = 0; i < n; i++)
        out[i] = i < n_args ? args[i] : NULL;
    for (Py_ssize_t i = 0; keywords && i < PyTuple_Size(keywords); i++) {
        PyObject *keyword = PyTuple_GetItem(keywords, i);
        Py_ssize_t at = 0;
        while (at < n && PyUnicode_CompareWithASCIIString(keyword, names[at]) != 0)
            at++;
        if (at == n || out[at]) {
            PyErr_Format(PyExc_TypeError, at == n ? "there is no argument %R" : "the argument %R is given twice",
                         keyword);
            return false;
        }
        out[at] = args[n_args + i];
    }
    return true;
}

static PyObject *writer_append(PyObject *object, PyObject *const *args, Py_ssize_t n_args, PyObject *keywords)
{
    static const char *const names[] = {"step", "timeout"};
    writer_object *self = (writer_object *)object;
    PyObject *values[2];
    int64_t timeout_ms = -1;
    if (!read_fast(names, 2, args, n_args, keywords, values))
        return NULL;
    if (!values[0]) {
        PyErr_SetString(PyExc_TypeError, "append needs a step");
        return NULL;
    }
    if ((values[1] && !core_timeout(values[1], &timeout_ms)) || !enter_open(self, values[0]))
        return NULL;
    bool ok = append_step(self, values[0], timeout_ms);
    gate_leave(&self->gate);
    return ok ? Py_NewRef(Py_None) : NULL;
}

/* ---- items */

struct item {
    rp_writer *writer;
    const char *table;
    double priority;
    const selection_object *selection; /* NULL: the last `steps` steps */
    uint32_t steps;
    uint64_t key;
};

static rp_status item_attempt(void *call, int64_t timeout_ms, rp_error *err)
{
    struct item *self = call;
    if (!self->selection)
        return rp_writer_item_last(self->writer, self->table, self->priority, self->steps, timeout_ms, &self->key, err);
    return rp_writer_item(self->writer, self->table, self->priority, self->selection->slices, self->selection->n,
                          timeout_ms, &self->key, err);
}

static bool read_steps(PyObject *number, uint32_t *out)
{
    Py_ssize_t steps = PyNumber_AsSsize_t(number, NULL);
    if (steps == -1 && PyErr_Occurred())
        return false;
    if (steps < 1) {
        char text[64];
        snprintf(text, sizeof text, "an item has at least one step, not %zd", steps);
        core_raise(RP_INVALID_ARGUMENT, text);
        return false;
    }
    *out = steps > UINT32_MAX ? UINT32_MAX : (uint32_t)steps;
    return true;
}

/* Sets steps, or *selection to a new reference. */
static bool read_slices(PyObject *writer, PyObject *slices, struct item *item, PyObject **selection)
{
    *selection = NULL;
    item->steps = 1;
    if (!slices)
        return true;
    if (PyLong_CheckExact(slices) || PyIndex_Check(slices))
        return read_steps(slices, &item->steps);
    if (PyObject_TypeCheck(slices, selection_type))
        *selection = Py_NewRef(slices);
    else
        *selection = PyObject_CallMethod(writer, "select", "(O)", slices);
    if (*selection && !PyObject_TypeCheck(*selection, selection_type)) {
        PyErr_SetString(PyExc_TypeError, "select must return a Selection");
        Py_CLEAR(*selection);
    }
    item->selection = (selection_object *)*selection;
    return *selection != NULL;
}

static PyObject *writer_item(PyObject *object, PyObject *const *args, Py_ssize_t n_args, PyObject *keywords)
{
    static const char *const names[] = {"table", "priority", "slices", "timeout"};
    writer_object *self = (writer_object *)object;
    PyObject *values[4], *selection;
    int64_t timeout_ms = -1;
    struct item item = {.priority = 1};
    if (!read_fast(names, 4, args, n_args, keywords, values))
        return NULL;
    item.table = core_text(values[0], "a table's name");
    if (!item.table || (values[3] && !core_timeout(values[3], &timeout_ms)))
        return NULL;
    item.priority = values[1] ? PyFloat_AsDouble(values[1]) : 1.0;
    if ((item.priority == -1.0 && PyErr_Occurred()) || !read_slices(object, values[2], &item, &selection))
        return NULL;
    bool ok = enter_open(self, NULL);
    if (ok) {
        item.writer = self->writer;
        ok = gate_call(&self->gate, item_attempt, &item, timeout_ms);
        gate_leave(&self->gate);
    }
    Py_XDECREF(selection);
    return ok ? PyLong_FromUnsignedLongLong(item.key) : NULL;
}

/* ---- flush, end_episode */

struct finish {
    rp_writer *writer;
    uint64_t max_unconfirmed;
    int32_t mode;
};

static rp_status flush_attempt(void *call, int64_t timeout_ms, rp_error *err)
{
    struct finish *self = call;
    return rp_writer_flush(self->writer, self->max_unconfirmed, timeout_ms, err);
}

static rp_status end_attempt(void *call, int64_t timeout_ms, rp_error *err)
{
    struct finish *self = call;
    return rp_writer_end_episode(self->writer, self->mode, timeout_ms, err);
}

static PyObject *writer_flush(PyObject *object, PyObject *args, PyObject *kwargs)
{
    static char *names[] = {"max_unconfirmed", "timeout", NULL};
    writer_object *self = (writer_object *)object;
    unsigned long long max_unconfirmed = 0;
    PyObject *seconds = Py_None;
    int64_t timeout_ms;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "|KO", names, &max_unconfirmed, &seconds) ||
        !core_timeout(seconds, &timeout_ms) || !gate_enter(&self->gate, "writer"))
        return NULL;
    struct finish call = {.writer = self->writer, .max_unconfirmed = max_unconfirmed};
    bool ok = !self->writer || gate_call(&self->gate, flush_attempt, &call, timeout_ms);
    gate_leave(&self->gate);
    return ok ? Py_NewRef(Py_None) : NULL;
}

static PyObject *writer_end_episode(PyObject *object, PyObject *args, PyObject *kwargs)
{
    static char *names[] = {"wait", "timeout", NULL};
    writer_object *self = (writer_object *)object;
    int wait = 1;
    PyObject *seconds = Py_None;
    int64_t timeout_ms;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "|pO", names, &wait, &seconds) ||
        !core_timeout(seconds, &timeout_ms) || !gate_enter(&self->gate, "writer"))
        return NULL;
    struct finish call = {.writer = self->writer, .mode = wait ? RP_END_WAIT : RP_END_GO};
    bool ok = !self->writer || gate_call(&self->gate, end_attempt, &call, timeout_ms);
    if (self->writer) {
        rp_writer_info info = {.struct_size = sizeof info};
        rp_writer_get_info(self->writer, &info, NULL);
        self->episode_steps = info.episode_steps;
    }
    gate_leave(&self->gate);
    return ok ? Py_NewRef(Py_None) : NULL;
}

/* ---- what became of the items */

static PyObject *writer_info(PyObject *object, PyObject *unused)
{
    (void)unused;
    writer_object *self = (writer_object *)object;
    if (!gate_enter(&self->gate, "writer"))
        return NULL;
    rp_writer_info info = {.struct_size = sizeof info};
    if (self->writer)
        rp_writer_get_info(self->writer, &info, NULL);
    gate_leave(&self->gate);
    return Py_BuildValue("{s:I,s:K,s:K,s:K,s:K,s:K,s:K,s:K,s:K,s:K,s:K}", "episode", info.episode, "steps", info.steps,
                         "episode_steps", info.episode_steps, "created", info.created, "sent", info.sent, "accepted",
                         info.accepted, "rejected", info.rejected, "in_doubt", info.in_doubt, "unconfirmed",
                         info.unconfirmed, "bytes", info.bytes, "sessions", info.sessions);
}

static PyObject *writer_rejection(PyObject *object, PyObject *unused)
{
    (void)unused;
    writer_object *self = (writer_object *)object;
    if (!gate_enter(&self->gate, "writer"))
        return NULL;
    rp_rejection rejection;
    bool any = self->writer && rp_writer_next_rejection(self->writer, &rejection) == RP_OK;
    gate_leave(&self->gate);
    if (!any)
        return Py_NewRef(Py_None);
    return Py_BuildValue("(iKss)", (int)rejection.status, rejection.key, rejection.table, rejection.text);
}

/* The values of a step in the order of the columns, as bytes; None where the step has none. */
static PyObject *copy_row(writer_object *self, int64_t step)
{
    PyObject *out = PyTuple_New(self->n_columns);
    for (uint32_t i = 0; out && i < self->n_columns; i++) {
        const void *row;
        rp_error err;
        rp_status status = rp_writer_row(self->writer, i, step, &row, &err);
        if (status != RP_OK)
            core_raise(status, err.text);
        PyObject *value = NULL;
        if (status == RP_OK)
            value = row ? PyBytes_FromStringAndSize(row, (Py_ssize_t)self->columns[i].row_bytes) : Py_NewRef(Py_None);
        if (!value || PyTuple_SetItem(out, i, value) < 0)
            Py_CLEAR(out);
    }
    return out;
}

static PyObject *writer_row(PyObject *object, PyObject *number)
{
    writer_object *self = (writer_object *)object;
    long long step = PyLong_AsLongLong(number);
    if (PyErr_Occurred() || !enter_open(self, NULL))
        return NULL;
    PyObject *out = copy_row(self, step);
    gate_leave(&self->gate);
    return out;
}

static PyObject *writer_set_policy(PyObject *object, PyObject *version)
{
    writer_object *self = (writer_object *)object;
    unsigned long long number = PyLong_AsUnsignedLongLong(version);
    if (PyErr_Occurred() || !enter_open(self, NULL))
        return NULL;
    rp_writer_set_policy(self->writer, number);
    gate_leave(&self->gate);
    return Py_NewRef(Py_None);
}

/* ---- the end */

static PyObject *writer_close(PyObject *object, PyObject *args, PyObject *kwargs)
{
    static char *names[] = {"timeout", NULL};
    writer_object *self = (writer_object *)object;
    PyObject *seconds = Py_None;
    int64_t timeout_ms;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "|O", names, &seconds) || !core_timeout(seconds, &timeout_ms))
        return NULL;
    if (!gate_close(&self->gate))
        return PyErr_Occurred() ? NULL : Py_NewRef(Py_None);
    struct finish call = {.writer = self->writer};
    bool ok = !self->writer || gate_is_foreign(&self->gate) || gate_call(&self->gate, flush_attempt, &call, timeout_ms);
    if (ok) {
        struct watch watch;
        watch_begin(&watch, NULL);
        rp_writer_destroy(&self->writer, GOODBYE_MS, NULL);
        ok = watch_end(&watch);
    }
    give_up(self, 0);
    gate_leave(&self->gate);
    return ok ? Py_NewRef(Py_None) : NULL;
}

static void writer_dealloc(PyObject *object)
{
    PyTypeObject *type = Py_TYPE(object);
    give_up((writer_object *)object, UNCLOSED_MS);
    ((freefunc)PyType_GetSlot(type, Py_tp_free))(object);
    Py_DECREF(type);
}

static PyObject *writer_closed(PyObject *object, void *unused)
{
    (void)unused;
    return PyBool_FromLong(((writer_object *)object)->gate.closed);
}

static PyObject *writer_is_open(PyObject *object, void *unused)
{
    (void)unused;
    return PyBool_FromLong(((writer_object *)object)->writer != NULL);
}

static PyObject *writer_episode_steps(PyObject *object, void *unused)
{
    (void)unused;
    return PyLong_FromUnsignedLongLong(((writer_object *)object)->episode_steps);
}

#define METHOD(function) ((PyCFunction)(void (*)(void))(function))
static PyMethodDef methods[] = {
    {"append", METHOD(writer_append), METH_FASTCALL | METH_KEYWORDS,
     "append($self, step, timeout=None)\n--\n\nAppends one step: an array, or a nest of dicts, tuples and lists of "
     "arrays."},
    {"item", METHOD(writer_item), METH_FASTCALL | METH_KEYWORDS,
     "item($self, table, priority=1.0, slices=1, timeout=None)\n--\n\n"
     "Makes an item over recent steps and returns its key. slices: a number of steps, or what select takes."},
    {"flush", METHOD(writer_flush), METH_VARARGS | METH_KEYWORDS,
     "flush($self, max_unconfirmed=0, timeout=None)\n--\n\nWaits until at most max_unconfirmed items are unconfirmed."},
    {"end_episode", METHOD(writer_end_episode), METH_VARARGS | METH_KEYWORDS,
     "end_episode($self, wait=True, timeout=None)\n--\n\n"
     "Ends the episode: later items cannot refer to its steps. wait: until all items are confirmed."},
    {"close", METHOD(writer_close), METH_VARARGS | METH_KEYWORDS,
     "close($self, timeout=None)\n--\n\nWaits until all items are confirmed, then closes the stream."},
    {"info", writer_info, METH_NOARGS, "info($self)\n--\n\nCounts of steps and items, as a dict."},
    {"set_policy", writer_set_policy, METH_O,
     "set_policy($self, version, /)\n--\n\nSets the version of the parameters that make the items from now on."},
    {"_row", writer_row, METH_O,
     "_row(step): the values of a step of the history, as bytes; None where there is none."},
    {"_rejection", writer_rejection, METH_NOARGS, "(status, key, table, text) of the oldest rejection, or None."},
    {"_open", writer_open, METH_VARARGS, "Opens the stream."},
    {"_add_pattern", pattern_add, METH_VARARGS, "_add_pattern(table, priority, selection, conditions)"},
    {NULL, NULL, 0, NULL},
};

static PyGetSetDef getters[] = {
    {"closed", writer_closed, NULL, "Whether close was called.", NULL},
    {"is_open", writer_is_open, NULL, "Whether the columns are known and the stream is open.", NULL},
    {"episode_steps", writer_episode_steps, NULL, "Steps of the present episode.", NULL},
    {NULL, NULL, NULL, NULL, NULL},
};

static PyType_Slot slots[] = {
    {Py_tp_new, (void *)writer_make},
    {Py_tp_dealloc, (void *)writer_dealloc},
    {Py_tp_methods, methods},
    {Py_tp_getset, getters},
    {Py_tp_doc, "A stream of steps, and items over them."},
    {0, NULL},
};

static PyType_Spec spec = {.name = "replaybus._core.Writer",
                           .basicsize = sizeof(writer_object),
                           .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE,
                           .slots = slots};

bool writer_register(PyObject *module)
{
    return core_add_type(module, "Writer", &spec, &writer_type);
}
