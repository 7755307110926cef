/* Which pair to run jointly next. Pure, so that it can be tested against plants that are only computed.
 *
 * Curves of one side alone promise too little as often as too much, so a plan does not rest on them: it goes where a
 * higher rate is possible as far as joint runs have shown. Possible is optimistic: a side whose count has not been in a
 * joint run does in proportion to the largest that was (no more than DOUBT times what is expected of it), and cores are
 * used as well as in the cheapest run so far. A pair that cannot win even so is not worth its seconds.
 *
 *   1. the pair that the curves favour
 *   2. as long as some pair may give clearly more than the best so far: the one that may give most; or, where all cores
 *      are busy, a smaller one
 *   3. many actors, where cores are free
 *   4. the best so far once more
 *   5. what the plan would choose by now (fewer processes for the same rate), if it was not run
 *   6. the neighbours of the choice: a plan tells people about them */
#include <math.h>

#include "agent/launch/plan/plan_impl.h"

#define DOUBT 2.0     /* how far beyond expectation a side may turn out to be */
#define WORTH 0.03    /* a pair that cannot exceed the best so far by more than this is not run */
#define AS_GOOD 0.97  /* share of the highest possible rate: the smallest pair that reaches it is run */
#define USABLE 0.95   /* share of the cores: above it, more processes gain nothing */
#define WAITS 0.1     /* a side that waits for a larger share of the time does not hold the other side back */
#define LEANER 0.8    /* share of the best run's processes: a pair with hardly fewer is not worth a run */
#define CROWD 4u      /* this many times the actors count as a crowd */
#define FREE 0.5      /* share of the cores in use below which a crowd is tried */
#define NEIGHBOURS 5u /* after this many runs no neighbour is run for its own sake */

struct next {
    struct plan_model model;
    const struct plan_input *input;
    uint32_t most[2]; /* [plan_who]: the largest count that may be tried */
    const struct plan_joint *best_joint;
    double best;     /* inserts/s of the best run */
    double by_cores; /* inserts/s that all cores could give */
    double by_network;
};

static uint32_t count_of(const struct plan_joint *joint, enum plan_who who)
{
    return who == PLAN_OF_ACTORS ? joint->actors : joint->learners;
}

/* ---- what is possible ---- */

/* Items/s of one side at a count, in the best case. */
static double possible_side(const struct next *self, enum plan_who who, uint32_t count)
{
    double below = 0, above = INFINITY;
    uint32_t fewer = 0;
    for (uint32_t i = 0; i < self->input->n_joints; i++) {
        struct plan_seen seen = plan_joint_side(self->input, &self->input->joints[i], who);
        if (seen.count > count)
            above = seen.weight > 0 ? fmin(above, seen.could) : above;
        else if (seen.count > fewer)
            below = seen.could, fewer = seen.count;
        else if (seen.count == fewer)
            below = fmax(below, seen.could);
    }
    struct plan_side side;
    plan_side_at(&self->model, who, count, &side);
    if (fewer == count)
        return fmax(below, side.rate);
    double linear = fewer ? below * count / fewer : side.rate;
    return fmax(side.rate, fmin(fmin(linear, above), DOUBT * side.rate));
}

/* True if a joint run shows that the pair gains nothing: it had as many processes of one side and fewer of the other,
 * and the other side still waited. */
static bool gains_nothing(const struct plan_input *input, uint32_t actors, uint32_t learners)
{
    for (uint32_t i = 0; i < input->n_joints; i++) {
        const struct plan_joint *joint = &input->joints[i];
        if ((joint->learners == learners && joint->actors < actors && joint->actor_idle > WAITS) ||
            (joint->actors == actors && joint->learners < learners && joint->learner_idle > WAITS))
            return true;
    }
    return false;
}

static double possible(const struct next *self, double by_actors, double by_learners)
{
    return fmin(fmin(by_actors, by_learners / self->input->spi), fmin(self->by_cores, self->by_network));
}

