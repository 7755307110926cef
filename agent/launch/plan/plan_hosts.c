/* The bounds of a pair whose processes run on several machines.
 *
 * A rate of inserts is possible if every machine can do its part: learners take their cores where they run, the broker takes its
 * cores at home, and the actors of all machines together make the inserts with the cores that are left to them. Actors elsewhere
 * send through the network, which carries so many bytes to the broker's machine; actors at home do not. More inserts
 * leave fewer cores to actors beside learners, so the highest possible rate is found by halving.
 *
 * Machines of one kind with equal counts are one group: the costs of a pair depend on the groups, not on the machines. */
#include <math.h>
#include <stdlib.h>

#include "agent/launch/plan/plan_impl.h"

#define HOME 0u
#define ROUNDS 30
#define ENOUGH 1e-6 /* relative error of a rate */
#define NEARLY 0.97 /* share of what the network carries from which on it counts as full */

struct group {
    const struct plan_curve *curve; /* of actors there; NULL: not measured */
    double cores;                   /* INFINITY: not known */
    uint32_t kind, actors, learners;
    uint32_t n; /* machines */
    bool home;
};

struct plan_places {
    const struct plan_input *input;
    struct plan_placer *placers; /* by number of learners; those without sites were not asked for yet */
    uint32_t n;
    struct group *groups; /* of the last pair */
    uint32_t n_groups;
};

/* ---- where processes go ---- */

struct plan_places *plan_places_new(const struct plan_input *input)
{
    struct plan_places *self = calloc(1, sizeof *self);
    if (!self)
        return NULL;
    self->input = input;
    self->groups = calloc(input->n_hosts, sizeof *self->groups);
    if (!self->groups)
        plan_places_destroy(&self);
    return self;
}

void plan_places_destroy(struct plan_places **self)
{
    struct plan_places *places = *self;
    if (!places)
        return;
    for (uint32_t i = 0; i < places->n; i++)
        plan_placer_fini(&places->placers[i]);
    free(places->placers);
    free(places->groups);
    free(places);
    *self = NULL;
}

/* Returns the placer of a number of learners; NULL: no memory. */
static struct plan_placer *placer_for(struct plan_places *self, uint32_t learners)
{
    if (learners >= self->n) {
        struct plan_placer *longer = realloc(self->placers, (learners + 1) * sizeof *longer);
        if (!longer)
            return NULL;
        self->placers = longer;
        while (self->n <= learners)
            longer[self->n++] = (struct plan_placer){0};
    }
    return &self->placers[learners];
}

/* Returns a placer with the pair placed. Counts that ascend from call to call cost one step each. NULL: no memory. */
static const struct plan_placer *placed(struct plan_places *self, uint32_t actors, uint32_t learners)
{
    struct plan_placer *placer = placer_for(self, learners);
    if (!placer)
        return NULL;
    if (!placer->sites || placer->actors > actors) {
        plan_placer_fini(placer);
        if (!plan_placer_init(placer, self->input, learners)) {
            plan_placer_fini(placer);
            return NULL;
        }
    }
    while (placer->actors < actors)
        plan_placer_add(placer);
    return placer;
}

static void add_to_group(struct plan_places *self, const struct group *one)
{
    for (uint32_t i = 0; i < self->n_groups; i++) {
        struct group *group = &self->groups[i];
        if (group->kind == one->kind && group->actors == one->actors && group->learners == one->learners &&
            group->cores == one->cores && group->home == one->home) {
            group->n++;
            return;
        }
    }
    self->groups[self->n_groups++] = *one;
}

