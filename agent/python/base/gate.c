/* One thread at a time for each object, and waits that free the GIL.
 *
 * A gate is a flag that the GIL guards, so an uncontended call takes no lock. A thread that finds the flag set frees the
 * GIL and waits until somebody leaves. */
#include "agent/python/base/base.h"

#include <pthread.h>
#include <stdio.h>
#include <time.h>

#define SLICE_MS 50

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t changed = PTHREAD_COND_INITIALIZER; /* a call has left its gate */
static unsigned waiters;                                  /* for a gate; guarded by the GIL */

static void after_fork(void)
{
    waiters = 0;
    pthread_mutex_init(&mutex, NULL);
    pthread_cond_init(&changed, NULL);
    log_after_fork();
}

bool gate_init(void)
{
    static bool registered;
    registered = registered || (forks_watch() && pthread_atfork(NULL, NULL, after_fork) == 0);
    if (!registered)
        PyErr_NoMemory();
    return registered;
}

bool gate_is_foreign(const struct gate *gate)
{
    return gate->forks != forks_count();
}

static void adopt(struct gate *gate)
{
    if (gate->adopts && !gate->busy)
        gate->forks = forks_count();
}

bool gate_is_mine(const struct gate *gate)
{
    return gate->busy && !gate_is_foreign(gate) && gate->owner == PyThread_get_thread_ident();
}

static void take(struct gate *gate)
{
    gate->busy = true;
    gate->owner = PyThread_get_thread_ident();
}

/* Waits until some gate is free, or for one slice. */
static bool await_left(const struct gate *gate)
{
    struct timespec until;
    clock_gettime(CLOCK_REALTIME, &until);
    until.tv_nsec += SLICE_MS * 1000000L;
    until.tv_sec += until.tv_nsec / 1000000000L;
    until.tv_nsec %= 1000000000L;
    waiters++;
    pthread_mutex_lock(&mutex);
    Py_BEGIN_ALLOW_THREADS;
    pthread_cond_timedwait(&changed, &mutex, &until);
    pthread_mutex_unlock(&mutex);
    Py_END_ALLOW_THREADS;
    if (!gate_is_foreign(gate))
        waiters--;
    return core_look();
}

static bool refuse(const struct gate *gate, const char *what)
{
    char text[200];
    if (gate_is_foreign(gate))
        snprintf(text, sizeof text, "this %s belongs to the parent process: open a new one after fork", what);
    else if (gate->closed)
        snprintf(text, sizeof text, "this %s is closed", what);
    else
        snprintf(
            text, sizeof text,
            "a call of this %s is running in the same thread: a signal handler, or code that the call runs, can only "
            "close the %s",
            what, what);
    core_raise(RP_FAILED_PRECONDITION, text);
    return false;
}

bool gate_enter(struct gate *gate, const char *what)
{
    adopt(gate);
    while (gate->busy && !gate->closed && !gate_is_foreign(gate) && !gate_is_mine(gate))
        if (!await_left(gate))
            return false;
    if (gate->closed || gate_is_foreign(gate) || gate->busy)
        return refuse(gate, what);
    take(gate);
    return true;
}

bool gate_close(struct gate *gate)
{
    adopt(gate);
    if (gate->closed)
        return false;
    gate->closed = true;
    if (gate_is_mine(gate)) {
        gate->doomed = true;
        return false;
    }
    while (gate->busy && !gate_is_foreign(gate))
        if (!await_left(gate)) {
            gate->closed = false;
            return false;
        }
    take(gate);
    gate->closing = true;
    return true;
}

bool gate_reopen(struct gate *gate)
{
    gate->closed = !PyErr_Occurred() || !PyErr_ExceptionMatches(PyExc_TimeoutError);
    return !gate->closed;
}

void gate_leave(struct gate *gate)
{
    if (gate->doomed) {
        gate->doomed = false;
        gate->destroy(gate->object);
    }
    gate->busy = gate->closing = false;
    if (waiters == 0)
        return;
    pthread_mutex_lock(&mutex);
    pthread_cond_broadcast(&changed);
    pthread_mutex_unlock(&mutex);
}

/* The first gate of the call that another thread, a signal handler, or code that the call runs has closed; NULL: none. */
static const struct gate *closed_gate(const struct gate *gate)
{
    while (gate && (!gate->closed || gate->closing))
        gate = gate->next;
    return gate;
}

