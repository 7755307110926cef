#include "agent/launch/plan/plan_model.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "proto/base/error.h"
#include "proto/base/need.h"

#define ONE_CORE 1.0  /* that a process is taken to use where nothing was measured */
#define BALANCED 0.03 /* sides whose rates differ by less are in balance */
#define ALL_BUSY 0.95 /* share of the cores from which on a run counts as full */
#define ROUNDS 40
#define MOST_BYTES 1e18 /* a number of a file becomes an integer */

const char *const plan_bottleneck_names[PLAN_BOTTLENECKS] = {
    [PLAN_UNKNOWN] = "",
    [PLAN_ACTORS] = "actors",
    [PLAN_LEARNERS] = "learners",
    [PLAN_CORES] = "cores",
    [PLAN_MEMORY] = "memory",
    [PLAN_BALANCED] = "balanced",
    [PLAN_MAX_ACTORS] = "max_actors",
    [PLAN_MAX_LEARNERS] = "max_learners",
    [PLAN_BROKER] = "broker",
};

/* ---- the input ---- */

void plan_input_free(struct plan_input *input)
{
    free(input->hosts);
    input->hosts = NULL;
    input->n_hosts = 0;
}

double plan_known(double value)
{
    return isfinite(value) && value > 0 ? value : 0;
}

/* Home counts in any case: the broker runs there. */
static double sum_of(const struct plan_input *input, bool memory)
{
    double sum = 0;
    for (uint32_t i = 0; i < input->n_hosts; i++) {
        const struct plan_host *host = &input->hosts[i];
        if (i == PLAN_HOME || host->actors || host->learners)
            sum += plan_known(memory ? host->memory : host->cores);
    }
    return sum;
}

double plan_cores(const struct plan_input *input)
{
    return sum_of(input, false);
}

double plan_memory(const struct plan_input *input)
{
    return fmin(sum_of(input, true), MOST_BYTES);
}

const struct plan_host *plan_example(const struct plan_input *input, uint32_t host)
{
    for (uint32_t i = 0; i < input->n_hosts; i++)
        if (plan_known(input->hosts[i].actor.rate) > 0 && strcmp(input->hosts[i].kind, input->hosts[host].kind) == 0)
            return &input->hosts[i];
    return NULL;
}

struct plan_unit plan_actor_on(const struct plan_input *input, uint32_t host)
{
    const struct plan_host *hosts = input->hosts, *best = plan_example(input, host);
    double nearest = best ? -1 : INFINITY;
    for (uint32_t i = 0; i < input->n_hosts; i++) {
        /* Home is measured without a network: another host is the better example. */
        double apart = fabs(plan_known(hosts[i].cores) - plan_known(hosts[host].cores)) + (i == PLAN_HOME ? 1e6 : 0);
        if (plan_known(hosts[i].actor.rate) > 0 && apart < nearest) {
            nearest = apart;
            best = &hosts[i];
        }
    }
    return best ? best->actor : hosts[host].actor;
}

uint32_t plan_shards(const struct plan_input *input)
{
    return input->fixed_shards ? input->fixed_shards : 1;
}

rp_status plan_input_check(const struct plan_input *input, rp_error *err)
{
    static const char nothing[] = "the %s did nothing while they were measured; their logs may say why";
    if (input->n_hosts == 0 || !(plan_cores(input) > 0))
        return err_set(err, RP_INVALID_ARGUMENT, "there are no cores to plan with (plan.cores)");
    if (!(plan_known(plan_actor_on(input, PLAN_HOME).rate) > 0))
        return err_set(err, RP_INVALID_ARGUMENT, nothing, "actors");
    if (!(plan_known(input->learner.rate) > 0))
        return err_set(err, RP_INVALID_ARGUMENT, nothing, "learners");
    for (uint32_t i = 0; i < input->n_runs; i++)
        if (!plan_is_count(input->runs[i].actors) || !plan_is_count(input->runs[i].learners))
            return err_set(err, RP_INVALID_ARGUMENT, "a run had %u actors and %u learners, not 1 to %u of each",
                           input->runs[i].actors, input->runs[i].learners, PLAN_MAX_COUNT);
    return RP_OK;
}

/* ---- where processes go ---- */

/* Learners are placed first, each where the actors lose least by it, as long as a host has cores for it. Actors
 * follow one by one, each to the host where it adds most: its rate, times the part of its cores that is still free there. A decision
 * depends only on what was placed before, so one more actor moves no other. */

