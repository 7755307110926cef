/* The core thread's loop, as every room sees it: the time, deadlines, work in slices, who records effects, and the spans of a
 * trace.
 *
 * This room owns timers, chores, effects (effects.h) with their entries (entries.h), the map of ids (idmap.h), histograms
 * (histogram.h), and the snapshots that the core thread hands to another thread (snapshot.h). It may use proto/base, and knows
 * nothing of what it runs. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "broker/loop/effects.h"
#include "proto/base/clock.h"
#include "proto/base/trace.h"

/* ---- Deadlines: a binary heap of timers, each embedded in the struct that waits. Timers with equal times fire in the order in
 * which they were set. The loop sleeps until the first deadline. */

struct timer {
    int64_t at_ns;
    uint64_t order;
    uint32_t place; /* in the heap, from 1 on; 0: not set */
    void (*fire)(struct timer *self);
    void *ctx; /* of fire */
};

struct timers {
    struct timer **heap; /* heap[0] is the first */
    uint32_t count, capacity;
    uint64_t order;
};

/* Sets a timer, or moves one that is set. */
void timer_set(struct timers *self, struct timer *timer, int64_t at_ns);
void timer_clear(struct timers *self, struct timer *timer);
/* Fires timers that are due, at most `most`. True: more are due. */
bool timers_run(struct timers *self, int64_t now_ns, uint32_t most);
/* Returns the time of the first timer. INT64_MAX: none is set. */
int64_t timers_next(const struct timers *self);
void timers_fini(struct timers *self);

/* ---- Chores: work whose cost grows with a table (freeing after a reset, mass removal, the end of a session), cut into slices so
 * that the core thread never stays with it for long. */

struct chore {
    struct chore *next;
    /* Does a slice of about 256 elements. True: more is left. False: done, and the chore may be gone. */
    bool (*step)(struct chore *self);
};

struct chores {
    struct chore *first, **last;
};

void chores_init(struct chores *self);
void chores_add(struct chores *self, struct chore *chore);
/* Takes a chore off the list, if it is there. */
void chores_remove(struct chores *self, const struct chore *chore);
/* Runs slices of all chores in turn until the clock has advanced by budget_ns. True: more is left. */
bool chores_run(struct chores *self, const struct clock *clock, int64_t budget_ns);

/* ---- the loop */

struct loop {
    struct clock clock;
    bool stepped;                  /* the clock is stepped by hand: turns are not measured */
    int64_t now_ns;                /* time at the start of the current turn, after each message, and before the pump */
    int64_t start_ns;              /* when the broker started */
    int64_t wall_offset_ns;        /* CLOCK_REALTIME less the broker's clock, when it started */
    uint64_t longest_stretch_ns;   /* most processor time that one turn took */
    const struct effects *effects; /* called for every effect; NULL: nobody keeps a record */
    struct recorder *record;       /* that they append to */
    struct trace trace;            /* spans; other threads of the broker add theirs, too */
    bool draining;                 /* the broker is shutting down: nothing new is accepted */
    struct timers timers;
    struct chores chores;
};

/* Returns the start of a span of the core thread: 0 while no trace is recorded. */
static inline int64_t loop_trace_start(const struct loop *self)
{
    return trace_on(&self->trace) ? clock_now(&self->clock) : 0;
}
/* Ends a span that began at start_ns; 0: there is none. The rest of the span is as given. */
static inline void loop_trace_end(struct loop *self, const char *name, int64_t start_ns, struct trace_span span)
{
    if (__builtin_expect(start_ns == 0, 1))
        return;
    span.start_ns = start_ns;
    span.duration_ns = clock_now(&self->clock) - start_ns;
    trace_add(&self->trace, name, "core", &span);
}
