/* What the extensions of the Python package share: the rules that Python adds to handles of libreplay, through the limited
 * API of Python 3.11. Each extension has a copy of these files, as it has of libreplay: their state is its own.
 *   hooks.c    exceptions, small readers of arguments, types
 *   gate.c     one thread at a time for each object; waits that free the GIL and notice signals; behaviour after fork
 *   column.c   values of numpy and of Python as bytes, and arrays over memory
 *   log.c      the library's log lines */
#pragma once

#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "proto/base/clock.h"
#include "proto/base/dtype.h"
#include "proto/base/error.h"
#include "proto/base/forks.h"
#include "proto/base/log.h"
#include "replay/collective.h"
#include "replay/replay.h"

/* ---- hooks.c */

/* The function setup(errors, convert) of a module: what it needs from Python code. */
PyObject *core_setup(PyObject *module, PyObject *args);
/* Calls convert(value, name, dtype, shape) of Python code. NULL with an exception set. */
PyObject *core_convert(PyObject *value, const char *name, const char *dtype, PyObject *shape);
/* Sets the exception for a status. Returns NULL. */
PyObject *core_raise(int32_t status, const char *text);
/* Reads a deadline in seconds, or None: milliseconds, -1 for None. False with an exception set. */
bool core_timeout(PyObject *seconds, int64_t *out);
/* Checks that a count is least to most. False with an exception set, which calls it `what`. */
bool core_count(long long count, const char *what, long long least, long long most);
/* Reads a number. False with an exception set, which calls it `what`. */
bool core_number(PyObject *value, const char *what, double *out);
/* For the format "O&": reads a uint32_t. 0 with an exception set; the format "I" would cut larger numbers off. */
int core_u32(PyObject *value, void *out);
/* The UTF-8 text of a str, borrowed from it. NULL with an exception set. `what` names it in the error. */
const char *core_text(PyObject *text, const char *what);
/* Reads the optional argument timeout, in seconds: positional or by its name. */
bool core_timeout_argument(PyObject *args, PyObject *kwargs, int64_t *out);
/* n elements of size bytes, zeroed, for free(). NULL with an exception set; never NULL for none. */
void *core_alloc(size_t n, size_t size);
/* A copy of a text, which may be NULL, for free(). NULL with an exception set, unless there is no text. */
char *core_copy(const char *text);
/* Appends an object to a list, and takes it. Both may be NULL. Clears *list when it fails. */
void core_append(PyObject **list, PyObject *item);
/* The same for a place of a tuple, and for a key of a dict. */
void core_set(PyObject **tuple, size_t i, PyObject *item);
void core_put(PyObject **dict, const char *key, PyObject *value);
/* The tuple of n sizes. NULL with an exception set. */
PyObject *core_shape(const uint32_t *sizes, uint32_t n);

/* A type of an extension. What is zero is left out. */
struct core_type {
    const char *name; /* with its module */
    const char *doc;
    size_t size;
    newfunc make; /* NULL: Python code cannot make such objects */
    destructor dealloc;
    PyMethodDef *methods;
    PyGetSetDef *getters;
    lenfunc length;
    bool is_base;                    /* Python code may derive from it */
    bool (*begin)(PyObject *module); /* called before the type is made */
    PyTypeObject **out;              /* gets the type */
};

/* Makes the module of an extension with these types, NULL-terminated. NULL with an exception set. */
PyObject *core_module(struct PyModuleDef *definition, const struct core_type *const *types);
/* The functions that every extension has. */
#define CORE_METHODS                                                                                                   \
    {"setup", core_setup, METH_VARARGS, "setup(errors, convert): what the extension needs from Python."},              \
        {"numpy_setup", numpy_setup, METH_O, "numpy_setup(capsule): the table of numpy's functions."},                 \
        {"numpy_learn", numpy_learn, METH_VARARGS,                                                                     \
         "numpy_learn(array, transposed, scalar): whether values of their element type are read in place."},           \
    {                                                                                                                  \
        "log_set", log_set, METH_VARARGS, "log_set(function, level): the library's lines go to function(level, line)." \
    }
/* For dealloc: frees the memory of the object. */
void core_free(PyObject *object);
#define CORE_METHOD(function) ((PyCFunction)(void (*)(void))(function))

/* ---- gate.c */

/* Guards one object. Its fields are read and written with the GIL held. */
struct gate {
    bool busy;    /* a call is running, perhaps without the GIL */
    bool closed;  /* calls are refused; a call that waits ends */
    bool closing; /* the call that runs is the last one */
    bool doomed;  /* closed from within the call that runs: gate_leave destroys the object's handles */
    bool
        adopts; /* without threads and sockets: in a child, the copy of an object that no call used is its own object */
    unsigned long owner; /* the thread of the call that runs */
    uint32_t forks;      /* of this process when the object was made */
    struct gate *next;   /* of another object that the same call uses */
    PyObject *object;
    void (*destroy)(PyObject *object); /* gives up the object's handles; may be called more than once */
};

