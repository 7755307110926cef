/* Where a run stands. The terminal view, plain lines, JSON lines, metrics.jsonl, status.json and the report are made
 * from this one struct. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "agent/launch/process/command.h" /* role */
#include "agent/run/idle.h"
#include "agent/view/why.h"
#include "proto/base/format.h"

/* stopping: processes end; measuring: the last parameters are evaluated. */
enum phase {
    PHASE_STARTING,
    PHASE_FILLING,
    PHASE_RUNNING,
    PHASE_STOPPING,
    PHASE_MEASURING,
    PHASE_DONE, /* from here on the run is over */
    PHASE_STOPPED,
    PHASE_FAILED,
    PHASES
};
const char *phase_name(enum phase phase);
/* Returns the phase of this name, which may be NULL; PHASES: there is none. */
enum phase phase_find(const char *name);

struct status_process {
    char name[32];
    enum role role;
    int32_t pid; /* 0: does not run */
    uint32_t restarts;
    uint64_t memory;
    double cpu;     /* cores, lately */
    char state[24]; /* "runs", "restarts in 2 s", "ended", "stopping", "hangs" */
    char host[64];  /* where it runs; "": this machine, and the run has no other */
};

/* A machine of a run that has several; the first is the launcher's own. */
struct status_host {
    char name[64], model[64];
    char state[192]; /* "ready", "connecting", "lost for 12 s: Connection refused" */
    bool ready;
    uint32_t actors, actors_wanted, learners, learners_wanted; /* running, and planned there */
    uint32_t times, losses;                                    /* how often it was taken in, and lost */
    double cpu, cores;                                         /* of our processes there; that may be used */
    double machine_cpu;                                        /* of all programs there; NAN: not known */
    double mean_cpu;                                           /* of our processes while it was there; NAN: never */
    double lost_s;                                             /* seconds without it so far */
    uint64_t memory;                                           /* of our processes there */
    double round_trip_ms;                                      /* NAN: not known */
};

#define STATUS_MAX_VALUES 4096u

struct status {
    /* ---- the run */
    char name[132], folder[512];
    enum phase phase;
    double unix_s;    /* time of this status */
    double elapsed_s; /* since the start of the run, earlier legs included */
    char reason[512]; /* why the run stops or has failed; "" */
    /* ---- towards the end */
    uint64_t steps, learner_steps;
    uint64_t stop_steps, stop_learner_steps; /* 0: no such stop condition */
    double stop_value, stop_time_s;          /* INFINITY, 0: no such stop condition */
    double progress, eta_s;                  /* progress towards the nearest stop condition, 0 to 1; NAN: not known */
    /* ---- speed, lately */
    double steps_rate, updates_rate; /* environment steps/s, learner steps/s */
    double inserts_rate, samples_rate;
    double spi, spi_target;          /* lately; NAN: nothing was inserted. A target of 0: none */
    double actor_idle, learner_idle; /* NAN: not known */
    struct idle_shares idle_by;      /* the same by cause */
    double planned_inserts, planned_samples, planned_actor_idle, planned_learner_idle; /* NAN: no plan */
    struct why why; /* what limits the run, or that nothing does; its cause is WHY_CAUSES if that is not known yet */
    uint64_t size, max_size; /* of the table */
    double min_size;
    double cursor, cursor_low, cursor_high; /* of its limiter, and the bounds; NAN: not known, or no bound */
    /* ---- returns */
    double value, best;                 /* newest and best evaluation; NAN: none yet */
    double actor_value;                 /* mean return of the actors' newest episodes; NAN: none */
    const double *value_steps, *values; /* all evaluations so far, borrowed */
    uint32_t n_values;
    /* ---- processes */
    const struct status_process *processes; /* borrowed */
    uint32_t n_processes;
    const struct status_host *hosts;                           /* borrowed */
    uint32_t n_hosts;                                          /* 0: only this machine */
    uint32_t actors, actors_wanted, learners, learners_wanted; /* running */
    uint32_t shards;                                           /* of the broker */
    char shards_reason[240];                                   /* why so many, as the plan says; "" */
    uint32_t restarts;
    uint64_t memory, memory_limit; /* memory of all processes; budget, 0: none */
    double cpu, cores;
    double others; /* cores that other programs take while none is free; 0: none */
    /* ---- the latest thing worth telling: "actor-1 restarted (exit status 1)"; "" */
    char event[512];
    double event_unix_s;
};

/* What the run itself knows about its waits. */
struct why_run status_facts(const struct status *self);

/* Returns one JSON object without a line end: free(). With `whole` (status.json) it includes processes, hosts and values;
 * without, it is a line of metrics.jsonl and of --json-lines. */
char *status_to_json(const struct status *self, bool whole);

/* Reads status.json. The status owns what it points to: status_fini. */
bool status_from_json(const char *text, struct status *out);
void status_fini(struct status *self);

/* Adds all families, each with type, unit and help, and the end mark. Figures that are not known are left out. */
void status_metrics(struct text *out, const struct status *status);
