/* What one side can do at any count: its curve, smoothed, and corrected by what joint runs have shown.
 *
 * A curve that was measured alone is a guess about a run: beside the other side, processes get in each other's way
 * (caches, switches, parameters for everybody), or a broker that never sleeps answers sooner than one that has to
 * wake up. So where a joint run has shown what a side could do at a count, that counts; between two such counts the
 * correction goes over from one to the other, and beyond them only what is slower than alone is carried on.
 *
 * Rates are noisy, and neighbours must make sense next to each other. Two rules smooth them: one process more makes
 * none of the others faster (the rate of each falls with the count), and a fall of the sum by less than FALLS is
 * noise. */
#include <math.h>
#include <stddef.h>

#include "agent/launch/plan/plan_impl.h"

#define SATURATED 0.9    /* share of the cores from which on the cores bound a curve */
#define FALLS 0.1        /* a total that falls by less with more processes counts as level */
#define MOST_TOLD 0.9    /* a side that is held back for a larger share of the time does not show what it could do */
#define MOST_UP 0.5      /* the same, for doing more than its curve says */
#define FORCED 0.1       /* how far off its target a limiter may be over a few seconds */
#define LEAST_WEIGHT 0.1 /* weight of a count about which joint runs say little */
#define LEAST_FACTOR 0.3 /* bounds of corrections: one failed joint run must not decide everything */
#define MOST_FACTOR 3.0

double plan_known(double value)
{
    return isfinite(value) && value > 0 ? value : 0;
}

uint32_t plan_last(const struct plan_curve *curve)
{
    return curve->n ? curve->points[curve->n - 1].count : 0;
}

/* ---- smooth curves ---- */

/* The nearest sequence that does not rise: neighbours that rise are replaced by their mean. */
static void make_falling(double *values, const double *weights, uint32_t n)
{
    double mean[PLAN_MAX_POINTS] = {0}, weight[PLAN_MAX_POINTS] = {0};
    uint32_t length[PLAN_MAX_POINTS], blocks = 0;
    for (uint32_t i = 0; i < n; i++) {
        mean[blocks] = values[i];
        weight[blocks] = weights[i];
        length[blocks++] = 1;
        while (blocks > 1 && mean[blocks - 1] > mean[blocks - 2]) {
            double sum = weight[blocks - 2] + weight[blocks - 1];
            mean[blocks - 2] = (mean[blocks - 2] * weight[blocks - 2] + mean[blocks - 1] * weight[blocks - 1]) / sum;
            weight[blocks - 2] = sum;
            length[blocks - 2] += length[blocks - 1];
            blocks--;
        }
    }
    for (uint32_t block = 0, i = 0; block < blocks; block++)
        for (uint32_t k = 0; k < length[block]; k++)
            values[i++] = mean[block];
}

/* The cost of an item stays as it was measured. */
static void set_rate(struct plan_point *point, double rate)
{
    double share = plan_known(point->rate) > 0 ? rate / point->rate : 1;
    point->cpu *= share;
    point->broker_cpu *= share;
    point->rate = rate;
}

void plan_smooth(const struct plan_curve *curve, struct plan_curve *out)
{
    double each[PLAN_MAX_POINTS] = {0}, weights[PLAN_MAX_POINTS] = {0};
    *out = *curve;
    for (uint32_t i = 0; i < out->n; i++) {
        each[i] = plan_known(out->points[i].rate) / out->points[i].count;
        weights[i] = 1;
    }
    make_falling(each, weights, out->n);
    for (uint32_t i = 0; i < out->n; i++) {
        double rate = each[i] * out->points[i].count, before = i ? out->points[i - 1].rate : 0;
        set_rate(&out->points[i], rate < before && rate > before * (1 - FALLS) ? before : rate);
    }
}

static double between(double low, double high, double share)
{
    return plan_known(low) + share * (plan_known(high) - plan_known(low));
}