static bool is_cancelled(const struct gate *gate, rp_error *err)
{
    gate = closed_gate(gate);
    if (!gate)
        return false;
    snprintf(err->text, sizeof err->text,
             gate->doomed ? "closed during the call by a signal handler, or by code that the call runs"
                          : "closed by another thread during the call");
    return true;
}

bool gate_check(const struct gate *gate)
{
    rp_error err;
    if (!is_cancelled(gate, &err))
        return true;
    core_raise(RP_CANCELLED, err.text);
    return false;
}

/* ---- waits */

int64_t core_left_ms(int64_t start_ns, int64_t timeout_ms)
{
    if (timeout_ms < 0)
        return -1;
    int64_t left_ns = timeout_ms * 1000000 - (clock_ns() - start_ns);
    return left_ns > 0 ? (left_ns + 999999) / 1000000 : 0;
}

bool core_look(void)
{
    return PyErr_CheckSignals() == 0 && Py_MakePendingCalls() == 0;
}

/* For rp_wait_set. */
static int look(void *ctx)
{
    struct watch *watch = ctx;
    PyEval_RestoreThread(watch->thread);
    watch->raised = watch->raised || !core_look(); /* a wait may look again before it ends */
    bool stop = watch->raised || closed_gate(watch->gate);
    watch->thread = PyEval_SaveThread();
    return stop;
}

void watch_begin(struct watch *watch, const struct gate *gate)
{
    *watch = (struct watch){.gate = gate, .thread = PyEval_SaveThread()};
    rp_wait_set(look, watch);
}

bool watch_end(struct watch *watch)
{
    rp_wait_set(NULL, NULL);
    PyEval_RestoreThread(watch->thread);
    return !watch->raised;
}

rp_status gate_wait(struct gate *gate, gate_attempt *attempt, void *call, int64_t timeout_ms, rp_error *err)
{
    if (is_cancelled(gate, err))
        return RP_CANCELLED;
    rp_status status = attempt(call, 0, err);
    if (status != RP_DEADLINE_EXCEEDED || timeout_ms == 0)
        return status;
    struct watch watch;
    watch_begin(&watch, gate);
    status = attempt(call, timeout_ms, err);
    if (!watch_end(&watch))
        return GATE_INTERRUPTED;
    if (status == RP_CANCELLED)
        is_cancelled(gate, err);
    return status;
}

bool gate_call(struct gate *gate, gate_attempt *attempt, void *call, int64_t timeout_ms)
{
    rp_error err;
    rp_status status = gate_wait(gate, attempt, call, timeout_ms, &err);
    if (status != RP_OK && status != GATE_INTERRUPTED)
        core_raise(status, err.text);
    return status == RP_OK;
}

/* ---- objects */

void *guarded_new(PyTypeObject *type, void (*destroy)(PyObject *object))
{
    struct guarded *self = (struct guarded *)PyType_GenericAlloc(type, 0);
    if (self)
        self->gate = (struct gate){.forks = forks_count(), .object = (PyObject *)self, .destroy = destroy};
    return self;
}

void guarded_dealloc(PyObject *object)
{
    ((struct guarded *)object)->gate.destroy(object);
    core_free(object);
}

bool guarded_call(struct guarded *self, const char *what, gate_attempt *attempt, void *call, int64_t timeout_ms)
{
    if (!gate_enter(&self->gate, what))
        return false;
    bool ok = gate_call(&self->gate, attempt, call, timeout_ms);
    gate_leave(&self->gate);
    return ok;
}

PyObject *guarded_finish(struct guarded *self, gate_attempt *attempt, void *call, int64_t timeout_ms)
{
    if (!gate_close(&self->gate))
        return PyErr_Occurred() ? NULL : Py_NewRef(Py_None);
    bool ok = !attempt || gate_is_foreign(&self->gate) || gate_call(&self->gate, attempt, call, timeout_ms);
    if (!gate_reopen(&self->gate))
        self->gate.destroy((PyObject *)self);
    gate_leave(&self->gate);
    return ok ? Py_NewRef(Py_None) : NULL;
}

PyObject *guarded_close(PyObject *object, PyObject *unused)
{
    (void)unused;
    return guarded_finish((struct guarded *)object, NULL, NULL, 0);
}

PyObject *guarded_closed(PyObject *object, void *unused)
{
    (void)unused;
    return PyBool_FromLong(((struct guarded *)object)->gate.closed);
}

PyGetSetDef guarded_getters[] = {
    {"closed", guarded_closed, NULL, "Whether close was called.", NULL},
    {NULL, NULL, NULL, NULL, NULL},
};
