/* Many steps in one call: a block of one writer's steps, or one step of each of several writers. Transitions: the same for a replay
 * buffer, whose rows are (observation, action, reward, done, next observation) in whatever shape environments give them.
 *
 * A stream of transitions that are not shared has whole transitions as its steps. In a stream that shares rows, a step has the
 * observation after an action, so the next transition begins with it; an observation without an action begins an episode.
 *
 * A time-out leaves nothing half done: before a row of a block is appended, and before any row of a step is, there is room for the items.
 *
 * Sequences follow the rules of agent/learn/sequence.h: the step that ends an episode is followed by a row with the last observation and
 * by padding. */
#include "agent/learn/sequence.h"
#include "agent/python/src/writer.h"

#include <assert.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum phase { ROOM, BREAK, START, APPEND, ITEM, LAST, TAIL, TAIL_ITEM, END, PHASES };
#define NOT_BEGUN UINT32_MAX

typedef struct transitions_object {
    PyObject_HEAD PyObject *writers; /* a tuple: one for all environments, or if rows are shared one for each */
    PyObject *selections;            /* a tuple: of items over 1, 2, 3 ... steps */
    const selection_object **fields; /* the same, for use without the GIL */
    uint32_t n_steps;
    PyObject *convert, *ended; /* functions: see the documentation of the type */
    char *table;
    struct nest *nest; /* of (next observation, action, done, reward, observation) */
    struct cell *cells;
    PyObject **leaves;
    char *scratch;
    uint8_t *done; /* of each row: its episode ends */
    size_t scratch_bytes;
    uint32_t n_rows, n_cells, n_observations, at_done;
    bool ordered; /* each row is confirmed before the next one is sent */
} transitions_object;

static PyTypeObject *transitions_type;

/* What a column is to sequences. */
enum role {
    ROLE_STEP = '.',        /* zeros after the end of an episode */
    ROLE_OBSERVATION = 'o', /* has a value in the last row of an episode, too */
    ROLE_TYPE = 't',        /* the step's type, which is set here */
    ROLE_START = 's',       /* kept only where an item may begin */
};

struct sequences {
    struct sequence rule;
    const selection_object *fields;
    const char *roles; /* [columns] */
    struct cell *last; /* [columns]: for those of observations, the ones that ended episodes; NULL: no episode ends */
    void *zeros;       /* as long as the longest row; NULL: no episode ends */
};

struct rows {
    writer_object **writers; /* one for all rows of a block, or one per row */
    bool block;
    uint32_t n_writers, n;
    writer_object *lead;      /* the first writer: its columns are those of all */
    const struct cell *cells; /* of its columns; if rows are shared, then of the observations before the step */
    const char *table;        /* NULL: no items */
    uint32_t steps;           /* in an item */
    double priority;
    const double *priorities;              /* NULL: all are `priority` */
    const uint8_t *done;                   /* NULL: no episode ends */
    const transitions_object *transitions; /* NULL: plain steps, with items over the last ones */
    bool shared;
    const struct sequences *sequences; /* NULL: items over the last steps */
    int64_t timeout_ms, start_ns;
    /* How far it has come. */
    bool has_room; /* for the items of all rows; the rows of a block wait for it one by one */
    uint32_t row;
    enum phase phase;
    uint32_t left; /* the length of the next item of a tail, or NOT_BEGUN */
    uint64_t items;
};

static const void *cell_row(const struct rows *self, uint32_t cell, uint32_t column)
{
    return (const char *)self->cells[cell].data + self->row * self->lead->columns[column].row_bytes;
}

/* What an item takes of its steps; NULL: all of them. */
static const selection_object *fields_of(const struct rows *self, uint32_t steps)
{
    return self->sequences ? self->sequences->fields : self->transitions ? self->transitions->fields[steps - 1] : NULL;
}

static rp_status make_item(struct rows *self, writer_object *writer, uint32_t steps, int64_t timeout_ms, rp_error *err)
{
    double priority = self->priorities ? self->priorities[self->row] : self->priority;
    const selection_object *fields = fields_of(self, steps);
    rp_status status =
        fields ? rp_writer_item(writer->writer, self->table, priority, fields->slices, fields->n, timeout_ms, NULL, err)
               : rp_writer_item_last(writer->writer, self->table, priority, steps, timeout_ms, NULL, err);
    self->items += status == RP_OK;
    return status;
}