struct plan_point plan_point_at(const struct plan_curve *curve, uint32_t count)
{
    const struct plan_point *points = curve->points;
    if (count <= points[0].count) {
        double share = (double)count / points[0].count;
        return (struct plan_point){count, plan_known(points[0].rate) * share, plan_known(points[0].cpu) * share,
                                   plan_known(points[0].broker_cpu) * share, plan_known(points[0].memory)};
    }
    uint32_t i = 1;
    while (i < curve->n && points[i].count < count)
        i++;
    const struct plan_point *a = &points[i - 1], *b = &points[i < curve->n ? i : i - 1];
    double share = i < curve->n ? (double)(count - a->count) / (b->count - a->count) : 0;
    return (struct plan_point){count, between(a->rate, b->rate, share), between(a->cpu, b->cpu, share),
                               between(a->broker_cpu, b->broker_cpu, share), between(a->memory, b->memory, share)};
}

/* ---- what joint runs have shown ---- */

bool plan_joint_full(const struct plan_input *input, const struct plan_joint *joint)
{
    return plan_known(joint->cpu) + plan_known(joint->others) >= SATURATED * input->cores;
}

struct plan_seen plan_joint_side(const struct plan_input *input, const struct plan_joint *joint, enum plan_who who)
{
    double rate = plan_known(who == PLAN_OF_ACTORS ? joint->inserts : joint->samples);
    double idle = who == PLAN_OF_ACTORS ? joint->actor_idle : joint->learner_idle;
    double ratio = plan_known(joint->inserts) > 0 ? joint->samples / joint->inserts : 0;
    struct plan_seen seen = {who == PLAN_OF_ACTORS ? joint->actors : joint->learners, rate, rate, 0};
    /* A ratio off the target was not set by a limiter, so no side was held back. */
    if (!(input->spi > 0) || fabs(ratio / input->spi - 1) > FORCED)
        idle = 0;
    /* Where all cores are busy, a waiting process may wait for a core, and a side could do more if the other side
     * took less. */
    if (!(rate > 0) || !isfinite(idle) || idle > MOST_TOLD || plan_joint_full(input, joint))
        return seen;
    idle = fmax(0, idle);
    seen.could = rate / (1 - idle);
    seen.weight = (1 - idle) * (1 - idle);
    return seen;
}

/* Adds what a joint run shows about a count; several runs are averaged. */
static void fit_add(struct plan_fit *fit, const struct plan_seen *seen, double alone)
{
    uint32_t i = 0;
    while (i < fit->n && fit->at[i].count < seen->count)
        i++;
    if (i == fit->n || fit->at[i].count != seen->count) {
        for (uint32_t k = fit->n++; k > i; k--)
            fit->at[k] = fit->at[k - 1];
        fit->at[i] = (struct plan_factor){.count = seen->count, .alone = alone, .least = -INFINITY};
    }
    struct plan_factor *at = &fit->at[i];
    double could =
        seen->could > alone && 1 - seen->rate / seen->could > MOST_UP ? fmax(seen->rate, alone) : seen->could;
    double factor = log(fmin(MOST_FACTOR, fmax(LEAST_FACTOR, could / alone)));
    if (seen->weight > 0)
        at->log = (at->log * at->weight + factor * seen->weight) / (at->weight + seen->weight);
    at->weight += seen->weight;
    at->least = fmax(at->least, log(fmin(MOST_FACTOR, seen->rate / alone)));
}

/* More processes do no less together, unless the curve says so, and no more each. */
static void fit_smooth(struct plan_fit *fit)
{
    double values[PLAN_MAX_JOINTS] = {0}, weights[PLAN_MAX_JOINTS] = {0}, falls[PLAN_MAX_JOINTS] = {0};
    for (uint32_t i = 0; i < fit->n; i++) {
        values[i] = fit->at[i].rate / fit->at[i].count;
        weights[i] = fmax(fit->at[i].weight, LEAST_WEIGHT);
        falls[i] = i ? falls[i - 1] * fmin(1, fit->at[i].alone / fit->at[i - 1].alone) : 1;
    }
    make_falling(values, weights, fit->n);
    for (uint32_t i = 0; i < fit->n; i++)
        values[i] *= -(fit->at[i].count / falls[i]);
    make_falling(values, weights, fit->n);
    for (uint32_t i = 0; i < fit->n; i++)
        fit->at[i].rate = -values[i] * falls[i];
}