static double free_cores(const struct plan_model *self, uint32_t host)
{
    return plan_known(self->input->hosts[host].cores) - self->sites[host].used - (host == PLAN_HOME ? self->broker : 0);
}

/* Load in cores, with one more process, for each core that there is. */
static double crowding(const struct plan_model *self, uint32_t host, double takes)
{
    double cores = plan_known(self->input->hosts[host].cores);
    return (cores - free_cores(self, host) + takes) / (cores > 0 ? cores : 1);
}

static double takes_at(const struct plan_model *self, uint32_t host)
{
    return self->units[host].rate > 0 ? plan_known(self->units[host].cpu) : ONE_CORE;
}

/* Items/s of actors that a core there is worth: what a learner displaces. */
static double worth_of(const struct plan_model *self, uint32_t host)
{
    double takes = takes_at(self, host), rate = plan_known(self->units[host].rate);
    return !self->input->hosts[host].actors ? 0 : rate > 0 && takes > 0 ? rate / takes : 1;
}

/* Returns the host with room for a learner where actors lose least, of equal ones the first; without room, the least crowded. */
static uint32_t learner_host(const struct plan_model *self, double takes)
{
    uint32_t best = PLAN_HOME;
    bool any = false;
    for (uint32_t i = 0; i < self->input->n_hosts; i++) {
        bool room = free_cores(self, i) >= takes, best_room = free_cores(self, best) >= takes;
        if (!self->input->hosts[i].learners)
            continue;
        if (!any || room > best_room || (room && best_room && worth_of(self, i) < worth_of(self, best)) ||
            (!room && !best_room && crowding(self, i, takes) < crowding(self, best, takes)))
            best = i;
        any = true;
    }
    return best;
}

/* Items/s that the next actor adds there beside what was placed. */
static double gain_of(const struct plan_model *self, uint32_t host)
{
    const struct plan_unit *unit = &self->units[host];
    double takes = takes_at(self, host) + (host == PLAN_HOME ? plan_known(unit->broker_cpu) : 0);
    double room = free_cores(self, host);
    return room <= 0 ? 0 : plan_known(unit->rate) * (takes > room ? room / takes : 1);
}

static bool has_memory(const struct plan_model *self, uint32_t host)
{
    double memory = plan_known(self->input->hosts[host].memory);
    return memory <= 0 || self->sites[host].memory + plan_known(self->units[host].memory) <= memory;
}

/* Compares two hosts for the next actor: true if host a is the better one. */
static bool better_host(const struct plan_model *self, uint32_t a, uint32_t b)
{
    if (has_memory(self, a) != has_memory(self, b))
        return has_memory(self, a);
    double gain_a = gain_of(self, a), gain_b = gain_of(self, b);
    if (gain_a != gain_b)
        return gain_a > gain_b;
    double free_a = free_cores(self, a), free_b = free_cores(self, b);
    if (free_a > 0 || free_b > 0)
        return free_a > free_b;
    return crowding(self, a, takes_at(self, a)) < crowding(self, b, takes_at(self, b));
}

/* Places one more actor. */
static void add_actor(struct plan_model *self)
{
    uint32_t best = PLAN_HOME;
    bool any = false;
    for (uint32_t i = 0; i < self->input->n_hosts; i++)
        if (self->input->hosts[i].actors && (!any || better_host(self, i, best))) {
            best = i;
            any = true;
        }
    self->sites[best].actors++;
    self->sites[best].used += takes_at(self, best);
    self->sites[best].memory += plan_known(self->units[best].memory);
    self->broker += plan_known(self->units[best].broker_cpu);
    self->actors++;
}

static void place(struct plan_model *self, uint32_t actors, uint32_t learners)
{
    const struct plan_unit *learner = &self->input->learner;
    if (learners != self->learners || actors < self->actors) {
        double takes = plan_known(learner->cpu) > 0 ? learner->cpu : ONE_CORE;
        memset(self->sites, 0, self->input->n_hosts * sizeof *self->sites);
        self->sites[PLAN_HOME].memory = plan_known(self->input->broker_memory) + plan_known(self->input->other_memory);
        self->broker = self->units[PLAN_HOME].rate > 0 ? learners * plan_known(learner->broker_cpu) : ONE_CORE;
        self->learners = learners;
        self->actors = 0;
        for (uint32_t i = 0; i < learners; i++) {
            struct plan_site *site = &self->sites[learner_host(self, takes)];
            site->learners++;
            site->used += takes;
            site->memory += plan_known(learner->memory);
        }
    }
    while (self->actors < actors)
        add_actor(self);
}

