/* The state of a run, and what is known from it. Not for other rooms. */
#pragma once

#include "agent/launch/host/host_pool.h"
#include "agent/launch/process/command.h"
#include "agent/launch/process/machine.h"
#include "agent/launch/process/observe.h"
#include "agent/launch/process/run_folder.h"
#include "agent/launch/report.h"
#include "agent/launch/resize.h"
#include "agent/launch/run.h"
#include "agent/launch/supervisor.h"
#include "agent/run/best.h"
#include "agent/run/thin.h"
#include "proto/base/clock.h"
#include "proto/base/log.h"

/* One process of the run, over all its starts. */
struct member {
    enum role role;
    uint32_t index;
    char name[COMMAND_NAME];
    bool wanted;                    /* should run: not retired, not done */
    bool unjudged;                  /* has ended, and it is not known yet whether as it should */
    bool waits;                     /* starts as soon as its host is ready */
    uint32_t host;                  /* where it should run; RUN_NO_HOST: no host has room for it */
    uint32_t at;                    /* where it was started last */
    uint32_t state_at, state_times; /* learner: connection that has its state: host, and its number of connections */
    int64_t ended_ns;
    struct process process;
    struct supervised supervised;
    struct hang hang;
    int64_t usage_ns, cpu_ns; /* time of the last look at its usage, and its processor time then */
    double cpu;               /* cores, lately */
    uint64_t memory;
    bool flooded; /* a message said that its log was emptied */
};

#define RUN_NO_HOST UINT32_MAX

/* A host of the run, as the run sees it. */
struct run_site {
    bool in;              /* was ready once, and still exists: processes are placed there */
    bool ready;           /* at the last look */
    bool said;            /* a message said that it is left out */
    bool leaving;         /* its processes end, then its connection */
    bool evacuated;       /* was lost for so long that its learners have moved */
    bool reaching;        /* was asked whether it reaches the broker */
    uint32_t reach_times; /* number of the connection that was asked */
    int64_t killed_ns;    /* since when processes there are killed and have not ended; 0: none is */
    int64_t lost_ns;      /* when it was lost; 0: it is not */
    uint32_t losses;
    double lost_s;             /* in all, without the present loss */
    double ready_s, cpu_s;     /* seconds in which it was ready, and processor seconds of our processes in them */
    uint32_t actors, learners; /* planned there */
};

struct run_hosts {
    struct host_pool *pool;
    struct run_site *sites; /* the first is this machine */
    uint32_t n;
    bool counted;        /* the numbers of sites hold for the present hosts and actors */
    int64_t measured_ns; /* when use was added up last */
    struct status_host *shown;
};

/* Counters at one time, from which rates are computed. */
enum mark_count { MARK_STEPS, MARK_LEARNER_STEPS, MARK_INSERTS, MARK_SAMPLES, MARK_COUNTS };
struct mark {
    int64_t at_ns;
    uint64_t counts[MARK_COUNTS];
};
#define RUN_MARKS 64u
#define RUN_TICK_MS 50
/* For so many times launch.grace a host is waited for that still sends the files of a process that has ended. */
#define RUN_FILES_GRACES 10
#define RUN_BUSY_MS 2 /* while hosts have much to say */
/* How long a look may wait for the broker. */
#define RUN_POLL_MS 300

/* A part of the run with the same number of actors: what was counted, and idle shares times the seconds for which they were known. */
struct stretch {
    uint32_t actors;
    double from_s;   /* since the start of the run */
    int64_t from_ns; /* monotonic */
    bool settled;    /* its beginning is over, and left out */
    double seconds, inserts, samples;
    double actor_idle, actor_s, learner_idle, learner_s;
    struct idle_shares idle_by; /* by cause */
};

/* A message, as the status shows it. */
struct run_event {
    char text[512];
    double unix_s;
};

