/* What is measured for a plan, and what it says about any pair of counts. Pure functions of a struct plan_input.
 *
 * Measured are one actor on each kind of machine beside one learner, without a limiter, and pairs of counts that ran together under
 * the table's limiter. For a pair that did not run, the limiter forces the ratio of samples to inserts, so with x actors and y learners the
 * sustained rate of inserts is
 *
 *     T(x, y) = min( sum of what single actors do,  y learners / spi,  what the cores allow )
 *
 * times what runs have reached of this formula. Cores are counted on each machine: learners take theirs where they run, the broker
 * at home, and actors have what is left. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "agent/run/idle.h"
#include "replay/error.h"

#define PLAN_MAX_RUNS 24u
#define PLAN_MAX_COUNT 4096u /* actors or learners */
#define PLAN_HOME 0u         /* index of the launcher's own machine, where the broker runs */

/* One process that nobody holds back. A rate of 0: not measured. */
struct plan_unit {
    double rate;       /* items/s */
    double cpu;        /* processor seconds per second */
    double broker_cpu; /* the broker's at the same time */
    double memory;     /* bytes */
};

struct plan_host {
    char name[64];
    char kind[160];         /* machines of one kind have the same: host_pool_kind */
    double cores, memory;   /* that may be used there; memory 0: no bound */
    bool actors, learners;  /* roles that it takes */
    struct plan_unit actor; /* one actor there; only on one host of a kind */
};

enum plan_bottleneck {
    PLAN_UNKNOWN,
    PLAN_ACTORS,
    PLAN_LEARNERS,
    PLAN_CORES,
    PLAN_MEMORY,
    PLAN_BALANCED,
    PLAN_MAX_ACTORS,
    PLAN_MAX_LEARNERS,
    PLAN_BROKER /* the core thread of the busiest shard */
};
#define PLAN_BOTTLENECKS (PLAN_BROKER + 1)
extern const char *const plan_bottleneck_names[PLAN_BOTTLENECKS];

/* A pair of counts: what it did together under the limiter, or what is computed for it. */
struct plan_pair {
    uint32_t actors, learners;
    uint32_t shards;          /* of the broker */
    uint32_t runs;            /* number of runs of which these figures are means; 0: they are computed */
    double inserts, samples;  /* items/s, with the limiter */
    struct idle_shares waits; /* by cause; the limiter's are IDLE_CREDIT and IDLE_SAMPLE. NAN: not known */
    double cpu;               /* cores used by all processes */
    /* ---- of runs */
    double others; /* cores that other programs took at that time, if no core was free */
    double core;   /* share of the time for which the busiest core thread of all shards worked; NAN: not known */
    double home;   /* cores in use on the broker's machine, by other programs too */
    /* ---- of what the model says about the pair */
    double memory;       /* bytes */
    double tight_memory; /* bytes on the machine with the least room */
    uint32_t tight;      /* that machine's index */
    enum plan_bottleneck bottleneck;
    char reason[240]; /* why the pair is chosen */
};

struct plan_input {
    struct plan_host *hosts; /* home first; owned by whoever fills the input (plan_input_free) */
    uint32_t n_hosts;
    struct plan_unit learner;
    struct plan_pair runs[PLAN_MAX_RUNS];
    uint32_t n_runs;
    uint32_t fixed_shards;                 /* of the file; 0: auto */
    uint32_t most_shards;                  /* that tables and limiters allow */
    double spi;                            /* target: samples per insert */
    double broker_memory, other_memory;    /* bytes: of the broker with full tables; of other processes (evaluator) */
    uint32_t fixed_actors, fixed_learners; /* counts of the file; 0: auto */
    uint32_t max_actors, max_learners;     /* plan.max_actors, plan.max_learners; 0: no bound */
};

/* What one host does in a plan. */
struct plan_site {
    uint32_t actors, learners;
    double used, memory; /* cores and bytes of what was placed there, at full speed */
};

