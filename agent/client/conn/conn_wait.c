/* Waits of the callers' threads: deadlines, the function of rp_wait_set, and the work of a connection without a thread. */
#include <errno.h>
#include <time.h>

#include "agent/client/conn/conn_impl.h"
#include "proto/base/clock.h"
#include "proto/base/error.h"

/* How often a thread that waits calls the function of rp_wait_set. */
#define WATCH_NS (50 * NS_PER_MS)
/* Longest sleep of a host before the connection does its own work again. */
#define HOST_SLEEP_MS 100

static _Thread_local struct {
    rp_wait_fn *fn; /* NULL: none */
    void *ctx;
    int64_t next_ns; /* time of the next call */
    bool stopped;
} watch;

void rp_wait_set(rp_wait_fn *fn, void *ctx)
{
    watch.fn = fn;
    watch.ctx = ctx;
    watch.next_ns = fn ? conn_now() + WATCH_NS : 0;
    watch.stopped = false;
}

bool conn_is_stopped(void)
{
    return watch.stopped;
}

rp_status conn_stopped(rp_error *err)
{
    return err_set(err, RP_CANCELLED, "the caller has ended the wait");
}

/* Calls this thread's function if it is time to. Without a function for its own waits meanwhile: it may use the library. */
static void watch_call(pthread_mutex_t *mutex)
{
    if (!watch.fn || conn_now() < watch.next_ns)
        return;
    rp_wait_fn *fn = watch.fn;
    void *ctx = watch.ctx;
    watch.fn = NULL;
    pthread_mutex_unlock(mutex);
    bool stop = fn(ctx) != 0;
    pthread_mutex_lock(mutex);
    rp_wait_set(fn, ctx);
    watch.stopped = stop;
}

int64_t conn_now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (int64_t)t.tv_sec * NS_PER_S + t.tv_nsec;
}

int64_t conn_deadline(int64_t timeout_ms)
{
    watch.stopped = false;
    if (timeout_ms < 0)
        return INT64_MAX;
    int64_t now = conn_now();
    return timeout_ms > (INT64_MAX - now) / NS_PER_MS ? INT64_MAX : now + timeout_ms * NS_PER_MS;
}

int64_t conn_left_ms(int64_t deadline_ns)
{
    if (deadline_ns == INT64_MAX)
        return -1;
    int64_t left = deadline_ns - conn_now();
    return left <= 0 ? 0 : (left - 1) / NS_PER_MS + 1;
}

int64_t conn_with_grace(int64_t timeout_ms, int64_t grace_ms)
{
    return timeout_ms < 0 || timeout_ms > INT64_MAX - grace_ms ? -1 : timeout_ms + grace_ms;
}

void conn_cond_init(pthread_cond_t *cond)
{
    pthread_condattr_t attr;
    pthread_condattr_init(&attr);
    pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
    pthread_cond_init(cond, &attr);
    pthread_condattr_destroy(&attr);
}

bool conn_cond_wait(pthread_cond_t *cond, pthread_mutex_t *mutex, int64_t deadline_ns)
{
    if (deadline_ns == INT64_MAX) {
        pthread_cond_wait(cond, mutex);
        return true;
    }
    struct timespec t = {.tv_sec = (time_t)(deadline_ns / NS_PER_S), .tv_nsec = (long)(deadline_ns % NS_PER_S)};
    return pthread_cond_timedwait(cond, mutex, &t) != ETIMEDOUT;
}

static int64_t earlier(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

/* ---- waiting without a thread */

static int ms_until(int64_t until_ns, int most)
{
    int64_t left = until_ns - conn_now();
    int64_t left_ms = left <= 0 ? 0 : (left + NS_PER_MS - 1) / NS_PER_MS;
    return left_ms < most ? (int)left_ms : most;
}

/* Does the thread's work: sends what was submitted, lets the host run, and takes its replies. If there is no reply, the host
 * sleeps. */
static void serve(struct conn *self, int64_t deadline_ns)
{
    uint64_t seen = self->n_replies;
    int wait_ms = 0;
    conn_turn(self);
    for (int i = 0; i < 2 && self->n_replies == seen; i++) {
        self->broker.turn(self->broker.ctx, wait_ms);
        int64_t next = conn_turn(self);
        wait_ms = ms_until(earlier(next, deadline_ns), HOST_SLEEP_MS);
    }
}

bool conn_wait_once(struct conn *self, pthread_cond_t *cond, pthread_mutex_t *mutex, int64_t until_ns)
{
    if (!self->broker.turn)
        return conn_cond_wait(cond, mutex, until_ns);
    pthread_mutex_unlock(mutex);
    serve(self, until_ns);
    pthread_mutex_lock(mutex);
    return until_ns == INT64_MAX || conn_now() < until_ns;
}

bool conn_wait(struct conn *self, pthread_cond_t *cond, pthread_mutex_t *mutex, int64_t deadline_ns)
{
    watch.stopped = false;
    if (!watch.fn)
        return conn_wait_once(self, cond, mutex, deadline_ns);
    bool in_time = conn_wait_once(self, cond, mutex, earlier(deadline_ns, watch.next_ns)) || conn_now() < deadline_ns;
    watch_call(mutex);
    return in_time && !watch.stopped;
}

void conn_look(struct conn *self)
{
    if (self->broker.turn)
        serve(self, 0);
}

void conn_waited_add(struct conn *self, int64_t ns)
{
    atomic_fetch_add_explicit(&self->waited_ns, (uint64_t)(ns > 0 ? ns : 0), memory_order_relaxed);
}

uint64_t conn_waited(const struct conn *self)
{
    return atomic_load_explicit(&self->waited_ns, memory_order_relaxed);
}
