/* See forks.h. */
#include "proto/base/forks.h"

#include <pthread.h>

uint32_t forks_seen;

static bool watching;

static void count_fork(void)
{
    forks_seen++;
}

static void watch(void)
{
    watching = pthread_atfork(NULL, NULL, count_fork) == 0;
}

bool forks_watch(void)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, watch);
    return watching;
}
