/* Writer: steps and items. A writer opens its stream when its columns are known: from a spec, or from the
 * first step. Selection: the slices of an item, prepared once for many items. */
#include "agent/python/src/writer.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define UNCLOSED_MS 2000 /* for the items of a writer that nobody closed */
#define GOODBYE_MS 1000  /* for the broker's answer when a writer whose items are confirmed closes */
#define DOOMED_MS 200 /* for the items of a writer that was closed from within a call; a vector has many such writers */

PyTypeObject *writer_type, *selection_type;

/* ---- Selection */

static bool read_slice(PyObject *spec, rp_slice *out)
{
    const char *name;
    int squeeze;
    long long start;
    if (!PyArg_ParseTuple(spec, "sO&O&LO&p", &name, core_u32, &out->column, core_u32, &out->count, &start, core_u32,
                          &out->stride, &squeeze))
        return false;
    out->start = start;
    out->squeeze = (uint32_t)squeeze;
    out->field = core_copy(name);
    return out->field != NULL;
}

static PyObject *selection_make(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    PyObject *slices;
    if (kwargs && PyDict_Size(kwargs) > 0) {
        PyErr_SetString(PyExc_TypeError, "a selection takes no keywords");
        return NULL;
    }
    if (!PyArg_ParseTuple(args, "O!", &PyTuple_Type, &slices))
        return NULL;
    selection_object *self = (selection_object *)PyType_GenericAlloc(type, 0);
    if (!self)
        return NULL;
    self->n = (uint32_t)PyTuple_Size(slices);
    self->slices = core_alloc(self->n, sizeof *self->slices);
    bool ok = self->slices != NULL;
    for (uint32_t i = 0; ok && i < self->n; i++)
        ok = read_slice(PyTuple_GetItem(slices, i), &self->slices[i]);
    if (ok)
        return (PyObject *)self;
    Py_DECREF(self);
    return NULL;
}

static void selection_dealloc(PyObject *object)
{
    selection_object *self = (selection_object *)object;
    for (uint32_t i = 0; self->slices && i < self->n; i++)
        free((char *)(uintptr_t)self->slices[i].field);
    free(self->slices);
    core_free(object);
}

/* ---- life */

static void forget_columns(writer_object *self)
{
    for (uint32_t i = 0; self->columns && i < self->n_columns; i++)
        free(self->columns[i].name);
    free(self->columns);
    free(self->cells);
    free(self->leaves);
    free(self->values);
    free(self->last);
    nest_destroy(&self->nest);
    self->columns = NULL;
    self->cells = NULL;
    self->leaves = NULL;
    self->values = NULL;
    self->last = NULL;
    self->n_columns = 0;
}

/* Without the GIL. */
static void end_stream(writer_object *self, int64_t timeout_ms)
{
    rp_error err;
    if (rp_writer_destroy(&self->writer, timeout_ms, &err) == RP_DEADLINE_EXCEEDED)
        log_line(LEVEL_WARN, "C0208", "a writer ends: its unconfirmed items may still come in, or be lost", "why=%s",
                 log_text(err.text));
}

static void writer_destroy(PyObject *object)
{
    writer_object *self = (writer_object *)object;
    const struct gate *gate = &self->guarded.gate;
    Py_BEGIN_ALLOW_THREADS;
    end_stream(self, gate->closing ? 0 : DOOMED_MS);
    Py_END_ALLOW_THREADS;
    conn_drop(&self->conn);
    forget_columns(self);
}

static PyObject *writer_make(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    (void)kwargs; /* for __init__ of the subclass */
    struct conn *conn = client_share(PyTuple_Size(args) > 0 ? PyTuple_GetItem(args, 0) : Py_None);
    writer_object *self = conn ? guarded_new(type, writer_destroy) : NULL;
    if (self)
        self->conn = conn;
    else
        conn_drop(&conn);
    return (PyObject *)self;
}

/* ---- opening the stream */

