/* Clocks are passed in, so that tests need not sleep. */
#pragma once

#include <stdint.h>
#include <time.h>

#define NS_PER_US INT64_C(1000)
#define NS_PER_MS INT64_C(1000000)
#define NS_PER_S INT64_C(1000000000)

/* A monotonic clock. now() returns nanoseconds since a fixed origin. */
struct clock {
    int64_t (*now)(void *ctx);
    void *ctx;
};

/* CLOCK_MONOTONIC. */
struct clock clock_system(void);
static inline int64_t clock_now(const struct clock *self)
{
    return self->now(self->ctx);
}

/* The nanoseconds of a clock of the system. */
int64_t clock_of(clockid_t which);
/* The time of CLOCK_MONOTONIC, for code that tests do not stop. */
int64_t clock_ns(void);
/* Seconds since 1970. */
double clock_unix_s(void);