/* Makes the items of the episode's last steps, which are shorter than the others. */
static rp_status make_tail(struct rows *self, writer_object *writer, int64_t timeout_ms, rp_error *err)
{
    if (self->left == NOT_BEGUN)
        self->left = writer->episode_steps < self->steps ? (uint32_t)writer->episode_steps : self->steps - 1;
    rp_status status = RP_OK;
    while (self->left > 0 && (status = make_item(self, writer, self->left, timeout_ms, err)) == RP_OK)
        self->left--;
    return status;
}

static bool continues(const struct rows *self, const writer_object *writer)
{
    const char *last = writer->last;
    for (uint32_t i = 0; i < self->transitions->n_observations; i++) {
        size_t bytes = (size_t)self->lead->columns[i].row_bytes;
        if (memcmp(last, cell_row(self, self->lead->n_columns + i, i), bytes) != 0)
            return false;
        last += bytes;
    }
    return true;
}

/* Ends an episode that nobody said was over: the next step begins with another observation than the last one left. */
static rp_status do_break(struct rows *self, writer_object *writer, int64_t timeout_ms, rp_error *err)
{
    if (writer->episode_steps == 0 || continues(self, writer))
        return RP_OK;
    rp_status status = make_tail(self, writer, timeout_ms, err);
    if (status == RP_OK)
        status = rp_writer_end_episode(writer->writer, RP_END_GO, timeout_ms, err);
    if (status == RP_OK)
        writer->episode_steps = 0;
    return status;
}

/* Appends the observation that begins an episode, without the other columns. */
static rp_status do_start(struct rows *self, writer_object *writer, int64_t timeout_ms, rp_error *err)
{
    if (writer->episode_steps > 0)
        return RP_OK;
    const writer_object *lead = self->lead;
    for (uint32_t i = 0; i < lead->n_columns; i++)
        lead->values[i] = i < self->transitions->n_observations ? cell_row(self, lead->n_columns + i, i) : NULL;
    return rp_writer_append(writer->writer, lead->values, timeout_ms, err);
}

static void keep_last(const struct rows *self, writer_object *writer)
{
    char *last = writer->last;
    for (uint32_t i = 0; i < self->transitions->n_observations; i++) {
        memcpy(last, self->lead->values[i], (size_t)self->lead->columns[i].row_bytes);
        last += self->lead->columns[i].row_bytes;
    }
}

/* The value of a column in a row of this type; NULL: none. */
static const void *sequence_value(const struct rows *self, uint32_t i, uint64_t row, enum step_type type)
{
    static const uint8_t types[] = {STEP_FIRST, STEP_MID, STEP_LAST, STEP_PADDING};
    const struct sequences *sequences = self->sequences;
    switch ((enum role)sequences->roles[i]) {
    case ROLE_TYPE:
        return &types[type];
    case ROLE_START:
        if (!sequence_begins(&sequences->rule, row))
            return NULL;
        break;
    case ROLE_OBSERVATION:
        if (type == STEP_LAST)
            return (const char *)sequences->last[i].data + self->row * self->lead->columns[i].row_bytes;
        break;
    case ROLE_STEP:
        break;
    }
    return type == STEP_FIRST || type == STEP_MID ? cell_row(self, i, i) : sequences->zeros;
}

static rp_status append_sequence_row(struct rows *self, writer_object *writer, enum step_type type, int64_t timeout_ms,
                                     rp_error *err)
{
    const writer_object *lead = self->lead;
    for (uint32_t i = 0; i < lead->n_columns; i++)
        lead->values[i] = sequence_value(self, i, writer->episode_steps, type);
    rp_status status = rp_writer_append(writer->writer, lead->values, timeout_ms, err);
    writer->episode_steps += status == RP_OK;
    return status;
}

static rp_status append_padding(struct rows *self, writer_object *writer, int64_t timeout_ms, rp_error *err)
{
    if (self->left == NOT_BEGUN)
        self->left = (uint32_t)sequence_missing(&self->sequences->rule, writer->episode_steps);
    rp_status status = RP_OK;
    while (self->left > 0 && (status = append_sequence_row(self, writer, STEP_PADDING, timeout_ms, err)) == RP_OK)
        self->left--;
    return status;
}

