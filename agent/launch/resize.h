/* Decides whether to add or retire actors while a run goes on. A pure function, called once per observation. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

struct resize_limits {
    uint32_t least, most;                                /* actors */
    int64_t after_ns;                                    /* how long one side must be idle beyond the plan */
    double margin;                                       /* 0.2: how far beyond the plan's prediction */
    double predicted_actor_idle, predicted_learner_idle; /* NAN counts as 0 */
    double cores;                                        /* no actor is added while all cores are busy */
};

struct resize_seen {
    uint32_t actors;                 /* running now */
    double actor_idle, learner_idle; /* lately; NAN: not known, and nothing changes */
    double cpu;                      /* cores in use */
    bool steady;                     /* all processes run, and the table is past min_size; false restarts the wait */
};

struct resize {
    int64_t since_ns;  /* start of the time in which one side is idle beyond the plan; 0: none is */
    int32_t direction; /* +1: learners wait; -1: actors wait */
    struct resize_sum {
        double sum, squares;
    } actor_idle, learner_idle, cpu; /* since then */
    uint32_t n;
};

/* Returns the number of actors that should run. If that differs from now, reason says why: "learners waited 45% of
 * the last 20 s (plan: 5%) for items: 4 -> 6 actors". One step goes as far as the observations support: to the number
 * that balances both sides, less the uncertainty from noise, and no further than the cores allow. */
uint32_t resize_decide(struct resize *self, const struct resize_limits *limits, const struct resize_seen *seen,
                       int64_t now_ns, char *reason, uint32_t size);
