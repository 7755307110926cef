/* What to do when a child ends: a pure state machine. Time is what the caller says it is. */
#ifndef AGENT_LAUNCH_SUPERVISOR_H
#define AGENT_LAUNCH_SUPERVISOR_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct supervisor_limits {
    int64_t backoff_ns, backoff_most_ns; /* pause before a restart: doubled with each failure in a row */
    uint32_t failures;                   /* in a row, of one process, with the same status: give up */
    int64_t healthy_ns;                  /* who ran for so long begins a new row */
};

enum supervisor_action {
    SUPERVISOR_DONE,    /* it ended as it should */
    SUPERVISOR_RESTART, /* at restart_ns */
    SUPERVISOR_GIVE_UP, /* the run ends; `first` is the cause to show */
};

#define SUPERVISOR_TAIL 2048

/* An end that was not asked for. */
struct failure {
    int status; /* of waitpid */
    int64_t at_ns, ran_ns;
    char tail[SUPERVISOR_TAIL]; /* the last lines that it printed */
};

/* Of one child, over all its starts. */
struct supervised {
    uint32_t in_a_row;          /* failures with the same status, the last one included */
    uint32_t unhealthy;         /* failures of any status since it last ran for healthy_ns: they lengthen the pause */
    uint32_t restarts;          /* in all */
    int64_t restart_ns;         /* when it is to be started again; 0: it runs, or is done */
    struct failure first, last; /* of the row */
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
/* The start itself failed: counts as a failure with this text, and all such failures as the same. */
enum supervisor_action supervisor_not_started(struct supervised *self, const struct supervisor_limits *limits,
                                              const char *why, int64_t now_ns);
/* Whether it is time; then restart_ns is 0 and restarts is one more. */
bool supervisor_due(struct supervised *self, int64_t now_ns);
/* "actor-1 failed 5 times in a row with exit status 3; the first time after 0.2 s:\n  | ...lines". Gives out. */
const char *supervisor_explain(const struct supervised *self, const char *name, char *out, size_t size);
/* What fits where there is one line: the first one, and the last one, which tells most of an output. Gives out. */
const char *supervisor_one_line(const char *text, char *out, size_t size);

/* A process that uses no processor time at all hangs: one that is well and has a connection sends heartbeats. Gives true when it was
 * so for hang_ns (0: never), and again after each further hang_ns. Zero-initialised at each start. */
struct hang {
    int64_t cpu_ns, since_ns;
};
bool hang_seen(struct hang *self, int64_t hang_ns, int64_t cpu_ns, int64_t now_ns);

#endif
