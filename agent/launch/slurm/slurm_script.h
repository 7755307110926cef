/* The text of the two scripts that a run under Slurm submits. Pure functions of the configuration. */
#ifndef AGENT_LAUNCH_SLURM_SCRIPT_H
#define AGENT_LAUNCH_SLURM_SCRIPT_H

#include "agent/config/config.h"
#include "replay/error.h"

struct slurm_script {
    const struct run_config *config;
    const char *program; /* path of replay-launch */
    const char *output;  /* file for what the core job prints; sbatch fills in %j */
    /* Arguments of `replay-launch core`, NULL-terminated. $SLURM_JOB_ID and $SLURM_SUBMIT_DIR stand for the job's own. */
    const char *const *core;
};

/* The core job: broker, learners, evaluator and the launcher. Given to the caller. */
char *slurm_script_core(const struct slurm_script *self);
/* The array of actor tasks: each holds its nodes until the core job is gone for good. Its arguments are the run's folder and the
 * number of the core job. Given to the caller. */
char *slurm_script_actors(const struct slurm_script *self);

/* Refuses a path that sbatch would change: it fills in "%", and takes line breaks and quotes apart. */
rp_status slurm_check_path(const char *path, rp_error *err);

#endif
