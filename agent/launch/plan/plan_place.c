/* Which host each process runs on.
 *
 * Learners are placed first: hosts that take only learners come before the others, each host until its cores are taken. Actors
 * follow one by one, each to the host where it adds most: the slope of the host's curve at the number of actors there, times the
 * part of the actor's cores that is still free beside what was placed there. A decision depends only on what was placed before,
 * so one more actor moves no other. Slopes are those of the curve's upper hull: they never rise, so the best sum for n
 * actors is reached step by step. Where no host gains anything, or nothing was measured, free cores decide. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "agent/launch/plan/plan_impl.h"

#define HOME 0u
#define ONE_CORE 1.0 /* that a process is taken to use where nothing was measured */

/* ---- curves ---- */

const struct plan_curve *plan_placer_curve(const struct plan_placer *self, uint32_t host)
{
    return self->measured ? &self->curves[self->like[host]] : NULL;
}

/* Finds the measured curve that counts for a host: its kind's, or that of the measured host most like it. */
static uint32_t find_like(const struct plan_placer *self, uint32_t host)
{
    const struct plan_input *input = self->input;
    uint32_t kind = input->hosts[host].kind, best = host;
    double nearest = INFINITY;
    if (kind < input->n_hosts && self->curves[kind].n > 0)
        return kind;
    for (uint32_t i = 0; i < input->n_hosts; i++) {
        double apart = fabs(plan_known(input->hosts[i].cores) - plan_known(input->hosts[host].cores));
        /* Home is measured without a network: another host is the better example. */
        apart += i == HOME ? 1e6 : 0;
        if (self->curves[i].n > 0 && apart < nearest) {
            nearest = apart;
            best = i;
        }
    }
    return best;
}

/* Returns the slope of the curve's upper hull, (0, 0) included, between count and count + 1. */
static double hull_slope(const struct plan_curve *curve, uint32_t count)
{
    double from = 0, rate = 0;
    for (uint32_t i = 0; i < curve->n;) {
        uint32_t best = i;
        double steepest = -INFINITY;
        for (uint32_t k = i; k < curve->n; k++) {
            double slope = (plan_known(curve->points[k].rate) - rate) / (curve->points[k].count - from);
            if (slope >= steepest) {
                steepest = slope;
                best = k;
            }
        }
        if (count < curve->points[best].count)
            return fmax(0, steepest);
        from = curve->points[best].count;
        rate = plan_known(curve->points[best].rate);
        i = best + 1;
    }
    return 0;
}

/* ---- one host ---- */

static double free_cores(const struct plan_placer *self, uint32_t host)
{
    double cores = plan_known(self->input->hosts[host].cores);
    return cores - self->sites[host].used - (host == HOME ? self->broker : 0);
}

/* Load in cores for each core that there is; a host whose cores are not known counts as one core. */
static double crowding(const struct plan_placer *self, uint32_t host)
{
    double cores = plan_known(self->input->hosts[host].cores);
    const struct plan_site *site = &self->sites[host];
    double load = site->used + (host == HOME ? self->broker : 0);
    return (load + site->takes) / (cores > 0 ? cores : 1);
}

static bool has_memory(const struct plan_placer *self, uint32_t host)
{
    double memory = plan_known(self->input->hosts[host].memory);
    const struct plan_site *site = &self->sites[host];
    return memory <= 0 || site->memory + site->needs <= memory;
}

/* Fills in what the next actor would do there. */
static void look_ahead(struct plan_placer *self, uint32_t host)
{
    struct plan_site *site = &self->sites[host];
    const struct plan_curve *curve = plan_placer_curve(self, host);
    site->adds = 0;
    site->takes = ONE_CORE;
    site->brokers = site->needs = 0;
    if (!curve)
        return;
    struct plan_point now = plan_point_at(curve, site->actors), next = plan_point_at(curve, site->actors + 1);
    site->adds = hull_slope(curve, site->actors);
    site->takes = site->actors < plan_last(curve) ? fmax(0, next.cpu - now.cpu) : next.cpu / plan_last(curve);
    site->brokers = fmax(0, next.broker_cpu - now.broker_cpu);
    site->needs = next.memory;
}

