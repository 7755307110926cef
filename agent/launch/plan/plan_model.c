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
 * Without the limiter (the natural ratio) processes compete: each gets an equal share of the cores, but none more
 * than it would use (water-filling). The broker gets what it needs: who waits for it leaves the processor to it. A
 * process that gets a part of what it would use does that part of its items.
 *
 * Who waits under the limiter: an actor that is never held back does its part of the natural rate, so to do T it is
 * at work for T / natural of the time and held back for the rest. Where the cores are all busy this is right too:
 * one that is awake gets its fair share, and the time that it is held back is what speeds the other side up. */
#include "agent/launch/plan/plan_impl.h"

#include <math.h>
#include <stddef.h>

#define BALANCED 0.03   /* sides whose rates differ by less are in balance */
#define ALL_BUSY 0.95   /* share of the cores from which on a joint run counts as full */
#define FULL 0.9        /* share of the cores from which on the cores bound a pair */
#define LEAST_SCALE 0.3 /* bounds of corrections: one failed joint run must not decide everything */
#define MOST_SCALE 1.5
#define MOST_COST 3.0
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

/* ---- both, without the limiter ---- */

/* The share of its wish that a side gets if each process may use `level` cores. */
static double share_at(const struct plan_side *side, double level)
{
    return side->demand > level ? level / side->demand : 1;
}

static double load_at(const struct plan_side *side, double level)
{
    return side->wish * side->all * share_at(side, level);
}

/* The load of a side for each core of the level, as long as its processes would use more than the level. */
static double slope(const struct plan_side *side)
{
    return side->demand > 0 ? side->wish * side->all / side->demand : 0;
}

static double water_level(const struct plan_side *a, const struct plan_side *b, double cores)
{
    const struct plan_side *low = a->demand <= b->demand ? a : b, *high = low == a ? b : a;
    double left = cores - load_at(low, low->demand);
    if (left >= load_at(high, low->demand))
        return slope(high) > 0 ? left / slope(high) : high->demand;
    double both = slope(a) + slope(b);
    return both > 0 ? cores / both : high->demand;
}

void plan_natural(const struct plan_side *a, const struct plan_side *b, double cores, double *rate_a, double *rate_b)
{
    double level = fmax(a->demand, b->demand);
    if (load_at(a, level) + load_at(b, level) > cores)
        level = water_level(a, b, cores);
    double load = load_at(a, level) + load_at(b, level);
    /* Reached only if the broker alone needs more cores than there are. */
    double fits = load > cores ? cores / load : 1;
    *rate_a = fmin(a->rate, a->wish * share_at(a, level) * fits);
    *rate_b = fmin(b->rate, b->wish * share_at(b, level) * fits);
}

/* ---- both, with the limiter ---- */

static double held_back(double rate, double natural)
{
    return natural > 0 ? fmin(1, fmax(0, 1 - rate / natural)) : 0;
}

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
    double rate_a = 0, rate_l = 0;
    if (self->places)
        plan_hosts_natural(self, a, l, &rate_a, &rate_l);
    else
        plan_natural(a, l, input->cores, &rate_a, &rate_l);
    *out = (struct plan_choice){.actors = a->count,
                                .learners = l->count,
                                .memory = a->memory + l->memory + plan_known(input->broker_memory) +
                                          plan_known(input->other_memory),
                                .spi = rate_a > 0 ? rate_l / rate_a : NAN};
    if (self->places)
        plan_hosts_memory(self, out);
    if (!(input->spi > 0)) { /* no limiter sets a ratio, so none holds a side back */
        out->inserts = rate_a;
        out->samples = rate_l;
        out->cpu = rate_a * a->all + rate_l * l->all;
        out->bottleneck = out->cpu >= ALL_BUSY * input->cores ? PLAN_CORES : PLAN_BALANCED;
        return;
    }
    double by_actors = a->rate, by_learners = l->rate / input->spi;
    enum plan_bottleneck bound;
    double sides = fmin(by_actors, by_learners), rate = within(self, a, l, sides, &bound);
    out->inserts = rate;
    out->samples = rate * input->spi;
    out->actor_idle = held_back(rate, rate_a);
    out->learner_idle = held_back(rate * input->spi, rate_l);
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

