/* The slurm room: runs as jobs of a Slurm cluster. It owns the text of the scripts (slurm_script.h), questions and orders to the
 * cluster (slurm_call.h and this header), what a run's folder remembers of its jobs (slurm_record.h), and the array tasks as hosts
 * of the run (slurm_source.h). It may use the configuration, the process and host rooms, and the run's folder.
 *
 * This header: jobs. The parsing functions are pure. */
#ifndef AGENT_LAUNCH_SLURM_JOBS_H
#define AGENT_LAUNCH_SLURM_JOBS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "replay/error.h"

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
/* Reads a line of a program of Slurm into *out, which has any contents. False: the line is of another form. */
typedef bool (*slurm_line_reader)(char *line, void *out);
/* Reads every line into the next element of a list; lines of another form are skipped. Returns how many elements there are, at
 * most `most`. size: of one element. */
uint32_t slurm_parse_lines(const char *text, slurm_line_reader read, void *list, size_t size, uint32_t most);
/* Reads lines of squeue; other lines are skipped. Returns how many jobs there are, at most `most`. */
uint32_t slurm_parse_jobs(const char *text, struct slurm_job *out, uint32_t most);
/* Reads what sbatch --parsable prints: "123" or "123;cluster". */
bool slurm_parse_id(const char *text, uint64_t *id);

/* Submits a script with more words of sbatch; NULL-terminated, the script and its arguments at the end. */
rp_status slurm_submit(const char *const *words, uint64_t *id, rp_error *err);
/* Where a job is. One that Slurm does not know is SLURM_GONE. An error: Slurm could not be asked. err may be NULL. */
rp_status slurm_look(uint64_t id, struct slurm_job *out, rp_error *err);
/* Sends SIGTERM to the script of a job alone, which then ends in order. */
rp_status slurm_ask(uint64_t id, rp_error *err);
/* Ends jobs at once; an id of 0 is skipped. Jobs that have ended already are no error. err may be NULL. */
rp_status slurm_cancel(uint64_t id, rp_error *err);
/* Ends a job and queues it again. */
rp_status slurm_requeue(uint64_t id, rp_error *err);

#endif
