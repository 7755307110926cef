/* The system's clocks. */
#include "proto/base/clock.h"

int64_t clock_of(clockid_t which)
{
    struct timespec t = {0};
    clock_gettime(which, &t);
    return (int64_t)t.tv_sec * NS_PER_S + t.tv_nsec;
}

/* By itself, because everything reads this clock all the time. */
int64_t clock_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (int64_t)t.tv_sec * NS_PER_S + t.tv_nsec;
}

double clock_unix_s(void)
{
    return 1e-9 * (double)clock_of(CLOCK_REALTIME);
}

static int64_t system_now(void *ctx)
{
    (void)ctx;
    return clock_ns();
}

struct clock clock_system(void)
{
    return (struct clock){.now = system_now};
}
