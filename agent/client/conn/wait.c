#include "agent/client/conn/wait.h"

#include <errno.h>
#include <time.h>

#include "proto/base/error.h"

/* How often a thread that waits calls the function of rp_wait_set. */
#define WATCH_NS (50 * NS_PER_MS)

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
    watch.next_ns = fn ? clock_ns() + WATCH_NS : 0;
    watch.stopped = false;
}

bool conn_is_stopped(void)
{
    return watch.stopped;
}

rp_status conn_stopped(rp_error *err)
{
    return err_set(err, RP_CANCELLED, "the caller has ended the wait, or destroyed the client");
}

int64_t conn_deadline(int64_t timeout_ms)
{
    watch.stopped = false;
    if (timeout_ms < 0)
        return INT64_MAX;
    int64_t now = clock_ns();
    return timeout_ms > (INT64_MAX - now) / NS_PER_MS ? INT64_MAX : now + timeout_ms * NS_PER_MS;
}

int64_t conn_left_ms(int64_t deadline_ns)
{
    if (deadline_ns == INT64_MAX)
        return -1;
    int64_t left = deadline_ns - clock_ns();
    return left <= 0 ? 0 : (left - 1) / NS_PER_MS + 1;
}

bool conn_cond_wait(pthread_cond_t *cond, pthread_mutex_t *mutex, int64_t deadline_ns)
{
    if (deadline_ns == INT64_MAX) {
        pthread_cond_wait(cond, mutex);
        return true;
    }
    struct timespec t = {.tv_sec = (time_t)(deadline_ns / NS_PER_S), .tv_nsec = (long)(deadline_ns % NS_PER_S)};
    return pthread_cond_clockwait(cond, mutex, CLOCK_MONOTONIC, &t) != ETIMEDOUT;
}

int64_t conn_watch_begin(int64_t deadline_ns)
{
    watch.stopped = false;
    return watch.fn && watch.next_ns < deadline_ns ? watch.next_ns : deadline_ns;
}

bool conn_watch_stop(void)
{
    watch.stopped = true;
    return false;
}

bool conn_watch_end(pthread_mutex_t *mutex, int64_t deadline_ns, bool in_time)
{
    if (!watch.fn)
        return in_time;
    int64_t now = clock_ns();
    if (now >= watch.next_ns) { /* without a function for its own waits meanwhile: it may use the library */
        rp_wait_fn *fn = watch.fn;
        void *ctx = watch.ctx;
        watch.fn = NULL;
        pthread_mutex_unlock(mutex);
        bool stop = fn(ctx) != 0;
        pthread_mutex_lock(mutex);
        rp_wait_set(fn, ctx);
        watch.stopped = stop;
    }
    return (in_time || now < deadline_ns) && !watch.stopped;
}