/* Items/s that the next actor adds there beside what was placed. */
static double gain_of(const struct plan_placer *self, uint32_t host)
{
    const struct plan_site *site = &self->sites[host];
    double takes = site->takes + (host == HOME ? site->brokers : 0), room = free_cores(self, host);
    if (room <= 0)
        return 0;
    return site->adds * (takes > room ? room / takes : 1);
}

/* ---- where to ---- */

/* Compares two hosts for the next actor: true if host a is the better one. */
static bool better(const struct plan_placer *self, uint32_t a, uint32_t b)
{
    bool memory_a = has_memory(self, a), memory_b = has_memory(self, b);
    if (memory_a != memory_b)
        return memory_a;
    double gain_a = gain_of(self, a), gain_b = gain_of(self, b);
    if (gain_a != gain_b)
        return gain_a > gain_b;
    double free_a = free_cores(self, a), free_b = free_cores(self, b);
    if (free_a > 0 || free_b > 0)
        return free_a > free_b;
    return crowding(self, a) < crowding(self, b);
}

/* Returns the best host of those that take actors; home if none does. */
static uint32_t best_host(const struct plan_placer *self)
{
    uint32_t best = HOME;
    bool any = false;
    for (uint32_t i = 0; i < self->input->n_hosts; i++)
        if (self->input->hosts[i].actors && (!any || better(self, i, best))) {
            best = i;
            any = true;
        }
    return best;
}

uint32_t plan_placer_add(struct plan_placer *self)
{
    uint32_t host = best_host(self);
    struct plan_site *site = &self->sites[host];
    site->used += site->takes;
    site->memory += site->needs;
    self->broker += site->brokers;
    site->actors++;
    self->actors++;
    look_ahead(self, host);
    return host;
}

/* ---- learners ---- */

static bool takes_learners(const struct plan_placer *self, uint32_t host, bool only)
{
    const struct plan_host *one = &self->input->hosts[host];
    return one->learners && one->actors != only;
}

/* Returns the first host with room for a learner, and otherwise the least crowded one; home if none takes learners. */
static uint32_t learner_host(const struct plan_placer *self, double takes)
{
    uint32_t best = HOME;
    bool any = false;
    for (int only = 1; only >= 0; only--)
        for (uint32_t i = 0; i < self->input->n_hosts; i++) {
            if (!takes_learners(self, i, only != 0))
                continue;
            if (free_cores(self, i) >= takes)
                return i;
            if (!any || crowding(self, i) < crowding(self, best))
                best = i;
            any = true;
        }
    return best;
}

static void place_learners(struct plan_placer *self, uint32_t learners)
{
    const struct plan_curve *curve = &self->input->learners;
    struct plan_point one = {0}, all = {0};
    if (curve->n > 0) {
        one = plan_point_at(curve, 1);
        all = plan_point_at(curve, learners);
    }
    double takes = one.cpu > 0 ? one.cpu : ONE_CORE;
    self->broker = self->measured ? all.broker_cpu : ONE_CORE;
    for (uint32_t i = 0; i < learners; i++) {
        struct plan_site *site = &self->sites[learner_host(self, takes)];
        site->learners++;
        site->used += takes;
        site->memory += one.memory;
    }
}

/* ---- the whole ---- */

