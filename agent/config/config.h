/* The config room: the configuration of a run, one file for all programs. Each program reads the whole file and uses
 * its part; the broker reads only its section (replay-broker -c FILE --section broker). The room owns the keys and
 * their checks, and may use the structs of environments, adders, algorithms and the broker's configuration. */
#pragma once

#include "agent/env/env.h"
#include "agent/learn/adder.h"
#include "agent/learn/agent.h"
#include "broker/config/config.h"
#include "proto/config/schema.h"

/* A count that the word auto leaves to the program. */
#define RUN_AUTO (-1)
#define RUN_MAX_COUNT 4096u /* actors, learners, environments of an actor */

struct actors_section {
    int64_t count;                 /* 0: none, the table comes from a checkpoint; or RUN_AUTO */
    int64_t environments;          /* environments of each actor */
    struct schema_list command;    /* char *: the user's own actor instead of replay-actor; empty: none */
    double epsilon, epsilon_alpha; /* actor i of N explores with epsilon^(1 + alpha i / (N - 1)); N = 1: epsilon */
    int64_t epsilon_steps;         /* ... over this many environment steps of all actors; 0: at once */
    int64_t random_steps;          /* environment steps of all actors that are taken at random first */
    int64_t random_hold;           /* steps for which a random action is kept; not a key, like epsilon_alpha */
    double noise_sigma;            /* continuous actions: standard deviation, canonical units */
    double noise_correlation;      /* correlation between the noise of neighbouring steps */
    int64_t pull_every;            /* steps between looks for new parameters */
    char *weights;                 /* a saved learner whose policy acts, instead of one that learns; empty: none */
    bool greedy;                   /* no exploration: records an expert */
};

struct learners_section {
    int64_t count;              /* 0: none, the table is only filled; or RUN_AUTO */
    struct schema_list command; /* char *: the user's own learner */
    int64_t delay_ns;           /* added to the duration of each step */
    int64_t prefetch;           /* batches in flight, or RUN_AUTO: see run_config_prefetch */
    int64_t publish_every;      /* learner steps */
    int64_t save_every_ns;      /* time between saves of the learner's state; 0: only at the end */
    int64_t snapshot_every;     /* learner steps between snapshots, which are kept; 0: none */
};

struct evaluator_section {
    struct schema_list command; /* char *: the user's own evaluator */
    int64_t episodes;           /* episodes in an evaluation; 0: there is none */
    int64_t every;              /* environment steps between evaluations; 0: only at the end */
};

struct stop_section {
    int64_t steps;         /* environment steps of all actors; 0: no such stop condition */
    int64_t learner_steps; /* 0: no such stop condition */
    double value;          /* mean return of an evaluation; .inf: no such stop condition */
    int64_t time_ns;       /* 0: no such stop condition */
};

/* How replay-launch sizes a run. */
struct plan_section {
    double cores;   /* 0: the cores that this process may use */
    int64_t memory; /* bytes; 0: four fifths of the free memory */
    int64_t max_actors, max_learners;
    int64_t measure_ns; /* measuring time for each count */
};

/* Most machines of a run beside the launcher's, and the longest name of one with its end. */
#define RUN_HOSTS_MOST 1023u
#define RUN_HOST_NAME 64u

/* Another machine of a run, or this one. */
struct host_config {
    char *
        name; /* as ssh takes it, cpu[1-4] stands for four hosts; "local": this machine; empty, with a command: host1, ... */
    struct schema_list command; /* char *: another way to run a shell there, to which one word is added: its command */
    struct schema_list roles;   /* char *: actor, learner; empty: actor */
    double cores;               /* 0: what the machine allows */
    char *programs;             /* folder of our programs there; empty: the same build is found or sent there */
};

/* Jobs of a run under Slurm. */
struct slurm_section {
    struct schema_list core; /* rp_option: options of sbatch for the core job: broker, learners, evaluator, launcher */
    struct schema_list actors; /* rp_option: for the actor array, which may be preempted */
    char *count;               /* "4-64" or "8": least and most actors */
};

enum launch_engine { ENGINE_LOCAL, ENGINE_SLURM };

/* How replay-launch keeps a run going. */
/* Where all runs of a user are shown, unless a file or REPLAY_PAGE names another address. */
#define LAUNCH_HTTP "127.0.0.1:7650"

struct launch_section {
    int32_t engine; /* enum launch_engine */
    struct slurm_section slurm;
    struct schema_list send; /* char *: files that hosts need, relative to the run's file */
    char *http;              /* address of the page; empty: none */
    int64_t backoff_ns;      /* pause before a failed process starts again; doubled each time */
    int64_t failures;        /* number of equal failures in a row after which the run stops */
    int64_t grace_ns;        /* between SIGTERM and SIGKILL */
    int64_t hang_ns;         /* a process without any processor time for this long is killed and restarted, and an
                              * environment is waited for; 0: never */
};

struct report_section {
    int64_t every_ns;
};

struct run_config {
    char *name;
    int64_t seed;
    char *folder; /* folder of logs and weights; empty: none are written */
    struct env_config environment;
    struct agent_config agent;
    double agent_target; /* below 1: agent.tau, else agent.target_period, which are no keys */
    struct schema_list
        agent_options;         /* rp_option: of the algorithm, members of agent; or what the user's programs read */
    struct adder_config adder; /* its discount is agent.discount */
    struct actors_section actors;
    struct learners_section learners;
    struct evaluator_section evaluator;
    struct stop_section stop;
    struct plan_section plan;
    struct launch_section launch;
    struct report_section report;
    struct schema_list hosts; /* struct host_config */
    struct broker_config broker;
};

