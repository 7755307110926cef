/* A clock that stands still until it is moved. */
#pragma once

#include "proto/base/clock.h"

struct clock_manual {
    int64_t now_ns;
};

static inline int64_t clock_manual_now(void *ctx)
{
    return ((const struct clock_manual *)ctx)->now_ns;
}

static inline struct clock clock_manual(struct clock_manual *manual)
{
    return (struct clock){.now = clock_manual_now, .ctx = manual};
}