bool plan_placer_init(struct plan_placer *self, const struct plan_input *input, uint32_t learners)
{
    *self = (struct plan_placer){.input = input};
    self->sites = calloc(input->n_hosts, sizeof *self->sites);
    self->curves = calloc(input->n_hosts, sizeof *self->curves);
    self->like = calloc(input->n_hosts, sizeof *self->like);
    if (!self->sites || !self->curves || !self->like)
        return false;
    for (uint32_t i = 0; i < input->n_hosts; i++)
        if (input->hosts[i].kind == i && input->hosts[i].curve.n > 0) {
            plan_smooth(&input->hosts[i].curve, &self->curves[i]);
            self->measured = true;
        }
    self->sites[HOME].memory = plan_known(input->broker_memory) + plan_known(input->other_memory);
    for (uint32_t i = 0; i < input->n_hosts; i++) {
        self->like[i] = self->measured ? find_like(self, i) : i;
        look_ahead(self, i);
    }
    place_learners(self, learners);
    return true;
}

void plan_placer_fini(struct plan_placer *self)
{
    free(self->sites);
    free(self->curves);
    free(self->like);
    *self = (struct plan_placer){0};
}

void plan_place(const struct plan_input *input, uint32_t actors, uint32_t learners, uint32_t *actors_at,
                uint32_t *learners_at)
{
    struct plan_placer placer;
    if (input->n_hosts == 0)
        return;
    bool ok = plan_placer_init(&placer, input, learners);
    while (ok && placer.actors < actors)
        plan_placer_add(&placer);
    for (uint32_t i = 0; i < input->n_hosts; i++) {
        actors_at[i] = ok ? placer.sites[i].actors : i == HOME ? actors : 0;
        learners_at[i] = ok ? placer.sites[i].learners : i == HOME ? learners : 0;
    }
    plan_placer_fini(&placer);
}

void plan_input_free(struct plan_input *input)
{
    free(input->hosts);
    input->hosts = NULL;
    input->n_hosts = 0;
}

/* ---- the sum ---- */

/* The counts of the hosts' curves, all together, as far as a plan goes: plan.max_actors is for all hosts. */
static uint32_t most_actors(const struct plan_placer *self)
{
    uint32_t bound = self->input->max_actors ? self->input->max_actors : PLAN_MAX_COUNT;
    bound = bound > self->input->fixed_actors ? bound : self->input->fixed_actors;
    uint64_t sum = 0;
    for (uint32_t i = 0; i < self->input->n_hosts; i++) {
        const struct plan_curve *curve = plan_placer_curve(self, i);
        sum += curve && self->input->hosts[i].actors ? plan_last(curve) : 0;
    }
    bound = bound < PLAN_MAX_COUNT ? bound : PLAN_MAX_COUNT;
    return sum < bound ? (uint32_t)sum : bound;
}

static struct plan_point sum_of(const struct plan_placer *self)
{
    struct plan_point sum = {.count = self->actors};
    for (uint32_t i = 0; i < self->input->n_hosts; i++) {
        const struct plan_curve *curve = plan_placer_curve(self, i);
        if (!curve || self->sites[i].actors == 0)
            continue;
        struct plan_point at = plan_point_at(curve, self->sites[i].actors);
        sum.rate += at.rate;
        sum.cpu += at.cpu;
        sum.broker_cpu += at.broker_cpu;
        sum.memory = fmax(sum.memory, at.memory);
    }
    return sum;
}

/* The next count of the sum's curve: every count as long as all of them have room, and doubled otherwise. */
static uint32_t next_count(uint32_t count, uint32_t most)
{
    uint32_t next = most <= PLAN_MAX_POINTS || count == 0 ? count + 1 : count * 2;
    return next < most ? next : most;
}

void plan_add_up(struct plan_input *input)
{
    struct plan_placer placer;
    struct plan_curve sum = {0};
    if (input->n_hosts == 0)
        return;
    bool ok = plan_placer_init(&placer, input, 0);
    uint32_t most = ok ? most_actors(&placer) : 0;
    for (uint32_t count = next_count(0, most); ok && placer.actors < most; count = next_count(count, most)) {
        while (placer.actors < count)
            plan_placer_add(&placer);
        sum.points[sum.n++] = sum_of(&placer);
    }
    if (sum.n > 0)
        input->actors = sum;
    plan_placer_fini(&placer);
}