static void place_init(struct plan_model *self, const struct plan_input *input)
{
    *self = (struct plan_model){.input = input, .scale = 1, .learners = UINT32_MAX};
    self->sites = need_alloc(input->n_hosts * sizeof *self->sites);
    self->units = need_alloc(input->n_hosts * sizeof *self->units);
    for (uint32_t i = 0; i < input->n_hosts; i++)
        self->units[i] = plan_actor_on(input, i);
}

void plan_place(const struct plan_input *input, uint32_t actors, uint32_t learners, uint32_t *actors_at,
                uint32_t *learners_at)
{
    struct plan_model model;
    if (input->n_hosts == 0)
        return;
    place_init(&model, input);
    place(&model, actors, learners);
    for (uint32_t i = 0; i < input->n_hosts; i++) {
        actors_at[i] = model.sites[i].actors;
        learners_at[i] = model.sites[i].learners;
    }
    plan_model_fini(&model);
}

/* ---- the formula ---- */

/* What an item costs in processor seconds. */
struct costs {
    double could;          /* inserts/s that all actors can make */
    double insert, sample; /* of an actor or a learner */
    double broker_insert, broker_sample;
};

static struct costs costs_of(const struct plan_model *self)
{
    const struct plan_unit *learner = &self->input->learner;
    struct costs costs = {.sample = plan_known(learner->cpu) / learner->rate,
                          .broker_sample = plan_known(learner->broker_cpu) / learner->rate};
    for (uint32_t i = 0; i < self->input->n_hosts; i++) {
        double n = self->sites[i].actors;
        costs.could += n * plan_known(self->units[i].rate);
        costs.insert += n * plan_known(self->units[i].cpu);
        costs.broker_insert += n * plan_known(self->units[i].broker_cpu);
    }
    costs.insert /= costs.could;
    costs.broker_insert /= costs.could;
    return costs;
}

/* Cores that learners and broker take on a machine at a rate of inserts. */
static double cores_beside(const struct plan_model *self, const struct costs *costs, uint32_t host, double inserts)
{
    double samples = inserts * self->input->spi,
           broker = inserts * costs->broker_insert + samples * costs->broker_sample;
    return self->sites[host].learners * samples / self->learners * costs->sample + (host == PLAN_HOME ? broker : 0);
}

/* Returns the inserts/s that the actors can make while learners and broker serve so many; negative: a machine is too small for that. */
static double supply(const struct plan_model *self, const struct costs *costs, double inserts)
{
    const struct plan_input *input = self->input;
    double sum = 0;
    for (uint32_t i = 0; i < input->n_hosts; i++) {
        double left = plan_known(input->hosts[i].cores) - cores_beside(self, costs, i, inserts);
        double takes = plan_known(self->units[i].cpu), actors = self->sites[i].actors;
        if (left < 0 && (actors > 0 || self->sites[i].learners > 0 || i == PLAN_HOME))
            return -1;
        sum += plan_known(self->units[i].rate) * (actors * takes > left ? left / takes : actors);
    }
    return sum;
}

/* More inserts leave fewer cores to actors beside learners, so the highest rate up to `most` that the cores allow is found by halving. */
static double within_cores(const struct plan_model *self, const struct costs *costs, double most)
{
    double low = 0, high = most;
    if (supply(self, costs, most) >= most * (1 - 1e-9))
        return most;
    for (int i = 0; i < ROUNDS; i++) {
        double middle = (low + high) / 2;
        *(supply(self, costs, middle) >= middle ? &low : &high) = middle;
    }
    return low;
}