/* False: no memory. */
static bool find_groups(struct plan_places *self, uint32_t actors, uint32_t learners)
{
    const struct plan_placer *placer = placed(self, actors, learners);
    self->n_groups = 0;
    for (uint32_t i = 0; placer && i < self->input->n_hosts; i++) {
        double cores = plan_known(self->input->hosts[i].cores);
        struct group one = {.curve = plan_placer_curve(placer, i),
                            .cores = cores > 0 ? cores : INFINITY,
                            .kind = self->input->hosts[i].kind,
                            .actors = placer->sites[i].actors,
                            .learners = placer->sites[i].learners,
                            .n = 1,
                            .home = i == HOME};
        if (one.home || one.actors > 0 || one.learners > 0)
            add_to_group(self, &one);
    }
    return placer != NULL;
}

/* ---- the limiter's rate ---- */

/* A pair at one rate of inserts. */
struct demand {
    double learner; /* cores of one learner */
    double broker;  /* cores, at home */
    double network; /* inserts/s that it carries */
    double most;    /* inserts/s that all actors can make beside this demand; negative: a machine is too small for it */
    bool by_network; /* actors elsewhere could send all that the network carries */
};

static double own_part(const struct plan_side *side)
{
    return side->all > 0 ? side->own / side->all : 1;
}

static void fill_demand(const struct plan_model *model, const struct plan_side *a, const struct plan_side *l,
                        double inserts, struct demand *out)
{
    double learners = plan_side_cores(model, PLAN_OF_LEARNERS, l, inserts * model->input->spi);
    double actors = plan_side_cores(model, PLAN_OF_ACTORS, a, inserts);
    out->learner = learners * own_part(l) / l->count;
    out->broker = learners * (1 - own_part(l)) + actors * (1 - own_part(a));
}

/* Items/s of the first `count` actors of a curve within some cores. */
static double rate_within(const struct plan_curve *curve, uint32_t count, double cores)
{
    struct plan_point before = {0}, at = plan_point_at(curve, count);
    if (at.cpu <= cores)
        return at.rate;
    for (uint32_t i = 0; i <= curve->n; i++) {
        struct plan_point next = i < curve->n && curve->points[i].count < count ? curve->points[i] : at;
        if (plan_known(next.cpu) > cores) {
            double share = (cores - plan_known(before.cpu)) / (plan_known(next.cpu) - plan_known(before.cpu));
            return plan_known(before.rate) + share * (plan_known(next.rate) - plan_known(before.rate));
        }
        before = next;
    }
    return at.rate;
}

/* Fills in what the actors can make, and returns it. */
static double supply(const struct plan_places *self, struct demand *demand)
{
    double home = 0, elsewhere = 0;
    demand->most = -1;
    demand->by_network = false;
    for (uint32_t i = 0; i < self->n_groups; i++) {
        const struct group *group = &self->groups[i];
        double left = group->cores - group->learners * demand->learner - (group->home ? demand->broker : 0);
        if (left < 0)
            return demand->most;
        double rate = group->actors && group->curve ? rate_within(group->curve, group->actors, left) : 0;
        *(group->home ? &home : &elsewhere) += group->n * rate;
    }
    demand->by_network = elsewhere >= NEARLY * demand->network;
    return demand->most = home + fmin(elsewhere, demand->network);
}

static double carried(const struct plan_input *input)
{
    return plan_known(input->network) > 0 && plan_known(input->item_bytes) > 0 ? input->network / input->item_bytes
                                                                               : INFINITY;
}

double plan_hosts_within(const struct plan_model *model, const struct plan_side *actors,
                         const struct plan_side *learners, double most, enum plan_bottleneck *bound)
{
    struct plan_places *places = model->places;
    struct demand demand = {.network = carried(model->input)};
    *bound = PLAN_CORES;
    if (!(most > 0) || !find_groups(places, actors->count, learners->count))
        return most;
    fill_demand(model, actors, learners, most, &demand);
    if (supply(places, &demand) >= most * (1 - ENOUGH)) {
        /* Just as much as the network carries: one more actor would change nothing. */
        if (demand.by_network && most >= NEARLY * demand.most)
            *bound = PLAN_NETWORK;
        return most;
    }
    double low = 0, high = most;
    for (int i = 0; i < ROUNDS && high - low > ENOUGH * high; i++) {
        double middle = (low + high) / 2;
        fill_demand(model, actors, learners, middle, &demand);
        *(supply(places, &demand) >= middle ? &low : &high) = middle;
    }
    fill_demand(model, actors, learners, low, &demand);
    supply(places, &demand);
    *bound = demand.by_network ? PLAN_NETWORK : PLAN_CORES;
    return low;
}

