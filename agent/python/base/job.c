/* Calls on a helper thread, while the caller waits in slices and notices signals: calls that go on after the wait for them has
 * ended, or that libreplay cannot interrupt. */
#include "agent/python/base/base.h"

#include <pthread.h>
#include <signal.h>
#include <time.h>

#define SLICE_MS 50

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t finished = PTHREAD_COND_INITIALIZER;

void job_after_fork(void)
{
    pthread_mutex_init(&mutex, NULL);
    pthread_cond_init(&finished, NULL);
}

static void *work(void *argument)
{
    struct job *job = argument;
    job->run(job);
    pthread_mutex_lock(&mutex);
    job->done = true;
    bool abandoned = job->abandoned;
    pthread_cond_broadcast(&finished);
    pthread_mutex_unlock(&mutex);
    if (abandoned)
        job->drop(job);
    return NULL;
}

/* Starts the thread with all signals blocked: Python's handlers belong to its main thread. */
bool job_start(struct job *job)
{
    pthread_t thread;
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    int failed = pthread_create(&thread, NULL, work, job);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (failed == 0) {
        pthread_detach(thread);
        return true;
    }
    job->drop(job);
    core_raise(RP_NO_MEMORY, "no thread for a call can be started");
    return false;
}

/* Waits for at most wait_ms. Returns whether the job is done. */
static bool is_done(struct job *job, int64_t wait_ms)
{
    struct timespec until;
    clock_gettime(CLOCK_REALTIME, &until);
    until.tv_nsec += wait_ms * 1000000L;
    until.tv_sec += until.tv_nsec / 1000000000L;
    until.tv_nsec %= 1000000000L;
    pthread_mutex_lock(&mutex);
    while (!job->done && wait_ms > 0 && pthread_cond_timedwait(&finished, &mutex, &until) == 0)
        ;
    bool done = job->done;
    pthread_mutex_unlock(&mutex);
    return done;
}

enum job_state job_await(struct job *job, int64_t timeout_ms)
{
    int64_t start = core_now_ns();
    for (;;) {
        int64_t left = core_left_ms(start, timeout_ms);
        bool done;
        Py_BEGIN_ALLOW_THREADS;
        done = is_done(job, left < 0 || left > SLICE_MS ? SLICE_MS : left);
        Py_END_ALLOW_THREADS;
        if (done)
            return JOB_DONE;
        if (!core_look())
            return JOB_INTERRUPTED;
        if (left == 0)
            return JOB_RUNNING;
    }
}

void job_abandon(struct job *job)
{
    pthread_mutex_lock(&mutex);
    bool done = job->done;
    job->abandoned = true;
    pthread_mutex_unlock(&mutex);
    if (!done)
        return;
    Py_BEGIN_ALLOW_THREADS;
    job->drop(job);
    Py_END_ALLOW_THREADS;
}

bool job_wait(struct job *job)
{
    if (!job_start(job))
        return false;
    if (job_await(job, -1) == JOB_DONE)
        return true;
    job_abandon(job);
    return false;
}
