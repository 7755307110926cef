/* The core thread's loop, as every room sees it: the time, deadlines, work in slices, and who records effects.
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

struct loop {
    struct clock clock;
    bool stepped;                /* the clock is stepped by hand: turns are not measured */
    int64_t now_ns;              /* time at the start of the current turn, after each message, and before the pump */
    int64_t start_ns;            /* when the broker started */
    int64_t wall_offset_ns;      /* CLOCK_REALTIME less the broker's clock, when it started */
    uint64_t longest_stretch_ns; /* most processor time that one turn took */
    struct effects *effects;     /* called for every effect; NULL: nobody keeps a record */
    bool draining;               /* the broker is shutting down: nothing new is accepted */
    struct timers timers;
    struct chores chores;
};

#endif
