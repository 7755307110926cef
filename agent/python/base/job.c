/* Requests on a helper thread.
 *
 * A request that times out may still be carried out, so it cannot be repeated in slices. It runs on a thread of its own
 * instead, while the caller waits in slices and notices signals. */
#include "agent/python/base/base.h"

#include <pthread.h>
#include <signal.h>
#include <time.h>

#define SLICE_NS 100000000L

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
static bool start(struct job *job)
{
    pthread_t thread;
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    int failed = pthread_create(&thread, NULL, work, job);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (failed == 0)
        pthread_detach(thread);
    return failed == 0;
}

/* Waits for one slice. Returns whether the job is done; with `abandon`, marks it as abandoned if it is not. */
static bool await(struct job *job, bool abandon)
{
    struct timespec until;
    clock_gettime(CLOCK_REALTIME, &until);
    until.tv_nsec += SLICE_NS;
    until.tv_sec += until.tv_nsec / 1000000000L;
    until.tv_nsec %= 1000000000L;
    pthread_mutex_lock(&mutex);
    while (!job->done && !abandon && pthread_cond_timedwait(&finished, &mutex, &until) == 0)
        ;
    bool done = job->done;
    if (!done && abandon)
        job->abandoned = true;
    pthread_mutex_unlock(&mutex);
    return done;
}

bool job_wait(struct job *job)
{
    if (!start(job)) {
        job->drop(job);
        core_raise(RP_NO_MEMORY, "no thread for a request can be started");
        return false;
    }
    for (;;) {
        bool done;
        Py_BEGIN_ALLOW_THREADS;
        done = await(job, false);
        Py_END_ALLOW_THREADS;
        if (done)
            return true;
        if (PyErr_CheckSignals() != 0)
            break;
    }
    if (await(job, true))
        job->drop(job);
    return false;
}
