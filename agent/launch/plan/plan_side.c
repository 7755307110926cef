/* What one side can do at any count: its curve, smoothed.
 *
 * Rates are noisy, and neighbours must make sense next to each other. Two rules smooth them: one process more makes
 * none of the others faster (the rate of each falls with the count), and a fall of the sum by less than FALLS is
 * noise. */
#include <math.h>
#include <stddef.h>

#include "agent/launch/plan/plan_impl.h"

#define SATURATED 0.9 /* share of the cores from which on the cores bound a joint run */
#define FALLS 0.1     /* a total that falls by less with more processes counts as level */

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
static void make_falling(double *values, uint32_t n)
{
    double mean[PLAN_MAX_POINTS] = {0};
    uint32_t length[PLAN_MAX_POINTS], blocks = 0;
    for (uint32_t i = 0; i < n; i++) {
        mean[blocks] = values[i];
        length[blocks++] = 1;
        for (; blocks > 1 && mean[blocks - 1] > mean[blocks - 2]; blocks--) {
            uint32_t sum = length[blocks - 2] + length[blocks - 1];
            mean[blocks - 2] = (mean[blocks - 2] * length[blocks - 2] + mean[blocks - 1] * length[blocks - 1]) / sum;
            length[blocks - 2] = sum;
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
    double each[PLAN_MAX_POINTS] = {0};
    *out = *curve;
    for (uint32_t i = 0; i < out->n; i++)
        each[i] = plan_known(out->points[i].rate) / out->points[i].count;
    make_falling(each, out->n);
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

/* ---- one count ---- */

bool plan_joint_full(const struct plan_input *input, const struct plan_joint *joint)
{
    return plan_known(joint->cpu) + plan_known(joint->others) >= SATURATED * input->cores;
}

void plan_side_at(const struct plan_model *model, enum plan_who who, uint32_t count, struct plan_side *out)
{
    struct plan_point at = plan_point_at(&model->curves[who], count);
    *out = (struct plan_side){.count = count,
                              .rate = at.rate,
                              .own = at.rate > 0 ? at.cpu / at.rate : 0,
                              .all = at.rate > 0 ? (at.cpu + at.broker_cpu) / at.rate : 0,
                              .memory = at.memory * count};
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
        double next_cores = last ? side->rate * side->all : load;
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
