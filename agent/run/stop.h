/* The flag that ends a process of a run in order. */
#pragma once

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>

/* stop: NULL, or the flag. */
static inline bool is_stopped(const atomic_bool *stop)
{
    return stop != NULL && atomic_load(stop);
}
