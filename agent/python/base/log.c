/* Log lines of the library, handed to Python.
 *
 * The library's threads log while they hold its locks, and a thread with the GIL may wait for such a lock. So a line is only put
 * into a list here; Python's main thread takes it out between two of its instructions. */
#include "agent/python/base/base.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "replay/log.h"

#define MAX_LINES 1000 /* that wait for Python; further lines are lost */

struct line {
    struct line *next;
    int32_t level;
    char text[];
};

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static struct line *first, **last = &first;
static unsigned n_lines;
static bool scheduled;
static PyObject *sink; /* guarded by the GIL */

void log_after_fork(void)
{
    pthread_mutex_init(&mutex, NULL);
    /* The lines are the parent's. A thread of the parent may have been changing the list, so it is not walked. */
    first = NULL;
    last = &first;
    n_lines = 0;
    scheduled = false;
}

static struct line *take_line(void)
{
    pthread_mutex_lock(&mutex);
    struct line *line = first;
    if (line) {
        first = line->next;
        n_lines--;
    }
    if (!first)
        last = &first;
    scheduled = line != NULL;
    pthread_mutex_unlock(&mutex);
    return line;
}

/* Hands a line to the sink. False with an exception set: not an error of the sink, but KeyboardInterrupt or the like. */
static bool hand_over(const struct line *line)
{
    PyObject *function = Py_XNewRef(sink);
    if (!function)
        return true;
    /* A line may be cut within a character, or have bytes of a peer. */
    PyObject *text = PyUnicode_DecodeUTF8(line->text, (Py_ssize_t)strlen(line->text), "replace");
    PyObject *result = text ? PyObject_CallFunction(function, "iO", (int)line->level, text) : NULL;
    bool ok = result || PyErr_ExceptionMatches(PyExc_Exception);
    if (!result && ok)
        PyErr_WriteUnraisable(function);
    Py_XDECREF(result);
    Py_XDECREF(text);
    Py_DECREF(function);
    return ok;
}

static int deliver(void *unused)
{
    (void)unused;
    struct line *line;
    bool ok = true;
    while (ok && (line = take_line())) {
        ok = hand_over(line);
        free(line);
    }
    if (ok)
        return 0;
    pthread_mutex_lock(&mutex);
    scheduled = first && Py_AddPendingCall(deliver, NULL) == 0;
    pthread_mutex_unlock(&mutex);
    return -1;
}

static void receive(void *ctx, int32_t level, const char *text)
{
    (void)ctx;
    size_t size = strlen(text) + 1;
    struct line *line = malloc(sizeof *line + size);
    if (!line)
        return;
    line->next = NULL;
    line->level = level;
    memcpy(line->text, text, size);
    pthread_mutex_lock(&mutex);
    bool keep = n_lines < MAX_LINES;
    if (keep) {
        *last = line;
        last = &line->next;
        n_lines++;
    }
    if (!scheduled)
        scheduled = Py_AddPendingCall(deliver, NULL) == 0;
    pthread_mutex_unlock(&mutex);
    if (!keep)
        free(line);
}

PyObject *log_set(PyObject *module, PyObject *args)
{
    (void)module;
    PyObject *function;
    int level;
    if (!PyArg_ParseTuple(args, "Oi", &function, &level))
        return NULL;
    Py_BEGIN_ALLOW_THREADS;
    rp_log_set(function == Py_None ? NULL : receive, NULL, level);
    Py_END_ALLOW_THREADS;
    PyObject *old = sink;
    sink = function == Py_None ? NULL : Py_NewRef(function);
    Py_XDECREF(old);
    return Py_NewRef(Py_None);
}