/* ---- memory and bounds ---- */

void plan_hosts_memory(const struct plan_model *model, struct plan_choice *choice)
{
    const struct plan_input *input = model->input;
    const struct plan_placer *placer = placed(model->places, choice->actors, choice->learners);
    double worst = -1;
    for (uint32_t i = 0; placer && i < input->n_hosts; i++) {
        double have = plan_known(input->hosts[i].memory), need = placer->sites[i].memory;
        double share = have > 0 ? need / have : 0;
        if (share > worst) {
            worst = share;
            choice->tight = i;
            choice->tight_memory = need;
        }
    }
}

uint32_t plan_hosts_take(const struct plan_input *input)
{
    double sum = 0;
    for (uint32_t i = 0; i < input->n_hosts; i++) {
        const struct plan_host *host = &input->hosts[i];
        uint32_t last = host->kind < input->n_hosts ? plan_last(&input->hosts[host->kind].curve) : 0;
        if (host->actors)
            sum += fmax(last, floor(plan_known(host->cores)));
    }
    return sum < PLAN_MAX_COUNT ? (uint32_t)sum : PLAN_MAX_COUNT;
}

double plan_hosts_network(const struct plan_input *input)
{
    double home = 0;
    if (input->n_hosts < 2)
        return INFINITY;
    const struct plan_host *host = &input->hosts[HOME];
    for (uint32_t i = 0; host->actors && i < host->curve.n; i++)
        home = fmax(home, plan_known(host->curve.points[i].rate));
    return carried(input) + home;
}

/* ---- what each host does ---- */

static struct plan_point actors_point(const struct plan_placer *placer, uint32_t host)
{
    const struct plan_curve *curve = plan_placer_curve(placer, host);
    uint32_t actors = placer->sites[host].actors;
    return curve && actors > 0 ? plan_point_at(curve, actors) : (struct plan_point){0};
}

/* Actors elsewhere and at home are held back alike. */
static void fill_use(const struct plan_model *model, const struct plan_placer *placer, const struct plan_choice *choice,
                     struct plan_use *use)
{
    struct demand demand = {0};
    struct plan_side a, l;
    double could = 0;
    plan_side_at(model, PLAN_OF_ACTORS, choice->actors, &a);
    plan_side_at(model, PLAN_OF_LEARNERS, choice->learners, &l);
    fill_demand(model, &a, &l, choice->inserts, &demand);
    for (uint32_t i = 0; i < model->input->n_hosts; i++)
        could += actors_point(placer, i).rate;
    double part = could > 0 ? fmin(1, choice->inserts / could) : 0;
    for (uint32_t i = 0; i < model->input->n_hosts; i++) {
        const struct plan_site *site = &placer->sites[i];
        use[i] = (struct plan_use){.actors = site->actors, .learners = site->learners};
        use[i].cpu =
            part * actors_point(placer, i).cpu + site->learners * demand.learner + (i == HOME ? demand.broker : 0);
    }
}

bool plan_hosts_use(const struct plan_input *input, const struct plan_choice *choice, struct plan_use *use)
{
    struct plan_model model;
    if (plan_input_check(input, NULL) != RP_OK || choice->actors == 0 || choice->learners == 0)
        return false;
    plan_model_init(&model, input);
    const struct plan_placer *placer = model.places ? placed(model.places, choice->actors, choice->learners) : NULL;
    if (placer)
        fill_use(&model, placer, choice, use);
    plan_model_fini(&model);
    return placer != NULL;
}
