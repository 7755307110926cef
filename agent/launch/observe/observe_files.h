/* Reports in a run's folder as they grow: <folder>/{actor,learner,evaluator}-<i>.jsonl. Files may appear later, be
 * appended to while we read, be cut or replaced, and hold anything: only whole lines that are JSON objects count. */
#ifndef AGENT_LAUNCH_OBSERVE_FILES_H
#define AGENT_LAUNCH_OBSERVE_FILES_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#include "agent/launch/observe/observe.h"

enum observe_kind { OBSERVE_ACTOR, OBSERVE_LEARNER, OBSERVE_EVALUATOR, OBSERVE_KINDS };

struct observe_file {
    char name[32]; /* of the process: "actor-3" */
    enum observe_kind kind;
    ino_t inode;    /* 0: never read */
    int64_t offset; /* end of the last whole line that was read */
    bool skip;      /* the line at offset has lost its beginning, or is longer than any report */
    double time_s; /* time of the newest report, seconds since 1970; 0: none. By our clock as soon as the file has grown
                             * under our eyes: other machines may have other clocks */
    double idle;   /* blocked_share or wait_share of the newest report; NAN: none */
    double by[IDLE_CAUSES]; /* the same by cause */
    double value;           /* the newest return; NAN: none */
};

struct observe_files {
    char folder[512];
    double every_s;
    bool foreign_actors;       /* see observe.h */
    double first_s, scanned_s; /* times of the first and of the last search for new files */
    struct observe_file *files;
    uint32_t n, capacity;
    struct observe_value *values;
    uint32_t n_values, values_capacity;
};

/* With folder "", nothing is ever read. */
void observe_files_init(struct observe_files *self, const char *folder, int64_t every_ns);
void observe_files_fini(struct observe_files *self);
/* Reads what is new. now_s: seconds since 1970. New files are searched for at most once per second. */
void observe_files_read(struct observe_files *self, double now_s);
/* Fills the second part of *out. waiting: names of the processes whose inserts wait in the broker now. An actor does
 * not report while it waits, so a late actor of ours that waits counts as idle all the time. */
void observe_files_sum(const struct observe_files *self, const char *const *waiting, uint32_t n_waiting, double now_s,
                       struct observation *out);

#endif
