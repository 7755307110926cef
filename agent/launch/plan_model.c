/* What the curves say about a pair of counts.
 *
 * With the limiter, an insert comes with spi samples. What both cost in processor time bounds the rate together with what each side can do alone:
 *
 *     T = min( f_a(x), f_l(y) / spi, cores / (c_insert + spi * c_sample) )
 *
 * Without the limiter (the natural ratio) processes compete: each gets an equal share of the cores, but none more than it
 * would use (water-filling). The broker gets what it needs: who waits for it leaves the processor to it. A process that
 * gets a part of what it would use does that part of its items.
 *
 * Who waits under the limiter: an actor that is never held back does its part of the natural rate, so to do T it is at
 * work for T / natural of the time and held back for the rest. Where the cores are all busy this is right too: one that is
 * awake gets its fair share, and the time that it is held back is what speeds the other side up. */
#include "agent/launch/plan_impl.h"

#include <math.h>
#include <stddef.h>

#define BALANCED 0.03   /* sides that differ by less are in balance */
#define SATURATED 0.9   /* share of the cores from which on a curve is bounded by them */
#define ALL_BUSY 0.95   /* of a joint run */
#define CONTENDED 0.5   /* share of the cores from which on processes are in each other's way */
#define MOST_IDLE 0.5   /* of a side, for its rate in a joint run to say what it could do */
#define LEAST_SCALE 0.3 /* a joint run that went wrong must not decide everything */
#define MOST_SCALE 1.5

const char *plan_bottleneck_name(enum plan_bottleneck which)
{
    static const char *const names[] = {[PLAN_ACTORS] = "actors",
                                        [PLAN_LEARNERS] = "learners",
                                        [PLAN_CORES] = "cores",
                                        [PLAN_MEMORY] = "memory",
                                        [PLAN_BALANCED] = "balanced"};
    return (unsigned)which < sizeof names / sizeof names[0] ? names[which] : "unknown";
}

/* What was not measured costs nothing. */
static double known(double value)
{
    return isfinite(value) && value > 0 ? value : 0;
}

/* ---- one side ---- */

uint32_t plan_last(const struct plan_curve *curve)
{
    return curve->n ? curve->points[curve->n - 1].count : 0;
}

static double between(double low, double high, double share)
{
    return known(low) + share * (known(high) - known(low));
}

static struct plan_point point_at(const struct plan_curve *curve, uint32_t count)
{
    const struct plan_point *points = curve->points;
    if (count <= points[0].count) {
        double share = (double)count / points[0].count;
        return (struct plan_point){count, known(points[0].rate) * share, known(points[0].cpu) * share,
                                   known(points[0].broker_cpu) * share, known(points[0].memory)};
    }
    uint32_t i = 1;
    while (i < curve->n && points[i].count < count)
        i++;
    if (i == curve->n) {
        struct plan_point last = points[i - 1];
        return (struct plan_point){count, known(last.rate), known(last.cpu), known(last.broker_cpu),
                                   known(last.memory)};
    }
    const struct plan_point *a = &points[i - 1], *b = &points[i];
    double share = (double)(count - a->count) / (b->count - a->count);
    return (struct plan_point){count, between(a->rate, b->rate, share), between(a->cpu, b->cpu, share),
                               between(a->broker_cpu, b->broker_cpu, share), between(a->memory, b->memory, share)};
}

/* What the side would have done in a joint run if it had not been held back; 0: it was not part of one, or held back for too
 * much of it to tell. */
static double seen_in_joints(const struct plan_input *input, enum plan_who who, uint32_t count)
{
    double most = 0;
    for (uint32_t i = 0; i < input->n_joints; i++) {
        const struct plan_joint *joint = &input->joints[i];
        double rate = known(who == PLAN_OF_ACTORS ? joint->inserts : joint->samples);
        double idle = known(who == PLAN_OF_ACTORS ? joint->actor_idle : joint->learner_idle);
        if ((who == PLAN_OF_ACTORS ? joint->actors : joint->learners) == count && idle <= MOST_IDLE)
            most = fmax(most, rate / (1 - idle));
    }
    return most;
}

