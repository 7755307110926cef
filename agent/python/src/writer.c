/* Writer: steps and items, and many steps in one call. A writer opens its stream when its columns are known: from a spec, or from the
 * first step. Selection: the slices of an item, prepared once for many items. */
#include "agent/python/src/core.h"

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define UNCLOSED_MS 2000 /* for the items of a writer that nobody closed */
#define GOODBYE_MS 1000  /* for the broker's answer when a writer whose items are confirmed closes */
#define DOOMED_MS 200 /* for the items of a writer that was closed from within a call; a vector has many such writers */

typedef struct writer_object {
    struct guarded guarded;
    struct conn *conn;
    rp_writer *writer;
    struct nest *nest;
    struct column *columns;
    struct cell *cells;
    PyObject **leaves;
    const void **values;
    uint32_t n_columns;
    uint64_t episode_steps; /* in the present episode */
    uint64_t opened;        /* a number of its own for each writer that was opened; 0: not open */
    uint64_t twin;          /* `opened` of a writer with the same columns; 0: none known */
} writer_object;

typedef struct selection_object {
    PyObject_HEAD rp_slice *slices;
    uint32_t n;
} selection_object;

static PyTypeObject *writer_type, *selection_type;

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
    out->field = strdup(name);
    if (!out->field)
        PyErr_NoMemory();
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
    self->slices = calloc(self->n ? self->n : 1, sizeof *self->slices);
    bool ok = self->slices != NULL;
    if (!ok)
        PyErr_NoMemory();
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
    nest_destroy(&self->nest);
    self->columns = NULL;
    self->cells = NULL;
    self->leaves = NULL;
    self->values = NULL;
    self->n_columns = 0;
}

static void writer_destroy(PyObject *object)
{
    writer_object *self = (writer_object *)object;
    Py_BEGIN_ALLOW_THREADS;
    rp_writer_destroy(&self->writer, self->guarded.gate.closed ? DOOMED_MS : UNCLOSED_MS, NULL);
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
    out->row_bytes = column_itemsize(out->dtype);
    for (Py_ssize_t i = 0; i < rank; i++) {
        long long size = PyLong_AsLongLong(PyTuple_GetItem(shape, i));
        if (size < 0 || size > INT32_MAX) {
            if (!PyErr_Occurred())
                PyErr_Format(PyExc_ValueError, "column '%s' has a dimension of size %lld", out->name, size);
            return false;
        }
        out->shape[i] = (uint32_t)size;
        if (size > 0 && out->row_bytes > RP_MAX_ROW_BYTES / (uint64_t)size) {
            PyErr_Format(PyExc_ValueError, "a row of column '%s' has more than 1 GiB", out->name);
            return false;
        }
        out->row_bytes *= (uint64_t)size;
    }
    return true;
}

