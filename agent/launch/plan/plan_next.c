/* Which pair to run jointly next. Pure, so that it can be tested against plants that are only computed.
 *
 * Curves of one side alone only say where to begin: with the smallest pair that is expected to come near the highest rate.
 * From there the waits of the best run say where to go:
 *
 *   1. where cores are free, more of the side for which the other side waits; of both, if neither waits
 *   2. of a side that waits, only as many as its working time takes; half of the processes, where all cores are busy; one
 *      learner fewer
 *   3. many actors, where cores are free
 *   4. the best run once more: one run can win by luck
 *
 * A pair that was run, or of which runs show that it gains nothing, is not worth its seconds. */
#include <math.h>

#include "agent/launch/plan/plan_impl.h"

#define WAITS 0.1 /* a side that waits for a smaller share of the time is busy */
#define MORE 2.0  /* no run has more than this many times the processes of the run before */
#define CROWD 4u  /* this many times the actors count as a crowd */
#define FREE 0.5  /* share of the cores in use below which a crowd is tried */

struct pair {
    uint32_t actors, learners;
};

struct next {
    const struct plan_input *input;
    struct plan_model model;
    const struct plan_joint *best; /* the run that the plan chooses if it is the last */
};

static double idle(double share)
{
    return isfinite(share) ? fmin(1, fmax(0, share)) : 0;
}

/* True if a run shows that the pair gains nothing: it had no fewer processes of one side and fewer of the other, and that
 * other side still waited. */
static bool gains_nothing(const struct plan_input *input, const struct pair *pair)
{
    for (uint32_t i = 0; i < input->n_joints; i++) {
        const struct plan_joint *joint = &input->joints[i];
        if ((joint->learners >= pair->learners && joint->actors < pair->actors && joint->actor_idle > WAITS) ||
            (joint->actors >= pair->actors && joint->learners < pair->learners && joint->learner_idle > WAITS))
            return true;
    }
    return false;
}

/* A count within the bound of the file, or of what was measured if there is none. */
static uint32_t bounded(const struct plan_input *input, enum plan_who who, double wanted)
{
    uint32_t fixed = who == PLAN_OF_ACTORS ? input->fixed_actors : input->fixed_learners;
    uint32_t bound = who == PLAN_OF_ACTORS ? input->max_actors : input->max_learners;
    double most = fmin(PLAN_MAX_COUNT, bound ? bound : plan_most(input, who));
    return fixed ? fixed : (uint32_t)fmax(1, fmin(wanted, most));
}

/* Fills in the pair within bounds. False: it was run, or does not fit. */
static bool is_new(const struct next *self, double actors, double learners, struct pair *pair)
{
    struct plan_choice choice;
    *pair =
        (struct pair){bounded(self->input, PLAN_OF_ACTORS, actors), bounded(self->input, PLAN_OF_LEARNERS, learners)};
    plan_model_counts(&self->model, pair->actors, pair->learners, &choice);
    return !plan_joint_of(self->input, pair->actors, pair->learners) && plan_fits(self->input, &choice);
}

static bool grow_from(const struct next *self, const struct plan_joint *run, struct pair *pair)
{
    double actors = idle(run->actor_idle), learners = idle(run->learner_idle);
    double most = plan_known(run->cpu) > 0 ? fmin(MORE, self->input->cores / run->cpu) : MORE;
    bool both = fabs(actors - learners) < WAITS;
    double more_actors = both ? most : learners > actors ? fmin(most, 1 / (1 - learners)) : 1;
    double more_learners = both ? most : actors > learners ? fmin(most, 1 / (1 - actors)) : 1;
    return !plan_joint_full(self->input, run) &&
           is_new(self, ceil(run->actors * more_actors), ceil(run->learners * more_learners), pair) &&
           !gains_nothing(self->input, pair);
}

/* A second learner that gains nothing does not show that a third one does not: only the second costs an exchange of
 * gradients that a learner alone does not need. */
static bool grow(const struct next *self, struct pair *pair)
{
    const struct plan_joint *best = self->best, *joints = self->input->joints;
    for (uint32_t i = self->input->n_joints; i-- > 0;)
        if ((&joints[i] == best || (joints[i].actors >= best->actors && joints[i].learners > best->learners)) &&
            grow_from(self, &joints[i], pair))
            return true;
    return false;
}

static bool shrink(const struct next *self, struct pair *pair)
{
    const struct plan_joint *best = self->best;
    double actors = idle(best->actor_idle), learners = idle(best->learner_idle);
    if (plan_joint_full(self->input, best))
        actors = fmax(actors, 0.5);
    double fewer_actors = actors > WAITS ? ceil(best->actors * (1 - actors)) : best->actors;
    double fewer_learners = learners > WAITS ? ceil(best->learners * (1 - learners)) : best->learners;
    return is_new(self, fewer_actors, fewer_learners, pair) || is_new(self, best->actors, best->learners - 1.0, pair);
}

/* A machine whose idle cores wake slowly is faster with more processes, even if they wait. Only a run can show that:
 * one actor for each core, if cores are free. */
static bool crowd(const struct next *self, struct pair *pair)
{
    const struct plan_input *input = self->input;
    const struct plan_joint *best = self->best;
    if (!is_new(self, floor(input->cores), best->learners, pair) || !(plan_known(best->cpu) > 0) ||
        best->cpu >= FREE * input->cores)
        return false;
    for (uint32_t i = 0; i < input->n_joints; i++)
        if (CROWD * input->joints[i].actors > pair->actors && input->joints[i].learners == best->learners)
            return false;
    return true;
}

static bool next_pair(const struct next *self, struct pair *pair)
{
    if (grow(self, pair) || shrink(self, pair) || crowd(self, pair))
        return true;
    *pair = (struct pair){self->best->actors, self->best->learners};
    return self->best->runs < 2;
}

bool plan_next(const struct plan_input *input, uint32_t *actors, uint32_t *learners)
{
    struct plan plan;
    struct plan_input last = *input;
    last.settled = true;
    if (input->n_joints >= PLAN_MAX_JOINTS || plan_solve(&last, &plan, NULL) != RP_OK)
        return false;
    struct pair pair = {plan.chosen.actors, plan.chosen.learners};
    struct next self = {.input = input, .best = plan_joint_of(input, pair.actors, pair.learners)};
    bool found = !self.best;
    if (self.best && !(input->fixed_actors && input->fixed_learners)) {
        plan_model_init(&self.model, input);
        found = next_pair(&self, &pair);
        plan_model_fini(&self.model);
    }
    *actors = pair.actors;
    *learners = pair.learners;
    return found;
}