static bool read_shape(PyObject *shape, struct column *out)
{
    Py_ssize_t rank = PyTuple_Size(shape);
    if (rank < 0)
        return false;
    if (rank > (Py_ssize_t)RP_MAX_RANK) {
        PyErr_Format(PyExc_ValueError, "column '%s' has %zd dimensions, at most %u are possible", out->name, rank,
                     RP_MAX_RANK);
        return false;
    }
    out->rank = (uint32_t)rank;
    for (Py_ssize_t i = 0; i < rank; i++) {
        long long size = PyLong_AsLongLong(PyTuple_GetItem(shape, i));
        if (size < 0 || size > INT32_MAX) {
            if (!PyErr_Occurred())
                PyErr_Format(PyExc_ValueError, "column '%s' has a dimension of size %lld", out->name, size);
            return false;
        }
        out->shape[i] = (uint32_t)size;
    }
    out->row_bytes = dtype_row_bytes(out->dtype, out->rank, out->shape);
    if (out->row_bytes == DTYPE_NO_ROW)
        PyErr_Format(PyExc_ValueError, "a row of column '%s' has more than 1 GiB", out->name);
    return out->row_bytes != DTYPE_NO_ROW;
}

/* Reads (name, dtype name, shape). False with an exception set. */
static bool read_column(PyObject *spec, struct column *out)
{
    const char *name, *dtype;
    PyObject *shape;
    if (!PyArg_ParseTuple(spec, "ssO!", &name, &dtype, &PyTuple_Type, &shape))
        return false;
    *out = (struct column){.name = core_copy(name), .dtype = dtype_by_name(dtype)};
    if (!out->name)
        return false;
    if (out->dtype > 0)
        return read_shape(shape, out);
    PyErr_Format(PyExc_ValueError, "column '%s': there is no element type '%s'", name, dtype);
    return false;
}

static bool read_columns(writer_object *self, PyObject *plan, PyObject *columns)
{
    Py_ssize_t n = PyTuple_Size(columns);
    if (n < 1 || n > (Py_ssize_t)RP_MAX_COLUMNS) {
        PyErr_Format(PyExc_ValueError, "a step has 1 to %u values, not %zd", RP_MAX_COLUMNS, n);
        return false;
    }
    self->columns = core_alloc((size_t)n, sizeof *self->columns);
    self->cells = core_alloc((size_t)n, sizeof *self->cells);
    self->leaves = core_alloc((size_t)n, sizeof *self->leaves);
    self->values = core_alloc((size_t)n, sizeof *self->values);
    if (!self->columns || !self->cells || !self->leaves || !self->values)
        return false;
    self->n_columns = (uint32_t)n;
    for (Py_ssize_t i = 0; i < n; i++)
        if (!read_column(PyTuple_GetItem(columns, i), &self->columns[i]))
            return false;
    self->nest = nest_new(plan);
    if (self->nest && nest_leaves(self->nest) != self->n_columns)
        PyErr_SetString(PyExc_ValueError, "the plan and the columns differ in number");
    return !PyErr_Occurred();
}

/* Borrows the names. */
static void list_columns(const writer_object *self, rp_codec codec, rp_column *out)
{
    for (uint32_t i = 0; i < self->n_columns; i++) {
        const struct column *column = &self->columns[i];
        out[i] = (rp_column){.name = column->name, .dtype = column->dtype, .codec = codec, .rank = column->rank};
        memcpy(out[i].shape, column->shape, sizeof column->shape);
    }
}

static bool open_stream(writer_object *self, rp_codec codec, const rp_writer_options *options, int64_t timeout_ms)
{
    rp_column columns[RP_MAX_COLUMNS];
    rp_error err;
    struct watch watch;
    static uint64_t n_opened; /* guarded by the GIL */
    list_columns(self, codec, columns);
    watch_begin(&watch, &self->guarded.gate);
    rp_writer *writer = rp_writer_new(self->conn->client, columns, self->n_columns, options, timeout_ms, &err);
    bool ok = watch_end(&watch);
    if (!ok)
        rp_writer_destroy(&writer, 0, NULL);
    else if (!writer && gate_check(&self->guarded.gate))
        core_raise(err.status, err.text);
    self->writer = writer;
    self->opened = ++n_opened;
    return writer != NULL;
}

