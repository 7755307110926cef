/* replaybus._core: libreplay for Python, through the limited API of Python 3.11.
 *
 * The extension owns handles of libreplay and the rules that Python adds to them:
 *   gate.c     one thread at a time for each object; waits that free the GIL and notice signals; behaviour after fork
 *   job.c      requests on a helper thread, so that a signal ends the wait for a request that cannot be repeated
 *   conn.c     a client shared by the objects that use it, destroyed after the last of them
 *   column.c   one value of a step, as bytes; nest.c: the values of a nested step
 *   log.c      the library's log lines
 *   server.c, client.c, request.c, writer.c, writer_open.c, rows.c, selection.c, sampler.c, batch.c, view.c, updater.c: the types
 *   pattern.c, publish.c, reduce.c: the same
 * Everything else (structures, servers, text) is Python. */
#ifndef AGENT_PYTHON_CORE_H
#define AGENT_PYTHON_CORE_H

#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "replay/replay.h"

/* ---- module.c: what Python code hands to the extension at import */

/* A new reference to an attribute that _core.setup received: "errors" or "convert". NULL with an exception set. */
PyObject *core_hook(const char *name);
/* Sets the exception for a status. Returns NULL. */
PyObject *core_raise(int32_t status, const char *text);
/* Reads a deadline in seconds, or None: milliseconds, -1 for None. False with an exception set. */
bool core_timeout(PyObject *seconds, int64_t *out);
/* The UTF-8 text of a str, borrowed from it. NULL with an exception set. `what` names it in the error. */
const char *core_text(PyObject *text, const char *what);
/* Adds a heap type to the module. */
bool core_add_type(PyObject *module, const char *name, PyType_Spec *spec, PyTypeObject **out);

/* ---- gate.c */

/* Guards one object. Its fields are read and written with the GIL held. */
struct gate {
    bool busy;           /* a call is running, perhaps without the GIL */
    bool closed;         /* calls are refused; a call that waits ends */
    bool closing;        /* the call that runs is the last one */
    bool doomed;         /* closed from within the call that runs: gate_leave destroys the object's handles */
    unsigned long owner; /* the thread of the call that runs */
    uint64_t forks;      /* of this process when the object was made */
    PyObject *object;
    void (*destroy)(PyObject *object);
};

/* Counts the forks between the first process and this one. */
uint64_t gate_forks(void);
bool gate_init(void);
/* destroy: gives up the handles of an object that is closed from within one of its calls. NULL: no call of the object runs
 * Python code. */
void gate_open(struct gate *gate, PyObject *object, void (*destroy)(PyObject *object));
/* True if the object belongs to a parent of this process. */
bool gate_is_foreign(const struct gate *gate);
/* Whether a call of this thread is running: the caller is a signal handler, or user code that the call runs. */
bool gate_is_mine(const struct gate *gate);
/* Begins a call. False with an exception set: the object is closed, or a call of this thread is running, or the process has
 * forked, or a signal came. */
bool gate_enter(struct gate *gate, const char *what);
/* Begins the last call: refuses all others and waits for the one that runs. False without an exception: the object was closed
 * before, or a call of this thread is running, which ends with RP_CANCELLED and destroys the handles. False with an exception:
 * a signal came. */
bool gate_close(struct gate *gate);
/* False with an exception set: the object was closed during the call. */
bool gate_check(const struct gate *gate);
void gate_leave(struct gate *gate);

#define GATE_INTERRUPTED ((rp_status)-1)
/* One try of a call. A try that returns RP_DEADLINE_EXCEEDED can be repeated. */
typedef rp_status gate_attempt(void *call, int64_t timeout_ms, rp_error *err);
/* Tries at once with the GIL held, then without it in slices of 100 ms until the time has passed. Returns the last try's
 * status, RP_CANCELLED when the object is closed meanwhile, or GATE_INTERRUPTED with an exception set. */
rp_status gate_wait(struct gate *gate, gate_attempt *attempt, void *call, int64_t timeout_ms, rp_error *err);
/* gate_wait; sets the exception for every status but RP_OK. */
bool gate_call(struct gate *gate, gate_attempt *attempt, void *call, int64_t timeout_ms);

