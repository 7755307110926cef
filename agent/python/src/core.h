/* replaybus._core: libreplay for Python, through the limited API of Python 3.11.
 *
 * The extension owns handles of libreplay; the rules that Python adds to them are in agent/python/base:
 *   column.c   one value of a step, as bytes; numpy.c: the same for numpy's values, in place; nest.c: the values of a nested step
 *   server.c, client.c, request.c, writer.c, writer_open.c, rows.c, selection.c, sampler.c, batch.c, updater.c: the types
 *   pattern.c, publish.c, reduce.c: the same
 *   weights.c  blocks of named tensors
 * Everything else (structures, servers, text) is Python. */
#ifndef AGENT_PYTHON_CORE_H
#define AGENT_PYTHON_CORE_H

#include "agent/python/base/base.h"

/* ---- column.c, numpy.c, nest.c */

#define COLUMN_MAX_DTYPES 32 /* all element types of libreplay are below */

struct column {
    char *name;
    int32_t dtype;
    uint32_t itemsize, rank;
    uint32_t shape[RP_MAX_RANK];
    uint64_t row_bytes;
    char scalar[16]; /* the value of a Python number */
};

/* One value of a step, or of a block of steps. `view` is empty (obj NULL) for a number and for a value read in place. */
struct cell {
    Py_buffer view;
    const void *data;
};

/* RP_OK and the dtype of a buffer's elements; 0 if libreplay has none like it. */
int32_t column_dtype(const char *format, Py_ssize_t itemsize);
/* The name of a dtype, such as "float32". NULL: there is none. */
const char *column_name(int32_t dtype);
/* Reads (name, dtype name, shape). False with an exception set. */
bool column_read(PyObject *spec, struct column *out);
void column_fini(struct column *column);
/* Takes a value of the column's shape, or with rows > 0 of `rows` such values. False with an exception set. */
bool cell_take(struct cell *cell, struct column *column, PyObject *value, uint32_t rows);
void cells_release(struct cell *cells, uint32_t n);
/* The memory of an array or a scalar of numpy that has the column's type and shape, as cell_take wants it. NULL without an
 * exception: another value. */
const void *numpy_data(PyObject *value, const struct column *column, uint32_t rows);
/* An array over memory that `owner` keeps. NULL with an exception set. */
PyObject *numpy_array(PyObject *owner, const void *data, int32_t dtype, uint32_t rank, const uint64_t *shape);
PyObject *numpy_setup(PyObject *module, PyObject *capsule);
PyObject *numpy_learn(PyObject *module, PyObject *args);

struct nest;
/* Reads a plan: None for a value, (keys, plans) for a mapping, (None, plans) for a sequence. NULL with an exception. */
struct nest *nest_new(PyObject *plan);
void nest_destroy(struct nest **nest);
uint32_t nest_leaves(const struct nest *nest);
/* Writes new references to the values of a step. False with an exception set: its structure is another. */
bool nest_flatten(const struct nest *nest, PyObject *step, PyObject **leaves);
void nest_release(PyObject **leaves, uint32_t n);

/* ---- types */

typedef struct client_object {
    PyObject_HEAD struct gate gate;
    struct conn *conn;             /* NULL: not connected yet */
    struct connecting *connecting; /* NULL: no attempt to connect is running */
} client_object;

typedef struct writer_object {
    PyObject_HEAD struct gate gate;
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

extern PyTypeObject *client_type, *writer_type, *selection_type;

/* The client of a Client object for a new user of it. NULL with an exception set. */
struct conn *client_share(PyObject *client);
/* The Memory of a batch. Takes the batch, also when it fails. */
PyObject *batch_wrap(rp_batch *batch);

bool client_register(PyObject *module);
bool writer_register(PyObject *module);
bool selection_register(PyObject *module);
bool sampler_register(PyObject *module);
bool batch_register(PyObject *module);
bool updater_register(PyObject *module);
bool server_register(PyObject *module);
bool reduce_register(PyObject *module);
bool publish_register(PyObject *module);

/* request.c: Client.request, a question to the broker with one answer. */
PyObject *request_call(PyObject *self, PyObject *args);
/* writer_open.c: Writer._open(plan, columns, name, chunk_length, keep_alive, max_in_flight, history, timeout) */
PyObject *writer_open(PyObject *self, PyObject *args);
void writer_forget_columns(writer_object *self);
/* pattern.c: Writer._add_pattern(table, priority, selection, ((kind, column, a, number), ...)) */
PyObject *pattern_add(PyObject *self, PyObject *args);
/* rows.c: append_rows(writers, block, step, table, steps, priorities, done, timeout) */
PyObject *rows_append(PyObject *module, PyObject *args);
/* weights.c: weights_encode({name: array}): a block; weights_list(block): [(name, dtype, shape, offset)] */
PyObject *weights_from_arrays(PyObject *module, PyObject *tensors);
PyObject *weights_entries(PyObject *module, PyObject *block);

#endif