/* Reads (name, dtype name, shape). False with an exception set. */
static bool read_column(PyObject *spec, struct column *out)
{
    const char *name, *dtype;
    PyObject *shape;
    if (!PyArg_ParseTuple(spec, "ssO!", &name, &dtype, &PyTuple_Type, &shape))
        return false;
    *out = (struct column){.name = strdup(name), .dtype = column_dtype_named(dtype)};
    if (!out->name) {
        PyErr_NoMemory();
        return false;
    }
    if (out->dtype != 0)
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
    self->columns = calloc((size_t)n, sizeof *self->columns);
    self->cells = calloc((size_t)n, sizeof *self->cells);
    self->leaves = calloc((size_t)n, sizeof *self->leaves);
    self->values = calloc((size_t)n, sizeof *self->values);
    if (!self->columns || !self->cells || !self->leaves || !self->values) {
        PyErr_NoMemory();
        return false;
    }
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
static void list_columns(const writer_object *self, rp_column *out)
{
    for (uint32_t i = 0; i < self->n_columns; i++) {
        const struct column *column = &self->columns[i];
        out[i] =
            (rp_column){.name = column->name, .dtype = column->dtype, .codec = RP_CODEC_AUTO, .rank = column->rank};
        memcpy(out[i].shape, column->shape, sizeof column->shape);
    }
}

static bool open_stream(writer_object *self, const rp_writer_options *options, int64_t timeout_ms)
{
    rp_column columns[RP_MAX_COLUMNS];
    rp_error err;
    struct watch watch;
    static uint64_t n_opened; /* guarded by the GIL */
    list_columns(self, columns);
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

/* _open(plan, columns, name, chunk_length, keep_alive, max_in_flight, history, timeout) */
static PyObject *writer_open(PyObject *object, PyObject *args)
{
    writer_object *self = (writer_object *)object;
    rp_writer_options options = {.struct_size = sizeof options};
    PyObject *plan, *columns, *seconds;
    long long chunk_length, keep_alive, max_in_flight;
    int history;
    int64_t timeout_ms;
    if (!PyArg_ParseTuple(args, "OO!zLLLpO", &plan, &PyTuple_Type, &columns, &options.name, &chunk_length, &keep_alive,
                          &max_in_flight, &history, &seconds) ||
        !core_count(chunk_length, "chunk_length", UINT32_MAX) || !core_count(keep_alive, "keep_alive", INT64_MAX) ||
        !core_count(max_in_flight, "max_in_flight", INT64_MAX) || !core_timeout(seconds, &timeout_ms) ||
        !gate_enter(&self->guarded.gate, "writer"))
        return NULL;
    options.chunk_length = (uint32_t)chunk_length;
    options.keep_alive = (uint64_t)keep_alive;
    options.max_in_flight_items = (uint64_t)max_in_flight;
    options.history = (uint32_t)history;
    bool ok = self->writer != NULL; /* another thread was first */
    if (!ok) {
        ok = read_columns(self, plan, columns) && open_stream(self, &options, timeout_ms);
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
        ok = gate_call(&self->guarded.gate, item_attempt, &item, timeout_ms);
        gate_leave(&self->guarded.gate);
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
        !core_timeout(seconds, &timeout_ms) || !gate_enter(&self->guarded.gate, "writer"))
        return NULL;
    struct finish call = {.writer = self->writer, .max_unconfirmed = max_unconfirmed};
    bool ok = !self->writer || gate_call(&self->guarded.gate, flush_attempt, &call, timeout_ms);
    gate_leave(&self->guarded.gate);
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
        !core_timeout(seconds, &timeout_ms) || !gate_enter(&self->guarded.gate, "writer"))
        return NULL;
    struct finish call = {.writer = self->writer, .mode = wait ? RP_END_WAIT : RP_END_GO};
    bool ok = !self->writer || gate_call(&self->guarded.gate, end_attempt, &call, timeout_ms);
    if (self->writer) {
        rp_writer_info info = {.struct_size = sizeof info};
        rp_writer_get_info(self->writer, &info, NULL);
        self->episode_steps = info.episode_steps;
    }
    gate_leave(&self->guarded.gate);
    return ok ? Py_NewRef(Py_None) : NULL;
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
    rp_condition *list = calloc(pattern.n_conditions + 1, sizeof *list);
    if (!list)
        return PyErr_NoMemory();
    pattern.conditions = list;
    pattern.slices = ((selection_object *)selection)->slices;
    pattern.n_slices = ((selection_object *)selection)->n;
    bool ok = read_conditions(conditions, list, pattern.n_conditions) && add_pattern((writer_object *)object, &pattern);
    free(list);
    return ok ? Py_NewRef(Py_None) : NULL;
}

/* ---- rows: a block of one writer's steps, or one step of each of several writers */

enum phase { APPEND, ITEM, END };

struct rows {
    writer_object **writers; /* one for all rows of a block, or one per row */
    bool block;
    uint32_t n_writers, n;
    writer_object *lead; /* the first writer: its columns are those of all */
    const char *table;   /* NULL: no items */
    uint32_t steps;      /* in an item */
    double priority;
    const double *priorities; /* NULL: all are `priority` */
    const uint8_t *done;      /* NULL: no episode ends */
    /* How far it has come. */
    uint32_t row;
    enum phase phase;
    uint64_t items;
};

static rp_status do_append(struct rows *self, writer_object *writer, int64_t timeout_ms, rp_error *err)
{
    const writer_object *lead = self->lead;
    for (uint32_t i = 0; i < lead->n_columns; i++)
        lead->values[i] = (const char *)lead->cells[i].data + self->row * lead->columns[i].row_bytes;
    rp_status status = rp_writer_append(writer->writer, lead->values, timeout_ms, err);
    writer->episode_steps += status == RP_OK;
    return status;
}

static rp_status do_item(struct rows *self, writer_object *writer, int64_t timeout_ms, rp_error *err)
{
    if (!self->table || writer->episode_steps < self->steps)
        return RP_OK;
    double priority = self->priorities ? self->priorities[self->row] : self->priority;
    rp_status status = rp_writer_item_last(writer->writer, self->table, priority, self->steps, timeout_ms, NULL, err);
    self->items += status == RP_OK;
    return status;
}

static rp_status do_end(struct rows *self, writer_object *writer, int64_t timeout_ms, rp_error *err)
{
    if (!self->done || !self->done[self->row])
        return RP_OK;
    writer->episode_steps = 0;
    return rp_writer_end_episode(writer->writer, RP_END_GO, timeout_ms, err);
}

/* Does what is left of the present row. */
static rp_status do_row(struct rows *self, int64_t timeout_ms, rp_error *err)
{
    writer_object *writer = self->writers[self->block ? 0 : self->row];
    rp_status status = RP_OK;
    if (self->phase == APPEND && (status = do_append(self, writer, timeout_ms, err)) == RP_OK)
        self->phase = ITEM;
    if (self->phase == ITEM && (status = do_item(self, writer, timeout_ms, err)) == RP_OK)
        self->phase = END;
    return self->phase == END ? do_end(self, writer, timeout_ms, err) : status;
}

/* Goes on from where the last attempt stopped. Looks at the clock only where a row has to wait: the time-out is that of all rows
 * together. */
static rp_status rows_attempt(void *call, int64_t timeout_ms, rp_error *err)
{
    struct rows *self = call;
    int64_t start = timeout_ms ? core_now_ns() : 0;
    for (; self->row < self->n; self->row++, self->phase = APPEND) {
        rp_status status = do_row(self, 0, err);
        while (status == RP_DEADLINE_EXCEEDED && timeout_ms != 0) {
            int64_t left = core_left_ms(start, timeout_ms);
            status = do_row(self, left, err);
            if (left == 0)
                break;
        }
        if (status != RP_OK)
            return status;
    }
    return RP_OK;
}

/* Entering all writers. */

static void leave_all(struct rows *self, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++) {
        struct gate *gate = &self->writers[i]->guarded.gate;
        gate->next = NULL;
        gate_leave(gate);
    }
}

