/* The search goes over every pair of counts twice: first for the highest rate, then for the best pair near that
 * rate. */
#include <math.h>
#include <stdlib.h>

#include "agent/launch/plan/plan_impl.h"
#include "proto/base/error.h"
#include "proto/base/format.h"

/* ---- the input ---- */

rp_status plan_curve_check(const struct plan_curve *curve, const char *who, rp_error *err)
{
    if (curve->n == 0 || curve->n > PLAN_MAX_POINTS)
        return err_set(err, RP_INVALID_ARGUMENT, "the curve of the %s has %u points, not 1 to %u", who, curve->n,
                       PLAN_MAX_POINTS);
    bool some = false;
    for (uint32_t i = 0; i < curve->n; i++) {
        uint32_t before = i ? curve->points[i - 1].count : 0, count = curve->points[i].count;
        if (count <= before || count > PLAN_MAX_COUNT)
            return err_set(err, RP_INVALID_ARGUMENT, "the curve of the %s goes from %u to %u of them", who, before,
                           count);
        some = some || curve->points[i].rate > 0;
    }
    if (!some)
        return err_set(err, RP_INVALID_ARGUMENT, "the %s did nothing while they were measured; their logs may say why",
                       who);
    return RP_OK;
}

rp_status plan_input_check(const struct plan_input *input, rp_error *err)
{
    rp_status status = plan_curve_check(&input->actors, "actors", err);
    if (status == RP_OK)
        status = plan_curve_check(&input->learners, "learners", err);
    if (status != RP_OK)
        return status;
    if (!(input->cores > 0))
        return err_set(err, RP_INVALID_ARGUMENT, "there are no cores to plan with (plan.cores)");
    if (input->n_joints > PLAN_MAX_JOINTS)
        return err_set(err, RP_INVALID_ARGUMENT, "%u joint runs are more than %u", input->n_joints, PLAN_MAX_JOINTS);
    for (uint32_t i = 0; i < input->n_joints; i++) {
        uint32_t actors = input->joints[i].actors, learners = input->joints[i].learners;
        if (actors == 0 || learners == 0 || actors > PLAN_MAX_COUNT || learners > PLAN_MAX_COUNT)
            return err_set(err, RP_INVALID_ARGUMENT, "a joint run had %u actors and %u learners, not 1 to %u of each",
                           actors, learners, PLAN_MAX_COUNT);
    }
    return RP_OK;
}

double plan_budget(const struct plan_input *input, const struct plan_choice *choice, double *need, const char **where)
{
    bool hosts = input->n_hosts > 1 && choice->tight < input->n_hosts;
    *need = hosts ? choice->tight_memory : choice->memory;
    *where = hosts ? input->hosts[choice->tight].name : "";
    return hosts ? input->hosts[choice->tight].memory : input->memory;
}

/* Without a budget (0 or not a number) every pair fits. */
bool plan_fits(const struct plan_input *input, const struct plan_choice *choice)
{
    if (input->n_hosts > 1) {
        double need, have;
        const char *where;
        have = plan_budget(input, choice, &need, &where);
        return !(have > 0) || need <= have;
    }
    return !(input->memory > 0) || choice->memory <= input->memory;
}

/* ---- the search ---- */

struct range {
    uint32_t first, last;
};

struct search {
    const struct plan_model *model;
    struct range actors, learners;
    struct plan_side *sides;        /* of every number of learners */
    bool measured;                  /* only pairs that were measured jointly are chosen */
    bool any;                       /* at least one pair fits */
    struct plan_choice top, chosen; /* among pairs that fit: the highest rate, and the best pair near it */
    struct plan_choice highest,
        unfit;                   /* among all pairs: the highest rate, and the best pair near it that does not fit */
    struct plan_choice smallest; /* the pair that needs the least memory */
};

/* True if a is the better one of two pairs near the highest rate. */
static bool better(const struct plan_choice *a, const struct plan_choice *b)
{
    uint32_t count_a = a->actors + a->learners, count_b = b->actors + b->learners;
    return count_a != count_b ? count_a < count_b : a->inserts > b->inserts;
}

static bool may_choose(const struct search *self, const struct plan_choice *choice)
{
    return plan_fits(self->model->input, choice) && (choice->measured || !self->measured);
}

static void first_look(struct search *self, const struct plan_choice *choice)
{
    if (choice->inserts > self->highest.inserts)
        self->highest = *choice;
    if (self->smallest.actors == 0 || choice->memory < self->smallest.memory)
        self->smallest = *choice;
    if (may_choose(self, choice) && (!self->any || choice->inserts > self->top.inserts)) {
        self->top = *choice;
        self->any = true;
    }
}

static void second_look(struct search *self, const struct plan_choice *choice)
{
    const struct plan_input *input = self->model->input;
    bool fits = plan_fits(input, choice);
    if (fits && !may_choose(self, choice))
        return;
    struct plan_choice *best = fits ? &self->chosen : &self->unfit;
    double least = (fits ? self->top.inserts : self->highest.inserts) * (1 - PLAN_NOISE);
    if (choice->inserts >= least && (best->actors == 0 || better(choice, best)))
        *best = *choice;
}

static void every_pair(struct search *self, void (*look)(struct search *, const struct plan_choice *))
{
    for (uint32_t x = self->actors.first; x <= self->actors.last; x++) {
        struct plan_side actors;
        plan_side_at(self->model, PLAN_OF_ACTORS, x, &actors);
        for (uint32_t y = self->learners.first; y <= self->learners.last; y++) {
            struct plan_choice choice;
            plan_model_pair(self->model, &actors, &self->sides[y - self->learners.first], &choice);
            look(self, &choice);
        }
    }
}

