/* What the curves say about a pair of counts.
 *
 * With the limiter, an insert comes with spi samples. What both cost in processor time bounds the rate together with what each side can do alone:
 *
 *     T = min( f_a(x), f_l(y) / spi, cores / (c_insert + spi * c_sample) )
 *
 * What an item costs depends on the rate: a busy broker takes more of them at a time. A side that is held back to T works
 * as fewer of its processes would that can do just T, so the costs are those of T, not those of the full speed of x actors.
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
#define FORCED 0.1    /* how far off the target a limiter may be over a few seconds */
#define MOST_TOLD 0.9 /* idle shares above say too little about what a side would do */
#define CORES_ROUNDS 8

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

/* Cores that the side takes with the broker's part, where it is held back to a rate: as the smallest count of its curve
 * that does as much. */
static double cores_at(const struct plan_input *input, enum plan_who who, const struct plan_side *side, double rate)
{
    const struct plan_curve *curve = who == PLAN_OF_ACTORS ? &input->actors : &input->learners;
    double below = 0, cores = 0; /* of the point before */
    for (uint32_t i = 0; i <= curve->n; i++) {
        bool last = i == curve->n || curve->points[i].count >= side->count;
        double next = last ? side->rate : known(curve->points[i].rate);
        double next_cores =
            last ? side->rate * side->all : known(curve->points[i].cpu) + known(curve->points[i].broker_cpu);
        if (next >= rate && next > below)
            return cores + (rate - below) / (next - below) * (next_cores - cores);
        if (last)
            break;
        if (next > below) {
            below = next;
            cores = next_cores;
        }
    }
    return rate * side->all;
}

double plan_model_cores(const struct plan_input *input, const struct plan_side *actors,
                        const struct plan_side *learners, double inserts)
{
    return cores_at(input, PLAN_OF_ACTORS, actors, inserts) +
           cores_at(input, PLAN_OF_LEARNERS, learners, inserts * input->spi);
}

/* The highest rate of inserts, up to `most`, that the cores allow. What is taken grows with the rate, so this comes down
 * to it step by step. */
