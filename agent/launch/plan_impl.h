/* What the files of the planner share; see plan.h. */
#ifndef AGENT_LAUNCH_PLAN_IMPL_H
#define AGENT_LAUNCH_PLAN_IMPL_H

#include "agent/launch/plan.h"

#define PLAN_MAX_COUNT 4096u /* of actors, of learners: the most that a curve may end at */
#define PLAN_SAME 0.01       /* rates that differ by less are the same for people */

/* ---- plan_model.c ---- */

/* One side at one count, read from its curve. */
struct plan_side {
    uint32_t count;
    double rate;     /* alone */
    double own, all; /* processor seconds per item: of its processes; with the broker's part */
    double memory;   /* bytes of all its processes */
    double demand;   /* cores that one process would use if nobody took them from it */
    double wish;     /* items/s at that demand; above rate where the cores, not the processes, set the rate alone */
};

enum plan_who { PLAN_OF_ACTORS, PLAN_OF_LEARNERS };

/* Beyond the last point the rate stays as it is there. A joint run in which the side did more than its curve says shows
 * that the curve was measured at a bad moment: then what was seen there counts. */
void plan_side_at(const struct plan_input *input, enum plan_who who, uint32_t count, struct plan_side *out);

/* What joint runs have shown, as parts of what the curves say. */
struct plan_scale {
    double actors, learners; /* of a side: what it could do while the other one ran too */
    double all;              /* of what then comes out for both */
};

struct plan_model {
    const struct plan_input *input; /* borrowed */
    struct plan_scale scale[2];     /* [1]: where cores are contended */
};

void plan_model_init(struct plan_model *self, const struct plan_input *input);
/* Everything but the reason; bottleneck is never PLAN_MEMORY. */
void plan_model_pair(const struct plan_model *self, const struct plan_side *actors, const struct plan_side *learners,
                     struct plan_choice *out);
/* Cores that so many inserts/s and their samples take, the broker's part included. */
double plan_model_cores(const struct plan_input *input, const struct plan_side *actors,
                        const struct plan_side *learners, double inserts);
/* The same from counts, also beyond the curves. */
void plan_model_counts(const struct plan_model *self, uint32_t actors, uint32_t learners, struct plan_choice *out);

bool plan_fits(const struct plan_input *input, const struct plan_choice *choice);
uint32_t plan_last(const struct plan_curve *curve);
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

/* As format_bytes, from what was measured or read. */
const char *plan_bytes(char *out, double bytes);

#endif
