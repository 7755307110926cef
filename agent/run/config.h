/* The configuration of a run: one file for all programs. Each reads the whole file and uses its part; the broker reads
 * its section alone (replay-broker -c FILE --section broker). */
#ifndef AGENT_RUN_CONFIG_H
#define AGENT_RUN_CONFIG_H

#include "agent/adder/adder.h"
#include "agent/env/env.h"
#include "agent/learn/agent.h"
#include "broker/config.h"
#include "proto/schema.h"

struct actors_section {
    int64_t count;
    double epsilon, epsilon_alpha; /* actor i of N explores with epsilon^(1 + alpha i / (N - 1)); N = 1: epsilon */
    double epsilon_start;          /* decays to the ladder's value ... */
    int64_t epsilon_steps;         /* ... over so many environment steps of all actors; 0: at once */
    int64_t random_steps;          /* environment steps of all actors that are taken at random first */
    int64_t random_hold;           /* a random action is kept for so many steps */
    double noise_sigma;            /* continuous actions: standard deviation, canonical units */
    double noise_correlation;      /* of one step's noise with the next one's */
    int64_t pull_every;            /* steps between looks for new parameters */
};

struct learners_section {
    int64_t count;
    int64_t prefetch;      /* batches under way */
    int64_t publish_every; /* learner steps */
    int64_t save_every_ns; /* learner state; 0: only at the end */
    int64_t round_ns;      /* parallel learners: how long a round waits for the others */
};

struct evaluator_section {
    int64_t episodes; /* in an evaluation */
    int64_t every;    /* environment steps between evaluations; 0: only at the end */
};

struct stop_section {
    int64_t steps;         /* environment steps of all actors; 0: no such end */
    int64_t learner_steps; /* 0: no such end */
    double value;          /* mean return of an evaluation; .inf: no such end */
    int64_t time_ns;       /* 0: no such end */
};

struct report_section {
    int64_t every_ns;
    bool tensorboard, csv;
};

struct run_config {
    char *name;
    int64_t seed;
    char *folder; /* of logs and weights; empty: none are written */
    struct env_config environment;
    struct agent_config agent;
    struct adder_config adder; /* discount is agent.discount unless the file says otherwise */
    struct actors_section actors;
    struct learners_section learners;
    struct evaluator_section evaluator;
    struct stop_section stop;
    struct report_section report;
    struct broker_config broker;
};

/* The rows of a run, with the broker's own below "broker". */
const struct schema *run_schema(void);

/* What is used without a file: DQN on CartPole-v1. */
extern const char run_default_yaml[];

/* Reads a run's file, or run_default_yaml if path is NULL, with overrides "a.b=c" (NULL-terminated list, may be NULL).
 * Everything that can be wrong is found here: the environment and the agent are made once, for trial. False: the report
 * has the reasons. */
bool run_config_read(const char *path, const char *const *overrides, struct run_config *out,
                     struct schema_report *report);
/* The same from a text; "name" stands for the file name. */
bool run_config_read_text(const char *name, const char *text, const char *const *overrides, struct run_config *out,
                          struct schema_report *report);
void run_config_free(struct run_config *self);

/* The algorithm that is named, or NULL. */
const struct agent_ops *run_config_algorithm(const struct run_config *self);
/* The table that actors insert into and learners sample, or NULL. */
const struct table_config *run_config_table(const struct run_config *self);

/* config_check.c: what concerns several keys. */
void run_config_check(const void *root, struct schema_report *report);

#endif
