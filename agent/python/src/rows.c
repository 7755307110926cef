/* Many steps in one call: a block of one writer's steps, or one step of each of several writers. */
#include "agent/python/src/core.h"

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

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

/* ---- entering */

static void leave(struct rows *self, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++) {
        struct gate *gate = &self->writers[i]->gate;
        gate->next = NULL;
        gate_leave(gate);
    }
}

/* Whether the writer is not in the tuple before. False with an exception set. Quick for a gate that is free. */
static bool is_new(const struct rows *self, uint32_t i)
{
    if (!gate_is_mine(&self->writers[i]->gate))
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
static bool enter(struct rows *self)
{
    uint32_t i = 0;
    while (i < self->n_writers) {
        assert(self->writers[i]);
        struct gate *gate = &self->writers[i]->gate;
        if (gate->busy && !gate_is_mine(gate)) {
            leave(self, i);
            if (!gate_enter(gate, "writer"))
                return false;
            gate_leave(gate);
            i = 0;
        } else if (is_new(self, i) && gate_enter(gate, "writer")) {
            if (i > 0)
                self->writers[i - 1]->gate.next = gate;
            i++;
        } else {
            leave(self, i);
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

static bool run(struct rows *self, int64_t timeout_ms)
{
    rp_error err;
    rp_status status = gate_wait(&self->lead->gate, rows_attempt, self, timeout_ms, &err);
    if (status == RP_OK || status == GATE_INTERRUPTED)
        return status == RP_OK;
    char text[sizeof err.text + 64];
    snprintf(text, sizeof text, "%s; %u of %u steps were appended", err.text, self->row + (self->phase != APPEND),
             self->n);
    core_raise(status, text);
    return false;
}

static bool append(struct rows *self, PyObject *step, PyObject *priorities, PyObject *done, int64_t timeout_ms)
{
    uint32_t n_cells = 0;
    Py_buffer views[2] = {{.obj = NULL}, {.obj = NULL}};
    bool ok = check_columns(self) && take_rows(self, step, &n_cells) && take_extras(self, priorities, done, views) &&
              run(self, timeout_ms);
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
    bool ok = core_timeout(seconds, &timeout_ms) && read_writers(&self, writers) && enter(&self);
    if (ok) {
        ok = append(&self, step, priorities, done, timeout_ms);
        leave(&self, self.n_writers);
    }
    free(self.writers);
    return ok ? PyLong_FromUnsignedLongLong(self.items) : NULL;
}