/* _open(plan, columns, name, chunk_length, keep_alive, max_in_flight, history, compress, timeout) */
static PyObject *writer_open(PyObject *object, PyObject *args)
{
    writer_object *self = (writer_object *)object;
    rp_writer_options options = {.struct_size = sizeof options};
    PyObject *plan, *columns, *seconds;
    long long chunk_length, keep_alive, max_in_flight;
    int history, compress;
    int64_t timeout_ms;
    if (!PyArg_ParseTuple(args, "OO!zLLLppO", &plan, &PyTuple_Type, &columns, &options.name, &chunk_length, &keep_alive,
                          &max_in_flight, &history, &compress, &seconds) ||
        !core_count(chunk_length, "chunk_length", 0, UINT32_MAX) ||
        !core_count(keep_alive, "keep_alive", 0, INT64_MAX) ||
        !core_count(max_in_flight, "max_in_flight", 0, INT64_MAX) || !core_timeout(seconds, &timeout_ms) ||
        !gate_enter(&self->guarded.gate, "writer"))
        return NULL;
    options.chunk_length = (uint32_t)chunk_length;
    options.keep_alive = (uint64_t)keep_alive;
    options.max_in_flight_items = (uint64_t)max_in_flight;
    options.history = (uint32_t)history;
    bool ok = self->writer != NULL; /* another thread was first */
    if (!ok) {
        ok = read_columns(self, plan, columns) &&
             open_stream(self, compress ? RP_CODEC_AUTO : RP_CODEC_RAW, &options, timeout_ms);
        if (!ok)
            forget_columns(self);
    }
    ok = ok && gate_check(&self->guarded.gate);
    gate_leave(&self->guarded.gate);
    return ok ? Py_NewRef(Py_None) : NULL;
}

/* ---- steps */

/* Opens the stream from a first step, if it is not open; then enters the gate. */
static bool enter_open(writer_object *self, PyObject *step)
{
    if (!self->writer && !self->guarded.gate.closed && !gate_is_foreign(&self->guarded.gate)) {
        if (!step) {
            core_raise(RP_FAILED_PRECONDITION, "the writer has no steps yet");
            return false;
        }
        PyObject *done = PyObject_CallMethod((PyObject *)self, "_first", "(O)", step);
        if (!done)
            return false;
        Py_DECREF(done);
    }
    return gate_enter(&self->guarded.gate, "writer");
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
    ok = ok && gate_call(&self->guarded.gate, append_attempt, self, timeout_ms);
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
    gate_leave(&self->guarded.gate);
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
    static const char *const names[] = {"table", "priority", "slices", "timeout", "group"};
    writer_object *self = (writer_object *)object;
    PyObject *values[5], *selection;
    int64_t timeout_ms = -1;
    struct item item = {.priority = 1};
    if (!read_fast(names, 5, args, n_args, keywords, values))
        return NULL;
    item.table = core_text(values[0], "a table's name");
    if (!item.table || (values[3] && !core_timeout(values[3], &timeout_ms)))
        return NULL;
    if ((values[1] && !core_number(values[1], "a priority", &item.priority)) ||
        !read_slices(object, values[2], &item, &selection))
        return NULL;
    unsigned long long group = values[4] && values[4] != Py_None ? PyLong_AsUnsignedLongLong(values[4]) : self->group;
    bool ok = !PyErr_Occurred() && enter_open(self, NULL);
    if (ok) {
        item.writer = self->writer;
        if (group != self->group)
            rp_writer_set_group(self->writer, group);
        ok = gate_call(&self->guarded.gate, item_attempt, &item, timeout_ms);
        if (group != self->group)
            rp_writer_set_group(self->writer, self->group);
        gate_leave(&self->guarded.gate);
    }
    Py_XDECREF(selection);
    return ok ? PyLong_FromUnsignedLongLong(item.key) : NULL;
}

