/* Threads that share one job: the caller and helpers, which wait for the next job in between. */
#pragma once

#include <stdint.h>

struct crew;

/* Does one slice of a job. worker: number of the thread, from 0, which is the caller. */
typedef void crew_fn(void *ctx, uint32_t worker, uint32_t slice);

/* threads: with the caller, at least 1. Helpers start with the first job. NULL: no memory. */
struct crew *crew_new(uint32_t threads);
void crew_destroy(struct crew **self);
uint32_t crew_size(const struct crew *self);
/* Calls fn for slices 0 to n - 1, each once, and returns when all are done. One thread calls it at a time. */
void crew_run(struct crew *self, uint32_t n, crew_fn *fn, void *ctx);