static rp_status do_append(struct rows *self, writer_object *writer, int64_t timeout_ms, rp_error *err)
{
    if (self->sequences)
        return append_sequence_row(self, writer, writer->episode_steps == 0 ? STEP_FIRST : STEP_MID, timeout_ms, err);
    const writer_object *lead = self->lead;
    for (uint32_t i = 0; i < lead->n_columns; i++)
        lead->values[i] = cell_row(self, i, i);
    rp_status status = rp_writer_append(writer->writer, lead->values, timeout_ms, err);
    writer->episode_steps += status == RP_OK;
    if (status == RP_OK && self->shared)
        keep_last(self, writer);
    return status;
}

/* Whether so many steps of an episode end with an item. */
static bool is_due(const struct rows *self, uint64_t steps)
{
    if (!self->table)
        return false;
    return self->sequences ? sequence_missing(&self->sequences->rule, steps) == 0 : steps >= self->steps;
}

static rp_status do_item(struct rows *self, writer_object *writer, int64_t timeout_ms, rp_error *err)
{
    return is_due(self, writer->episode_steps) ? make_item(self, writer, self->steps, timeout_ms, err) : RP_OK;
}

/* Waits for room for all items that a row may make; if one writer has several rows, for those of all. */
static rp_status do_room(struct rows *self, writer_object *writer, bool ends, int64_t timeout_ms, rp_error *err)
{
    uint64_t items = is_due(self, writer->episode_steps + 1);
    if (self->sequences)
        items += ends;
    else if (self->shared)
        items += (uint64_t)(ends + (writer->episode_steps > 0)) * (self->steps - 1);
    else if (self->transitions)
        items = self->n;
    if (self->transitions && self->transitions->ordered)
        RP_TRY(rp_writer_flush(writer->writer, 0, timeout_ms, err));
    return items > 0 ? rp_writer_reserve(writer->writer, items, timeout_ms, err) : RP_OK;
}

static rp_status do_end(struct rows *self, writer_object *writer, int64_t timeout_ms, rp_error *err)
{
    rp_status status = RP_OK;
    if (self->done && self->done[self->row]) {
        writer->episode_steps = 0;
        status = rp_writer_end_episode(writer->writer, RP_END_GO, timeout_ms, err);
    }
    if (status == RP_OK && self->transitions && self->transitions->ordered)
        status = rp_writer_flush(writer->writer, 0, timeout_ms, err);
    return status;
}

static rp_status do_tail(struct rows *self, writer_object *writer, int64_t timeout_ms, rp_error *err)
{
    return self->sequences ? append_padding(self, writer, timeout_ms, err) : make_tail(self, writer, timeout_ms, err);
}

static rp_status do_phase(struct rows *self, writer_object *writer, int64_t timeout_ms, rp_error *err)
{
    bool ends = (self->shared || self->sequences) && self->done && self->done[self->row];
    switch (self->phase) {
    case ROOM:
        return do_room(self, writer, ends, timeout_ms, err);
    case BREAK:
        return self->shared ? do_break(self, writer, timeout_ms, err) : RP_OK;
    case START:
        return self->shared ? do_start(self, writer, timeout_ms, err) : RP_OK;
    case APPEND:
        return do_append(self, writer, timeout_ms, err);
    case ITEM:
        return do_item(self, writer, timeout_ms, err);
    case LAST:
        return ends && self->sequences ? append_sequence_row(self, writer, STEP_LAST, timeout_ms, err) : RP_OK;
    case TAIL:
        return ends ? do_tail(self, writer, timeout_ms, err) : RP_OK;
    case TAIL_ITEM:
        return ends && self->sequences ? do_item(self, writer, timeout_ms, err) : RP_OK;
    default:
        return do_end(self, writer, timeout_ms, err);
    }
}

static bool is_plain(const struct rows *self)
{
    return !self->shared && !self->sequences;
}

/* Plain steps have fewer phases. */
static void next_phase(struct rows *self)
{
    self->left = NOT_BEGUN;
    self->phase++;
    if (self->phase == BREAK && is_plain(self))
        self->phase = APPEND;
    else if (self->phase == LAST && is_plain(self))
        self->phase = END;
}

