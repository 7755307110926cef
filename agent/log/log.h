/* The log room: what a process reports in the course of a run, the same scalars in three formats, in the run's folder.
 *
 *   <folder>/<process>.jsonl   one JSON object per line: time, process, environment_steps, learner_steps, scalars; a
 *                              number that is not finite is null
 *   <folder>/<process>.csv     a table, see log_csv.h
 *   <folder>/tb/<process>/     TensorBoard's event files, see event.h; their step is environment_steps
 *
 * A process that starts again continues its files. A failure to write (a full disk, no permission) is counted, logged
 * once, and tried again with the next report; it never stops the run. One thread at a time. */
#ifndef AGENT_LOG_LOG_H
#define AGENT_LOG_LOG_H

#include <stdbool.h>
#include <stdint.h>

#include "agent/learn/agent.h" /* agent_scalar */
#include "replay/error.h"

struct run_log_options {
    const char *folder;  /* made if it is missing; NULL or "": nothing is written */
    const char *process; /* "learner-0", "actor-3", "evaluator": letters, digits, dots, dashes and underscores */
    bool csv, tensorboard;
};

/* When a report was made. */
struct run_log_at {
    double time_s; /* by the clock of the caller: seconds since 1970 in real runs */
    uint64_t environment_steps;
    uint64_t learner_steps;
};

struct run_log;

/* NULL: a name that is not allowed, or no memory. A folder that cannot be written is not an error. */
struct run_log *run_log_new(const struct run_log_options *options, rp_error *err);
void run_log_destroy(struct run_log **self);
/* Names of scalars are printable ASCII without blanks, commas, quotes or backslashes. They differ within a report and
 * from the names above; a report with another name is lost. */
void run_log_report(struct run_log *self, const struct run_log_at *at, const struct agent_scalar *scalars, uint32_t n);
/* Lines, rows, events and whole reports that could not be written. */
uint64_t run_log_lost(const struct run_log *self);

#endif
