/* Opening a writer's stream. */
#include "agent/python/src/core.h"

#include <stdlib.h>
#include <string.h>

static uint64_t n_opened; /* guarded by the GIL */

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
    list_columns(self, columns);
    watch_begin(&watch, &self->gate);
    rp_writer *writer = rp_writer_new(self->conn->client, columns, self->n_columns, options, timeout_ms, &err);
    bool ok = watch_end(&watch);
    if (!ok)
        rp_writer_destroy(&writer, 0, NULL);
    else if (!writer && gate_check(&self->gate))
        core_raise(err.status, err.text);
    self->writer = writer;
    self->opened = ++n_opened;
    return writer != NULL;
}

void writer_forget_columns(writer_object *self)
{
    for (uint32_t i = 0; self->columns && i < self->n_columns; i++)
        column_fini(&self->columns[i]);
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
        if (!column_read(PyTuple_GetItem(columns, i), &self->columns[i]))
            return false;
    self->nest = nest_new(plan);
    if (self->nest && nest_leaves(self->nest) != self->n_columns)
        PyErr_SetString(PyExc_ValueError, "the plan and the columns differ in number");
    return !PyErr_Occurred();
}

PyObject *writer_open(PyObject *object, PyObject *args)
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
        !gate_enter(&self->gate, "writer"))
        return NULL;
    options.chunk_length = (uint32_t)chunk_length;
    options.keep_alive = (uint64_t)keep_alive;
    options.max_in_flight_items = (uint64_t)max_in_flight;
    options.history = (uint32_t)history;
    bool ok = self->writer != NULL; /* another thread was first */
    if (!ok) {
        ok = read_columns(self, plan, columns) && open_stream(self, &options, timeout_ms);
        if (!ok)
            writer_forget_columns(self);
    }
    ok = ok && gate_check(&self->gate);
    gate_leave(&self->gate);
    return ok ? Py_NewRef(Py_None) : NULL;
}