/* Does phases of the present row. Looks at the clock only where it has to wait: the time-out is that of all rows together. */
static rp_status do_row(struct rows *self, enum phase end, int64_t timeout_ms, rp_error *err)
{
    writer_object *writer = self->writers[self->block ? 0 : self->row];
    for (; self->phase < end; next_phase(self)) {
        int64_t wait_ms = 0;
        bool waits = timeout_ms != 0;
        rp_status status;
        while ((status = do_phase(self, writer, wait_ms, err)) == RP_DEADLINE_EXCEEDED && waits) {
            wait_ms = core_left_ms(self->start_ns, timeout_ms);
            waits = false;
        }
        /* A row that is not confirmed in time is there all the same: the next step waits for it. */
        if (status == RP_DEADLINE_EXCEEDED && self->transitions && self->phase == END && timeout_ms == self->timeout_ms)
            continue;
        if (status != RP_OK)
            return status;
    }
    return RP_OK;
}

/* Does phases of all rows. Goes on from where the last attempt stopped. */
static rp_status do_rows(struct rows *self, enum phase first, enum phase end, int64_t timeout_ms, rp_error *err)
{
    for (; self->row < self->n; self->row++, self->phase = first)
        RP_TRY(do_row(self, end, timeout_ms, err));
    return RP_OK;
}

