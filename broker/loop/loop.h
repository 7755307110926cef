/* What the core thread's loop offers to every room: the time, deadlines, and work in slices. It knows nothing of what it
 * runs. */
#ifndef BROKER_LOOP_H
#define BROKER_LOOP_H

#include <stdbool.h>
#include <stdint.h>

#include "broker/loop/chore.h"
#include "broker/loop/effects.h"
#include "broker/loop/timer.h"
#include "proto/base/clock.h"

struct loop {
    struct clock clock;
    bool stepped;   /* the clock is not the system's: others share the thread, and nobody asks how long a turn takes */
    int64_t now_ns; /* time at the start of the current turn, and after each message */
    int64_t start_ns;            /* when the broker started */
    int64_t wall_offset_ns;      /* CLOCK_REALTIME less the broker's clock, when it started */
    uint64_t longest_stretch_ns; /* most processor time that one turn took */
    struct effects *effects;     /* told of every effect; NULL: nobody keeps a record */
    bool draining;               /* the broker is shutting down: nothing new is accepted */
    struct timers timers;
    struct chores chores;
};

#endif