/* ---- conn.c */

struct conn {
    rp_client *client;
    atomic_uint refs;
    uint64_t forks;
};

struct conn *conn_new(rp_client *client);
struct conn *conn_ref(struct conn *conn);
/* Destroys the client after its last user. Call without the GIL. */
void conn_unref(struct conn *conn);
/* The same with the GIL held; leaves a parent's client alone. */
void conn_drop(struct conn **conn);

/* ---- job.c */

/* A call on a thread of its own. Embed it as the first member. */
struct job {
    void (*run)(struct job *job);  /* on the helper thread, without the GIL */
    void (*drop)(struct job *job); /* frees the job and its result, without the GIL */
    bool done, abandoned;          /* guarded by job.c's mutex */
};

/* Runs the job and waits for it. True: it is done, and the caller drops it. False with an exception set: a signal came;
 * the helper thread drops the job when it is done. */
bool job_wait(struct job *job);
/* In a child: forgets locks that threads of the parent held. */
void job_after_fork(void);

/* ---- column.c, nest.c */

struct column {
    char *name;
    int32_t dtype;
    uint32_t itemsize, rank;
    uint32_t shape[RP_MAX_RANK];
    uint64_t row_bytes;
    char scalar[16]; /* the value of a Python number */
};

/* One value of a step, or of a block of steps. `view` is empty (obj NULL) for a Python number. */
struct cell {
    Py_buffer view;
    const void *data;
};

/* RP_OK and the dtype of a buffer's elements; 0 if libreplay has none like it. */
int32_t column_dtype(const char *format, Py_ssize_t itemsize);
const char *column_format(int32_t dtype);
/* Reads (name, dtype name, shape). False with an exception set. */
bool column_read(PyObject *spec, struct column *out);
void column_fini(struct column *column);
/* Takes a value of the column's shape, or with rows > 0 of `rows` such values. False with an exception set. */
bool cell_take(struct cell *cell, struct column *column, PyObject *value, uint32_t rows);
void cells_release(struct cell *cells, uint32_t n);

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
    struct conn *conn;
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
} writer_object;

typedef struct selection_object {
    PyObject_HEAD rp_slice *slices;
    uint32_t n;
} selection_object;

extern PyTypeObject *client_type, *writer_type, *selection_type, *batch_type;

/* The client of a Client object for a new user of it. NULL with an exception set. */
struct conn *client_share(PyObject *client);
/* Takes the batch, also when it fails. */
PyObject *batch_wrap(rp_batch *batch);
/* A buffer over memory that `owner` keeps. */
PyObject *view_new(PyObject *owner, const void *data, int32_t dtype, uint32_t rank, const uint64_t *shape);

bool client_register(PyObject *module);
bool writer_register(PyObject *module);
bool selection_register(PyObject *module);
bool sampler_register(PyObject *module);
bool batch_register(PyObject *module);
bool view_register(PyObject *module);
bool updater_register(PyObject *module);
bool server_register(PyObject *module);
bool reduce_register(PyObject *module);
bool publish_register(PyObject *module);

/* request.c: Client.request, a question to the broker with one answer. */
PyObject *request_call(PyObject *self, PyObject *args);
/* writer_open.c: Writer._open(plan, columns, name, chunk_length, keep_alive, max_in_flight, timeout) */
PyObject *writer_open(PyObject *self, PyObject *args);
void writer_forget_columns(writer_object *self);
/* log.c: log_set(function, level): the library's lines go to function(level, line); None: to standard error. */
PyObject *log_set(PyObject *module, PyObject *args);
void log_after_fork(void);
/* pattern.c: Writer._add_pattern(table, priority, selection, ((kind, a, b), ...)) */
PyObject *pattern_add(PyObject *self, PyObject *args);
/* rows.c: append_rows(writers, block, step, table, steps, priorities, done, timeout) */
PyObject *rows_append(PyObject *module, PyObject *args);

#endif