static rp_status rows_attempt(void *call, int64_t timeout_ms, rp_error *err)
{
    struct rows *self = call;
    enum phase first = self->block && !self->transitions ? ROOM : is_plain(self) ? APPEND : BREAK;
    self->start_ns = timeout_ms ? clock_ns() : 0;
    if (!self->has_room) {
        RP_TRY(do_rows(self, ROOM, BREAK, timeout_ms, err));
        self->has_room = true;
        self->row = 0;
        self->phase = first;
    }
    return do_rows(self, first, PHASES, timeout_ms, err);
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
    self->writers = core_alloc((size_t)n, sizeof(*self->writers));
    if (!self->writers)
        return false;
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
    self->cells = lead->cells;
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

/* Checks table, fields and priorities of the items before the first step is appended. */
static bool check_items(const struct rows *self)
{
    rp_error err;
    const writer_object *lead = self->lead;
    const selection_object *fields = fields_of(self, self->steps);
    rp_slice all[RP_MAX_COLUMNS];
    for (uint32_t i = 0; i < lead->n_columns; i++)
        all[i] = (rp_slice){.column = i, .count = self->steps};
    for (uint32_t i = 0; i < (self->priorities ? self->n : 1); i++) {
        double priority = self->priorities ? self->priorities[i] : self->priority;
        if (isfinite(priority) && priority >= 0)
            continue;
        snprintf(err.text, sizeof err.text, "the priority of row %u is %g: it must be finite and not negative", i,
                 priority);
        return core_raise(RP_INVALID_ARGUMENT, err.text);
    }
    rp_status status = rp_writer_check_item(lead->writer, self->table, fields ? fields->slices : all,
                                            fields ? fields->n : lead->n_columns, &err);
    return status == RP_OK || core_raise(status, err.text);
}

/* Adds a note to the exception that a signal handler has raised. */
static void add_note(const char *text)
{
    PyObject *type, *value, *trace;
    PyErr_Fetch(&type, &value, &trace);
    PyErr_NormalizeException(&type, &value, &trace);
    Py_XDECREF(PyObject_CallMethod(value, "add_note", "s", text));
    PyErr_Restore(type, value, trace);
}

static bool run_rows(struct rows *self, int64_t timeout_ms)
{
    rp_error err;
    if (self->table && !check_items(self))
        return false;
    self->timeout_ms = timeout_ms;
    rp_status status = gate_wait(&self->lead->guarded.gate, rows_attempt, self, timeout_ms, &err);
    if (status == RP_OK)
        return true;
    char done[64], text[sizeof err.text + 100];
    int n = snprintf(done, sizeof done, "%u of %u steps were appended",
                     self->has_room ? self->row + (self->phase > APPEND) : 0, self->n);
    if (status == RP_DEADLINE_EXCEEDED)
        snprintf(done + n, sizeof done - (size_t)n, " in %g s", (double)timeout_ms / 1e3);
    snprintf(text, sizeof text, "%s; %s", err.text, done);
    if (status == GATE_INTERRUPTED)
        add_note(done);
    else
        core_raise(status, text);
    return false;
}

/* The end of an episode is a row with its last observation. */
static bool check_ends(const struct rows *self)
{
    bool lacks = self->sequences && !self->sequences->last && self->done;
    for (uint32_t i = 0; lacks && i < self->n; i++)
        if (self->done[i]) {
            core_raise(RP_INVALID_ARGUMENT, "an episode ends in this step: give the last observations");
            return false;
        }
    return true;
}

static bool append_rows(struct rows *self, PyObject *step, PyObject *priorities, PyObject *done, int64_t timeout_ms)
{
    uint32_t n_cells = 0;
    Py_buffer views[2] = {{.obj = NULL}, {.obj = NULL}};
    bool ok = check_columns(self) && take_rows(self, step, &n_cells) && take_extras(self, priorities, done, views) &&
              check_ends(self) && run_rows(self, timeout_ms);
    for (int i = 0; i < 2; i++)
        if (views[i].obj)
            PyBuffer_Release(&views[i]);
    cells_release(self->lead->cells, n_cells);
    nest_release(self->lead->leaves, self->lead->n_columns);
    return ok;
}

/* ---- sequences */

/* Takes the last observations of the episodes that end: a tuple with one value for each column of an observation, of all rows. */
static bool take_last(struct rows *self, struct sequences *sequences, PyObject *values)
{
    writer_object *lead = self->lead;
    size_t longest = 1;
    Py_ssize_t n = 0;
    for (uint32_t i = 0; i < lead->n_columns; i++)
        longest = lead->columns[i].row_bytes > longest ? (size_t)lead->columns[i].row_bytes : longest;
    sequences->last = core_alloc(lead->n_columns, sizeof *sequences->last);
    sequences->zeros = core_alloc(longest, 1);
    if (!sequences->last || !sequences->zeros)
        return false;
    for (uint32_t i = 0; i < lead->n_columns; i++)
        if (sequences->roles[i] == ROLE_OBSERVATION) {
            PyObject *value = PyTuple_GetItem(values, n++);
            if (!value || !cell_take(&sequences->last[i], &lead->columns[i], value, self->n_writers))
                return false;
        }
    return true;
}

static void sequences_fini(const struct rows *self, struct sequences *sequences)
{
    if (sequences->last)
        cells_release(sequences->last, self->lead->n_columns);
    free(sequences->last);
    free(sequences->zeros);
}

/* Reads (length, period, burn_in, roles, selection, last observations or None). False with an exception set. */
static bool read_sequences(struct rows *self, PyObject *given, struct sequences *out)
{
    Py_ssize_t n_roles;
    PyObject *selection, *last;
    char why[200];
    if (given == Py_None)
        return true;
    if (!PyArg_ParseTuple(given, "LLLy#O!O", &out->rule.length, &out->rule.period, &out->rule.burn_in, &out->roles,
                          &n_roles, selection_type, &selection, &last))
        return false;
    if (!sequence_check(&out->rule, why, sizeof why)) {
        core_raise(RP_INVALID_ARGUMENT, why);
        return false;
    }
    if (self->block || n_roles != (Py_ssize_t)self->lead->n_columns) {
        PyErr_SetString(PyExc_ValueError, "sequences need a role for each column, and are not appended in blocks");
        return false;
    }
    out->fields = (const selection_object *)selection;
    self->sequences = out;
    return last == Py_None || take_last(self, out, last);
}

PyObject *rows_check_sequence(PyObject *module, PyObject *args)
{
    (void)module;
    struct sequence rule;
    char why[200];
    if (!PyArg_ParseTuple(args, "LLL", &rule.length, &rule.period, &rule.burn_in))
        return NULL;
    return sequence_check(&rule, why, sizeof why) ? Py_NewRef(Py_None) : core_raise(RP_INVALID_ARGUMENT, why);
}

/* ---- the call */

PyObject *rows_append(PyObject *module, PyObject *args)
{
    (void)module;
    struct rows self = {.left = NOT_BEGUN};
    struct sequences sequences = {0};
    PyObject *writers, *step, *priorities, *done, *seconds, *sequence = Py_None;
    int64_t timeout_ms;
    int block;
    if (!PyArg_ParseTuple(args, "O!pOzO&OOO|O", &PyTuple_Type, &writers, &block, &step, &self.table, core_u32,
                          &self.steps, &priorities, &done, &seconds, &sequence))
        return NULL;
    self.block = self.has_room = block != 0;
    bool ok = core_timeout(seconds, &timeout_ms) && read_writers(&self, writers) && enter_all(&self);
    if (ok) {
        ok = read_sequences(&self, sequence, &sequences) && append_rows(&self, step, priorities, done, timeout_ms);
        sequences_fini(&self, &sequences);
        leave_all(&self, self.n_writers);
    }
    free(self.writers);
    return ok ? PyLong_FromUnsignedLongLong(self.items) : NULL;
}

/* ---- Transitions */

static void transitions_dealloc(PyObject *object)
{
    transitions_object *self = (transitions_object *)object;
    Py_CLEAR(self->writers);
    Py_CLEAR(self->selections);
    Py_CLEAR(self->convert);
    Py_CLEAR(self->ended);
    free(self->table);
    free(self->fields);
    free(self->cells);
    free(self->leaves);
    free(self->scratch);
    free(self->done);
    if (self->nest)
        nest_destroy(&self->nest);
    core_free(object);
}

/* Checks what add relies on, and gives each writer of a shared stream the memory of its last observation. */
static bool transitions_check(transitions_object *self, struct rows *rows)
{
    bool shared = self->n_cells > rows->lead->n_columns;
    size_t bytes = 0;
    if (!check_columns(rows))
        return false;
    for (uint32_t i = 0; i < self->n_steps; i++) {
        PyObject *selection = PyTuple_GetItem(self->selections, i);
        if (!PyObject_TypeCheck(selection, selection_type)) {
            PyErr_SetString(PyExc_TypeError, "a tuple of selections is needed");
            return false;
        }
        self->fields[i] = (selection_object *)selection;
    }
    if (self->n_rows == 0 || self->n_steps == 0 || self->at_done >= rows->lead->n_columns ||
        self->n_cells != rows->lead->n_columns + (shared ? self->n_observations : 0) ||
        rows->lead->columns[self->at_done].dtype != RP_DTYPE_FLOAT32 || rows->lead->columns[self->at_done].rank != 0 ||
        rows->n_writers != (shared ? self->n_rows : 1)) {
        PyErr_SetString(PyExc_ValueError, "the plan does not fit the writers' columns");
        return false;
    }
    for (uint32_t i = 0; i < self->n_observations; i++)
        bytes += (size_t)rows->lead->columns[i].row_bytes;
    for (uint32_t i = 0; shared && i < rows->n_writers; i++) {
        free(rows->writers[i]->last);
        rows->writers[i]->last = core_alloc(bytes, 1);
        if (!rows->writers[i]->last)
            return false;
    }
    return true;
}

static bool transitions_init(transitions_object *self, PyObject *plan, const char *table)
{
    struct rows rows = {.left = NOT_BEGUN};
    self->nest = nest_new(plan);
    if (!self->nest)
        return false;
    self->n_cells = nest_leaves(self->nest);
    self->scratch_bytes = 16 + (size_t)self->n_rows * sizeof(float);
    self->table = core_copy(table);
    self->n_steps = (uint32_t)PyTuple_Size(self->selections);
    self->fields = core_alloc(self->n_steps, sizeof(*self->fields));
    self->cells = core_alloc(self->n_cells, sizeof *self->cells);
    self->leaves = core_alloc(self->n_cells, sizeof(*self->leaves));
    self->scratch = core_alloc(self->n_cells, self->scratch_bytes);
    self->done = core_alloc(self->n_rows, 1);
    bool ok = !PyErr_Occurred() && read_writers(&rows, self->writers) && transitions_check(self, &rows);
    free(rows.writers);
    return ok;
}

static PyObject *transitions_make(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    static char *names[] = {"writers", "n",          "plan",    "n_observations", "at_done", "table",
                            "ordered", "selections", "convert", "ended",          NULL};
    PyObject *writers, *plan, *selections, *convert, *ended;
    uint32_t n, n_observations, at_done;
    const char *table;
    int ordered;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "O!O&OO&O&spO!OO", names, &PyTuple_Type, &writers, core_u32, &n,
                                     &plan, core_u32, &n_observations, core_u32, &at_done, &table, &ordered,
                                     &PyTuple_Type, &selections, &convert, &ended))
        return NULL;
    transitions_object *self = (transitions_object *)PyType_GenericAlloc(type, 0);
    if (!self)
        return NULL;
    self->writers = Py_NewRef(writers);
    self->selections = Py_NewRef(selections);
    self->convert = Py_NewRef(convert);
    self->ended = Py_NewRef(ended);
    self->n_rows = n;
    self->n_observations = n_observations;
    self->at_done = at_done;
    self->ordered = ordered != 0;
    if (!transitions_init(self, plan, table))
        Py_CLEAR(self);
    return (PyObject *)self;
}