static bool fits(const struct next *self, uint32_t actors, uint32_t learners)
{
    struct plan_choice choice;
    plan_model_counts(&self->model, actors, learners, &choice);
    return plan_fits(self->input, &choice);
}

/* ---- bounds ---- */

static uint32_t at_most(uint32_t wanted, uint32_t bound, uint32_t fixed)
{
    if (fixed)
        return fixed;
    return bound && wanted > bound ? bound : wanted;
}

/* At most twice the count that was run jointly: anything beyond is a guess about a guess. */
static uint32_t reach(const struct plan_input *input, enum plan_who who)
{
    uint32_t seen = 0, bound = who == PLAN_OF_ACTORS ? input->max_actors : input->max_learners;
    for (uint32_t i = 0; i < input->n_joints; i++)
        seen = count_of(&input->joints[i], who) > seen ? count_of(&input->joints[i], who) : seen;
    if (!bound)
        bound = plan_most(input, who);
    bound = bound > PLAN_MAX_COUNT ? PLAN_MAX_COUNT : bound;
    return at_most(2 * seen, bound, who == PLAN_OF_ACTORS ? input->fixed_actors : input->fixed_learners);
}

static void next_init(struct next *self, const struct plan_input *input)
{
    *self = (struct next){.input = input, .by_network = plan_hosts_network(input)};
    plan_model_init(&self->model, input);
    self->most[PLAN_OF_ACTORS] = reach(input, PLAN_OF_ACTORS);
    self->most[PLAN_OF_LEARNERS] = reach(input, PLAN_OF_LEARNERS);
    for (uint32_t i = 0; i < input->n_joints; i++) {
        const struct plan_joint *joint = &input->joints[i];
        double inserts = plan_known(joint->inserts), cpu = plan_known(joint->cpu);
        if (!self->best_joint || inserts > self->best)
            self->best = inserts, self->best_joint = joint;
        double cores = input->cores - plan_known(joint->others);
        self->by_cores = fmax(self->by_cores, cpu > 0 ? USABLE * cores * inserts / cpu : INFINITY);
    }
}

/* ---- candidates ---- */

/* Finds the smallest pair that may come near the highest rate, if that is worth a run. */
static bool promising(const struct next *self, uint32_t *actors, uint32_t *learners)
{
    const struct plan_input *input = self->input;
    uint32_t first_x = input->fixed_actors ? input->fixed_actors : 1;
    uint32_t first_y = input->fixed_learners ? input->fixed_learners : 1;
    double most = 0, found = 0;
    for (int look = 0; look < 2; look++)
        for (uint32_t y = first_y; y <= self->most[PLAN_OF_LEARNERS]; y++) {
            double by_learners = possible_side(self, PLAN_OF_LEARNERS, y);
            for (uint32_t x = first_x; x <= self->most[PLAN_OF_ACTORS]; x++) {
                double rate = possible(self, possible_side(self, PLAN_OF_ACTORS, x), by_learners);
                if (rate <= (look == 0 ? most : AS_GOOD * most) || plan_joint_of(input, x, y) ||
                    gains_nothing(input, x, y) || !fits(self, x, y))
                    continue;
                if (look == 0)
                    most = rate;
                else if (found == 0 || x + y < *actors + *learners)
                    *actors = x, *learners = y, found = rate;
            }
        }
    return found > self->best * (1 + WORTH);
}

/* Where all cores are busy, more processes only get in each other's way: finds the smallest pair that could do
 * clearly more if it cost no more than each side does alone. */
static bool leaner(const struct next *self, uint32_t *actors, uint32_t *learners)
{
    const struct plan_input *input = self->input;
    const struct plan_joint *best = self->best_joint;
    struct plan_model alone = self->model;
    alone.cost = fmin(1, alone.cost);
    alone.all[0] = alone.all[1] = 1;
    bool found = false;
    for (uint32_t y = best->learners; y >= 1 && plan_joint_full(input, best); y--)
        for (uint32_t x = best->actors; x >= 1; x--) {
            struct plan_choice choice;
            plan_model_counts(&alone, x, y, &choice);
            if ((input->fixed_actors && x != best->actors) || (input->fixed_learners && y != best->learners) ||
                choice.inserts < self->best * (1 + WORTH) || plan_joint_of(input, x, y) ||
                x + y > LEANER * (best->actors + best->learners) || (found && x + y >= *actors + *learners))
                continue;
            *actors = x;
            *learners = y;
            found = true;
        }
    return found;
}