/* Computes a pair. */
static void formula(const struct plan_model *self, struct plan_pair *out)
{
    const struct plan_input *input = self->input;
    const struct costs costs = costs_of(self);
    double by_learners = input->spi > 0 ? self->learners * input->learner.rate / input->spi : INFINITY;
    double by_actors = costs.could, sides = fmin(by_actors, by_learners);
    double rate = within_cores(self, &costs, sides);
    double cores =
        rate * (costs.insert + costs.broker_insert) + rate * input->spi * (costs.sample + costs.broker_sample);
    *out = (struct plan_pair){.actors = self->actors,
                              .learners = self->learners,
                              .shards = plan_shards(input),
                              .inserts = rate * self->scale,
                              .samples = self->scale *
                                         (input->spi > 0 ? rate * input->spi : self->learners * input->learner.rate),
                              /* An insert costs the mean of all hosts: a little more or less than where it is made. */
                              .cpu = fmin(cores, plan_cores(input)),
                              .core = NAN};
    if (by_actors > sides)
        out->waits.actor[IDLE_CREDIT] = 1 - sides / by_actors;
    else if (isfinite(by_learners))
        out->waits.learner[IDLE_SAMPLE] = 1 - sides / by_learners;
    if (rate < sides)
        out->bottleneck = PLAN_CORES;
    else if (fabs(by_actors - by_learners) <= BALANCED * fmax(by_actors, by_learners))
        out->bottleneck = PLAN_BALANCED;
    else
        out->bottleneck = by_actors < by_learners ? PLAN_ACTORS : PLAN_LEARNERS;
}

/* ---- runs ---- */

const struct plan_pair *plan_run_of(const struct plan_input *input, uint32_t actors, uint32_t learners, uint32_t shards)
{
    for (uint32_t i = 0; i < input->n_runs; i++) {
        const struct plan_pair *run = &input->runs[i];
        if (run->actors == actors && run->learners == learners && run->shards == (shards ? shards : plan_shards(input)))
            return run;
    }
    return NULL;
}

/* The mean of n values with one more value. */
static double mean_with(double mean, double value, uint32_t n)
{
    return isfinite(mean) && isfinite(value) ? mean + (value - mean) / (n + 1) : isfinite(mean) ? mean : value;
}

bool plan_add_run(struct plan_input *input, const struct plan_pair *run)
{
    const struct plan_pair *same = plan_run_of(input, run->actors, run->learners, run->shards);
    if (!same && input->n_runs == PLAN_MAX_RUNS)
        return false;
    if (!same) {
        input->runs[input->n_runs] = *run;
        input->runs[input->n_runs++].runs = 1;
        return true;
    }
    struct plan_pair *known = &input->runs[same - input->runs];
    uint32_t n = known->runs++;
    known->inserts = mean_with(known->inserts, run->inserts, n);
    known->samples = mean_with(known->samples, run->samples, n);
    known->cpu = mean_with(known->cpu, run->cpu, n);
    known->others = mean_with(known->others, run->others, n);
    known->core = mean_with(known->core, run->core, n);
    known->home = mean_with(known->home, run->home, n);
    for (int i = 0; i < IDLE_CAUSES; i++) {
        known->waits.actor[i] = mean_with(known->waits.actor[i], run->waits.actor[i], n);
        known->waits.learner[i] = mean_with(known->waits.learner[i], run->waits.learner[i], n);
    }
    return true;
}

/* Idle shares say which side waits, and the formula says whether the other side is bound by its machines. */
static enum plan_bottleneck bottleneck_of(const struct plan_input *input, const struct plan_pair *pair)
{
    double apart = pair->waits.actor[IDLE_CREDIT] - pair->waits.learner[IDLE_SAMPLE];
    if ((input->n_hosts > 1 && pair->bottleneck == PLAN_CORES) || pair->cpu >= ALL_BUSY * plan_cores(input))
        return PLAN_CORES;
    if (fabs(apart) <= BALANCED)
        return PLAN_BALANCED;
    return apart > 0 ? PLAN_LEARNERS : PLAN_ACTORS;
}

/* Replaces what is computed for a pair by what its run gave, as far as that is known. */
static void take_run(const struct plan_input *input, const struct plan_pair *run, struct plan_pair *out)
{
    const struct plan_pair computed = *out;
    double *actors = &out->waits.actor[IDLE_CREDIT], *learners = &out->waits.learner[IDLE_SAMPLE];
    *out = *run;
    out->bottleneck = computed.bottleneck;
    out->inserts = plan_known(run->inserts);
    out->samples = plan_known(run->samples);
    if (!(plan_known(run->cpu) > 0))
        out->cpu = computed.cpu;
    if (isfinite(*actors) && isfinite(*learners)) {
        *actors = fmin(1, fmax(0, *actors));
        *learners = fmin(1, fmax(0, *learners));
        out->bottleneck = bottleneck_of(input, out);
    } else {
        *actors = computed.waits.actor[IDLE_CREDIT];
        *learners = computed.waits.learner[IDLE_SAMPLE];
    }
}