struct run {
    const struct run_options *options;
    const struct run_config *config;
    struct command_context context;
    struct clock clock;
    int64_t start_ns;
    enum phase phase;
    enum phase outcome; /* the phase that it ends with */
    char reason[512];
    char cause[SUPERVISOR_TAIL + 512]; /* cause of a failure, with the last lines of the process that failed */
    /* ---- starting */
    char endpoints_file[FOLDER_SIZE + 32];
    struct endpoints endpoints;
    bool learners_started, actors_started, put_back;
    int64_t put_back_ns;                         /* when the launcher restores the counters itself; 0: not known yet */
    uint64_t steps_before, learner_steps_before; /* counters of before the present broker */
    uint64_t steps_shown;                        /* most steps that a status has had */
    uint64_t policy_before;                      /* version of the parameters that another run left */
    /* ---- processes */
    struct member **members; /* the first is the broker */
    uint32_t n_members;
    uint32_t actors_wanted;
    bool auto_actors, by_hand; /* the waits change that number; somebody has set it by hand */
    bool paused;               /* somebody has paused the tables */
    double ratio;              /* samples per insert that somebody has asked for; 0: nobody has */
    uint64_t limited_at;       /* instance of the broker whose limiters hold the two */
    struct run_hosts hosts;
    struct run_shard {
        pid_t pid; /* 0: none */
        struct hang hang;
    } shards[CONFIG_MAX_SHARDS]; /* processes of the broker's shards */
    pid_t shards_of;             /* their parent */
    /* ---- what is seen */
    struct observer *observer;
    struct observation seen;
    int64_t poll_ns, save_ns, running_ns; /* times of the next look and save; since when items are sampled */
    struct mark marks[RUN_MARKS];
    uint32_t n_marks;
    uint64_t marks_of; /* instance of the broker that they belong to */
    struct stretch stretches[REPORT_STRETCHES];
    uint32_t n_stretches;
    double *value_steps, *values;
    uint32_t n_values;
    double best;
    struct resize resize;
    struct machine_load load; /* load of the machine when it was last read */
    int64_t load_ours_ns;     /* processor time of our processes at that time */
    double others;            /* cores that other programs take */
    double home_load;         /* cores that all programs take on this machine; NAN: not known */
    int64_t moved_ns;         /* when something was last inserted, sampled or learned */
    bool stall_said;
    struct status_process *shown;
    struct run_event
        *events; /* the newest that was saved, if there is one, and those that no line of metrics.jsonl has yet */
    uint32_t n_events, saved_events;
    struct line_file history; /* metrics.jsonl: a line for each status */
    /* ---- stopping */
    bool patient; /* processes end by themselves: all steps are taken */
    bool hurried; /* somebody asked to stop while the run was stopping: nothing is waited for beyond launch.grace */
    bool forced;
    bool out_of_time; /* stop.time has passed, and the remaining processes were killed */
    int64_t broker_asked_ns, learners_seen_ns;
    uint32_t interrupts_seen;
    int64_t limit_ns;          /* when options->limit acts; 0: no warning has come */
    bool reached;              /* the run stops because an evaluation reached stop.value */
    struct best final;         /* evaluation of the parameters that the run leaves; its value is NAN if not measured */
    const char *final_weights; /* their file in the folder; NULL: none */
    bool best_known;
    struct best best_kept; /* the evaluation of best.weights */
    bool unsaved;          /* a message said that the folder cannot be written */
};

/* ---- messages, counts, time ---- */

/* Prints and logs a message; warnings also with --quiet. */
void run_say(struct run *self, enum log_level level, const char *id, const char *format, ...) RP_PRINTF(4, 5);
/* Begins to stop, unless the run is stopping already: the first reason counts. The very last lines of a run say why it has failed, so that
 * is not printed here. */
void run_stop(struct run *self, enum phase outcome, bool patient, const char *format, ...) RP_PRINTF(4, 5);
/* True if a program of the user plays the role. */
bool run_is_custom(const struct run *self, enum role role);
/* ROLES: of all roles. */
uint32_t run_running(const struct run *self, enum role role);
/* Number of processes of a role that should run. */
uint32_t run_wanted(const struct run *self, enum role role);
/* Seconds until stop.time, negative if it has passed; infinite without one. */
double run_time_left(const struct run *self);
/* True if the rest of stop.time is needed for the end. */
bool run_time_to_end(const struct run *self);
/* True if this leg began before that: a run may be resumed with hardly any time left. */
bool run_had_time(const struct run *self);

/* ---- hosts ---- */

/* Gives a process a host if it has none. */
void run_place(struct run *self, struct member *member);
/* Hosts have come or gone: distributes processes again. Those that move are asked to end. */
void run_place_again(struct run *self, int64_t now_ns);
void run_hosts_open(struct run *self);
void run_hosts_fini(struct run *self);
/* Looks at the hosts: those that are lost, come, or come back. */
void run_hosts_tend(struct run *self, int64_t now_ns);
/* "+NAME" takes a host in; "-NAME" ends its processes, which get other places, and then its connection. */
rp_status run_hosts_change(struct run *self, const char *change, int64_t now_ns, rp_error *err);
/* Time up to which a host has sent files or output, at least since_ns and at most RUN_FILES_GRACES times launch.grace later; since_ns
 * if somebody is in a hurry. */
int64_t run_host_moved(const struct run *self, uint32_t index, int64_t since_ns);
bool run_host_ready(const struct run *self, const struct member *member);
/* Prepares a start on the member's host, which is ready: gives the context of its command line. */
void run_go_there(struct run *self, struct member *member, struct command_context *out);
/* Adds up what processes use on each host. */
void run_hosts_measure(struct run *self, int64_t now_ns);
/* Gives the cores in use and the cores of all machines that take actors: where one more could run. Without several machines, *cpu and
 * *cores stay. *cores is 0 (no bound) where a scheduler gives more machines to more actors. */
void run_actor_machines(const struct run *self, double *cpu, double *cores);

/* ---- status ---- */

/* Begins a stretch with this many actors. */
void run_stretch_begin(struct run *self, uint32_t actors);
/* Adds the latest look to the present stretch. */
void run_stretch_add(struct run *self, const struct observation *before);
/* Copies the stretches in which something happened; returns how many. */
uint32_t run_stretches(const struct run *self, struct report_stretch out[REPORT_STRETCHES]);
/* Updates rates, sums and evaluations after a look. */
void run_take_in(struct run *self, const struct observation *before);
void run_status(struct run *self, struct status *out);
/* Writes status.json, launch.json, and lines of metrics.jsonl. */
void run_save(struct run *self, const struct status *status);
