/* One thread at a time for each object, and waits that free the GIL.
 *
 * A gate is a flag that the GIL guards, so an uncontended call takes no lock. A thread that finds the flag set frees the
 * GIL and waits until somebody leaves. */
#include "agent/python/base/base.h"

#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#define SLICE_MS 100

static uint64_t forks;
static pthread_mutex_t left_mutex = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t left = PTHREAD_COND_INITIALIZER;
static unsigned waiters; /* guarded by the GIL */

static void after_fork(void)
{
    forks++;
    waiters = 0;
    pthread_mutex_init(&left_mutex, NULL);
    pthread_cond_init(&left, NULL);
    job_after_fork();
    log_after_fork();
}

bool gate_init(void)
{
    static bool registered;
    if (registered || pthread_atfork(NULL, NULL, after_fork) == 0)
        registered = true;
    else
        PyErr_NoMemory();
    return registered;
}

uint64_t gate_forks(void)
{
    return forks;
}

void gate_open(struct gate *gate, PyObject *object, void (*destroy)(PyObject *object))
{
    *gate = (struct gate){.forks = forks, .object = object, .destroy = destroy};
}

bool gate_is_foreign(const struct gate *gate)
{
    return gate->forks != forks;
}

void gate_adopt(struct gate *gate)
{
    if (!gate->busy)
        gate->forks = forks;
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

/* Waits until the gate is free, or for one slice. */
static bool await_left(const struct gate *gate)
{
    struct timespec until;
    clock_gettime(CLOCK_REALTIME, &until);
    until.tv_nsec += SLICE_MS * 1000000L;
    until.tv_sec += until.tv_nsec / 1000000000L;
    until.tv_nsec %= 1000000000L;
    waiters++;
    pthread_mutex_lock(&left_mutex);
    Py_BEGIN_ALLOW_THREADS;
    pthread_cond_timedwait(&left, &left_mutex, &until);
    pthread_mutex_unlock(&left_mutex);
    Py_END_ALLOW_THREADS;
    if (!gate_is_foreign(gate))
        waiters--;
    return PyErr_CheckSignals() == 0;
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

void gate_leave(struct gate *gate)
{
    if (gate->doomed) {
        gate->doomed = false;
        gate->destroy(gate->object);
    }
    gate->busy = false;
    if (waiters == 0)
        return;
    pthread_mutex_lock(&left_mutex);
    pthread_cond_broadcast(&left);
    pthread_mutex_unlock(&left_mutex);
}

static bool is_cancelled(const struct gate *gate, rp_error *err)
{
    if (!gate->closed || gate->closing)
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

static int64_t now_ms(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec * 1000 + now.tv_nsec / 1000000;
}

rp_status gate_wait(struct gate *gate, gate_attempt *attempt, void *call, int64_t timeout_ms, rp_error *err)
{
    if (is_cancelled(gate, err))
        return RP_CANCELLED;
    rp_status status = attempt(call, 0, err);
    if (status != RP_DEADLINE_EXCEEDED || timeout_ms == 0)
        return status;
    int64_t start = now_ms(), slices = 0;
    while (status == RP_DEADLINE_EXCEEDED) {
        int64_t left_ms = timeout_ms < 0 ? SLICE_MS : timeout_ms - (now_ms() - start);
        if (left_ms <= 0)
            break;
        Py_BEGIN_ALLOW_THREADS;
        status = attempt(call, left_ms < SLICE_MS ? left_ms : SLICE_MS, err);
        Py_END_ALLOW_THREADS;
        slices++;
        if (status != RP_DEADLINE_EXCEEDED)
            break;
        if (PyErr_CheckSignals() != 0)
            return GATE_INTERRUPTED;
        if (is_cancelled(gate, err))
            return RP_CANCELLED;
    }
    if (status == RP_DEADLINE_EXCEEDED && slices > 1) {
        size_t length = strlen(err->text);
        snprintf(err->text + length, sizeof err->text - length, " (waited %.1f s in all)",
                 (double)(now_ms() - start) / 1e3);
    }
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
