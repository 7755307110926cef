/* A throw-away broker and the processes that are measured with it, on this machine or on hosts. All waiting is one loop of looks, and
 * each look also checks the processes. */
#pragma once

#include "agent/launch/plan/profile.h"
#include "agent/launch/process/observe.h"

#define TRIAL_NO_HOST UINT32_MAX
/* Time between two reports of a process while it is measured. */
#define TRIAL_REPORT_MS 200

struct trial_options {
    const struct profile_options *profile;
    const char *name; /* name of its folder below <folder>/profile */
    uint32_t shards;  /* of the broker; 0: as the file says */
    bool limited;     /* use the table's own limiter; otherwise none */
    double min_size;  /* replaces the limiter's min_size; 0: unchanged */
    double buffer;    /* replaces error_buffer; 0: unchanged */
    double shift;     /* added to min_diff and max_diff where the file has them; 0: unchanged */
};

/* A process that is measured. */
struct trial_worker {
    struct process process;
    enum role role;
    uint32_t index; /* among those of its role */
    uint32_t host;  /* index in the pool of hosts; 0: this machine */
    /* What it has used: at the last report, and when the measurement began. */
    struct trial_usage {
        int64_t cpu_ns;  /* processor time */
        int64_t main_ns; /* of the busiest main thread; of a broker, its core thread */
        int64_t seen_ns; /* when the report came; 0: none yet */
    } now, from;
    uint64_t memory; /* bytes at the last report */
};

struct trial {
    const struct profile_options *options;
    struct host_pool *hosts;
    uint32_t lost; /* host whose loss has ended a process; TRIAL_NO_HOST: none */
    char folder[512], endpoints_file[544];
    struct words overrides;
    struct endpoints endpoints;
    struct command_context context;
    struct trial_worker *workers; /* the broker first */
    uint32_t n_workers;
    uint32_t n_again; /* restarts after an end without a failure */
    struct observer *observer;
    struct observation seen; /* the newest observation */
    uint64_t base_memory;    /* of the broker with empty tables */
    /* ---- for who waits */
    char line[160];
    int64_t told_ns;
};

/* The rate of a counter that is read repeatedly: its growth between its first and its last change, so that its steps do not count. */
struct trial_rate {
    struct trial_read {
        int64_t at_ns;
        uint64_t count;
    } first, first_change, last_change, last;
    uint32_t reads, changes;
};
/* A counter that went back belongs to a restarted broker: reading begins anew. */
void trial_rate_add(struct trial_rate *self, int64_t at_ns, uint64_t count);
double trial_rate_get(const struct trial_rate *self);

/* The results of one measurement. */
struct trial_measured {
    double inserts, samples;    /* items/s */
    double steps;               /* environment steps/s; 0: they are not counted */
    double cpu[ROLES];          /* cores used by all processes of a role */
    double memory[ROLES];       /* bytes of the largest process of a role */
    struct idle_shares idle_by; /* all waits by cause; NAN: not known */
    double others;              /* cores that other programs took */
    double home;                /* cores that our processes used on this machine */
    double core; /* share of the time for which the broker's busiest core thread worked; NAN: not known */
};

/* Starts the broker and waits until it answers. trial_close must follow in any case. */
rp_status trial_open(struct trial *self, const struct trial_options *options, rp_error *err);
/* Ends all processes. */
void trial_close(struct trial *self);
/* Sets the line of progress. */
void trial_tell(struct trial *self, const char *format, ...) RP_PRINTF(2, 3);
/* Starts processes of a role: at[i] on host i of n. */
rp_status trial_start(struct trial *self, enum role role, const uint32_t *at, uint32_t n, rp_error *err);
/* Ends all processes of a role. */
void trial_stop(struct trial *self, enum role role);
/* Looks until test, which may be NULL, returns true: RP_DEADLINE_EXCEEDED after limit_ns, without a text. */
rp_status trial_await(struct trial *self, bool (*test)(struct trial *, void *), void *context, int64_t limit_ns,
                      rp_error *err);
/* Measures for ns; longer, if hardly anything moves. A quarter of that time goes by first. */
rp_status trial_measure(struct trial *self, int64_t ns, struct trial_measured *out, rp_error *err);