static double within_cores(const struct plan_input *input, const struct plan_side *a, const struct plan_side *l,
                           double most)
{
    double rate = most;
    for (int i = 0; i < CORES_ROUNDS && rate > 0; i++) {
        double load = plan_model_cores(input, a, l, rate);
        if (load <= input->cores)
            break;
        rate *= input->cores / load;
    }
    return rate;
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

/* The formula, with sides that are scaled. */
static void model_pair(const struct plan_input *input, const struct plan_side *a, const struct plan_side *l,
                       const struct plan_scale *scale, struct plan_choice *out)
{
    double rate_a = 0, rate_l = 0;
    natural_rates(a, l, input->cores, &rate_a, &rate_l);
    rate_a *= scale->actors;
    rate_l *= scale->learners;
    *out =
        (struct plan_choice){.actors = a->count,
                             .learners = l->count,
                             .memory = a->memory + l->memory + known(input->broker_memory) + known(input->other_memory),
                             .spi = rate_a > 0 ? rate_l / rate_a : NAN};
    if (!(input->spi > 0)) { /* no limiter that sets a ratio: nobody is held back */
        out->inserts = rate_a;
        out->samples = rate_l;
        out->cpu = rate_a * a->all + rate_l * l->all;
        out->bottleneck = out->cpu >= ALL_BUSY * input->cores ? PLAN_CORES : PLAN_BALANCED;
        return;
    }
    double by_actors = a->rate * scale->actors, by_learners = l->rate * scale->learners / input->spi;
    double sides = fmin(by_actors, by_learners), rate = within_cores(input, a, l, sides);
    out->inserts = rate;
    out->samples = rate * input->spi;
    out->actor_idle = held_back(rate, rate_a);
    out->learner_idle = held_back(rate * input->spi, rate_l);
    out->cpu = plan_model_cores(input, a, l, rate);
    if (rate < sides)
        out->bottleneck = PLAN_CORES;
    else if (fabs(by_actors - by_learners) <= BALANCED * fmax(by_actors, by_learners))
        out->bottleneck = PLAN_BALANCED;
    else
        out->bottleneck = by_actors < by_learners ? PLAN_ACTORS : PLAN_LEARNERS;
}

static const struct plan_scale as_alone = {1, 1, 1};

/* Whether the pair uses so many cores that processes are in each other's way. */
static bool contended(const struct plan_input *input, const struct plan_side *a, const struct plan_side *l)
{
    struct plan_choice choice;
    model_pair(input, a, l, &as_alone, &choice);
    return choice.cpu >= CONTENDED * input->cores;
}

/* Of what a side does alone, what it could do in a joint run: the time that it was held back does not count. 1: that is not
 * known, or was too much of it to tell. */
static double side_scale(double rate, double idle, const struct plan_side *side)
{
    if (!isfinite(idle) || idle < 0 || idle > MOST_IDLE || !(side->rate > 0) || !(known(rate) > 0))
        return 1;
    return fmin(1, fmax(LEAST_SCALE, rate / (1 - idle) / side->rate));
}

struct scale_sum {
    double actors, learners, all; /* logarithms */
    uint32_t n;
};

static void add_joint(struct scale_sum sums[2], const struct plan_input *input, const struct plan_joint *joint)
{
    struct plan_side a, l;
    struct plan_choice choice;
    plan_side_at(input, PLAN_OF_ACTORS, joint->actors, &a);
    plan_side_at(input, PLAN_OF_LEARNERS, joint->learners, &l);
    const struct plan_scale scale = {side_scale(joint->inserts, joint->actor_idle, &a),
                                     side_scale(joint->samples, joint->learner_idle, &l), 1};
    model_pair(input, &a, &l, &scale, &choice);
    if (!(choice.inserts > 0) || !(known(joint->inserts) > 0))
        return;
    struct scale_sum *sum = &sums[contended(input, &a, &l)];
    sum->actors += log(scale.actors);
    sum->learners += log(scale.learners);
    sum->all += log(fmin(MOST_SCALE, fmax(LEAST_SCALE, joint->inserts / choice.inserts)));
    sum->n++;
}

/* Curves measured alone do not know how processes disturb each other (caches, switches between them, parameters that go to
 * everybody), nor what else the machine does by now: joint runs do. What they show where cores are contended says nothing
 * about pairs that leave them free, and the other way round. */
void plan_model_init(struct plan_model *self, const struct plan_input *input)
{
    struct scale_sum sums[2] = {0};
    *self = (struct plan_model){input, {as_alone, as_alone}};
    for (uint32_t i = 0; i < input->n_joints; i++)
        add_joint(sums, input, &input->joints[i]);
    for (int i = 0; i < 2; i++)
        if (sums[i].n)
            self->scale[i] = (struct plan_scale){exp(sums[i].actors / sums[i].n), exp(sums[i].learners / sums[i].n),
                                                 exp(sums[i].all / sums[i].n)};
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
    if (!isfinite(joint->actor_idle) || !isfinite(joint->learner_idle))
        return;
    out->actor_idle = fmin(1, fmax(0, joint->actor_idle));
    out->learner_idle = fmin(1, fmax(0, joint->learner_idle));
    out->bottleneck = joint_bottleneck(input, out);
    if (out->actor_idle > MOST_TOLD || out->learner_idle > MOST_TOLD || !(out->inserts > 0) || !(out->samples > 0))
        return;
    /* What either would do if the other did not hold it back. A ratio off the target was not set by a limiter. */
    double ratio = out->samples / out->inserts, off = input->spi > 0 ? fabs(ratio / input->spi - 1) : 1;
    out->spi = off > FORCED ? ratio : ratio * (1 - out->actor_idle) / (1 - out->learner_idle);
}

void plan_model_pair(const struct plan_model *self, const struct plan_side *actors, const struct plan_side *learners,
                     struct plan_choice *out)
{
    const struct plan_input *input = self->input;
    const struct plan_scale *scale = &self->scale[contended(input, actors, learners)];
    model_pair(input, actors, learners, scale, out);
    for (uint32_t i = input->n_joints; i-- > 0;) /* the newest counts */
        if (input->joints[i].actors == actors->count && input->joints[i].learners == learners->count) {
            take_joint(input, &input->joints[i], out);
            return;
        }
    /* Both sides are slowed down alike, so the idle shares stay. */
    double most = input->spi > 0 ? fmin(actors->rate, learners->rate / input->spi) : actors->rate;
    double rate = fmin(out->inserts * scale->all, most);
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