/* ---- what joint runs have shown about both ---- */

struct mean {
    double sum; /* mean of logarithms */
    uint32_t n;
};

static void mean_add(struct mean *self, double value, double least, double most)
{
    if (!(value > 0) || !isfinite(value))
        return;
    self->sum += log(fmin(most, fmax(least, value)));
    self->n++;
}

static double mean_get(const struct mean *self)
{
    return self->n ? exp(self->sum / self->n) : 1;
}

/* True if the pair uses so much of the cores that they are its bound. */
static bool is_full(const struct plan_input *input, const struct plan_choice *choice)
{
    return choice->bottleneck == PLAN_CORES || choice->cpu >= FULL * input->cores;
}

static void joint_pair(const struct plan_model *self, const struct plan_joint *joint, struct plan_side *a,
                       struct plan_side *l)
{
    plan_side_at(self, PLAN_OF_ACTORS, joint->actors, a);
    plan_side_at(self, PLAN_OF_LEARNERS, joint->learners, l);
}

/* The cores that joint runs took, relative to what the curves predict. */
static double fit_cost(const struct plan_model *self)
{
    struct mean mean = {0};
    for (uint32_t i = 0; i < self->input->n_joints; i++) {
        const struct plan_joint *joint = &self->input->joints[i];
        struct plan_side a, l;
        joint_pair(self, joint, &a, &l);
        double load = plan_side_cores(self, PLAN_OF_ACTORS, &a, plan_known(joint->inserts)) +
                      plan_side_cores(self, PLAN_OF_LEARNERS, &l, plan_known(joint->samples));
        if (load > 0)
            mean_add(&mean, plan_known(joint->cpu) / load, LEAST_SCALE, MOST_COST);
    }
    return mean_get(&mean);
}

/* The rate of joint runs, relative to what the sides could do: sides wait for each other now and then, and where all
 * cores are busy, switching between processes costs time too. */
static void fit_all(struct plan_model *self)
{
    struct mean means[2] = {0};
    for (uint32_t i = 0; i < self->input->n_joints; i++) {
        const struct plan_joint *joint = &self->input->joints[i];
        struct plan_side a, l;
        struct plan_choice choice;
        joint_pair(self, joint, &a, &l);
        model_pair(self, &a, &l, &choice);
        if (choice.inserts > 0)
            mean_add(&means[is_full(self->input, &choice)], plan_known(joint->inserts) / choice.inserts, LEAST_SCALE,
                     MOST_SCALE);
    }
    for (int i = 0; i < 2; i++)
        self->all[i] = mean_get(&means[i]);
}

void plan_model_init(struct plan_model *self, const struct plan_input *input)
{
    *self = (struct plan_model){.input = input, .cost = 1, .all = {1, 1}};
    self->places = input->n_hosts > 1 ? plan_places_new(input) : NULL;
    plan_smooth(&input->actors, &self->curves[PLAN_OF_ACTORS]);
    plan_smooth(&input->learners, &self->curves[PLAN_OF_LEARNERS]);
    for (int who = 0; who < 2; who++)
        plan_fit_side(input, &self->curves[who], (enum plan_who)who, &self->fits[who]);
    self->cost = fit_cost(self);
    fit_all(self);
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

/* Copies everything but the natural ratio, which would be a quotient of noisy shares; the model's ratio lies between
 * its neighbours. */
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
        /* Both sides are slowed down alike, so the idle shares stay. */
        double most = input->spi > 0 ? fmin(actors->rate, learners->rate / input->spi) : actors->rate;
        double rate = fmin(out->inserts * self->all[is_full(input, out)], most);
        out->samples *= out->inserts > 0 ? rate / out->inserts : 1;
        out->inserts = rate;
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
