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
    bool limited;     /* use the table's own limiter; otherwise none */
    double min_size;  /* replaces the limiter's min_size; 0: unchanged */
    double buffer;    /* replaces error_buffer; 0: unchanged */
    double shift;     /* added to min_diff and max_diff where the file has them; 0: unchanged */
};

struct profile_session {
    const struct profile_options *options;
    char folder[512], endpoints_file[544];
    char *overrides[PROFILE_MAX_OVERRIDES + 1];
    uint32_t n_overrides;
    struct endpoints endpoints;
    struct command_context context;
    struct process broker;
    struct process *workers[ROLES]; /* all but the broker */
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
};

/* Starts the broker and waits until it answers. profile_session_close must follow in any case. */
rp_status profile_session_open(struct profile_session *self, const struct profile_session_options *options,
                               rp_error *err);
/* Ends all processes. */
void profile_session_close(struct profile_session *self);

/* Sets the line of progress, while the share that is done goes from share towards next_share. */
void profile_session_tell(struct profile_session *self, double share, double next_share, const char *format, ...)
    RP_PRINTF(4, 5);
/* Makes `count` processes of a role run: keeps those that run and starts the rest. */
rp_status profile_session_start(struct profile_session *self, enum role role, uint32_t count, rp_error *err);
/* Ends all processes of a role. */
rp_status profile_session_stop(struct profile_session *self, enum role role, rp_error *err);
/* Looks once at the broker, the children and the user: a child that ended, or a user who cancels, is an error. */
rp_status profile_session_look(struct profile_session *self, rp_error *err);
/* Looks repeatedly for this long. */
rp_status profile_session_wait(struct profile_session *self, int64_t ns, rp_error *err);
/* Looks until test returns true: RP_DEADLINE_EXCEEDED after limit_ns, without a text. */
rp_status profile_session_await(struct profile_session *self, bool (*test)(struct profile_session *, void *),
                                void *context, int64_t limit_ns, rp_error *err);
void profile_pause(int64_t ms);
/* Measures for ns: half of it is enough if the rate of one side is even, and it takes longer if hardly anything
 * moves. The rate of one side is that of undisturbed moments, because a plan compares it with others; the rate of
 * both sides is the mean, because a run will get the mean. quantum: how much the counter grows at a time.
 * (profile_measure.c) */
enum profile_what { PROFILE_INSERTS, PROFILE_SAMPLES, PROFILE_BOTH };
rp_status profile_session_measure(struct profile_session *self, enum profile_what what, uint64_t quantum, int64_t ns,
                                  struct profile_measured *out, rp_error *err);

#endif
