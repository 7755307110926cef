/* What the files of the planner share; see plan.h. */
#ifndef AGENT_LAUNCH_PLAN_IMPL_H
#define AGENT_LAUNCH_PLAN_IMPL_H

#include "agent/launch/plan/plan.h"

#define PLAN_MAX_COUNT 4096u /* of actors, of learners: the most that a curve may end at */
#define PLAN_SAME 0.01       /* rates that differ by less are the same for people */

enum plan_who { PLAN_OF_ACTORS, PLAN_OF_LEARNERS };

/* ---- plan_side.c ---- */

/* One side at one count. */
struct plan_side {
    uint32_t count;
    double rate;     /* items/s that it can do beside the other side */
    double own, all; /* processor seconds per item: of its processes; with the broker's part */
    double memory;   /* bytes of all its processes */
    double demand;   /* cores that one process would use if nobody took them from it */
    double wish;     /* items/s at that demand; above rate where the cores, not the processes, set the rate alone */
};

/* What a joint run shows about one side. */
struct plan_seen {
    uint32_t count;
    double rate;   /* what it did */
    double could;  /* what it would have done if the limiter had not held it back; rate, where that is not known */
    double weight; /* how much `could` is worth, 0 to 1 */
};

/* What joint runs have shown of a side at one count. */
struct plan_factor {
    uint32_t count;
    double alone, rate; /* items/s: what its curve says; what it can do beside the other side */
    double log, least;  /* the same as parts of the curve, logarithms: of what it could do; of what it did at least */
    double weight;
};

struct plan_fit {
    struct plan_factor at[PLAN_MAX_JOINTS]; /* ascending counts */
    uint32_t n;
};

struct plan_model {
    const struct plan_input *input; /* borrowed */
    struct plan_curve curves[2];    /* [plan_who], smoothed */
    struct plan_fit fits[2];        /* [plan_who] */
    double cost;                    /* cores that joint runs took, of what the curves say */
    double all[2];                  /* what came out, of what the sides could do; [1]: where all cores are busy */
};

/* 0 for what was not measured. */
double plan_known(double value);
void plan_smooth(const struct plan_curve *curve, struct plan_curve *out);
/* Whether all cores were busy in a joint run. */
bool plan_joint_full(const struct plan_input *input, const struct plan_joint *joint);
struct plan_seen plan_joint_side(const struct plan_input *input, const struct plan_joint *joint, enum plan_who who);
void plan_fit_side(const struct plan_input *input, const struct plan_curve *curve, enum plan_who who,
                   struct plan_fit *out);
/* Beyond the last point of its curve, the rate stays as it is there. */
void plan_side_at(const struct plan_model *model, enum plan_who who, uint32_t count, struct plan_side *out);
/* Cores that the side takes, with the broker's part, where it is held back to a rate. */
double plan_side_cores(const struct plan_model *model, enum plan_who who, const struct plan_side *side, double rate);

/* ---- plan_model.c ---- */

void plan_model_init(struct plan_model *self, const struct plan_input *input);
/* Everything but the reason; bottleneck is never PLAN_MEMORY. */
void plan_model_pair(const struct plan_model *self, const struct plan_side *actors, const struct plan_side *learners,
                     struct plan_choice *out);
/* Cores that so many inserts/s and their samples take, the broker's part included. */
double plan_model_cores(const struct plan_model *self, const struct plan_side *actors, const struct plan_side *learners,
                        double inserts);
/* The same from counts, also beyond the curves. */
void plan_model_counts(const struct plan_model *self, uint32_t actors, uint32_t learners, struct plan_choice *out);
/* The newest joint run of a pair; NULL: there was none. */
const struct plan_joint *plan_joint_of(const struct plan_input *input, uint32_t actors, uint32_t learners);
/* The largest count that was measured, alone or jointly. */
uint32_t plan_most(const struct plan_input *input, enum plan_who who);

bool plan_fits(const struct plan_input *input, const struct plan_choice *choice);
/* Whether there is something to compute with. */
rp_status plan_input_check(const struct plan_input *input, rp_error *err);

/* ---- plan_words.c ---- */

/* Fills plan->others and all reasons. top: the highest rate that fits, with the numbers of the file; unfit: a pair that gives more
 * and needs more memory than there is, or NULL. */
void plan_explain(struct plan *plan, const struct plan_model *model, const struct plan_choice *top,
                  const struct plan_choice *unfit);
/* "5% fewer inserts/s: learners would wait 8% of the time": what a would be instead of b. */
void plan_compare(const struct plan_input *input, const struct plan_choice *a, const struct plan_choice *b, char *out,
                  size_t size);

#endif
