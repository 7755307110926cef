/* What the curves say about a pair of counts.
 *
 * With the limiter, an insert comes with spi samples. What both cost in processor time bounds the rate together with
 * what each side can do alone:
 *
 *     T = min( f_a(x), f_l(y) / spi, cores / (c_insert + spi * c_sample) )
 *
 * With several machines the last part is one for each machine and one for the network: see plan_hosts.c.
 *
 * What an item costs depends on the rate: a busy broker takes more of them at a time. A side that is held back to T
 * works as fewer of its processes would that can do just T, so the costs are those of T, not those of the full speed
 * of x actors.
 *
 * The side that could do more than T waits for the limiter; where the cores bound both, neither does. */
#include "agent/launch/plan/plan_impl.h"

#include <math.h>
#include <stddef.h>

#define BALANCED 0.03 /* sides whose rates differ by less are in balance */
#define ALL_BUSY 0.95 /* share of the cores from which on a joint run counts as full */
#define CORES_ROUNDS 8

const char *const plan_bottleneck_names[PLAN_BOTTLENECKS] = {
    [PLAN_ACTORS] = "actors",
    [PLAN_LEARNERS] = "learners",
    [PLAN_CORES] = "cores",
    [PLAN_MEMORY] = "memory",
    [PLAN_BALANCED] = "balanced",
    [PLAN_MAX_ACTORS] = "max_actors",
    [PLAN_MAX_LEARNERS] = "max_learners",
    [PLAN_NETWORK] = "network",
    [PLAN_BROKER] = "broker",
};

double plan_model_cores(const struct plan_model *self, const struct plan_side *actors, const struct plan_side *learners,
                        double inserts)
{
    return plan_side_cores(self, PLAN_OF_ACTORS, actors, inserts) +
           plan_side_cores(self, PLAN_OF_LEARNERS, learners, inserts * self->input->spi);
}

/* Returns the highest rate of inserts, up to `most`, that the cores allow. The cores that a rate takes grow with the
 * rate, so the search comes down step by step. */
static double within_cores(const struct plan_model *self, const struct plan_side *a, const struct plan_side *l,
                           double most)
{
    double rate = most;
    for (int i = 0; i < CORES_ROUNDS && rate > 0; i++) {
        double load = plan_model_cores(self, a, l, rate);
        if (load <= self->input->cores)
            break;
        rate *= self->input->cores / load;
    }
    return rate;
}

/* ---- both, with the limiter ---- */

/* The rate of inserts that the machines and the network allow. */
static double within(const struct plan_model *self, const struct plan_side *a, const struct plan_side *l, double most,
                     enum plan_bottleneck *bound)
{
    *bound = PLAN_CORES;
    return self->places ? plan_hosts_within(self, a, l, most, bound) : within_cores(self, a, l, most);
}

/* The formula of plan.h. */
static void model_pair(const struct plan_model *self, const struct plan_side *a, const struct plan_side *l,
                       struct plan_choice *out)
{
    const struct plan_input *input = self->input;
    double by_actors = a->rate, by_learners = input->spi > 0 ? l->rate / input->spi : INFINITY;
    enum plan_bottleneck bound;
    double sides = fmin(by_actors, by_learners), rate = within(self, a, l, sides, &bound);
    *out = (struct plan_choice){.actors = a->count,
                                .learners = l->count,
                                .inserts = rate,
                                .samples = input->spi > 0 ? rate * input->spi : l->rate,
                                .memory = a->memory + l->memory + plan_known(input->broker_memory) +
                                          plan_known(input->other_memory)};
    if (self->places)
        plan_hosts_memory(self, out);
    if (by_actors > sides)
        out->actor_idle = 1 - sides / by_actors;
    else if (by_learners > sides && isfinite(by_learners))
        out->learner_idle = 1 - sides / by_learners;
    out->cpu = plan_model_cores(self, a, l, rate);
    if (self->places) /* the sum of the hosts' curves costs a little more or less than each of them does */
        out->cpu = fmin(out->cpu, input->cores);
    if (rate < sides || bound == PLAN_NETWORK)
        out->bottleneck = bound;
    else if (fabs(by_actors - by_learners) <= BALANCED * fmax(by_actors, by_learners))
        out->bottleneck = PLAN_BALANCED;
    else
        out->bottleneck = by_actors < by_learners ? PLAN_ACTORS : PLAN_LEARNERS;
}

/* ---- joint runs ---- */

/* Sides wait for each other now and then, and get in each other's way: joint runs show by how much. */
void plan_model_init(struct plan_model *self, const struct plan_input *input)
{
    double seen = 0, computed = 0;
    *self = (struct plan_model){.input = input, .scale = 1};
    self->places = input->n_hosts > 1 ? plan_places_new(input) : NULL;
    plan_smooth(&input->actors, &self->curves[PLAN_OF_ACTORS]);
    plan_smooth(&input->learners, &self->curves[PLAN_OF_LEARNERS]);
    for (uint32_t i = 0; i < input->n_joints; i++) {
        struct plan_side a, l;
        struct plan_choice choice;
        plan_side_at(self, PLAN_OF_ACTORS, input->joints[i].actors, &a);
        plan_side_at(self, PLAN_OF_LEARNERS, input->joints[i].learners, &l);
        model_pair(self, &a, &l, &choice);
        seen += plan_known(input->joints[i].inserts);
        computed += choice.inserts;
    }
    if (seen > 0 && computed > 0)
        self->scale = seen / computed;
}

void plan_model_fini(struct plan_model *self)
{
    plan_places_destroy(&self->places);
}