/* True if some pair that was run jointly lies within the ranges and fits. */
static bool any_measured(const struct search *self)
{
    const struct plan_input *input = self->model->input;
    for (uint32_t i = 0; i < input->n_joints; i++) {
        const struct plan_joint *joint = &input->joints[i];
        struct plan_choice choice;
        plan_model_counts(self->model, joint->actors, joint->learners, &choice);
        if (joint->actors >= self->actors.first && joint->actors <= self->actors.last &&
            joint->learners >= self->learners.first && joint->learners <= self->learners.last && choice.inserts > 0 &&
            plan_fits(input, &choice))
            return true;
    }
    return false;
}

static struct range range_of(const struct plan_input *input, enum plan_who who, uint32_t fixed)
{
    return fixed ? (struct range){fixed, fixed} : (struct range){1, plan_most(input, who)};
}

/* True if a pair that does not fit into memory would give clearly more than the chosen one. */
static bool memory_binds(const struct search *self)
{
    return self->any && self->unfit.actors && self->unfit.inserts * (1 - PLAN_NOISE) > self->top.inserts;
}

/* If nothing fits (any is false), chosen is the pair that needs the least memory. */
static rp_status search_run(struct search *self, const struct plan_model *model, uint32_t fixed_actors,
                            uint32_t fixed_learners, rp_error *err)
{
    const struct plan_input *input = model->input;
    *self = (struct search){.model = model,
                            .actors = range_of(input, PLAN_OF_ACTORS, fixed_actors),
                            .learners = range_of(input, PLAN_OF_LEARNERS, fixed_learners)};
    self->measured = input->settled && any_measured(self);
    self->sides = calloc(self->learners.last - self->learners.first + 1, sizeof *self->sides);
    if (!self->sides)
        return err_set(err, RP_NO_MEMORY, "no memory for a plan");
    for (uint32_t y = self->learners.first; y <= self->learners.last; y++)
        plan_side_at(model, PLAN_OF_LEARNERS, y, &self->sides[y - self->learners.first]);
    every_pair(self, first_look);
    every_pair(self, second_look);
    free(self->sides);
    self->sides = NULL;
    if (!self->any)
        self->top = self->chosen = self->smallest;
    if (memory_binds(self))
        self->chosen.bottleneck = PLAN_MEMORY;
    return RP_OK;
}

/* ---- bounds for a change while running ---- */

static uint32_t most(const struct plan_model *model, const struct plan_choice *chosen, bool actors)
{
    uint32_t now = actors ? chosen->actors : chosen->learners;
    uint32_t count = plan_most(model->input, actors ? PLAN_OF_ACTORS : PLAN_OF_LEARNERS);
    uint32_t bound = actors ? model->input->max_actors : model->input->max_learners;
    if (actors && model->places) {
        uint32_t take = plan_hosts_take(model->input);
        bound = bound && bound < take ? bound : take;
    }
    count = bound > count ? (bound < PLAN_MAX_COUNT ? bound : PLAN_MAX_COUNT) : count;
    for (; count > now; count--) {
        struct plan_choice choice;
        plan_model_counts(model, actors ? count : chosen->actors, actors ? chosen->learners : count, &choice);
        if (plan_fits(model->input, &choice))
            break;
    }
    return count > now ? count : now;
}

static rp_status nothing_fits(const struct plan_choice *smallest, const struct plan_input *input, rp_error *err)
{
    format_buffer need, have;
    const char *where;
    double needs, has = plan_budget(input, smallest, &needs, &where);
    return err_set(
        err, RP_INVALID_ARGUMENT,
        "%u actor%s and %u learner%s, with the broker, need %s of %s%s%s: raise plan.memory, or make the table smaller",
        smallest->actors, smallest->actors == 1 ? "" : "s", smallest->learners, smallest->learners == 1 ? "" : "s",
        plan_bytes(need, needs), plan_bytes(have, has), where[0] ? " on " : "", where);
}

rp_status plan_solve(const struct plan_input *input, struct plan *out, rp_error *err)
{
    *out = (struct plan){0};
    rp_status status = plan_input_check(input, err);
    if (status != RP_OK)
        return status;
    bool all_fixed = input->fixed_actors && input->fixed_learners;
    if (!(input->spi > 0) && !all_fixed)
        return err_set(err, RP_INVALID_ARGUMENT,
                       "the table's limiter sets no ratio of samples to inserts to plan for: set plan.spi, or give "
                       "actors.count and learners.count as numbers");
    struct plan_model model;
    plan_model_init(&model, input);
    struct search found, wished;
    status = search_run(&found, &model, 0, 0, err);
    if (status == RP_OK)
        status = search_run(&wished, &model, input->fixed_actors, input->fixed_learners, err);
    if (status == RP_OK && !found.any && !all_fixed)
        status = nothing_fits(&found.smallest, input, err);
    if (status == RP_OK) {
        out->chosen = wished.chosen;
        out->best = found.any ? found.chosen : wished.chosen;
        plan_explain(out, &model, &wished.top, memory_binds(&wished) ? &wished.unfit : NULL);
        plan_choose_shards(input, &out->chosen, &out->broker);
        plan_take_shards(out, &model);
        out->most_actors = most(&model, &out->chosen, true);
        out->most_learners = most(&model, &out->chosen, false);
    }
    plan_model_fini(&model);
    return status;
}
