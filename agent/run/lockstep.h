/* A whole run in one process: broker, actors, learner and evaluator take turns in one thread, and the broker's clock
 * moves by a microsecond with each environment step. The limiter of the table is the schedule: after each round of
 * environment steps the learner takes every batch that the limiter allows. So the outcome is a function of
 * configuration and seed.
 *
 * Without actors each turn is a learner step from the items that the broker has loaded; without learners the actors
 * fill the table.
 *
 * The modules are those of the separate processes. The client has no thread: a call that waits for the broker runs the
 * broker. */
#pragma once

#include <stdatomic.h>

#include "agent/config/config.h"
#include "agent/env/env.h"
#include "agent/run/learner.h"

/* Where a run stands, in its course and at its end. */
struct lockstep_report {
    uint64_t steps, learner_steps, episodes;
    uint64_t inserted; /* items */
    double seconds;    /* seconds of real time */
    double
        evaluation; /* return of the evaluation just made, NaN: none; at the end of the last one, with the final weights */
    double training;                     /* mean return of the last 20 episodes of all actors, NaN before the first */
    uint32_t fingerprint;                /* CRC of the learner's present parameters */
    bool stopped;                        /* *stop ended the run early */
    bool lost;                           /* at the end: the broker could not write its last checkpoint (B0526) */
    const struct learner_stats *learner; /* since the previous report; NULL at the end */
};

struct lockstep_options {
    const struct run_config *config;
    uint64_t report_every; /* environment steps, without actors learner steps; 0: only evaluations are reported */
    void (*report)(void *ctx, const struct lockstep_report *report); /* may be NULL */
    void *ctx;
    const atomic_bool *stop;  /* may be NULL */
    const char *weights_file; /* for the learner's state at the end; NULL: neither that nor best.weights is saved */
    const struct env_provider *provider; /* makes environments in Python; NULL: there are none */
};

/* RP_INVALID_ARGUMENT: the limiter of the table does not suit turns, for one of them would never end. */
rp_status lockstep_run(const struct lockstep_options *options, struct lockstep_report *out, rp_error *err);
