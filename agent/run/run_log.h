/* The logs of a run: what a process reports in the course of a run, the same scalars in two formats, in the run's folder.
 *
 *   <folder>/<process>.jsonl   one JSON object per line: time, process, environment_steps, learner_steps, scalars; a
 *                              number that is not finite is null
 *   <folder>/tb/<process>/     TensorBoard's event files: scalars by tag and step, which is environment_steps
 *
 * A process that starts again continues its files. A failure to write (a full disk, no permission) is counted, logged
 * once, and tried again with the next report; it never stops the run. One thread at a time. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "agent/learn/agent.h" /* agent_scalar */

/* When a report was made. */
struct run_log_at {
    double time_s; /* by the clock of the caller: seconds since 1970 in real runs */
    uint64_t environment_steps;
    uint64_t learner_steps;
};

#define RUN_LOG_EVENT_VERSION "brain.Event:2" /* in the first record of an event file */

struct run_log;

/* The log of a process ("learner-0", "actor-3", "evaluator": a name of files) in a folder, which is made if it is missing; NULL or "":
 * nothing is written. A folder that cannot be written is not an error. */
struct run_log *run_log_new(const char *folder, const char *process);
void run_log_destroy(struct run_log **self);
/* Names of scalars are printable ASCII without blanks, commas, quotes or backslashes. They differ within a report and
 * from the names above; a report with another name is lost. */
void run_log_report(struct run_log *self, const struct run_log_at *at, const struct agent_scalar *scalars, uint32_t n);
/* Opens the file of lines now, not with the first report. False with errno set: the folder cannot be written. */
bool run_log_open(struct run_log *self);
/* Lines, events and whole reports that could not be written. */
uint64_t run_log_lost(const struct run_log *self);