/* Whether the writer is not in the tuple before. False with an exception set. Quick for a gate that is free. */
static bool is_new(const struct rows *self, uint32_t i)
{
    if (!gate_is_mine(&self->writers[i]->guarded.gate))
        return true;
    for (uint32_t j = 0; j < i; j++)
        if (self->writers[j] == self->writers[i]) {
            PyErr_Format(PyExc_ValueError, "writers %u and %u are the same", j, i);
            return false;
        }
    return true;
}

/* Takes the gates of all writers at once: with the GIL held nobody comes between, and a thread that has to wait holds no gate.
 * So threads that name the same writers in another order cannot block each other. */
static bool enter_all(struct rows *self)
{
    uint32_t i = 0;
    while (i < self->n_writers) {
        assert(self->writers[i]);
        struct gate *gate = &self->writers[i]->guarded.gate;
        if (gate->busy && !gate_is_mine(gate)) {
            leave_all(self, i);
            if (!gate_enter(gate, "writer"))
                return false;
            gate_leave(gate);
            i = 0;
        } else if (is_new(self, i) && gate_enter(gate, "writer")) {
            if (i > 0)
                self->writers[i - 1]->guarded.gate.next = gate;
            i++;
        } else {
            leave_all(self, i);
            return false;
        }
    }
    return true;
}

static bool same_columns(const writer_object *a, const writer_object *b)
{
    bool same = a->n_columns == b->n_columns;
    for (uint32_t i = 0; same && i < a->n_columns; i++)
        same = a->columns[i].dtype == b->columns[i].dtype && a->columns[i].row_bytes == b->columns[i].row_bytes;
    return same;
}

/* The rows are cut by the lead's columns, so every writer needs the same ones. A writer remembers the lead that it was last
 * compared with. */