/* A machine whose idle cores wake slowly is faster with more processes, even if they wait. Only a run can show that:
 * one actor for each core, if cores are free. */
static bool crowd(const struct next *self, uint32_t *actors, uint32_t *learners)
{
    const struct plan_input *input = self->input;
    const struct plan_joint *best = self->best_joint;
    uint32_t wanted = input->cores < PLAN_MAX_COUNT ? (uint32_t)input->cores : PLAN_MAX_COUNT;
    uint32_t bound = input->max_actors ? input->max_actors : plan_most(input, PLAN_OF_ACTORS);
    wanted = at_most(wanted, bound, input->fixed_actors);
    for (uint32_t i = 0; i < input->n_joints; i++)
        if (CROWD * input->joints[i].actors > wanted && input->joints[i].learners == best->learners)
            return false;
    *actors = wanted;
    *learners = best->learners;
    return plan_known(best->cpu) > 0 && best->cpu < FREE * input->cores && fits(self, *actors, *learners);
}

/* One run can win by luck: the best pair is run again until the best pair by the mean has two runs. */
static bool confirm(const struct next *self, uint32_t *actors, uint32_t *learners)
{
    *actors = self->best_joint->actors;
    *learners = self->best_joint->learners;
    return self->best_joint->runs < 2;
}

static bool neighbour(const struct next *self, const struct plan_choice *chosen, uint32_t *actors, uint32_t *learners)
{
    const int64_t step = chosen->actors < 16 ? 1 : chosen->actors / 8,
                  steps[][2] = {{0, 1}, {step, 0}, {0, -1}, {-step, 0}};
    for (size_t i = 0; i < sizeof steps / sizeof steps[0]; i++) {
        int64_t x = (int64_t)chosen->actors + steps[i][0], y = (int64_t)chosen->learners + steps[i][1];
        if (x < 1 || y < 1 || x > self->most[PLAN_OF_ACTORS] || y > self->most[PLAN_OF_LEARNERS] ||
            (self->input->fixed_actors && steps[i][0]) || (self->input->fixed_learners && steps[i][1]) ||
            plan_joint_of(self->input, (uint32_t)x, (uint32_t)y) || !fits(self, (uint32_t)x, (uint32_t)y))
            continue;
        *actors = (uint32_t)x;
        *learners = (uint32_t)y;
        return true;
    }
    return false;
}

static bool next_pair(const struct next *self, const struct plan_choice *chosen, uint32_t *actors, uint32_t *learners)
{
    const struct plan_input *input = self->input;
    if (input->spi > 0 && (promising(self, actors, learners) || leaner(self, actors, learners)))
        return true;
    if (crowd(self, actors, learners) || confirm(self, actors, learners))
        return true;
    *actors = chosen->actors;
    *learners = chosen->learners;
    return !plan_joint_of(input, *actors, *learners) ||
           (input->n_joints < NEIGHBOURS && neighbour(self, chosen, actors, learners));
}

bool plan_next(const struct plan_input *input, uint32_t *actors, uint32_t *learners)
{
    struct plan plan;
    struct next self;
    if (input->n_joints >= PLAN_MAX_JOINTS || plan_solve(input, &plan, NULL) != RP_OK)
        return false;
    *actors = plan.chosen.actors;
    *learners = plan.chosen.learners;
    if (input->n_joints == 0)
        return true;
    if (input->fixed_actors && input->fixed_learners) /* there is nothing to choose */
        return false;
    next_init(&self, input);
    bool found = next_pair(&self, &plan.chosen, actors, learners);
    plan_model_fini(&self.model);
    return found;
}
