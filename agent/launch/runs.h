/* Runs of the past: lists them from their folders, compares them, and removes them. */
#pragma once

#include <stdio.h>

#include "agent/launch/process/run_folder.h"
#include "proto/base/json.h"

/* Columns of a table in the terminal. */
#define RUNS_MOST_COMPARED 8u

struct run_summary {
    char folder[FOLDER_SIZE];
    char name[128];   /* last part of the folder's path */
    char result[16];  /* "done", "stopped", "failed", "running", or "lost": its launcher was killed */
    char weights[32]; /* file of the parameters with the final return */
    char seed[24];
    bool active;        /* a launcher works on it */
    double final_value; /* if not measured, the return of the last evaluation; NAN: no evaluation */
    double best;        /* the best of its evaluations */
    uint64_t steps, learner_steps;
    double seconds;
    uint32_t actors, learners;
    double inserts, samples; /* per second, in the first stretch; NAN: not known */
    uint64_t bytes;          /* on disk */
    uint64_t tables;         /* of these, journal and checkpoints of its broker */
    int64_t changed_ns;      /* when its launcher last wrote */
};

/* False: the folder holds no run. */
bool runs_read(const char *folder, struct run_summary *out);
/* Adds the runs directly below a folder to a list, which is sorted then. */
void runs_add(const char *runs, struct run_summary **list, uint32_t *n);
/* Returns the runs directly below a folder, the newest first: free(). NULL: none. */
struct run_summary *runs_list(const char *runs, uint32_t *n);
/* Removes the folder of a run with everything in it; removes links without following them. RP_FAILED_PRECONDITION: a
 * launcher works on the run. A removal that was interrupted leaves a folder that is still a run. tables: removes only the journal and
 * the checkpoints of the run's broker, as far as they are in the run's folder; a run that is resumed begins with empty tables. */
rp_status runs_remove(const char *folder, bool tables, rp_error *err);

/* Writes a list of objects. */
void runs_json(struct json *out, const struct run_summary *runs, uint32_t n);
/* Prints a table with a row for each run. */
void runs_print(const struct run_summary *runs, uint32_t n, FILE *out);
/* Prints a table with a column for each run, and the configuration keys that differ. */
void runs_print_compared(const struct run_summary *runs, uint32_t n, FILE *out);
/* Writes an object: a run with its curves and its configuration, as runs_flatten_config makes it. */
void runs_put_curves(struct json *out, const struct run_summary *run);
/* Writes a page that shows the returns of all runs in one chart. */
rp_status runs_write_page(const struct run_summary *runs, uint32_t n, const char *path, rp_error *err);
/* Returns a configuration as lines "a.b[0].c: value", without comments: free(); "" for a file that cannot be read. */
char *runs_flatten_config(const char *text);