void plan_input_free(struct plan_input *input);
/* Checks that the input is enough to compute with. */
rp_status plan_input_check(const struct plan_input *input, rp_error *err);
/* Returns 0 for a value that was not measured. */
double plan_known(double value);
/* True for a possible number of actors or learners. */
static inline bool plan_is_count(uint32_t count)
{
    return count > 0 && count <= PLAN_MAX_COUNT;
}
/* Cores and memory of home and of all hosts that take processes. */
double plan_cores(const struct plan_input *input);
double plan_memory(const struct plan_input *input);
/* The host of this one's kind where an actor was measured; NULL: there is none. */
const struct plan_host *plan_example(const struct plan_input *input, uint32_t host);
/* One actor on a host of this kind. A kind that was not measured is taken to be like the one with the most similar number of cores;
 * a rate of 0: nothing was measured. */
struct plan_unit plan_actor_on(const struct plan_input *input, uint32_t host);

/* Says how many actors and learners go to each host (arrays of n_hosts): the rule by which a plan counts cores, and by which a run
 * places its processes. Learners go to hosts with free cores, first where a core is worth least to actors; each actor goes to the
 * host where it adds most beside what is there. Placing one more actor moves no other: with the same learners, the
 * counts for n + 1 actors are those for n with one more somewhere. Where nothing was measured, actors go by free cores. A role that no
 * host takes is home's. */
void plan_place(const struct plan_input *input, uint32_t actors, uint32_t learners, uint32_t *actors_at,
                uint32_t *learners_at);

/* Computes pairs of counts. plan_model_fini must follow. */
struct plan_model {
    const struct plan_input *input; /* borrowed */
    struct plan_site *sites;        /* n_hosts: where the present pair is */
    struct plan_unit *units;        /* n_hosts: plan_actor_on */
    uint32_t actors, learners;      /* the present pair */
    double broker;                  /* cores of the broker for it, at full speed */
    double scale;                   /* inserts of all runs, relative to what the formula says about their pairs */
};
void plan_model_init(struct plan_model *self, const struct plan_input *input);
void plan_model_fini(struct plan_model *self);
/* Fills in everything but the reason: what the pair's run gave, if it was run with so many shards, otherwise what is computed. shards
 * 0: the number of the file, or 1. bottleneck is never PLAN_MEMORY. With the same learners as in the call before, and no fewer
 * actors, a call costs only the actors that are new. */
void plan_model_pair(struct plan_model *self, uint32_t actors, uint32_t learners, uint32_t shards,
                     struct plan_pair *out);
/* Computes what is known about one pair, whether it fits or not. False: the input is not enough. */
bool plan_predict(const struct plan_input *input, uint32_t actors, uint32_t learners, struct plan_pair *out);
/* Fills in, for each host (n_hosts), the cores in use if the pair runs at its rate; sites is n_hosts. */
void plan_use(const struct plan_input *input, const struct plan_pair *choice, struct plan_site *sites);

/* Adds a run: the first of its pair and shards, or another one, which is averaged in. False: there is no room for another pair. */
bool plan_add_run(struct plan_input *input, const struct plan_pair *run);
/* Returns the run of a pair; shards 0: the number of the file, or 1. NULL: there was none. */
const struct plan_pair *plan_run_of(const struct plan_input *input, uint32_t actors, uint32_t learners,
                                    uint32_t shards);
/* The number of shards with which pairs are compared: that of the file, or 1. */
uint32_t plan_shards(const struct plan_input *input);
/* True if the pair has the memory that it needs on every machine. Without a bound every pair fits. */
bool plan_fits(const struct plan_input *input, const struct plan_pair *choice);

/* The sum of a side's waits; NAN if it is not known for how long the limiter holds the side back. */
double plan_actor_idle(const struct plan_pair *pair);
double plan_learner_idle(const struct plan_pair *pair);