/* Idle shares say which side waits, and the model says whether the other side is bound by its machines or the network. */
static enum plan_bottleneck joint_bottleneck(const struct plan_input *input, const struct plan_choice *choice)
{
    if (input->n_hosts > 1 && (choice->bottleneck == PLAN_CORES || choice->bottleneck == PLAN_NETWORK))
        return choice->bottleneck;
    double apart = choice->actor_idle - choice->learner_idle;
    if (choice->cpu >= ALL_BUSY * input->cores)
        return PLAN_CORES;
    if (fabs(apart) <= BALANCED)
        return PLAN_BALANCED;
    return apart > 0 ? PLAN_LEARNERS : PLAN_ACTORS;
}

static void take_joint(const struct plan_input *input, const struct plan_joint *joint, struct plan_choice *out)
{
    out->measured = true;
    out->inserts = plan_known(joint->inserts);
    out->samples = plan_known(joint->samples);
    if (plan_known(joint->cpu) > 0)
        out->cpu = joint->cpu;
    if (!isfinite(joint->actor_idle) || !isfinite(joint->learner_idle))
        return;
    out->actor_idle = fmin(1, fmax(0, joint->actor_idle));
    out->learner_idle = fmin(1, fmax(0, joint->learner_idle));
    out->bottleneck = joint_bottleneck(input, out);
}

/* Names the bound of the file as the bottleneck if that bound keeps the slower side from growing. */
static void name_bound(const struct plan_input *input, struct plan_choice *choice)
{
    if (choice->bottleneck == PLAN_ACTORS && input->max_actors && choice->actors >= input->max_actors)
        choice->bottleneck = PLAN_MAX_ACTORS;
    else if (choice->bottleneck == PLAN_LEARNERS && input->max_learners && choice->learners >= input->max_learners)
        choice->bottleneck = PLAN_MAX_LEARNERS;
}

void plan_model_pair(const struct plan_model *self, const struct plan_side *actors, const struct plan_side *learners,
                     struct plan_choice *out)
{
    const struct plan_input *input = self->input;
    model_pair(self, actors, learners, out);
    const struct plan_joint *joint = plan_joint_of(input, actors->count, learners->count);
    if (joint) {
        take_joint(input, joint, out);
    } else {
        out->inserts *= self->scale;
        out->samples *= self->scale;
    }
    name_bound(input, out);
}

void plan_model_counts(const struct plan_model *self, uint32_t actors, uint32_t learners, struct plan_choice *out)
{
    struct plan_side a, l;
    plan_side_at(self, PLAN_OF_ACTORS, actors, &a);
    plan_side_at(self, PLAN_OF_LEARNERS, learners, &l);
    plan_model_pair(self, &a, &l, out);
}

void plan_model_run(const struct plan_model *self, const struct plan_joint *joint, struct plan_choice *out)
{
    plan_model_counts(self, joint->actors, joint->learners, out);
    take_joint(self->input, joint, out);
    name_bound(self->input, out);
}

const struct plan_joint *plan_joint_of(const struct plan_input *input, uint32_t actors, uint32_t learners)
{
    for (uint32_t i = input->n_joints; i-- > 0;) /* the newest counts */
        if (input->joints[i].actors == actors && input->joints[i].learners == learners)
            return &input->joints[i];
    return NULL;
}

/* The mean of n values with one more value. */
static double mean_with(double mean, double value, uint32_t n)
{
    return isfinite(mean) && isfinite(value) ? mean + (value - mean) / (n + 1) : isfinite(mean) ? mean : value;
}

bool plan_add_joint(struct plan_input *input, const struct plan_joint *joint)
{
    for (uint32_t i = 0; i < input->n_joints; i++) {
        struct plan_joint *known = &input->joints[i];
        if (known->actors != joint->actors || known->learners != joint->learners)
            continue;
        uint32_t n = known->runs ? known->runs : 1;
        known->inserts = mean_with(known->inserts, joint->inserts, n);
        known->samples = mean_with(known->samples, joint->samples, n);
        known->actor_idle = mean_with(known->actor_idle, joint->actor_idle, n);
        known->learner_idle = mean_with(known->learner_idle, joint->learner_idle, n);
        known->cpu = mean_with(known->cpu, joint->cpu, n);
        known->others = mean_with(known->others, joint->others, n);
        known->waits = joint->waits;
        known->runs = n + 1;
        return true;
    }
    if (input->n_joints == PLAN_MAX_JOINTS)
        return false;
    input->joints[input->n_joints] = *joint;
    input->joints[input->n_joints++].runs = 1;
    return true;
}

uint32_t plan_most(const struct plan_input *input, enum plan_who who)
{
    uint32_t most = plan_last(who == PLAN_OF_ACTORS ? &input->actors : &input->learners);
    for (uint32_t i = 0; i < input->n_joints; i++) {
        uint32_t count = who == PLAN_OF_ACTORS ? input->joints[i].actors : input->joints[i].learners;
        most = count > most ? count : most;
    }
    return most;
}

bool plan_predict(const struct plan_input *input, uint32_t actors, uint32_t learners, struct plan_choice *out)
{
    *out = (struct plan_choice){.actors = actors, .learners = learners};
    if (plan_input_check(input, NULL) != RP_OK || actors == 0 || learners == 0 ||
        actors > plan_most(input, PLAN_OF_ACTORS) || learners > plan_most(input, PLAN_OF_LEARNERS))
        return false;
    struct plan_model model;
    plan_model_init(&model, input);
    plan_model_counts(&model, actors, learners, out);
    plan_model_fini(&model);
    return true;
}

double plan_actors_rate(const struct plan_input *input, uint32_t actors)
{
    struct plan_model model;
    struct plan_side side;
    plan_model_init(&model, input);
    plan_side_at(&model, PLAN_OF_ACTORS, actors, &side);
    plan_model_fini(&model);
    return side.rate;
}
