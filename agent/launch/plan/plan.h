/* The plan room: how many actors and learners to run. It offers an exhaustive search over measured curves (equation
 * 5 of the parallel-actors paper in general form), and reads and writes plans as JSON. Pure functions: curves in, a
 * plan with reasons out; it knows nothing of processes or files.
 *
 * The limiter forces the ratio of samples to inserts, so with x actors and y learners the sustained rate of inserts
 * is
 *
 *     T(x, y) = min( f_a(x),  f_l(y) / spi,  cores / (processor seconds that an insert and its spi samples cost) )
 *
 * with several machines also network / bytes of an insert, and cores for each machine (plan_hosts.c),
 *
 * and the side that could do more waits. Of all pairs within cores and memory that come within PLAN_NOISE of the highest
 * T, the one with the fewest processes is best; of equally many, the fastest. So no pair is chosen that is slower than a
 * smaller one. Where a pair was run jointly, the measurement replaces the formula, and corrects what the formula says
 * about the other pairs. */
#ifndef AGENT_LAUNCH_PLAN_H
#define AGENT_LAUNCH_PLAN_H

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

#include "agent/run/idle.h"
#include "replay/error.h"

#define PLAN_MAX_POINTS 16u
#define PLAN_MAX_JOINTS 8u
#define PLAN_MAX_OTHERS 6u
#define PLAN_MAX_LOADS 16u
#define PLAN_NOISE 0.04 /* rates that differ by a smaller share count as equal: a joint run lasts seconds */

/* One side alone, at one count. */
struct plan_point {
    uint32_t count;
    double rate;       /* items/s of all processes together */
    double cpu;        /* processor seconds per second of all processes together */
    double broker_cpu; /* the broker's at the same time */
    double memory;     /* bytes of one process */
};

/* Counts ascend. Between two points rates are linear; beyond the last point nothing is known and nothing is planned. */
struct plan_curve {
    struct plan_point points[PLAN_MAX_POINTS];
    uint32_t n;
};

/* Both sides under the limiter. */
struct plan_joint {
    uint32_t actors, learners;
    double inserts, samples;         /* items/s */
    double actor_idle, learner_idle; /* share of the time for which the limiter holds the side back; NAN: not known */
    double cpu;                      /* cores used by all processes */
    double others;                   /* cores that other programs took at that time, if no core was free */
    uint32_t runs;                   /* number of runs of which these figures are means; 0: 1 */
    struct idle_shares waits;        /* waits in the newest run, by cause; NAN and 0: none */
};

/* A joint run with a number of shards, and how busy the broker was in it. */
struct plan_load {
    uint32_t shards;
    double core;  /* share of the time for which the busiest core thread of all shards worked; NAN: not known */
    double cores; /* cores in use on the broker's machine, by all programs that were measured or disturbed them */
    struct plan_joint joint;
};

/* A machine of a run that has several; the first is the launcher's own. */
struct plan_host {
    char name[64];
    uint32_t kind;           /* index of the first host of its kind */
    double cores, memory;    /* that may be used there; 0: not known */
    bool actors, learners;   /* roles that it takes */
    struct plan_curve curve; /* of actors there; only in the first host of a kind */
};

struct plan_input {
    struct plan_curve actors, learners;
    struct plan_host *hosts; /* owned by whoever fills the input (plan_input_free); NULL: one machine */
    uint32_t n_hosts;
    double network;    /* bytes/s that all hosts together can send to the broker's machine; 0: not measured, no bound */
    double item_bytes; /* of an insert on the wire; 0: not known */
    struct plan_joint joints[PLAN_MAX_JOINTS];
    uint32_t n_joints;
    struct plan_load loads[PLAN_MAX_LOADS];
    uint32_t n_loads;
    uint32_t fixed_shards; /* of the file; 0: auto */
    uint32_t most_shards;  /* that tables and limiters allow */
    double spi;            /* target: samples per insert */
    double cores;          /* cores that may be used */
    double memory, broker_memory,
        other_memory; /* bytes: in all; of the broker with full tables; of other processes (evaluator) */
    uint32_t fixed_actors, fixed_learners; /* counts of the file; 0: auto */
    uint32_t max_actors, max_learners;     /* plan.max_actors, plan.max_learners; 0: no bound */
    bool settled;                          /* no more joint runs follow: only pairs that were run jointly are chosen */
};

enum plan_bottleneck {
    PLAN_ACTORS,
    PLAN_LEARNERS,
    PLAN_CORES,
    PLAN_MEMORY,
    PLAN_BALANCED,
    PLAN_MAX_ACTORS,
    PLAN_MAX_LEARNERS,
    PLAN_NETWORK,
    PLAN_BROKER /* the core thread of the busiest shard */
};
#define PLAN_BOTTLENECKS (PLAN_BROKER + 1)
extern const char *const plan_bottleneck_names[PLAN_BOTTLENECKS];

