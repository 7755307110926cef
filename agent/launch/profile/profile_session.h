/* A throw-away broker and the processes that are measured with it. */
#ifndef AGENT_LAUNCH_PROFILE_SESSION_H
#define AGENT_LAUNCH_PROFILE_SESSION_H

#include "agent/launch/observe/observe.h"
#include "agent/launch/profile/profile.h"

#define PROFILE_MAX_OVERRIDES 24u
#define PROFILE_POLL_MS 25
/* Time between two reports of a process while it is measured. */
#define PROFILE_REPORT_MS 500

struct profile_session_options {
    const struct profile_options *profile;
    const char *name; /* name of its folder below <folder>/profile */
    double share;     /* share of the whole work that is done, for progress */
    uint32_t shards;  /* of the broker; 0: as the file says */
    bool limited;     /* use the table's own limiter; otherwise none */
    double min_size;  /* replaces the limiter's min_size; 0: unchanged */
    double buffer;    /* replaces error_buffer; 0: unchanged */
    double shift;     /* added to min_diff and max_diff where the file has them; 0: unchanged */
};

#define PROFILE_NO_HOST UINT32_MAX

/* A process that is measured. */
struct profile_worker {
    struct process process;
    uint32_t host;   /* index in the pool of hosts; 0: this machine */
    int64_t cpu_ns;  /* processor time at the last report */
    int64_t main_ns; /* of the busiest main thread; of a broker, its core thread */
    int64_t seen_ns; /* when the last report came; 0: none yet */
    uint64_t memory; /* bytes at the last report */
};

struct profile_session {
    const struct profile_options *options;
    struct host_pool *hosts; /* NULL: one machine */
    uint32_t lost;           /* host whose loss has ended a process; PROFILE_NO_HOST: none */
    char folder[512], endpoints_file[544];
    char *overrides[PROFILE_MAX_OVERRIDES + 1];
    uint32_t n_overrides;
    struct endpoints endpoints;
    struct command_context context;
    struct profile_worker broker;
    struct profile_worker *workers[ROLES]; /* all but the broker */
    uint32_t n[ROLES];
    uint32_t n_again; /* restarts after an end without a failure */
    struct observer *observer;
    struct observation seen; /* the newest observation */
    uint64_t base_memory;    /* of the broker with empty tables */
    /* ---- for who waits */
    char line[160];
    double share, next_share; /* share of the whole work that is done: now, and after this part */
    int64_t since_ns, told_ns;
};

/* The results of one measurement. */
struct profile_measured {
    double inserts, samples;         /* items/s */
    double steps;                    /* environment steps/s; 0: they are not counted */
    double cpu[ROLES];               /* cores used by all processes of a role */
    double memory[ROLES];            /* bytes of the largest process of a role */
    double actor_idle, learner_idle; /* share of the time for which the other side holds it back; NAN: not known */
    struct idle_shares idle_by;      /* all waits by cause */
    double others;                   /* cores that other programs took */
    double home;                     /* cores that our processes used on this machine */
    double core; /* share of the time for which the broker's busiest core thread worked; NAN: not known */
};

/* Starts the broker and waits until it answers. profile_session_close must follow in any case. */
rp_status profile_session_open(struct profile_session *self, const struct profile_session_options *options,
                               rp_error *err);
/* Ends all processes. */
void profile_session_close(struct profile_session *self);

/* Sets the line of progress, while the share that is done goes from share towards next_share. */
void profile_session_tell(struct profile_session *self, double share, double next_share, const char *format, ...)
    RP_PRINTF(4, 5);
/* Makes `count` processes of a role run: keeps those that run and starts the rest on a host (0: this machine). */
rp_status profile_session_start(struct profile_session *self, enum role role, uint32_t count, uint32_t host,
                                rp_error *err);
/* Starts processes of a role on several hosts: at[i] on host i of n. at NULL: `total` of them on this machine. */
rp_status profile_session_spread(struct profile_session *self, enum role role, uint32_t total, const uint32_t *at,
                                 uint32_t n, rp_error *err);
/* Ends all processes of a role. */
rp_status profile_session_stop(struct profile_session *self, enum role role, rp_error *err);
/* The same, whatever has become of them. */
void profile_session_drop(struct profile_session *self, enum role role);
/* The three below serve the session itself. (profile_workers.c) */
/* Starts a worker whose host is set. */
rp_status profile_workers_launch(struct profile_session *self, struct profile_worker *worker, enum role role,
                                 uint32_t index, rp_error *err);
/* Looks whether a process has ended that should not have. */
rp_status profile_workers_check(struct profile_session *self, rp_error *err);
/* Asks all to end, and kills those that do not. */
void profile_workers_end(struct profile_session *self, struct profile_worker *list, uint32_t n);
/* Looks once at the broker, the children, the hosts and the user: a child that ended, or a user who cancels, is an error. If a child
 * ended because its host was lost, self->lost names the host. */
rp_status profile_session_look(struct profile_session *self, rp_error *err);
/* Notes what processes have used so far; home: also those of this machine, which is done only where it counts. */
void profile_session_note(struct profile_session *self, bool home);
/* Looks repeatedly for this long. */
rp_status profile_session_wait(struct profile_session *self, int64_t ns, rp_error *err);
/* Looks until test returns true: RP_DEADLINE_EXCEEDED after limit_ns, without a text. */
rp_status profile_session_await(struct profile_session *self, bool (*test)(struct profile_session *, void *),
                                void *context, int64_t limit_ns, rp_error *err);
/* Waits, while hosts are tended. */
void profile_session_pause(struct profile_session *self, int64_t ms);
/* Measures for ns: half of it is enough if the rate of one side is even, and it takes longer if hardly anything
 * moves. The rate of one side is that of undisturbed moments, because a plan compares it with others; the rate of
 * both sides is the mean, because a run will get the mean. quantum: how much the counter grows at a time.
 * (profile_measure.c) */
enum profile_what { PROFILE_INSERTS, PROFILE_SAMPLES, PROFILE_BOTH };
rp_status profile_session_measure(struct profile_session *self, enum profile_what what, uint64_t quantum, int64_t ns,
                                  struct profile_measured *out, rp_error *err);

#endif