/* ---- flush, end_episode */

struct finish {
    writer_object *object;
    uint64_t max_unconfirmed;
    int32_t mode;
};

static rp_status flush_attempt(void *call, int64_t timeout_ms, rp_error *err)
{
    struct finish *self = call;
    rp_writer *writer = self->object->writer;
    return writer ? rp_writer_flush(writer, self->max_unconfirmed, timeout_ms, err) : RP_OK;
}

static rp_status end_attempt(void *call, int64_t timeout_ms, rp_error *err)
{
    struct finish *self = call;
    rp_writer *writer = self->object->writer;
    if (!writer)
        return RP_OK;
    rp_writer_info info = {.struct_size = sizeof info};
    rp_status status = rp_writer_end_episode(writer, self->mode, timeout_ms, err);
    rp_writer_get_info(writer, &info, NULL);
    self->object->episode_steps = info.episode_steps;
    return status;
}

static PyObject *writer_flush(PyObject *object, PyObject *args, PyObject *kwargs)
{
    static char *names[] = {"max_unconfirmed", "timeout", NULL};
    struct finish call = {.object = (writer_object *)object};
    long long max_unconfirmed = 0;
    PyObject *seconds = Py_None;
    int64_t timeout_ms;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "|LO", names, &max_unconfirmed, &seconds) ||
        !core_count(max_unconfirmed, "max_unconfirmed", 0, INT64_MAX) || !core_timeout(seconds, &timeout_ms))
        return NULL;
    call.max_unconfirmed = (uint64_t)max_unconfirmed;
    return guarded_call(&call.object->guarded, "writer", flush_attempt, &call, timeout_ms) ? Py_NewRef(Py_None) : NULL;
}

static PyObject *writer_end_episode(PyObject *object, PyObject *args, PyObject *kwargs)
{
    static char *names[] = {"wait", "timeout", NULL};
    struct finish call = {.object = (writer_object *)object};
    int wait = 1;
    PyObject *seconds = Py_None;
    int64_t timeout_ms;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "|pO", names, &wait, &seconds) ||
        !core_timeout(seconds, &timeout_ms))
        return NULL;
    call.mode = wait ? RP_END_WAIT : RP_END_GO;
    return guarded_call(&call.object->guarded, "writer", end_attempt, &call, timeout_ms) ? Py_NewRef(Py_None) : NULL;
}

/* ---- what became of the items */

static PyObject *writer_info(PyObject *object, PyObject *unused)
{
    (void)unused;
    writer_object *self = (writer_object *)object;
    if (!gate_enter(&self->guarded.gate, "writer"))
        return NULL;
    rp_writer_info info = {.struct_size = sizeof info};
    if (self->writer)
        rp_writer_get_info(self->writer, &info, NULL);
    gate_leave(&self->guarded.gate);
    return Py_BuildValue("{s:I,s:K,s:K,s:K,s:K,s:K,s:K,s:K,s:K,s:K,s:K}", "episode", info.episode, "steps", info.steps,
                         "episode_steps", info.episode_steps, "created", info.created, "sent", info.sent, "accepted",
                         info.accepted, "rejected", info.rejected, "in_doubt", info.in_doubt, "unconfirmed",
                         info.unconfirmed, "bytes", info.bytes, "sessions", info.sessions);
}

static PyObject *writer_rejection(PyObject *object, PyObject *unused)
{
    (void)unused;
    writer_object *self = (writer_object *)object;
    if (!gate_enter(&self->guarded.gate, "writer"))
        return NULL;
    rp_rejection rejection;
    bool any = self->writer && rp_writer_next_rejection(self->writer, &rejection) == RP_OK;
    gate_leave(&self->guarded.gate);
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
    gate_leave(&self->guarded.gate);
    return out;
}

