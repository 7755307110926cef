/* What to do when a child ends: a pure state machine. The caller passes the time in. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct supervisor_limits {
    int64_t backoff_ns, backoff_most_ns; /* pause before a restart: doubled with each failure in a row */
    uint32_t failures;  /* failures of one process in a row, with the same status, after which the run ends */
    int64_t healthy_ns; /* a process that ran for this long begins a new row */
};

enum supervisor_action {
    SUPERVISOR_DONE,    /* ended as it should */
    SUPERVISOR_RESTART, /* restart at restart_ns */
    SUPERVISOR_GIVE_UP, /* the run ends; `first` is the cause to show */
};

#define SUPERVISOR_TAIL 2048

/* An end that was not expected. */
struct failure {
    int status; /* of waitpid */
    int64_t ran_ns;
    char tail[SUPERVISOR_TAIL]; /* the last lines that it printed */
};

/* The history of one child over all its starts. */
struct supervised {
    uint32_t in_a_row;    /* failures with the same status, the last one included */
    uint32_t unhealthy;   /* failures of any status since it last ran for healthy_ns: they lengthen the pause */
    uint32_t restarts;    /* total number of restarts */
    int64_t restart_ns;   /* time of the next start; 0: it runs, or is done */
    struct failure first; /* of the row */
};

/* How a child ended. */
struct supervisor_end {
    int status;       /* of waitpid */
    bool expected;    /* the child was asked to end, or may end by itself with status 0 */
    const char *tail; /* the last lines that it printed; may be NULL */
    int64_t now_ns, ran_ns;
};
enum supervisor_action supervisor_ended(struct supervised *self, const struct supervisor_limits *limits,
                                        const struct supervisor_end *end);
/* Records a start that failed: counts as a failure with this text. All such failures count as the same. */
enum supervisor_action supervisor_not_started(struct supervised *self, const struct supervisor_limits *limits,
                                              const char *why, int64_t now_ns);
/* True if a restart is due; then restart_ns is 0 and restarts is one more. */
bool supervisor_due(struct supervised *self, int64_t now_ns);
/* "actor-1 failed 5 times in a row with exit status 3; the first time after 0.2 s:\n  | ...lines". It has failed. Gives out. */
const char *supervisor_explain(const struct supervised *self, const char *name, char *out, size_t size);
/* Shortens a text to one line: its first line, and its last line, which usually says most. Gives out. */
const char *supervisor_one_line(const char *text, char *out, size_t size);

/* A process that uses no processor time at all hangs: a healthy process with a connection sends heartbeats. Returns
 * true after hang_ns without processor time (0: never), and again after each further hang_ns. A pause of hang_ns / 2 between
 * two looks begins anew: the launcher, or the whole machine, stood still itself. Zero-initialised at each start. */
struct hang {
    int64_t cpu_ns, since_ns, looked_ns;
};
bool hang_seen(struct hang *self, int64_t hang_ns, int64_t cpu_ns, int64_t now_ns);