void plan_fit_side(const struct plan_input *input, const struct plan_curve *curve, enum plan_who who,
                   struct plan_fit *out)
{
    *out = (struct plan_fit){0};
    for (uint32_t i = 0; i < input->n_joints; i++) {
        struct plan_seen seen = plan_joint_side(input, &input->joints[i], who);
        double alone = plan_point_at(curve, seen.count).rate;
        if (seen.rate > 0 && alone > 0)
            fit_add(out, &seen, alone);
    }
    for (uint32_t i = 0; i < out->n; i++)
        out->at[i].rate = out->at[i].alone * exp(fmax(out->at[i].log, out->at[i].least));
    fit_smooth(out);
}

/* Between two counts that were run jointly, the rate is a power of the count. Beyond them the curve continues, slower
 * by the same factor. If the side was faster than its curve there, the rate is bounded by two rules: fewer processes
 * do no less each, and more processes do no less together. */
static double rate_at(const struct plan_fit *fit, uint32_t count, double alone)
{
    uint32_t i = 0;
    while (i < fit->n && fit->at[i].count < count)
        i++;
    if (fit->n == 0)
        return alone;
    const struct plan_factor *next = &fit->at[i < fit->n ? i : i - 1], *before = &fit->at[i ? i - 1 : 0];
    if (next->count == count)
        return next->rate;
    if (i == 0)
        return fmax(alone * fmin(1, next->rate / next->alone), next->rate * count / next->count);
    if (i == fit->n)
        return fmax(alone * fmin(1, next->rate / next->alone), next->rate * fmin(1, alone / next->alone));
    double share = log((double)count / before->count) / log((double)next->count / before->count);
    return before->rate * pow(next->rate / before->rate, share);
}

void plan_side_of(const struct plan_curve *curve, const struct plan_point *at, double rate, double cores, double cost,
                  struct plan_side *out)
{
    uint32_t count = at->count;
    bool full = at->cpu > 0 && at->cpu + at->broker_cpu >= SATURATED * cores;
    double share = at->rate > 0 ? cost * rate / at->rate : 0;
    *out = (struct plan_side){.count = count, .rate = rate, .memory = at->memory * count, .wish = rate};
    out->demand = at->cpu * share / count;
    if (rate <= 0)
        return;
    out->own = at->cpu * share / rate;
    out->all = (at->cpu + at->broker_cpu) * share / rate;
    if (!full)
        return;
    /* The cores were the limit already: the demand of a process shows at smaller counts. */
    for (uint32_t i = 0; i < curve->n && curve->points[i].count <= count; i++) {
        const struct plan_point *fewer = &curve->points[i];
        out->demand = fmax(out->demand, cost * plan_known(fewer->cpu) / fewer->count);
    }
    out->wish = out->demand * count / out->own;
}

void plan_side_at(const struct plan_model *model, enum plan_who who, uint32_t count, struct plan_side *out)
{
    const struct plan_curve *curve = &model->curves[who];
    struct plan_point at = plan_point_at(curve, count);
    plan_side_of(curve, &at, rate_at(&model->fits[who], count, at.rate), model->input->cores, model->cost, out);
}

/* The smallest count of the curve that reaches the rate to which the side is held back. */
double plan_side_cores(const struct plan_model *model, enum plan_who who, const struct plan_side *side, double rate)
{
    const struct plan_curve *curve = &model->curves[who];
    double below = 0, cores = 0; /* of the previous point */
    for (uint32_t i = 0; i <= curve->n; i++) {
        bool last = i == curve->n || curve->points[i].count >= side->count;
        const struct plan_point *point = &curve->points[last ? 0 : i];
        double next = last ? side->rate : plan_known(point->rate);
        double load = plan_known(point->cpu) + plan_known(point->broker_cpu);
        double next_cores = last ? side->rate * side->all : model->cost * load;
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