static PyObject *writer_set_policy(PyObject *object, PyObject *version)
{
    writer_object *self = (writer_object *)object;
    unsigned long long number = PyLong_AsUnsignedLongLong(version);
    if (PyErr_Occurred() || !enter_open(self, NULL))
        return NULL;
    rp_writer_set_policy(self->writer, number);
    gate_leave(&self->guarded.gate);
    return Py_NewRef(Py_None);
}

static PyObject *writer_set_group(PyObject *object, PyObject *group)
{
    writer_object *self = (writer_object *)object;
    unsigned long long number = PyLong_AsUnsignedLongLong(group);
    if (PyErr_Occurred() || !enter_open(self, NULL))
        return NULL;
    self->group = number;
    rp_writer_set_group(self->writer, number);
    gate_leave(&self->guarded.gate);
    return Py_NewRef(Py_None);
}

/* ---- patterns: items that a writer makes by rule */

static bool read_conditions(PyObject *list, rp_condition *out, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++) {
        int kind;
        uint32_t column;
        unsigned long long a;
        PyObject *number;
        if (!PyArg_ParseTuple(PyTuple_GetItem(list, i), "iO&KO", &kind, core_u32, &column, &a, &number))
            return false;
        out[i] = (rp_condition){.kind = kind, .column = column, .a = a};
        if (kind == RP_WHEN_VALUE || kind == RP_WHEN_STEPS)
            out[i].number = PyFloat_AsDouble(number);
        else
            out[i].b = PyLong_AsUnsignedLongLong(number);
        if (PyErr_Occurred())
            return false;
    }
    return true;
}

static bool add_pattern(writer_object *self, const rp_pattern *pattern)
{
    rp_error err;
    if (!gate_enter(&self->guarded.gate, "writer"))
        return false;
    rp_status status = RP_FAILED_PRECONDITION;
    const char *text = "the writer has no columns before its first step: give it a spec";
    if (self->writer) {
        status = rp_writer_add_pattern(self->writer, pattern, &err);
        text = err.text;
    }
    gate_leave(&self->guarded.gate);
    if (status != RP_OK)
        core_raise(status, text);
    return status == RP_OK;
}

static PyObject *writer_add_pattern(PyObject *object, PyObject *args)
{
    rp_pattern pattern = {.priority = 1};
    PyObject *selection, *conditions;
    if (!PyArg_ParseTuple(args, "sdO!O!", &pattern.table, &pattern.priority, selection_type, &selection, &PyTuple_Type,
                          &conditions))
        return NULL;
    pattern.n_conditions = (uint32_t)PyTuple_Size(conditions);
    rp_condition *list = core_alloc(pattern.n_conditions, sizeof *list);
    if (!list)
        return NULL;
    pattern.conditions = list;
    pattern.slices = ((selection_object *)selection)->slices;
    pattern.n_slices = ((selection_object *)selection)->n;
    bool ok = read_conditions(conditions, list, pattern.n_conditions) && add_pattern((writer_object *)object, &pattern);
    free(list);
    return ok ? Py_NewRef(Py_None) : NULL;
}

/* ---- the end */

static PyObject *writer_close(PyObject *object, PyObject *args, PyObject *kwargs)
{
    writer_object *self = (writer_object *)object;
    int64_t timeout_ms;
    if (!core_timeout_argument(args, kwargs, &timeout_ms))
        return NULL;
    if (!gate_close(&self->guarded.gate))
        return PyErr_Occurred() ? NULL : Py_NewRef(Py_None);
    struct finish call = {.object = self};
    bool ok = gate_is_foreign(&self->guarded.gate) || gate_call(&self->guarded.gate, flush_attempt, &call, timeout_ms);
    if (!gate_reopen(&self->guarded.gate)) {
        struct watch watch;
        watch_begin(&watch, NULL);
        end_stream(self, ok ? GOODBYE_MS : 0);
        ok = watch_end(&watch) && ok;
        writer_destroy(object);
    }
    gate_leave(&self->guarded.gate);
    return ok ? Py_NewRef(Py_None) : NULL;
}

