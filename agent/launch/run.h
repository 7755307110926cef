/* A run from its first process to its report. It starts the broker, then learners, then actors and evaluator; watches, restarts, resizes
 * and stops them. One thread, one loop; all state in one struct (run_state.h). */
#pragma once

#include "agent/config/config.h"
#include "agent/launch/host/host_pool.h"
#include "agent/launch/plan/plan.h"
#include "agent/launch/process/interrupts.h"
#include "agent/launch/process/process.h"
#include "agent/launch/process/run_folder.h"
#include "agent/launch/screen.h"

/* What to do when a scheduler's time limit comes before the run has saved everything. */
struct run_limit {
    int64_t after_ns;           /* since the warning (SIGUSR1) */
    bool (*act)(void *context); /* false: it did not work, and is tried again a little later */
    void *context;
};

struct run_options {
    struct command_context home; /* its configuration has the chosen counts */
    const char *cwd, *command;
    const struct plan *plan; /* may be NULL; then plan_input is NULL too */
    const struct plan_input *plan_input;
    const struct folder_state *before; /* state of the earlier legs; NULL: a new run */
    struct host_pool *hosts;
    struct interrupts *interrupts;
    const struct run_limit *limit; /* may be NULL: no time limit but stop.time */
    struct screen **screen;        /* destroyed before the report is printed */
    bool print_report;
    bool auto_actors; /* the number of actors may change */
};

/* Blocks until the run has ended and its report is written. Returns PHASE_DONE (a stop condition was met), PHASE_STOPPED (the user asked
 * for the end) or PHASE_FAILED: then err has the cause; it was printed. */
enum phase run_do(const struct run_options *options, rp_error *err);

/* ---- for tests ---- */

struct run;
/* Looks for processes that have ended, are due for a restart, or hang. */
void run_tend(struct run *self, int64_t now_ns);
/* Looks at the broker and at reports of the processes; saves and shows the status. May begin to stop. */
void run_poll(struct run *self, int64_t now_ns);
/* While the run saves before the time limit of its job: lets options->limit act when there is hardly any time left. A scheduler announces
 * that limit by a signal, and it ends the run whether it has saved or not. */
void run_heed_limit(struct run *self, int64_t now_ns);
