/* A run under Slurm as the login node sees it: submitted, watched, stopped. */
#ifndef AGENT_LAUNCH_SUBMIT_H
#define AGENT_LAUNCH_SUBMIT_H

#include "agent/launch/prepare.h"
#include "agent/launch/slurm/slurm_jobs.h"
#include "agent/launch/slurm/slurm_record.h"
#include "agent/launch/view/screen.h"

/* submit.c */
/* Asks a node whether it sees the folder of the runs; says so if that could not be found out. -1: nothing is wrong; otherwise the
 * exit status. */
int submit_check_folder(const struct prepared *self);
/* Refuses to go on with a run whose job has not ended; other runs are free. given: what the user wrote. */
rp_status submit_is_free(const char *given, rp_error *err);
/* Makes the paths of the run's folder absolute, as jobs on other machines need them. */
rp_status submit_settle(struct prepared *self, rp_error *err);
/* Writes both scripts into the folder, gives up the lock, and submits the core job. */
rp_status submit_core(struct prepared *self, struct slurm_record *record, rp_error *err);

/* watch.c */
struct watch_options {
    const char *folder;
    enum screen_mode mode;
    struct interrupts *interrupts;
};
/* Shows the run until its core job has ended, then prints its report. Ctrl-C on a terminal asks whether the run goes on without it;
 * elsewhere it stops the run. Returns the exit status. */
int watch_run(const struct watch_options *options);

/* Whether somebody works on a run, here or in a job: asked of Slurm every other second only. Zero-initialised. */
struct watch_alive {
    int64_t asked_ns;
    bool alive;
    struct slurm_job job; /* the core job at the last question; its id is 0 if the run has none */
};
bool watch_alive(struct watch_alive *self, const char *folder);
/* Ends the run in order, or with `force` at once, and waits for it. True if the run is one of Slurm; then *status is the exit
 * status. */
bool watch_stop(const char *folder, bool force, int *status);

#endif