/* Finds the machine with the least room. */
static void fill_memory(const struct plan_model *self, struct plan_pair *out)
{
    double worst = -1;
    out->memory = 0;
    for (uint32_t i = 0; i < self->input->n_hosts; i++) {
        double have = plan_known(self->input->hosts[i].memory), need = self->sites[i].memory;
        double share = have > 0 ? need / have : 0;
        out->memory += need;
        if (share > worst) {
            worst = share;
            out->tight = i;
            out->tight_memory = need;
        }
    }
}

/* Sides wait for each other now and then, and get in each other's way: runs show by how much. */
void plan_model_init(struct plan_model *self, const struct plan_input *input)
{
    double seen = 0, computed = 0;
    place_init(self, input);
    for (uint32_t i = 0; i < input->n_runs; i++) {
        struct plan_pair pair;
        if (input->runs[i].shards != plan_shards(input))
            continue;
        place(self, input->runs[i].actors, input->runs[i].learners);
        formula(self, &pair);
        seen += plan_known(input->runs[i].inserts);
        computed += pair.inserts;
    }
    if (seen > 0 && computed > 0)
        self->scale = seen / computed;
}

void plan_model_fini(struct plan_model *self)
{
    free(self->sites);
    free(self->units);
}

void plan_model_pair(struct plan_model *self, uint32_t actors, uint32_t learners, uint32_t shards,
                     struct plan_pair *out)
{
    const struct plan_input *input = self->input;
    const struct plan_pair *run = plan_run_of(input, actors, learners, shards);
    place(self, actors, learners);
    formula(self, out);
    if (run)
        take_run(input, run, out);
    fill_memory(self, out);
    /* A bound of the file is the bottleneck if it keeps the slower side from growing. */
    if (out->bottleneck == PLAN_ACTORS && input->max_actors && out->actors >= input->max_actors)
        out->bottleneck = PLAN_MAX_ACTORS;
    else if (out->bottleneck == PLAN_LEARNERS && input->max_learners && out->learners >= input->max_learners)
        out->bottleneck = PLAN_MAX_LEARNERS;
}

bool plan_predict(const struct plan_input *input, uint32_t actors, uint32_t learners, struct plan_pair *out)
{
    struct plan_model model;
    *out = (struct plan_pair){.actors = actors, .learners = learners};
    if (plan_input_check(input, NULL) != RP_OK || !plan_is_count(actors) || !plan_is_count(learners))
        return false;
    plan_model_init(&model, input);
    plan_model_pair(&model, actors, learners, 0, out);
    plan_model_fini(&model);
    return true;
}

void plan_use(const struct plan_input *input, const struct plan_pair *choice, struct plan_site *sites)
{
    struct plan_model model;
    place_init(&model, input);
    place(&model, choice->actors, choice->learners);
    const struct costs costs = costs_of(&model);
    /* Actors elsewhere and at home are held back alike. */
    double part = fmin(1, choice->inserts / costs.could);
    for (uint32_t i = 0; i < input->n_hosts; i++) {
        sites[i] = model.sites[i];
        sites[i].used =
            part * sites[i].actors * plan_known(model.units[i].cpu) + cores_beside(&model, &costs, i, choice->inserts);
    }
    plan_model_fini(&model);
}

bool plan_fits(const struct plan_input *input, const struct plan_pair *choice)
{
    double have = plan_known(input->hosts[choice->tight].memory);
    return have <= 0 || choice->tight_memory <= have;
}

/* ---- waits ---- */

static double all_waits(const double shares[IDLE_CAUSES], enum idle_cause held)
{
    double sum = 0;
    for (int i = 0; i < IDLE_CAUSES; i++)
        sum += isfinite(shares[i]) ? shares[i] : 0;
    return isfinite(shares[held]) ? fmin(1, sum) : NAN;
}

double plan_actor_idle(const struct plan_pair *pair)
{
    return all_waits(pair->waits.actor, IDLE_CREDIT);
}

double plan_learner_idle(const struct plan_pair *pair)
{
    return all_waits(pair->waits.learner, IDLE_SAMPLE);
}
