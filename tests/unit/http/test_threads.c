/* Processor time of threads by name: it never goes back, whichever threads end. */

#include <pthread.h>
#include <semaphore.h>
#include <time.h>

#include "broker/program/threads.h"
#include "proto/base/clock.h"
#include "tests/support/test.h"

#define WORK_S 0.02

struct worker {
    pthread_t thread;
    sem_t worked, end;
};

static double own_cpu(void)
{
    struct timespec at;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &at);
    return (double)at.tv_sec + (double)at.tv_nsec / 1e9;
}

static void *work(void *arg)
{
    struct worker *self = arg;
    pthread_setname_np(pthread_self(), "worker");
    while (own_cpu() < WORK_S) {
    }
    sem_post(&self->worked);
    sem_wait(&self->end);
    return NULL;
}

static void begin(struct worker *self)
{
    sem_init(&self->worked, 0, 0);
    sem_init(&self->end, 0, 0);
    assert_int_equal(pthread_create(&self->thread, NULL, work, self), 0);
    sem_wait(&self->worked);
}

static void end(struct worker *self)
{
    sem_post(&self->end);
    pthread_join(self->thread, NULL);
    sem_destroy(&self->worked);
    sem_destroy(&self->end);
}

/* Looks again after a second and returns what workers have used so far. */
static double look(struct threads *threads, int64_t *now_ns)
{
    threads_look(threads, *now_ns += NS_PER_S);
    for (uint32_t i = 0; i < threads->n; i++)
        if (strcmp(threads->list[i].name, "worker") == 0)
            return threads->rows[i].cpu_s;
    return 0;
}

TEST(times_never_go_back)
{
    static struct threads threads;
    struct worker first, second, third;
    int64_t now_ns = NS_PER_S;
    assert_true(look(&threads, &now_ns) == 0);
    begin(&first);
    double one = look(&threads, &now_ns);
    assert_true(one >= WORK_S / 2);
    begin(&second);
    double two = look(&threads, &now_ns);
    assert_true(two >= one + WORK_S / 2);
    end(&first);
    assert_true(look(&threads, &now_ns) >= two);
    end(&second);
    double both = look(&threads, &now_ns);
    assert_true(both >= two);
    begin(&third);
    assert_true(look(&threads, &now_ns) >= both + WORK_S / 2);
    end(&third);
    assert_true(threads.process.cpu_s >= 3 * WORK_S);
}