/* The rows of a run, with the broker's own below "broker". */
const struct schema *run_schema(void);

/* The configuration without a file: DQN on CartPole-v1. */
extern const char run_default_yaml[];

/* Reads a run's file, or run_default_yaml if path is NULL, with overrides "a.b=c" (NULL-terminated list, may be
 * NULL). Finds every mistake: it creates the environment and the agent once, as a trial, unless only the user's own
 * programs act, learn and measure. False: the report has the reasons. */
bool run_config_read(const char *path, const char *const *overrides, struct run_config *out,
                     struct schema_report *report);
/* The same from a text; `name` stands for the file name. */
bool run_config_read_text(const char *name, const char *text, const char *const *overrides, struct run_config *out,
                          struct schema_report *report);
void run_config_free(struct run_config *self);

/* Returns the algorithm by its name, or NULL. */
const struct agent_ops *run_config_algorithm(const struct run_config *self);
/* True if a program of ours acts, learns or evaluates: then environment and agent are ours, too. */
bool run_config_needs_ours(const struct run_config *self);
/* Number of actors and of learners: 0 if there are none, or if auto is not decided yet. */
uint32_t run_config_actors(const struct run_config *self);
uint32_t run_config_learners(const struct run_config *self);
/* The table that actors insert into and learners sample, or NULL. */
const struct table_config *run_config_table(const struct run_config *self);
/* Samples per insert that its limiter holds; 0: none. */
double run_config_ratio(const struct run_config *self);
/* Whether that table has max_lag. */
bool run_config_bounds_lag(const struct run_config *self);

/* Prescribes the fields of the items of adder.table as environment and adder make them, unless another program inserts. Reports a
 * signature of the file that they do not fit; again: the file is that of a run that goes on, so the signature is ours, and is made
 * anew. */
void run_config_prescribe(struct run_config *self, bool again, struct schema_report *report);

/* Batches of `batch` items that each learner has in flight. */
uint32_t run_config_prefetch(const struct run_config *self, int64_t batch);
/* Bytes that a full table takes of broker.memory_limit: steps that items share count once, before compression. 0: not
 * known. spec: of the environment; NULL: not known what the user's own actors write. */
double run_config_table_bytes(const struct run_config *self, const struct table_config *table, const rp_env_spec *spec);

/* Checks rules that concern several keys. */
void run_config_check(struct run_config *config, struct schema_report *report);

/* Returns the most shards, a power of two, that tables, limiters and batches of this size allow. */
uint32_t run_config_most_shards(const struct run_config *self, int64_t batch);
/* Replaces broker.shards by a number of processes. */
void run_config_set_shards(struct run_config *self, uint32_t shards);

/* Checks the list of hosts. */
void run_config_check_hosts(const struct run_config *self, struct schema_report *report);
/* True if the run has other machines than the launcher's. */
bool run_config_is_spread(const struct run_config *self);
/* The entry of this machine, or NULL. */
const struct host_config *run_config_home(const struct run_config *self);
/* Whether processes of a role ("actor", "learner") run on a host; whether they run on this machine. */
bool host_config_takes(const struct host_config *self, const char *role);
bool run_config_home_takes(const struct run_config *self, const char *role);
/* True if the entry is this machine. */
bool host_config_is_local(const struct host_config *self);
/* The pattern of an entry's names; index: its place in the list. Gives out. */
const char *host_config_pattern(const struct host_config *self, uint32_t index, char *out, size_t size);
/* The names that a pattern stands for: "cpu[1-4]", "cpu[01-12]", "r[1,2]n[1-8]". A list that ends with NULL,
 * words_free. NULL: `why` says what is wrong, such as more names than `most`. */
char **run_config_host_names(const char *pattern, uint32_t most, char *why, size_t size);
/* Chooses endpoints that the file does not write: on any free port, of all interfaces in a run with other machines, else of the
 * loopback interface. report: that of the reading. */
void run_config_open_broker(struct run_config *self, const struct schema_report *report);

/* Checks launch.slurm. */
void run_config_check_slurm(const struct run_config *self, struct schema_report *report);
/* The most actors of a run under Slurm. */
#define RUN_SLURM_ACTORS 4096u
/* The most tasks of an array: what Slurm allows unless it is configured otherwise. */
#define RUN_SLURM_TASKS 1000u
/* Least and most actors of a run under Slurm. False: launch.slurm.count is wrong. */
bool run_config_slurm_actors(const struct run_config *self, uint32_t *least, uint32_t *most);
/* Actors of each task of the array: its cpus-per-task, 8 unless the file says otherwise. 0: that is no such number. */
uint32_t run_config_slurm_each(const struct run_config *self);
/* How long before its time limit the core job begins to save, to be queued again and go on. 0: `signal` is wrong. */
int64_t run_config_slurm_warning(const struct run_config *self);
/* Options of sbatch that we read. */
#define RUN_SLURM_CORES "cpus-per-task"
#define RUN_SLURM_SIGNAL "signal"
/* Tasks of the array that so many actors need. */
uint32_t run_config_slurm_tasks(const struct run_config *self, uint32_t actors);
/* Adds what a run under Slurm needs and the file leaves out: plan.max_actors, and a folder of checkpoints, because a job that
 * is queued again starts with the tables of the last one. */
void run_config_complete_slurm(struct run_config *self);
