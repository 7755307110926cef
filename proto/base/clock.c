/* The system's monotonic clock, and one for tests that stands still. */
#include "proto/base/clock.h"

#include <time.h>

int64_t clock_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (int64_t)t.tv_sec * NS_PER_S + t.tv_nsec;
}

double clock_unix_s(void)
{
    struct timespec t;
    clock_gettime(CLOCK_REALTIME, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
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

static int64_t manual_now(void *ctx)
{
    return ((const struct clock_manual *)ctx)->now_ns;
}

struct clock clock_manual(struct clock_manual *manual)
{
    return (struct clock){.now = manual_now, .ctx = manual};
}
