/* The slurm room: runs as jobs of a Slurm cluster. It owns questions and orders to the cluster, the text of the scripts, what a run's
 * folder remembers of its jobs (this header), and the array tasks as hosts of the run (slurm_source.h). It may use the configuration,
 * the process and host rooms, and the run's folder. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "agent/config/config.h"
#include "agent/launch/process/process.h"
#include "agent/launch/process/run_folder.h"
#include "replay/error.h"

/* ---- programs of Slurm (sbatch, squeue, scancel, scontrol, sinfo, srun) ---- */

/* Starts a program with a time limit: a controller that does not answer must not hold up a run. The variables of the job in which the
 * launcher itself runs are kept from it, because these programs would take them for options. */
rp_status slurm_call_start(struct call *self, const char *const *argv, int64_t limit_ns, rp_error *err);
/* After the call's end: RP_OK if the program succeeded, else err has what it said. */
rp_status slurm_call_judge(const struct call *self, rp_error *err);
/* Starts the program, waits for it, and gives what it printed: free(). out may be NULL. limit_ns: 0 is half a minute. */
rp_status slurm_run(const char *const *argv, int64_t limit_ns, char **out, rp_error *err);
/* Logs and prints what happens to the jobs of a run. */
void slurm_say(bool loud, const char *format, ...) RP_PRINTF(2, 3);
/* Gives the command with "env -u NAME ..." before it, for all variables of the surrounding job; a list of its own, words_free. */
char **slurm_without_job(const char *const *argv);

/* ---- jobs ---- */

enum slurm_state {
    SLURM_GONE, /* has ended, or is not known */
    SLURM_PENDING,
    SLURM_RUNNING,
    SLURM_ENDING, /* its processes end; it may be queued again */
};

/* A job, or a task of an array. */
struct slurm_job {
    uint64_t id;    /* that srun understands: each task has its own */
    uint32_t index; /* of the task in its array; 0 without an array */
    enum slurm_state state;
    char node[64];   /* "": none */
    char reason[96]; /* why it does not run: "Priority" */
};

/* Format of squeue that slurm_parse_jobs reads. */
#define SLURM_FORMAT "%i|%A|%T|%N|%r"
/* Reads lines of squeue; other lines are skipped. Returns how many jobs there are, at most `most`. */
uint32_t slurm_parse_jobs(const char *text, struct slurm_job *out, uint32_t most);
/* Reads what sbatch --parsable prints: "123" or "123;cluster". */
rp_status slurm_take_id(const char *text, uint64_t *id, rp_error *err);

/* Submits a script: argv begins with "sbatch", "--parsable", and ends with the script and its arguments. */
rp_status slurm_submit(const char *const *argv, uint64_t *id, rp_error *err);
/* Where a job is. One that Slurm does not know is SLURM_GONE. An error: Slurm could not be asked. err may be NULL. */
rp_status slurm_poll(uint64_t id, struct slurm_job *out, rp_error *err);
/* Sends SIGTERM to the script of a job alone, which then ends in order. */
rp_status slurm_ask(uint64_t id, rp_error *err);
/* Ends jobs at once; an id of 0 is skipped. Jobs that have ended already are no error. err may be NULL. */
rp_status slurm_cancel(uint64_t id, rp_error *err);
/* Ends a job and queues it again. */
rp_status slurm_requeue(uint64_t id, rp_error *err);

/* ---- slurm.json: what a run's folder remembers of its jobs ---- */

/* The login node writes it when it submits the core job; the launcher in the core job adds the array. */
#define SLURM_RECORD "slurm.json"
#define SLURM_CORE_SCRIPT "core.sbatch"
#define SLURM_ACTORS_SCRIPT "actors.sbatch"
#define SLURM_CORE_LOG "logs/slurm-core.log"

struct slurm_record {
    uint64_t core;            /* number of the core job; 0: none */
    uint64_t array;           /* number of the array; 0: none yet */
    uint32_t tasks;           /* of the array */
    char script[FOLDER_SIZE]; /* of the array; "": actors.sbatch in the folder */
};

/* False: the folder has none, so the run is not one of Slurm. */
bool slurm_record_read(const char *folder, struct slurm_record *out);
rp_status slurm_record_write(const char *folder, const struct slurm_record *self, rp_error *err);

/* ---- the two scripts that a run submits ---- */

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

/* ---- what cannot work, found before anything is submitted ---- */

/* Asks the cluster whether it would take the jobs (sbatch --test-only), and reports why not. */
void slurm_check(const struct run_config *config, struct schema_report *report);
/* Whether a node of the core job's partition sees a folder of this machine: RP_OK: it does; RP_FAILED_PRECONDITION: it does not;
 * another status: no node was free to ask, and err says why. Takes up to ten seconds. */
rp_status slurm_check_shared(const struct run_config *config, const char *folder, rp_error *err);