struct plan_choice {
    uint32_t actors, learners;
    uint32_t shards;         /* above 1: auto has chosen them, and the pair was run with so many */
    double inserts, samples; /* items/s, sustained, with the limiter */
    double actor_idle, learner_idle;
    double cpu;          /* cores */
    double memory;       /* bytes */
    double tight_memory; /* bytes on the machine with the least room; with hosts only */
    uint32_t tight;      /* that machine's index */
    enum plan_bottleneck bottleneck;
    bool measured;    /* measured jointly, not computed from the curves */
    char reason[240]; /* why the pair is chosen, or why not: "needs 3.1 cores of 2", "4% fewer inserts/s", ... */
};

/* Shards of the broker. */
struct plan_broker {
    uint32_t shards; /* 0: not known */
    double gain;     /* inserts/s that auto gains over one shard, as a share */
    char reason[240];
};

struct plan {
    struct plan_choice chosen;
    struct plan_broker broker;
    struct plan_choice others[PLAN_MAX_OTHERS]; /* the next best, and the nearest that do not fit, with the reason */
    uint32_t n_others;
    struct plan_choice best;             /* what auto would choose; differs from chosen if the file gives a number */
    uint32_t most_actors, most_learners; /* bounds for resizing: the largest counts that fit */
};

/* Idle shares of a choice with all waits, as a sum and by cause. input may be NULL for the first two. (plan_waits.c) */
double plan_actor_idle(const struct plan_choice *choice, const struct plan_input *input);
double plan_learner_idle(const struct plan_choice *choice, const struct plan_input *input);
struct idle_shares plan_waits(const struct plan_choice *choice, const struct plan_input *input);

/* Computes what the curves say about one pair, whether it fits or not. False: the pair is outside of the curves. */
bool plan_predict(const struct plan_input *input, uint32_t actors, uint32_t learners, struct plan_choice *out);
/* RP_INVALID_ARGUMENT: no pair fits ("one actor and one learner need 3.2 GiB of 2 GiB ..."). A count of the file that
 * does not fit is kept, and its reason says so. */
rp_status plan_solve(const struct plan_input *input, struct plan *out, rp_error *err);
/* Finds the pair whose joint run would help most to choose, perhaps one that was run before; false: none is worth its
 * time. */
bool plan_next(const struct plan_input *input, uint32_t *actors, uint32_t *learners);
/* Finds the next run that says how many shards pay: that of the pair that is best with one shard, then runs with more shards and
 * more processes. Fills in shards and counts of *next; false: none is worth its time. (plan_shards.c) */
bool plan_next_shards(const struct plan_input *input, const struct plan_choice *choice, struct plan_load *next);
/* Chooses the number of shards: that of the file, or as many as pay. choice: the pair that is best with one shard. plan_solve does
 * it. */
void plan_choose_shards(const struct plan_input *input, const struct plan_choice *choice, struct plan_broker *out);
/* Adds a run; the fastest of its pair and number of shards counts. */
void plan_add_load(struct plan_input *input, const struct plan_load *load);
/* Prints counts, predictions, bottleneck, memory, alternatives with reasons, and a comparison with the counts of the
 * file. */
void plan_print(const struct plan *self, const struct plan_input *input, FILE *out);

/* Says how many actors and learners go to each host (arrays of n_hosts): the rule by which curves are added up, by which a
 * plan counts cores, and by which a run places its processes. Learners go to the first hosts with free cores, those that take
 * nothing else before the others; each actor to the host where it adds most beside what is there. Placing one more actor
 * moves no other: with the same learners, the counts for n + 1 actors are those for n with one more somewhere. Without curves,
 * actors go by free cores. A role that no host takes is home's. (plan_place.c) */
void plan_place(const struct plan_input *input, uint32_t actors, uint32_t learners, uint32_t *actors_at,
                uint32_t *learners_at);
/* Makes input->actors from the curves of the hosts: what n actors do if plan_place places them. */
void plan_add_up(struct plan_input *input);
void plan_input_free(struct plan_input *input);

/* Items/s that this many actors can make beside the learners. */
double plan_actors_rate(const struct plan_input *input, uint32_t actors);
/* The count of the curve's last point; 0: it has none. */
uint32_t plan_last(const struct plan_curve *curve);
/* As format_bytes, for a number that was measured or read. */
const char *plan_bytes(char *out, double bytes);
/* Adds a joint run: the first of its pair, or another one (false: there is no room for another pair). */
bool plan_add_joint(struct plan_input *input, const struct plan_joint *joint);

/* Plans and inputs as JSON: plan.json in the run's folder, and the cache of curves. What is read back has hosts of its own
 * (plan_input_free); nothing is allocated where reading fails. */
char *plan_to_json(const struct plan *self, const struct plan_input *input); /* free() */
bool plan_input_from_json(const char *text, struct plan_input *out);
/* Reads the whole of plan.json. */
bool plan_from_json(const char *text, struct plan *out, struct plan_input *input);

#endif