/* A writer that nobody closed: what Python keeps for it, such as its server, is still there. */
static PyObject *writer_del(PyObject *object, PyObject *unused)
{
    Py_BEGIN_ALLOW_THREADS;
    end_stream((writer_object *)object, UNCLOSED_MS);
    Py_END_ALLOW_THREADS;
    return guarded_close(object, unused);
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

static PyMethodDef methods[] = {
    {"append", CORE_METHOD(writer_append), METH_FASTCALL | METH_KEYWORDS,
     "append($self, step, timeout=None)\n--\n\nAppends one step: an array, or a nest of dicts, tuples and lists of "
     "arrays."},
    {"item", CORE_METHOD(writer_item), METH_FASTCALL | METH_KEYWORDS,
     "item($self, table, priority=1.0, slices=1, timeout=None, group=None)\n--\n\n"
     "Makes an item over recent steps and returns its key. slices: a number of steps, or what select takes. group: the "
     "key of its "
     "group, if the table has groups; None: as set_group says."},
    {"flush", CORE_METHOD(writer_flush), METH_VARARGS | METH_KEYWORDS,
     "flush($self, max_unconfirmed=0, timeout=None)\n--\n\nWaits until at most max_unconfirmed items are unconfirmed."},
    {"end_episode", CORE_METHOD(writer_end_episode), METH_VARARGS | METH_KEYWORDS,
     "end_episode($self, wait=True, timeout=None)\n--\n\n"
     "Ends the episode: later items cannot refer to its steps. wait: until all items are confirmed."},
    {"close", CORE_METHOD(writer_close), METH_VARARGS | METH_KEYWORDS,
     "close($self, timeout=None)\n--\n\nWaits until all items are confirmed, then closes the stream."},
    {"_give_up", guarded_close, METH_NOARGS, "Closes the stream without waiting for its items."},
    {"__del__", writer_del, METH_NOARGS, "Waits a moment for the items of a writer that nobody closed."},
    {"info", writer_info, METH_NOARGS, "info($self)\n--\n\nCounts of steps and items, as a dict."},
    {"set_policy", writer_set_policy, METH_O,
     "set_policy($self, version, /)\n--\n\nSets the version of the parameters that make the steps from now on."},
    {"set_group", writer_set_group, METH_O,
     "set_group($self, group, /)\n--\n\nSets the group of the items from now on; 0: none."},
    {"_row", writer_row, METH_O,
     "_row(step): the values of a step of the history, as bytes; None where there is none."},
    {"_rejection", writer_rejection, METH_NOARGS, "(status, key, table, text) of the oldest rejection, or None."},
    {"_open", writer_open, METH_VARARGS, "Opens the stream."},
    {"_add_pattern", writer_add_pattern, METH_VARARGS, "_add_pattern(table, priority, selection, conditions)"},
    {NULL, NULL, 0, NULL},
};

static PyGetSetDef getters[] = {
    {"closed", guarded_closed, NULL, "Whether close was called.", NULL},
    {"is_open", writer_is_open, NULL, "Whether the columns are known and the stream is open.", NULL},
    {"episode_steps", writer_episode_steps, NULL, "Steps of the present episode.", NULL},
    {NULL, NULL, NULL, NULL, NULL},
};

const struct core_type writer_core = {
    .name = "replaybus._core.Writer",
    .doc = "A stream of steps, and items over them.",
    .size = sizeof(writer_object),
    .make = writer_make,
    .dealloc = guarded_dealloc,
    .methods = methods,
    .getters = getters,
    .is_base = true,
    .out = &writer_type,
};
const struct core_type selection_core = {
    .name = "replaybus._core.Selection",
    .doc = "Selection(((field, column, count, start, stride, squeeze), ...)): made by Writer.select.",
    .size = sizeof(selection_object),
    .make = selection_make,
    .dealloc = selection_dealloc,
    .out = &selection_type,
};
