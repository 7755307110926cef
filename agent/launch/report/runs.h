/* Runs of the past: what their folders tell, side by side; and an end for those that nobody needs. */
#ifndef AGENT_LAUNCH_RUNS_H
#define AGENT_LAUNCH_RUNS_H

#include <stdio.h>

#include "agent/launch/observe/run_folder.h"

/* Lines of one plot. */
#define RUNS_MOST_COMPARED 8u

struct run_summary {
    char folder[FOLDER_SIZE];
    char name[128];   /* last part of the folder's path */
    char result[16];  /* "done", "stopped", "failed", "running", or "lost": its launcher was killed */
    char weights[32]; /* file of the final return */
    char seed[24];
    bool active;        /* a launcher works on it */
    double final_value; /* NAN: not measured, and then that of the last evaluation; NAN: none of them */
    double best;        /* of its evaluations */
    uint64_t steps, learner_steps;
    double seconds;
    uint32_t actors, learners;
    double inserts, samples; /* a second, in the first stretch; NAN: not known */
    uint64_t bytes;          /* on disk */
    int64_t changed_ns;      /* when its launcher last wrote */
};

/* False: there is no run. */
bool runs_read(const char *folder, struct run_summary *out);
/* Those directly below a folder, the newest first: free(). NULL: none, or no memory. */
struct run_summary *runs_list(const char *runs, uint32_t *n);
/* Removes the folder of a run with everything in it; links are removed, not followed. RP_FAILED_PRECONDITION: a launcher works
 * on it. One that was cut short leaves what still is a run. */
rp_status runs_remove(const char *folder, rp_error *err);

/* runs_compare.c */
/* Results as a table, and the keys of their configurations that differ. */
void runs_print_compared(const struct run_summary *runs, uint32_t n, FILE *out);
/* The returns of all in one chart. */
rp_status runs_write_svg(const struct run_summary *runs, uint32_t n, const char *path, rp_error *err);
/* A configuration as lines "a.b[0].c: value", without comments: free(); "" for a file that cannot be read. */
char *runs_flatten_config(const char *text);

#endif
