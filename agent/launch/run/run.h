/* A run from its first process to its report: starts the broker, then learners, then actors and evaluator; watches, restarts,
 * resizes and stops them. One thread, one loop; all state in one struct. */
#ifndef AGENT_LAUNCH_RUN_H
#define AGENT_LAUNCH_RUN_H

#include "agent/config/config.h"
#include "agent/launch/observe/run_folder.h"
#include "agent/launch/plan/plan.h"
#include "agent/launch/process/interrupts.h"
#include "agent/launch/process/process.h"
#include "agent/launch/view/screen.h"

enum run_outcome {
    RUN_DONE,    /* a stop condition was met */
    RUN_STOPPED, /* somebody asked for the end */
    RUN_FAILED,
};

struct run_options {
    const struct run_config *config; /* with the counts that were chosen */
    const char *programs, *folder, *here, *cwd, *command;
    const struct plan *plan; /* may be NULL, and then plan_input too */
    const struct plan_input *plan_input;
    const struct folder_state *before; /* of the legs before; NULL: a new run */
    struct guard *guard;
    struct interrupts *interrupts;
    struct screen **screen; /* destroyed before the report is printed */
    bool print_report;
    bool auto_actors; /* their number may change */
};

/* Blocks until the run has ended and its report is written. After RUN_FAILED, err has the cause; it was printed. */
enum run_outcome run_do(const struct run_options *options, rp_error *err);

#endif
