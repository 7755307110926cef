/* How many actors and learners to run, and how many shards the broker gets. Pure functions: what was measured goes in, a plan with
 * reasons comes out; nothing here knows of processes or files.
 *
 * Pairs that ran together decide, and the formula of plan_model.h says where to begin. Of all pairs that fit into memory and come within
 * PLAN_NOISE of the highest rate of inserts, the one with the fewest processes is best; of equally many, the fastest. So no pair is
 * chosen that is slower than a smaller one. */
#pragma once

#include <stdio.h>

#include "agent/launch/plan/plan_model.h"

#define PLAN_MAX_PAIRS 6u /* pairs that are run with the same number of shards */
#define PLAN_NOISE 0.04   /* rates that differ by a smaller share count as equal: a run lasts about a second */

struct plan_broker {
    uint32_t shards; /* 0: not known */
    double gain;     /* inserts/s that auto gains over one shard, as a share */
    char reason[240];
};

struct plan {
    struct plan_pair chosen;
    struct plan_broker broker;
    struct plan_pair best; /* what auto would choose, without a reason; not the chosen one if the file gives a number */
    uint32_t most_actors;  /* bound for resizing: the largest count that fits beside the chosen learners */
};

/* RP_INVALID_ARGUMENT: no pair fits ("1 actor and 1 learner need 3.2 GiB of 2 GiB ..."). A count of the file that does not fit is kept,
 * and its reason says so. */
rp_status plan_solve(const struct plan_input *input, struct plan *out, rp_error *err);
/* Finds the pair that is worth a run, perhaps one that was run before: fills in actors, learners and shards of *next. False: none is. */
bool plan_next(const struct plan_input *input, struct plan_pair *next);
/* The same for runs that say how many shards pay: the pair that is best with one shard, then more shards with more processes. */
bool plan_next_shards(const struct plan_input *input, struct plan_pair *next);
/* Prints counts, predictions, bottleneck, memory, a comparison with the counts of the file, and what was run. */
void plan_print(const struct plan *self, const struct plan_input *input, FILE *out);

/* Plans and inputs as JSON: plan.json in the run's folder, and the cache of measurements. self may be NULL; free(). */
char *plan_to_json(const struct plan *self, const struct plan_input *input);
/* What is read back has hosts of its own (plan_input_free); nothing is allocated where reading fails. */
bool plan_input_from_json(const char *text, struct plan_input *out);
/* Reads the whole of plan.json. */
bool plan_from_json(const char *text, struct plan *out, struct plan_input *input);