/* Takes an array that a function in Python has made. False with an exception set. */
static bool take_made(struct cell *cell, struct column *column, PyObject *made, uint32_t rows)
{
    bool ok = made && cell_take(cell, column, made, rows);
    if (ok && !cell->view.obj) /* it was read in place: keep it */
        ok = PyObject_GetBuffer(made, &cell->view, PyBUF_SIMPLE) == 0;
    Py_XDECREF(made);
    return ok;
}

static bool take_value(transitions_object *self, writer_object *lead, uint32_t i)
{
    uint32_t at = i < lead->n_columns ? i : i - lead->n_columns;
    struct column *column = &lead->columns[at];
    if (cell_take_any(&self->cells[i], column, self->leaves[i], self->n_rows, self->scratch + i * self->scratch_bytes))
        return true;
    return take_made(&self->cells[i], column, PyObject_CallFunction(self->convert, "IO", at, self->leaves[i]),
                     self->n_rows);
}

/* Sees which episodes end. A function in Python says which of them count as done: a time limit is no end of the task. */
static bool take_done(transitions_object *self, writer_object *lead, PyObject *infos)
{
    struct cell *cell = &self->cells[self->at_done];
    const float *done = cell->data;
    bool any = false;
    for (uint32_t i = 0; i < self->n_rows; i++) {
        self->done[i] = done[i] != 0;
        any = any || self->done[i];
    }
    if (!any)
        return true;
    PyObject *made = PyObject_CallFunction(self->ended, "OO", self->leaves[self->at_done], infos);
    cells_release(cell, 1);
    return take_made(cell, &lead->columns[self->at_done], made, self->n_rows);
}

