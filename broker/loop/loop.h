/* The core thread's loop, as every room sees it: the time, deadlines, work in slices, who records effects, and the spans of a
 * trace.
 *
 * This room owns timers, chores and the map of ids. It may use proto/base, and knows nothing of what it runs. */
#ifndef BROKER_LOOP_H
#define BROKER_LOOP_H

#include <stdbool.h>
#include <stdint.h>

#include "broker/loop/chore.h"
#include "broker/loop/effects.h"
#include "broker/loop/timer.h"
#include "proto/base/clock.h"
#include "proto/base/trace.h"

struct loop {
    struct clock clock;
    bool stepped;                /* the clock is stepped by hand: turns are not measured */
    int64_t now_ns;              /* time at the start of the current turn, after each message, and before the pump */
    int64_t start_ns;            /* when the broker started */
    int64_t wall_offset_ns;      /* CLOCK_REALTIME less the broker's clock, when it started */
    uint64_t longest_stretch_ns; /* most processor time that one turn took */
    struct effects *effects;     /* called for every effect; NULL: nobody keeps a record */
    struct trace trace;          /* spans; other threads of the broker add theirs, too */
    bool draining;               /* the broker is shutting down: nothing new is accepted */
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

#endif