static bool check_columns(const struct rows *self)
{
    const writer_object *lead = self->lead;
    for (uint32_t i = 0; i < self->n_writers; i++) {
        writer_object *writer = self->writers[i];
        if (writer->writer && (writer->twin == lead->opened || same_columns(writer, lead))) {
            writer->twin = lead->opened;
            continue;
        }
        core_raise(RP_FAILED_PRECONDITION, "a writer is not open, or has other columns than the first");
        return false;
    }
    return true;
}

/* Borrows the writers of the tuple, which the caller holds. The caller frees self->writers. */
static bool read_writers(struct rows *self, PyObject *writers)
{
    Py_ssize_t n = PyTuple_Size(writers);
    if (n == 0 || (self->block && n > 1) || n > INT32_MAX) {
        PyErr_SetString(PyExc_ValueError, n == 0 ? "at least one writer is needed" : "a block goes to one writer");
        return false;
    }
    self->writers = calloc((size_t)n, sizeof(*self->writers));
    if (!self->writers) {
        PyErr_NoMemory();
        return false;
    }
    for (; self->n_writers < (uint32_t)n; self->n_writers++) {
        PyObject *writer = PyTuple_GetItem(writers, self->n_writers);
        if (!PyObject_TypeCheck(writer, writer_type)) {
            PyErr_SetString(PyExc_TypeError, "a tuple of writers is needed");
            return false;
        }
        self->writers[self->n_writers] = (writer_object *)writer;
    }
    self->lead = (writer_object *)PyTuple_GetItem(writers, 0);
    return true;
}

/* Takes the values of all rows. The number of rows is that of the first value. */
static bool take_rows(struct rows *self, PyObject *step, uint32_t *n_cells)
{
    writer_object *lead = self->lead;
    if (!nest_flatten(lead->nest, step, lead->leaves))
        return false;
    Py_ssize_t n = PyObject_Size(lead->leaves[0]);
    if (n < 0)
        return false;
    if (n > INT32_MAX || n == 0 || (!self->block && n != (Py_ssize_t)self->n_writers)) {
        PyErr_Format(PyExc_ValueError, "the first value has %zd rows; %s", n,
                     self->block ? "a block has 1 to 2^31 - 1" : "one per writer is needed");
        return false;
    }
    self->n = (uint32_t)n;
    while (*n_cells < lead->n_columns) {
        uint32_t i = (*n_cells)++;
        if (!cell_take(&lead->cells[i], &lead->columns[i], lead->leaves[i], self->n))
            return false;
    }
    return true;
}

/* One value per row of an 8-byte or 1-byte type. */
static bool take_column(PyObject *object, int32_t dtype, const char *what, uint32_t n, Py_buffer *view)
{
    if (PyObject_GetBuffer(object, view, PyBUF_C_CONTIGUOUS | PyBUF_FORMAT) < 0)
        return false;
    if (column_dtype(view->format, view->itemsize) == dtype && view->len / view->itemsize == (Py_ssize_t)n)
        return true;
    PyErr_Format(PyExc_ValueError, "%s: one value per row is needed", what);
    PyBuffer_Release(view);
    view->obj = NULL;
    return false;
}

static bool take_extras(struct rows *self, PyObject *priorities, PyObject *done, Py_buffer *views)
{
    if (PyFloat_Check(priorities) || PyLong_Check(priorities))
        self->priority = PyFloat_AsDouble(priorities);
    else if (take_column(priorities, RP_DTYPE_FLOAT64, "priorities (float64)", self->n, &views[0]))
        self->priorities = views[0].buf;
    if (PyErr_Occurred())
        return false;
    if (done == Py_None)
        return true;
    if (!take_column(done, RP_DTYPE_BOOL, "done (bool)", self->n, &views[1]))
        return false;
    self->done = views[1].buf;
    return true;
}

static bool run_rows(struct rows *self, int64_t timeout_ms)
{
    rp_error err;
    rp_status status = gate_wait(&self->lead->guarded.gate, rows_attempt, self, timeout_ms, &err);
    if (status == RP_OK || status == GATE_INTERRUPTED)
        return status == RP_OK;
    char text[sizeof err.text + 64];
    snprintf(text, sizeof text, "%s; %u of %u steps were appended", err.text, self->row + (self->phase != APPEND),
             self->n);
    core_raise(status, text);
    return false;
}

