/* Counts the forks of this process, so that an object can tell that its threads run in another process. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

/* Forks between the first process and this one. Only forks.c writes it, in a child that has one thread. */
extern uint32_t forks_seen;

/* Starts to count. Call it before an object notes the count; later calls do nothing. False: no memory. */
bool forks_watch(void);

/* A load, where getpid would be a system call. */
static inline uint32_t forks_count(void)
{
    return forks_seen;
}