void plan_side_at(const struct plan_input *input, enum plan_who who, uint32_t count, struct plan_side *out)
{
    const struct plan_curve *curve = who == PLAN_OF_ACTORS ? &input->actors : &input->learners;
    struct plan_point at = point_at(curve, count);
    double seen = seen_in_joints(input, who, count);
    if (at.rate > 0 && seen > at.rate) {
        at.cpu *= seen / at.rate;
        at.broker_cpu *= seen / at.rate;
        at.rate = seen;
    }
    *out = (struct plan_side){.count = count, .rate = at.rate, .memory = at.memory * count, .wish = at.rate};
    out->demand = at.cpu / count;
    if (at.rate <= 0)
        return;
    out->own = at.cpu / at.rate;
    out->all = (at.cpu + at.broker_cpu) / at.rate;
    if (at.cpu <= 0 || at.cpu + at.broker_cpu < SATURATED * input->cores)
        return;
    /* The cores were the limit already: what a process would use is seen where there were fewer of them. */
    for (uint32_t i = 0; i < curve->n && curve->points[i].count <= count; i++) {
        const struct plan_point *fewer = &curve->points[i];
        out->demand = fmax(out->demand, known(fewer->cpu) / fewer->count);
    }
    out->wish = out->demand * count / out->own;
}

/* ---- both, without the limiter ---- */

/* The share of its wish that a side gets at a level of cores for each process. */
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

static void natural_rates(const struct plan_side *a, const struct plan_side *b, double cores, double *rate_a,
                          double *rate_b)
{
    double level = fmax(a->demand, b->demand);
    if (load_at(a, level) + load_at(b, level) > cores)
        level = water_level(a, b, cores);
    double load = load_at(a, level) + load_at(b, level);
    /* Only where the broker alone needs more than there is. */
    double fits = load > cores ? cores / load : 1;
    *rate_a = fmin(a->rate, a->wish * share_at(a, level) * fits);
    *rate_b = fmin(b->rate, b->wish * share_at(b, level) * fits);
}

/* ---- both, with the limiter ---- */

static double held_back(double rate, double natural)
{
    return natural > 0 ? fmin(1, fmax(0, 1 - rate / natural)) : 0;
}

/* The formula alone, without what joint runs have shown. */
static void model_raw(const struct plan_input *input, const struct plan_side *a, const struct plan_side *l,
                      struct plan_choice *out)
{
    double cores = input->cores, rate_a = 0, rate_l = 0;
    natural_rates(a, l, cores, &rate_a, &rate_l);
    out->actors = a->count;
    out->learners = l->count;
    out->memory = a->memory + l->memory + known(input->broker_memory) + known(input->other_memory);
    out->spi = rate_a > 0 ? rate_l / rate_a : NAN;
    out->measured = false;
    out->reason[0] = '\0';
    if (!(input->spi > 0)) { /* no limiter that sets a ratio: nobody is held back */
        out->inserts = rate_a;
        out->samples = rate_l;
        out->actor_idle = out->learner_idle = 0;
        out->cpu = rate_a * a->all + rate_l * l->all;
        out->bottleneck = out->cpu >= ALL_BUSY * cores ? PLAN_CORES : PLAN_BALANCED;
        return;
    }
    double by_actors = a->rate, by_learners = l->rate / input->spi, cost = a->all + input->spi * l->all;
    double by_cores = cost > 0 ? cores / cost : INFINITY, sides = fmin(by_actors, by_learners);
    double rate = fmin(sides, by_cores);
    out->inserts = rate;
    out->samples = rate * input->spi;
    out->actor_idle = held_back(rate, rate_a);
    out->learner_idle = held_back(rate * input->spi, rate_l);
    out->cpu = rate * cost;
    if (by_cores < sides)
        out->bottleneck = PLAN_CORES;
    else if (fabs(by_actors - by_learners) <= BALANCED * fmax(by_actors, by_learners))
        out->bottleneck = PLAN_BALANCED;
    else
        out->bottleneck = by_actors < by_learners ? PLAN_ACTORS : PLAN_LEARNERS;
}

