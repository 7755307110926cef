/* What is going on in a run, from two sources: the broker (rates, counters, waits) and the reports that our own
 * processes write into the run's folder (idle shares, returns). A run of foreign programs has the first only. */
#ifndef AGENT_LAUNCH_OBSERVE_H
#define AGENT_LAUNCH_OBSERVE_H

#include <stdbool.h>
#include <stdint.h>

#include "agent/run/idle.h"
#include "replay/client.h"
#include "replay/error.h"

struct observe_options {
    const char *service; /* endpoint of the broker */
    const char *table;   /* the one that actors insert into and learners sample */
    const char *folder;  /* where reports are; "": none are read */
    int64_t every_ns;    /* between two reports of a process (report.every); 0: 2 s */
    bool foreign_actors; /* of the user's own: that they do not report says nothing about them */
    int64_t connect_ms;  /* how long to wait for the broker's first answer; 0: 5 s */
};

struct observation {
    int64_t at_ns; /* monotonic */
    bool broker;   /* it answers: what comes from it is new */
    uint64_t broker_instance;
    uint64_t steps, learner_steps; /* counters of the broker; of foreign programs that do not count: 0 */
    uint64_t inserts, samples;     /* of the table's limiter, since its start */
    uint64_t size, max_size;       /* items in the table */
    double min_size;
    uint64_t broker_bytes, broker_limit;
    uint64_t policy;                            /* version of the parameters; 0: none */
    uint32_t waiting_inserts, waiting_samplers; /* who waits in the broker: sessions, requests */
    char inserts_wait[256], samples_wait[256];  /* what for; "": nobody does */
    /* ---- from reports */
    double actor_idle, learner_idle;           /* mean of the newest reports of those that still report; NAN: none */
    struct idle_shares idle_by;                /* the same by what they wait for */
    double value;                              /* return of the newest evaluation; NAN: none. */
    uint64_t value_steps, value_learner_steps; /* when */
    double value_seconds;                      /* how long it took; NAN: not known */
    uint64_t values;                           /* evaluations so far */
    double actor_value;                        /* mean return of the actors' newest episodes, exploring; NAN: none */
};

struct observer;
/* Connects: NULL if no broker answers within a few seconds. Later it connects anew by itself. */
struct observer *observer_new(const struct observe_options *options, rp_error *err);
void observer_destroy(struct observer **self);
/* Never waits longer than timeout_ms for the broker; without an answer, what comes from it stays as it was. */
void observer_look(struct observer *self, int64_t timeout_ms, struct observation *out);
/* The next look also finds reports that have just begun: those of a process that has ended already. */
void observer_rescan(struct observer *self);
/* Every evaluation so far, oldest first: environment steps and mean return; borrowed until the next look. */
struct observe_value {
    double time_s; /* seconds since 1970 */
    uint64_t steps, learner_steps;
    double value;
    double seconds; /* that it took; NAN: not known */
};
const struct observe_value *observer_values(const struct observer *self, uint32_t *n);
/* The client, for counters. */
rp_client *observer_client(struct observer *self);

#endif
