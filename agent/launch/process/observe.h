/* What a run does, from two sources: the broker (rates, counters, waits) and the reports that our own processes write into the run's folder
 * (idle shares, returns). A user's own programs write no reports. */
#pragma once

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#include "agent/launch/process/command.h" /* role */
#include "agent/run/idle.h"
#include "agent/view/why.h"
#include "replay/client.h"
#include "replay/error.h"

struct observation {
    int64_t at_ns; /* monotonic */
    bool broker;   /* the broker answered: its values below are new */
    uint64_t broker_instance;
    uint64_t steps, learner_steps; /* counters of the broker; 0 for a user's own programs that do not count */
    uint64_t taken;                /* steps without those that actors have claimed and not taken, if they tell */
    uint64_t inserts, samples;     /* counted by the table's limiter since the broker's start */
    uint64_t size, max_size;       /* items in the table */
    double min_size;
    double cursor, cursor_low, cursor_high; /* of the limiter, and its bounds */
    bool paused;                            /* the table is paused, at all shards that answer */
    double spi;                             /* ratio that the limiter holds now; 0: it holds none */
    uint64_t broker_bytes;
    uint64_t policy; /* version of the parameters; 0: none */
    /* ---- from reports */
    double actor_idle, learner_idle; /* mean over the newest reports of processes that still report; NAN: none */
    struct idle_shares idle_by;      /* the same by cause */
    double value;                    /* return of the newest evaluation; NAN: none */
    uint64_t value_learner_steps;    /* learner steps of that evaluation */
    double value_seconds;            /* duration of that evaluation; NAN: not known */
    uint64_t values;                 /* evaluations so far */
    double actor_value;              /* mean return of the actors' newest episodes; NAN: none */
};

struct observer;
/* Connects; NULL if no broker answers at `service` within connect_ms. Later it reconnects by itself. Of the context, which is borrowed:
 * the table that actors insert into and learners sample, whether actors are the user's own, the folder of the reports ("": none are
 * read) and the admin key. every_ns: between two reports of a process; 0: 2 s. */
struct observer *observer_new(const struct command_context *context, const char *service, int64_t every_ns,
                              int64_t connect_ms, rp_error *err);
void observer_destroy(struct observer **self);
/* Never waits longer than timeout_ms for the broker; without an answer the broker's values stay as they were. */
void observer_poll(struct observer *self, int64_t timeout_ms, struct observation *out);
/* Makes the next look search for new reports, such as those of a process that has already ended. */
void observer_rescan(struct observer *self);
/* All evaluations so far, oldest first; borrowed until the next look. */
struct observe_value {
    uint64_t steps, learner_steps;
    double value;
    double seconds; /* duration; NAN: not known */
};
const struct observe_value *observer_values(const struct observer *self, uint32_t *n);
/* Explains what limits the run, from the last look; run: what its launcher sees; may be NULL. */
void observer_why(const struct observer *self, const struct why_run *run, struct why *out);
/* The client, for counters. */
rp_client *observer_client(struct observer *self);

/* ---- the reports in a run's folder; for tests ---- */

/* <folder>/{actor,learner,evaluator}-<i>.jsonl as they grow. Files may appear later, be appended to while we read, be cut or replaced, and
 * hold anything: only whole lines that are JSON objects count. */

struct observe_file {
    char name[32]; /* of the process: "actor-3" */
    enum role role;
    ino_t inode;    /* 0: never read */
    int64_t offset; /* end of the last whole line that was read */
    double time_s; /* time of the newest report, seconds since 1970; 0: none. By our clock as soon as the file has grown
                             * under our eyes: other machines may have other clocks */
    double idle;   /* blocked_share or wait_share of the newest report; NAN: none */
    double by[IDLE_CAUSES]; /* the same by cause */
    double value;           /* the newest return; NAN: none */
};

struct observe_files {
    char folder[512];
    double every_s;
    bool foreign_actors;       /* actors are the user's own: that they do not report says nothing about them */
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