static bool contended(const struct plan_input *input, const struct plan_choice *choice)
{
    return choice->cpu >= CONTENDED * input->cores;
}

/* Curves measured alone do not know how processes disturb each other (caches, switches between them), nor what else the
 * machine does by now: joint runs do. What they show where cores are contended says nothing about pairs that leave them
 * free, and the other way round. */
void plan_model_init(struct plan_model *self, const struct plan_input *input)
{
    *self = (struct plan_model){input, {1, 1}};
    double sum[2] = {0};
    uint32_t n[2] = {0};
    for (uint32_t i = 0; i < input->n_joints; i++) {
        const struct plan_joint *joint = &input->joints[i];
        struct plan_side a, l;
        struct plan_choice raw;
        plan_side_at(input, PLAN_OF_ACTORS, joint->actors, &a);
        plan_side_at(input, PLAN_OF_LEARNERS, joint->learners, &l);
        model_raw(input, &a, &l, &raw);
        if (raw.inserts > 0 && known(joint->inserts) > 0) {
            sum[contended(input, &raw)] += log(joint->inserts / raw.inserts);
            n[contended(input, &raw)]++;
        }
    }
    for (int i = 0; i < 2; i++)
        if (n[i])
            self->scale[i] = fmin(MOST_SCALE, fmax(LEAST_SCALE, exp(sum[i] / n[i])));
}

static enum plan_bottleneck joint_bottleneck(const struct plan_input *input, const struct plan_choice *choice)
{
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
    out->inserts = known(joint->inserts);
    out->samples = known(joint->samples);
    if (known(joint->cpu) > 0)
        out->cpu = joint->cpu;
    if (isfinite(joint->actor_idle) && isfinite(joint->learner_idle)) {
        out->actor_idle = fmin(1, fmax(0, joint->actor_idle));
        out->learner_idle = fmin(1, fmax(0, joint->learner_idle));
        out->bottleneck = joint_bottleneck(input, out);
    }
}

void plan_model_pair(const struct plan_model *self, const struct plan_side *actors, const struct plan_side *learners,
                     struct plan_choice *out)
{
    const struct plan_input *input = self->input;
    model_raw(input, actors, learners, out);
    for (uint32_t i = input->n_joints; i-- > 0;) /* the newest counts */
        if (input->joints[i].actors == actors->count && input->joints[i].learners == learners->count) {
            take_joint(input, &input->joints[i], out);
            return;
        }
    double scale = self->scale[contended(input, out)];
    /* Both sides are slowed down alike, so the idle shares stay. */
    double most = input->spi > 0 ? fmin(actors->rate, learners->rate / input->spi) : actors->rate;
    double rate = fmin(out->inserts * scale, most);
    out->samples *= out->inserts > 0 ? rate / out->inserts : 1;
    out->inserts = rate;
}

void plan_model_counts(const struct plan_model *self, uint32_t actors, uint32_t learners, struct plan_choice *out)
{
    struct plan_side a, l;
    plan_side_at(self->input, PLAN_OF_ACTORS, actors, &a);
    plan_side_at(self->input, PLAN_OF_LEARNERS, learners, &l);
    plan_model_pair(self, &a, &l, out);
}

bool plan_predict(const struct plan_input *input, uint32_t actors, uint32_t learners, struct plan_choice *out)
{
    *out = (struct plan_choice){.actors = actors, .learners = learners};
    if (plan_input_check(input, NULL) != RP_OK || actors == 0 || learners == 0 || actors > plan_last(&input->actors) ||
        learners > plan_last(&input->learners))
        return false;
    struct plan_model model;
    plan_model_init(&model, input);
    plan_model_counts(&model, actors, learners, out);
    return true;
}