/* add(step, infos, priority, timeout): returns the number of items. */
static PyObject *transitions_add(PyObject *object, PyObject *args)
{
    transitions_object *self = (transitions_object *)object;
    PyObject *step, *infos, *seconds;
    int64_t timeout_ms;
    struct rows rows = {.transitions = self, .left = NOT_BEGUN, .table = self->table, .n = self->n_rows};
    if (!PyArg_ParseTuple(args, "OOdO", &step, &infos, &rows.priority, &seconds) || !core_timeout(seconds, &timeout_ms))
        return NULL;
    rows.cells = self->cells;
    rows.steps = self->n_steps;
    bool ok = read_writers(&rows, self->writers) && enter_all(&rows);
    if (ok) {
        rows.shared = self->n_cells > rows.lead->n_columns;
        rows.block = !rows.shared;
        rows.done = rows.shared ? self->done : NULL;
        uint32_t n = 0;
        ok = check_columns(&rows) && nest_flatten(self->nest, step, self->leaves);
        bool flat = ok;
        while (ok && n < self->n_cells)
            ok = take_value(self, rows.lead, n++);
        ok = ok && take_done(self, rows.lead, infos) && run_rows(&rows, timeout_ms);
        cells_release(self->cells, n);
        memset(self->cells, 0, self->n_cells * sizeof *self->cells);
        if (flat)
            nest_release(self->leaves, self->n_cells);
        leave_all(&rows, rows.n_writers);
    }
    free(rows.writers);
    return ok ? PyLong_FromUnsignedLongLong(rows.items) : NULL;
}

static PyMethodDef transitions_methods[] = {
    {"add", transitions_add, METH_VARARGS,
     "add((next_observation, action, done, reward, observation), infos, priority, timeout): the number of items made."},
    {NULL, NULL, 0, NULL},
};

const struct core_type transitions_core = {
    .name = "replaybus._core.Transitions",
    .doc = "Transitions(writers, n, plan, n_observations, at_done, table, ordered, selections, convert, ended): "
           "transitions of n environments. convert(column, value) makes an array of values that add cannot read, "
           "ended(done, infos) the dones of a row in which an episode ends.",
    .size = sizeof(transitions_object),
    .make = transitions_make,
    .dealloc = transitions_dealloc,
    .methods = transitions_methods,
    .out = &transitions_type,
};
