/* Whether to add or retire actors while a run goes on: pure, fed once per observation. */
#ifndef AGENT_LAUNCH_RESIZE_H
#define AGENT_LAUNCH_RESIZE_H

#include <stdbool.h>
#include <stdint.h>

struct resize_limits {
    uint32_t least, most;                                /* actors */
    int64_t after_ns;                                    /* one side must be idle beyond the plan for so long */
    double margin;                                       /* 0.2: how far beyond the plan's own prediction */
    double predicted_actor_idle, predicted_learner_idle; /* NAN: 0 */
    double cores;                                        /* no actor is added while all of them are busy */
};

struct resize_seen {
    uint32_t actors;                 /* running now */
    double actor_idle, learner_idle; /* lately; NAN: not known, which changes nothing */
    double cpu;                      /* cores in use */
    bool steady;                     /* all processes run, past min_size; false begins the waiting anew */
};

struct resize {
    int64_t since_ns;  /* one side is idle beyond the plan since then; 0: none is */
    int32_t direction; /* +1: learners wait; -1: actors wait */
    struct resize_sum {
        double sum, squares;
    } actor_idle, learner_idle, cpu; /* since then */
    uint32_t n;
};

/* Gives the number of actors that there should be, and if it differs from now, why, in reason:
 * "learners waited 45% of the last 20 s (plan: 5%) for items: 4 -> 6 actors". One step goes as far as what was seen supports: to
 * the number that balances both sides, less what noise could make of it, and no further than the cores carry. */
uint32_t resize_decide(struct resize *self, const struct resize_limits *limits, const struct resize_seen *seen,
                       int64_t now_ns, char *reason, uint32_t size);

#endif
