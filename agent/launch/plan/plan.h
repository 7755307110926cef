/* How many actors and learners: exhaustive search over measured curves, equation 5 of the parallel-actors paper in general
 * form. Pure: curves in, a plan with its reasons out.
 *
 * The limiter forces the ratio of samples to inserts, so with x actors and y learners the sustained rate of inserts is
 *
 *     T(x, y) = min( f_a(x),  f_l(y) / spi,  cores / (processor seconds that an insert and its spi samples cost) )
 *
 * and whoever could do more waits. Of all pairs within cores and memory the one with the highest T is best; of those that
 * come within `near` of it, the one whose natural ratio (without a limiter) is nearest to the target, then the one with the fewest
 * processes. Where a pair was measured jointly, what was measured counts instead of the formula, and corrects what the
 * formula says about the others. */
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

/* One side alone, at one count. */
struct plan_point {
    uint32_t count;
    double rate;       /* items/s of all together */
    double cpu;        /* processor seconds per second of all together */
    double broker_cpu; /* the broker's meanwhile */
    double memory;     /* bytes of one process */
};

/* Ascending counts. Between two points rates are linear; beyond the last, nothing is known and nothing is planned. */
struct plan_curve {
    struct plan_point points[PLAN_MAX_POINTS];
    uint32_t n;
};

/* Both sides under the limiter. */
struct plan_joint {
    uint32_t actors, learners;
    double inserts, samples;         /* items/s */
    double actor_idle, learner_idle; /* share of the time that one is held back by the limiter; NAN: not known */
    double cpu;                      /* cores used by all processes */
    double others;                   /* cores that other programs took meanwhile, where none was left free */
    uint32_t runs;                   /* figures are means over so many; 0: 1 */
    struct idle_shares waits;        /* in the newest of them, by what was waited for; NAN and 0: nothing */
};

struct plan_input {
    struct plan_curve actors, learners;
    struct plan_joint joints[PLAN_MAX_JOINTS];
    uint32_t n_joints;
    double spi;   /* target: samples per insert */
    double cores; /* that may be used */
    double memory, broker_memory,
        other_memory;                      /* bytes: in all; of the broker with full tables; of the rest (evaluator) */
    uint32_t fixed_actors, fixed_learners; /* what the file says; 0: auto */
    uint32_t max_actors, max_learners;     /* plan.max_actors, plan.max_learners; 0: no bound */
    double near;      /* 0.02: how much throughput may be given away for a better ratio or fewer processes */
    double tolerance; /* 0.1: how far the natural ratio may be from the target before the plan says so */
    bool settled; /* there are no more joint runs to come: of the pairs that fit, only those that had one are chosen */
};

enum plan_bottleneck {
    PLAN_ACTORS,
    PLAN_LEARNERS,
    PLAN_CORES,
    PLAN_MEMORY,
    PLAN_BALANCED,
    PLAN_MAX_ACTORS,
    PLAN_MAX_LEARNERS
};
#define PLAN_BOTTLENECKS (PLAN_MAX_LEARNERS + 1)
extern const char *const plan_bottleneck_names[PLAN_BOTTLENECKS];

struct plan_choice {
    uint32_t actors, learners;
    double inserts, samples; /* items/s, sustained, with the limiter */
    double spi;              /* natural: without the limiter */
    double actor_idle, learner_idle;
    double cpu;    /* cores */
    double memory; /* bytes */
    enum plan_bottleneck bottleneck;
    bool measured;    /* jointly, not from the curves */
    char reason[240]; /* why it is chosen, or why not: "needs 3.1 cores of 2", "4% fewer inserts/s", ... */
};

struct plan {
    struct plan_choice chosen;
    struct plan_choice others[PLAN_MAX_OTHERS]; /* the next best, and the nearest that do not fit, with the reason */
    uint32_t n_others;
    struct plan_choice best;             /* what auto would choose; differs from chosen where the file says a number */
    uint32_t most_actors, most_learners; /* bounds for a change while running: the largest counts that fit */
};

/* plan_waits.c: the whole idle shares of a choice, all waits included, and the same by cause. input may be NULL for the first two. */
double plan_actor_idle(const struct plan_choice *choice, const struct plan_input *input);
double plan_learner_idle(const struct plan_choice *choice, const struct plan_input *input);
struct idle_shares plan_waits(const struct plan_choice *choice, const struct plan_input *input);

/* What the curves say about one pair, whether it fits or not. False: outside of the curves. */
bool plan_predict(const struct plan_input *input, uint32_t actors, uint32_t learners, struct plan_choice *out);
/* RP_INVALID_ARGUMENT: no pair fits ("one actor and one learner need 3.2 GiB of 2 GiB ..."). A number of the file that does
 * not fit is respected, and its reason says so. */
rp_status plan_solve(const struct plan_input *input, struct plan *out, rp_error *err);
/* The pair whose joint run would tell most about what to choose, perhaps once more; false: none is worth its time. */
bool plan_next(const struct plan_input *input, uint32_t *actors, uint32_t *learners);
/* For people: counts, predictions, bottleneck, memory, alternatives with reasons, comparison with a number of the file. */
void plan_print(const struct plan *self, const struct plan_input *input, FILE *out);

/* Items/s that this many actors can make beside the learners. */
double plan_actors_rate(const struct plan_input *input, uint32_t actors);
/* The count of the curve's last point; 0: it has none. */
uint32_t plan_last(const struct plan_curve *curve);
/* As format_bytes, for a number that was measured or read. */
const char *plan_bytes(char *out, double bytes);
/* Takes a joint run in: the first of its pair, or one more (false: there is no room for another pair). */
bool plan_add_joint(struct plan_input *input, const struct plan_joint *joint);

/* Plans and inputs as JSON: plan.json in the run's folder, and the cache of curves. */
char *plan_to_json(const struct plan *self, const struct plan_input *input); /* free() */
bool plan_input_from_json(const char *text, struct plan_input *out);
/* Reads the whole of plan.json back. */
bool plan_from_json(const char *text, struct plan *out, struct plan_input *input);

#endif