static bool append_rows(struct rows *self, PyObject *step, PyObject *priorities, PyObject *done, int64_t timeout_ms)
{
    uint32_t n_cells = 0;
    Py_buffer views[2] = {{.obj = NULL}, {.obj = NULL}};
    bool ok = check_columns(self) && take_rows(self, step, &n_cells) && take_extras(self, priorities, done, views) &&
              run_rows(self, timeout_ms);
    for (int i = 0; i < 2; i++)
        if (views[i].obj)
            PyBuffer_Release(&views[i]);
    cells_release(self->lead->cells, n_cells);
    nest_release(self->lead->leaves, self->lead->n_columns);
    return ok;
}

PyObject *rows_append(PyObject *module, PyObject *args)
{
    (void)module;
    struct rows self = {.phase = APPEND};
    PyObject *writers, *step, *priorities, *done, *seconds;
    int64_t timeout_ms;
    int block;
    if (!PyArg_ParseTuple(args, "O!pOzO&OOO", &PyTuple_Type, &writers, &block, &step, &self.table, core_u32,
                          &self.steps, &priorities, &done, &seconds))
        return NULL;
    self.block = block != 0;
    bool ok = core_timeout(seconds, &timeout_ms) && read_writers(&self, writers) && enter_all(&self);
    if (ok) {
        ok = append_rows(&self, step, priorities, done, timeout_ms);
        leave_all(&self, self.n_writers);
    }
    free(self.writers);
    return ok ? PyLong_FromUnsignedLongLong(self.items) : NULL;
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
    struct finish call = {.writer = self->writer};
    bool ok = !self->writer || gate_is_foreign(&self->guarded.gate) ||
              gate_call(&self->guarded.gate, flush_attempt, &call, timeout_ms);
    struct watch watch;
    watch_begin(&watch, NULL);
    rp_writer_destroy(&self->writer, ok ? GOODBYE_MS : 0, NULL);
    ok = watch_end(&watch) && ok;
    writer_destroy(object);
    gate_leave(&self->guarded.gate);
    return ok ? Py_NewRef(Py_None) : NULL;
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
     "item($self, table, priority=1.0, slices=1, timeout=None)\n--\n\n"
     "Makes an item over recent steps and returns its key. slices: a number of steps, or what select takes."},
    {"flush", CORE_METHOD(writer_flush), METH_VARARGS | METH_KEYWORDS,
     "flush($self, max_unconfirmed=0, timeout=None)\n--\n\nWaits until at most max_unconfirmed items are unconfirmed."},
    {"end_episode", CORE_METHOD(writer_end_episode), METH_VARARGS | METH_KEYWORDS,
     "end_episode($self, wait=True, timeout=None)\n--\n\n"
     "Ends the episode: later items cannot refer to its steps. wait: until all items are confirmed."},
    {"close", CORE_METHOD(writer_close), METH_VARARGS | METH_KEYWORDS,
     "close($self, timeout=None)\n--\n\nWaits until all items are confirmed, then closes the stream."},
    {"info", writer_info, METH_NOARGS, "info($self)\n--\n\nCounts of steps and items, as a dict."},
    {"set_policy", writer_set_policy, METH_O,
     "set_policy($self, version, /)\n--\n\nSets the version of the parameters that make the items from now on."},
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

bool writer_register(PyObject *module)
{
    const struct core_type writer = {.name = "replaybus._core.Writer",
                                     .doc = "A stream of steps, and items over them.",
                                     .size = sizeof(writer_object),
                                     .make = writer_make,
                                     .dealloc = guarded_dealloc,
                                     .methods = methods,
                                     .getters = getters,
                                     .is_base = true};
    const struct core_type selection = {
        .name = "replaybus._core.Selection",
        .doc = "Selection(((field, column, count, start, stride, squeeze), ...)): made by Writer.select.",
        .size = sizeof(selection_object),
        .make = selection_make,
        .dealloc = selection_dealloc};
    return core_add_type(module, &writer, &writer_type) && core_add_type(module, &selection, &selection_type);
}
