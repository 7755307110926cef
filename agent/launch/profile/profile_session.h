/* A throw-away broker and the processes that are measured against it. Within agent/launch/profile*.c. */
#ifndef AGENT_LAUNCH_PROFILE_SESSION_H
#define AGENT_LAUNCH_PROFILE_SESSION_H

#include "agent/launch/observe/observe.h"
#include "agent/launch/profile/profile.h"

#define PROFILE_MAX_OVERRIDES 24u
#define PROFILE_POLL_MS 25
/* Between two reports of a process, while it is measured. */
#define PROFILE_REPORT_MS 500

struct profile_session_options {
    const struct profile_options *profile;
    const char *name; /* of its folder, below <folder>/profile */
    double share;     /* of the whole that is done, for who waits */
    bool limited;     /* the table's own limiter; else none */
    double min_size;  /* with the limiter: instead of its own; 0: as it is */
    double buffer;    /* the same, of error_buffer; 0: as it is */
    double shift;     /* the same, added to min_diff and max_diff where the file has them; 0: as they are */
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
    uint32_t n_again; /* starts after an end that was nobody's fault */
    struct observer *observer;
    struct observation seen; /* the newest */
    uint64_t base_memory;    /* of the broker with empty tables */
    /* ---- for who waits */
    char line[160];
    double share, next_share; /* of the whole that is done: now, and after this part */
    int64_t since_ns, told_ns;
};

/* What a stretch of time gave. */
struct profile_measured {
    double inserts, samples;         /* items/s */
    double steps;                    /* of environments, per second; 0: nobody counts them */
    double cpu[ROLES];               /* cores used by all of a role */
    double memory[ROLES];            /* bytes of one of them, the largest */
    double actor_idle, learner_idle; /* share of the time that the other side holds one back; NAN: not known */
    struct idle_shares idle_by;      /* all that was waited for */
    double others;                   /* cores that other programs took from them */
};

/* Starts the broker and waits until it answers. profile_session_close is due in any case. */
rp_status profile_session_open(struct profile_session *self, const struct profile_session_options *options,
                               rp_error *err);
/* Ends everything; nothing is left running. */
void profile_session_close(struct profile_session *self);

/* What the user is told from here on, while the share of the whole that is done goes towards next_share. */
void profile_session_tell(struct profile_session *self, double share, double next_share, const char *format, ...)
    RP_PRINTF(4, 5);
/* Makes `count` processes of a role run: those that run stay, the rest is added. */
rp_status profile_session_start(struct profile_session *self, enum role role, uint32_t count, rp_error *err);
/* Ends all processes of a role. */
rp_status profile_session_stop(struct profile_session *self, enum role role, rp_error *err);
/* One look at the broker, the children and the user: a child that ended, or a user who had enough, is an error. */
rp_status profile_session_look(struct profile_session *self, rp_error *err);
/* Looks again and again for so long. */
rp_status profile_session_wait(struct profile_session *self, int64_t ns, rp_error *err);
/* Until test is true: RP_DEADLINE_EXCEEDED after limit_ns, without a text. */
rp_status profile_session_await(struct profile_session *self, bool (*test)(struct profile_session *, void *),
                                void *context, int64_t limit_ns, rp_error *err);
void profile_pause(int64_t ms);
/* profile_measure.c. Measures for ns: at least half of it if the rate of one side is even, longer if hardly anything
 * moves. Of one side the rate is that of undisturbed moments, since the plan compares it with others; of both it is the
 * mean, since a run will get it. quantum: what the counter grows by at a time. */
enum profile_what { PROFILE_INSERTS, PROFILE_SAMPLES, PROFILE_BOTH };
rp_status profile_session_measure(struct profile_session *self, enum profile_what what, uint64_t quantum, int64_t ns,
                                  struct profile_measured *out, rp_error *err);

#endif
