/* One program of Slurm (sbatch, squeue, scancel, scontrol, sinfo, srun) as a child with a time limit: a controller that does not
 * answer must not hold up a run. The variables of the job in which the launcher itself runs are kept from it, because these
 * programs would take them for options. */
#ifndef AGENT_LAUNCH_SLURM_CALL_H
#define AGENT_LAUNCH_SLURM_CALL_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#include "replay/error.h"

struct slurm_call {
    pid_t pid; /* 0: no call is under way */
    int out, err;
    int64_t limit_ns, deadline_ns; /* the time that it may take; the end of that time */
    char *text;                    /* what it printed, NUL-terminated; NULL: nothing yet */
    size_t size;
    char problem[512]; /* beginning of what it printed on standard error */
    size_t problem_size;
};

/* Starts the program; NULL-terminated. *self is zero, or has been ended. */
rp_status slurm_call_start(struct slurm_call *self, const char *const *argv, int64_t limit_ns, rp_error *err);
/* Reads what there is. True once, when the call has ended: *status is RP_OK if the program succeeded, else err has what it said.
 * The text stays until slurm_call_fini or the next start. */
bool slurm_call_ended(struct slurm_call *self, rp_status *status, rp_error *err);
/* Ends a call that is under way, and frees the text. */
void slurm_call_fini(struct slurm_call *self);

/* Starts the program, waits for it, and gives what it printed: free(). out may be NULL. limit_ns: 0 is half a minute. */
rp_status slurm_run(const char *const *argv, int64_t limit_ns, char **out, rp_error *err);
/* The words of a command as a list that ends with NULL. */
#define SLURM_WORDS(...) ((const char *const[]){__VA_ARGS__, NULL})

/* Gives the command with "env -u NAME ..." before it, for all variables of the surrounding job; a list of its own,
 * slurm_free. NULL: no memory. */
char **slurm_without_job(const char *const *argv);
void slurm_free(char ***list);

#endif
