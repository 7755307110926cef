/* A run under Slurm as another terminal sees it: watched while its job waits, runs and ends, or stopped. */
#pragma once

#include "agent/launch/launch.h"
#include "agent/launch/process/interrupts.h"
#include "agent/launch/process/status.h"
#include "agent/launch/screen.h"
#include "agent/launch/slurm/slurm.h"

struct watch_options {
    const char *folder;
    enum screen_mode mode;
    struct interrupts *interrupts;
};
/* Shows the run until its core job has ended, then prints its report. Ctrl-C on a terminal asks whether the run goes on without it;
 * elsewhere it stops the run. *exit: the exit status. */
rp_status watch_run(const struct watch_options *options, int *exit, rp_error *err);

/* Reads status.json; status_fini. False: there is none. */
bool watch_status(const char *folder, struct status *out);

/* Whether somebody works on a run, here or in a job: asked of Slurm every other second only. Zero-initialised. */
struct watch_alive {
    int64_t asked_ns;
    bool alive;
    struct slurm_job job; /* the core job at the last question; its id is 0 if the run has none */
};
bool watch_alive(struct watch_alive *self, const char *folder);
/* Refuses to go on with a run whose job has not ended; other runs are free. given: what the user wrote. */
rp_status watch_is_free(const char *given, rp_error *err);
/* Ends the run in order, or with `force` at once, and waits for it. False: the run is none of Slurm. */
bool watch_stop(const char *folder, bool force, rp_status *status, rp_error *err);