/* The head of an object with a gate. */
struct guarded {
    PyObject_HEAD struct gate gate;
};

/* A new object, zero but for its gate. NULL with an exception set. */
void *guarded_new(PyTypeObject *type, void (*destroy)(PyObject *object));
void guarded_dealloc(PyObject *object);
/* The method close without a time-out: destroys the handles. */
PyObject *guarded_close(PyObject *object, PyObject *unused);
/* The property closed. */
PyObject *guarded_closed(PyObject *object, void *unused);
extern PyGetSetDef guarded_getters[]; /* closed, for types without other properties */

bool gate_init(void);
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
/* Opens the object again if its last call has raised a TimeoutError, such as DeadlineExceeded: close can be repeated, and nothing is lost. */
bool gate_reopen(struct gate *gate);
/* False with an exception set: the object was closed during the call. */
bool gate_check(const struct gate *gate);
void gate_leave(struct gate *gate);

#define GATE_INTERRUPTED ((rp_status)-1)
/* One try of a call. A try that returns RP_DEADLINE_EXCEEDED can be repeated. */
typedef rp_status gate_attempt(void *call, int64_t timeout_ms, rp_error *err);
/* Tries at once with the GIL held, and waits without it. Returns the last try's status, RP_CANCELLED when the object is closed
 * meanwhile, or GATE_INTERRUPTED with an exception set. */
rp_status gate_wait(struct gate *gate, gate_attempt *attempt, void *call, int64_t timeout_ms, rp_error *err);
/* gate_wait; sets the exception for every status but RP_OK. */
bool gate_call(struct gate *gate, gate_attempt *attempt, void *call, int64_t timeout_ms);
/* gate_enter, gate_call, gate_leave. */
bool guarded_call(struct guarded *self, const char *what, gate_attempt *attempt, void *call, int64_t timeout_ms);
/* Closes the object after a last attempt, which NULL leaves out, unless that times out: the result of the method
 * close(timeout=None). */
PyObject *guarded_finish(struct guarded *self, gate_attempt *attempt, void *call, int64_t timeout_ms);

/* A call of the library that may wait. It runs without the GIL; a thread that waits takes the GIL every 50 ms to see whether a
 * signal has come or the object was closed. */
struct watch {
    const struct gate *gate; /* NULL: of no object */
    PyThreadState *thread;
    bool raised; /* a signal handler has raised an exception */
};

void watch_begin(struct watch *watch, const struct gate *gate);
/* Takes the GIL. False with an exception set: of a signal handler. The call has ended with RP_CANCELLED. */
bool watch_end(struct watch *watch);

/* During a wait, with the GIL: runs signal handlers and hands over log lines, as Python does between two instructions. False with
 * an exception set: the wait is to end. */
bool core_look(void);
/* What is left of a time-out of core_timeout; -1 if there is none. */
int64_t core_left_ms(int64_t start_ns, int64_t timeout_ms);

/* ---- column.c */

/* The name, element type and shape of values. */
struct column {
    char *name;
    int32_t dtype;
    uint32_t rank;
    uint32_t shape[RP_MAX_RANK];
    uint64_t row_bytes;
    char scalar[16]; /* the value of a Python number */
};

/* A value, or a block of values. `view` is empty (obj NULL) for a number and for a value read in place. */
struct cell {
    Py_buffer view;
    const void *data;
};

/* The dtype of a buffer's elements; 0 if libreplay has none like it. */
int32_t column_dtype(const char *format, Py_ssize_t itemsize);
/* Takes a value of the column's shape, or with rows > 0 of `rows` such values. False with an exception set. */
bool cell_take(struct cell *cell, struct column *column, PyObject *value, uint32_t rows);
/* Takes `rows` values from an array of any shape with as many elements, or one from a number. Numbers, and float64 or bool for a
 * float32, are put into scratch, which has 16 bytes and 4 for each row. False without an exception: convert the value first. */
bool cell_take_any(struct cell *cell, struct column *column, PyObject *value, uint32_t rows, void *scratch);
void cells_release(struct cell *cells, uint32_t n);
/* An array over memory that `owner` keeps. NULL with an exception set. */
PyObject *numpy_array(PyObject *owner, const void *data, int32_t dtype, uint32_t rank, const uint64_t *shape);
/* A new array of a column's value, or with rows > 0 of `rows` of them, and its memory. NULL with an exception set. */
PyObject *numpy_empty(const struct column *column, uint32_t rows, void **data);
/* The functions numpy_setup(capsule) and numpy_learn(array, transposed, scalar) of a module. */
PyObject *numpy_setup(PyObject *module, PyObject *capsule);
PyObject *numpy_learn(PyObject *module, PyObject *args);
/* ---- log.c */

/* The function log_set(function, level) of a module: the library's lines go to function(level, line); None: to standard
 * error. */
PyObject *log_set(PyObject *module, PyObject *args);
/* In a child: forgets lines of the parent. */
void log_after_fork(void);
