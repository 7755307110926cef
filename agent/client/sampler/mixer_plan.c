/* Who pays for a plan, and which parts give its items. */
#include <string.h>

#include "agent/client/sampler/mixer_impl.h"
#include "agent/client/sampler/shares.h"

double part_weight(const struct part *self)
{
    return self->known && !self->away && self->size ? self->mass : 0;
}

static bool is_dealt(enum deal deal)
{
    return deal == DEAL_PERMITS || deal == DEAL_MASS;
}

/* True if each distinct batch needs items that were asked for it alone: those of another could come twice. A queue gives each
 * once. */
static bool is_fresh(const struct part *self)
{
    return self->mixer->options.distinct && self->known && self->deal != DEAL_QUEUE;
}

/* Returns the rows that no plan needs and that exist nowhere else; for distinct batches, those of one pick. */
static uint64_t part_spare(const struct part *self)
{
    uint64_t spare = self->removes && self->rows > self->needed ? self->rows - self->needed : 0;
    uint32_t first = spare && self->mixer->options.distinct ? part_first_rows(self) : UINT32_MAX;
    return spare < first ? spare : first;
}

static uint64_t group_spare(const struct mixer *self, const struct group *group)
{
    uint64_t sum = 0;
    for (uint32_t p = group->first; p < group->first + group->n; p++)
        sum += part_spare(&self->parts[p]);
    return sum;
}

uint64_t plans_want(struct mixer *self, uint32_t group, enum plan_state state)
{
    uint64_t sum = 0;
    for (uint64_t at = self->build; at < self->tail; at++)
        if (plan_at(self, at)->state == state)
            sum += plan_at(self, at)->of_group[group];
    return sum;
}

uint64_t group_left(const struct mixer *self, const struct group *group)
{
    uint64_t sum = 0;
    for (uint32_t p = group->first; p < group->first + group->n; p++) {
        const struct part *part = &self->parts[p];
        sum += part_is_last(part) && part->rows > part->needed ? part->rows - part->needed : 0;
    }
    return sum;
}

bool part_comes(const struct part *self)
{
    for (const struct pick *pick = self->asked.first; pick && !self->away; pick = pick->next)
        if (pick->sure || pick->arrived)
            return true;
    return false;
}

bool group_comes(const struct mixer *self, const struct group *group)
{
    for (uint32_t p = group->first; p < group->first + group->n; p++)
        if (part_comes(&self->parts[p]))
            return true;
    return false;
}

/* ---- paying ---- */

bool group_sum(const struct mixer *self, const struct group *group, struct group_sum *out)
{
    uint64_t min_size = 0; /* of the source, whose parts stand together */
    bool known = true;
    *out = (struct group_sum){0};
    for (uint32_t p = group->first; p < group->first + group->n; p++) {
        const struct part *part = &self->parts[p];
        out->mass += part_weight(part);
        known = known && (part->known || part->away);
        if (!part->away) {
            out->size += part->size;
            min_size += part->min_size;
        }
        if (p + 1 < group->first + group->n && self->parts[p + 1].number == part->number)
            continue;
        out->min_size += min_size > 1 ? min_size : 0; /* one item of any source is enough for those that need no more */
        min_size = 0;
    }
    return known;
}

/* True if the group can give items, `want` different ones if they are to be distinct. */
static bool has_enough(const struct mixer *self, const struct group *group, const struct group_sum *sum, uint32_t want)
{
    bool enough = !self->options.distinct || self->options.flexible || sum->size >= want;
    return sum->mass > 0 && enough && (group->deal != DEAL_MASS || sum->size >= sum->min_size);
}

static bool group_has_items(const struct mixer *self, const struct group *group, uint32_t want)
{
    struct group_sum sum;
    return !self->ending && group_sum(self, group, &sum) && has_enough(self, group, &sum, want);
}

uint32_t group_lacks(struct mixer *self, uint32_t g, struct group_sum *out)
{
    const struct group *group = &self->groups[g];
    struct group_sum sum;
    if (self->build == self->tail || plan_at(self, self->build)->state != PLAN_DRAWN || !is_dealt(group->deal))
        return 0;
    uint32_t want = plan_at(self, self->build)->of_group[g];
    if (!group_sum(self, group, &sum) || has_enough(self, group, &sum, want))
        return 0;
    *out = sum;
    return want;
}

/* True if nobody has room for more samples and no answer about that is under way. */
static bool is_starved(const struct mixer *self, const struct group *group)
{
    uint64_t room = 0;
    for (uint32_t p = group->first; p < group->first + group->n; p++) {
        const struct part *part = &self->parts[p];
        room += part->away ? 0 : part->room;
        if (part->permit && part->permit->sure)
            return false;
    }
    return room == 0;
}

void plan_shrink(struct mixer *self, struct plan *plan, uint32_t group, uint32_t count)
{
    if (plan->state == PLAN_PAID && self->groups[group].deal == DEAL_PERMITS)
        self->groups[group].stock += count;
    plan->of_group[group] -= count;
    plan->missing += count;
    self->asked -= count;
}

/* True if a group could pay its items of a plan; with `flexible`, the front plan also does with fewer. */
static bool group_pays(struct mixer *self, const struct plan *plan, uint32_t g, bool front)
{
    struct group *group = &self->groups[g];
    uint32_t want = plan->of_group[g];
    if (group->deal == DEAL_UNKNOWN)
        return false;
    if (!is_dealt(group->deal) || want == 0)
        return true;
    uint64_t spare = group_spare(self, group);
    bool enough = spare >= want || (spare && (self->options.flexible || self->options.distinct));
    if (!enough && !group_has_items(self, group, want))
        return false;
    if (group->deal == DEAL_MASS || group->stock >= want)
        return true;
    return front && self->options.flexible && group->stock > 0 && is_starved(self, group);
}

/* A plan that all groups can pay now takes the permits that there are. */
static void take_permits(struct mixer *self, struct plan *plan, uint32_t g)
{
    const struct group *group = &self->groups[g];
    if (group->deal == DEAL_PERMITS && group->stock < plan->of_group[g])
        plan_shrink(self, plan, g, plan->of_group[g] - (uint32_t)group->stock);
}

/* Adds `share`, divided as the parts of a group weigh now, to their shares in a plan. False: no part can give items. */
static bool add_shares(struct mixer *self, struct plan *plan, const struct group *group, double share)
{
    double sum = 0;
    for (uint32_t p = group->first; p < group->first + group->n; p++)
        sum += part_weight(&self->parts[p]);
    for (uint32_t p = group->first; p < group->first + group->n && sum > 0; p++)
        plan->share[p] += share * part_weight(&self->parts[p]) / sum;
    return sum > 0;
}

/* Draws which parts of a group give `count` items of a plan, which stand for a share of all. Returns how many were drawn. */
static uint32_t draw_parts(struct mixer *self, struct plan *plan, const struct group *group, uint32_t count,
                           double share)
{
    uint32_t drawn = 0, *counts = self->counts;
    double *weights = self->room + self->n_parts;
    if (!add_shares(self, plan, group, share))
        return 0;
    memset(counts, 0, group->n * sizeof *counts);
    for (uint32_t i = 0; i < group->n; i++) {
        weights[i] = part_weight(&self->parts[group->first + i]);
        self->sizes[i] = self->parts[group->first + i].size;
    }
    if (self->options.distinct)
        drawn = shares_draw_distinct(&self->rng, weights, self->sizes, group->n, count, counts);
    else if (shares_draw(&self->rng, weights, group->n, count, counts, self->room))
        drawn = count;
    for (uint32_t i = 0; i < group->n; i++) {
        plan->need[group->first + i] += counts[i];
        self->parts[group->first + i].needed += counts[i];
    }
    return drawn;
}

/* Gives a plan the spare rows of a group. Each stands for a share of all items. */
static void take_spare(struct mixer *self, struct plan *plan, const struct group *group, uint32_t count, double share)
{
    for (uint32_t p = group->first; p < group->first + group->n && count; p++) {
        uint64_t spare = part_spare(&self->parts[p]);
        uint32_t n = spare < count ? (uint32_t)spare : count;
        plan->need[p] += n;
        plan->share[p] += share * n;
        self->parts[p].needed += n;
        count -= n;
    }
}

/* Draws who gives a group's items of a plan: first the rows that are spare, then the parts. */
static void pay_group(struct mixer *self, struct plan *plan, uint32_t g)
{
    const struct group *group = &self->groups[g];
    uint32_t want = plan->of_group[g], count = want;
    uint64_t all = group_spare(self, group);
    uint32_t spare = all < want ? (uint32_t)all : want;
    if (spare && (self->options.distinct || (is_dealt(group->deal) && !group_has_items(self, group, want))))
        count = spare; /* there are no others, or they could be the same: spare rows are of an earlier batch */
    take_spare(self, plan, group, spare, group->share / count);
    uint32_t rest = count - spare, drawn = rest;
    if (group->deal == DEAL_PLAIN) {
        plan->need[group->first] += rest;
        plan->share[group->first] = group->share;
        self->parts[group->first].needed += rest;
    } else if (rest) {
        drawn = draw_parts(self, plan, group, rest, group->share * rest / count);
    }
    if (spare + drawn < want)
        plan_shrink(self, plan, g, want - spare - drawn);
}

static void pay(struct mixer *self, struct plan *plan)
{
    int64_t now = conn_now();
    plan->state = PLAN_PAID;
    for (uint32_t g = 0; g < self->n_groups; g++) {
        struct group *group = &self->groups[g];
        uint32_t want = plan->of_group[g];
        if (group->deal == DEAL_PERMITS && want) {
            group->stock -= group->stock < want ? group->stock : want;
            plan->waited_ns = now - plan->drawn_ns;
        }
        if (want && (is_dealt(group->deal) || group->deal == DEAL_PLAIN))
            pay_group(self, plan, g);
    }
}

/* True if more permits are about to come, and it is better to wait for them: one request then serves several batches. */
static bool more_comes(struct mixer *self)
{
    bool idle = true, comes = false;
    for (uint32_t p = 0; p < self->n_parts; p++)
        idle = idle && !part_expected(&self->parts[p]) && !(self->parts[p].needed && self->parts[p].rows);
    for (uint32_t g = 0; g < self->n_groups; g++)
        comes = comes || (self->groups[g].out && plans_want(self, g, PLAN_DRAWN) > self->groups[g].stock);
    return comes && !idle;
}

/* True if items come that an earlier distinct batch did without: they are kept apart from those of the next. */
static bool earlier_come(const struct mixer *self)
{
    for (uint32_t p = 0; p < self->n_parts; p++)
        if (is_fresh(&self->parts[p]) && part_expected(&self->parts[p]))
            return true;
    return false;
}

void plans_pay(struct mixer *self)
{
    if (more_comes(self))
        return;
    for (uint64_t at = self->build; at < self->tail; at++) {
        struct plan *plan = plan_at(self, at);
        if (self->options.distinct && at > self->build)
            return; /* the items of one request are distinct, and no others: a batch at a time */
        if (plan->state != PLAN_DRAWN)
            continue;
        if (earlier_come(self))
            return;
        for (uint32_t g = 0; g < self->n_groups; g++)
            if (!group_pays(self, plan, g, at == self->build))
                return;
        for (uint32_t g = 0; g < self->n_groups; g++)
            take_permits(self, plan, g);
        pay(self, plan);
    }
}

/* ---- items that a part cannot give ---- */

bool plans_redraw(struct mixer *self, struct part *part, uint64_t count)
{
    struct group *group = &self->groups[part->group];
    uint32_t p = (uint32_t)(part - self->parts);
    double others = 0;
    for (uint32_t q = group->first; q < group->first + group->n; q++)
        others += q == p ? 0 : part_weight(&self->parts[q]);
    if (!(others > 0) || part_weight(part) > 0)
        return false;
    for (uint64_t at = self->tail; at > self->build && count > 0; at--) {
        struct plan *plan = plan_at(self, at - 1);
        uint32_t moved = plan->need[p] < count ? plan->need[p] : (uint32_t)count;
        if (plan->state != PLAN_PAID || moved == 0)
            continue;
        double share = plan->share[p] * moved / plan->need[p]; /* goes to the others with the items */
        plan->share[p] -= share;
        plan->need[p] -= moved;
        part->needed -= moved;
        count -= moved;
        uint32_t drawn = draw_parts(self, plan, group, moved, share);
        if (drawn < moved)
            plan_shrink(self, plan, part->group, moved - drawn);
    }
    return true;
}

/* A plan does without items of a part. */
static void excuse(struct mixer *self, struct plan *plan, struct part *part, uint32_t count)
{
    plan->need[part - self->parts] -= count;
    part->needed -= count;
    plan_shrink(self, plan, part->group, count);
}

void plans_excuse(struct mixer *self, struct part *part, uint64_t count)
{
    for (uint64_t at = self->tail; at > self->build && count > 0; at--) {
        struct plan *plan = plan_at(self, at - 1);
        uint32_t need = plan->state == PLAN_PAID ? plan->need[part - self->parts] : 0;
        uint32_t less = need < count ? need : (uint32_t)count;
        excuse(self, plan, part, less);
        count -= less;
    }
}

uint64_t group_rows(const struct mixer *self, const struct group *group)
{
    uint64_t rows = 0;
    for (uint32_t p = group->first; p < group->first + group->n; p++)
        rows += self->parts[p].rows;
    return rows;
}

/* Returns how many items a group gives to a plan that is not paid: for the permits that there are, or the rows that are spare. */
static uint64_t offer_drawn(const struct mixer *self, const struct group *group, uint32_t want)
{
    uint64_t spare = group_spare(self, group), paid = self->ending && spare > group->stock ? spare : group->stock;
    uint64_t have = group_has_items(self, group, self->options.whole ? want : 0) ? want : spare;
    if (group->deal == DEAL_PERMITS && have > paid)
        have = paid;
    return self->options.whole && have < want ? 0 : have;
}

uint32_t plan_offer(const struct mixer *self, const struct plan *plan, uint32_t g)
{
    const struct group *group = &self->groups[g];
    uint32_t want = plan->of_group[g];
    uint64_t have = 0;
    if (is_dealt(group->deal) && plan->state == PLAN_DRAWN)
        have = offer_drawn(self, group, want);
    else if (is_dealt(group->deal))
        for (uint32_t p = group->first; p < group->first + group->n; p++)
            have += plan->need[p] < self->parts[p].rows ? plan->need[p] : self->parts[p].rows;
    else if (group->deal != DEAL_UNKNOWN)
        have = group_rows(self, group);
    return have < want ? (uint32_t)have : want;
}

bool plan_has_some(const struct mixer *self, const struct plan *plan)
{
    for (uint32_t g = 0; g < self->n_groups; g++)
        if (plan->of_group[g] && !plan_offer(self, plan, g))
            return false;
    return true;
}

/* The plan waits for the limiter, or for items: it gets what there is. */
static void hurry_drawn(struct mixer *self, struct plan *plan)
{
    for (uint32_t g = 0; g < self->n_groups; g++) {
        bool asked = self->groups[g].deal == DEAL_QUEUE || self->groups[g].deal == DEAL_PLAIN;
        uint32_t have = asked ? plan->of_group[g] : plan_offer(self, plan, g);
        if (plan->of_group[g] > have)
            plan_shrink(self, plan, g, plan->of_group[g] - have);
    }
    pay(self, plan);
}

/* The plan gets what its parts have given. */
static void hurry_paid(struct mixer *self, struct plan *plan, bool asked)
{
    for (uint32_t p = 0; p < self->n_parts; p++) {
        struct part *part = &self->parts[p];
        bool waits = self->groups[part->group].deal == DEAL_PLAIN || asked; /* others were not asked yet */
        if (waits && plan->need[p] > part->rows) {
            excuse(self, plan, part, plan->need[p] - (uint32_t)part->rows);
            if (is_fresh(part) && !part->removes)
                part_forget(part);
        }
    }
    for (uint32_t g = 0; g < self->n_groups; g++) {
        uint64_t rows = group_rows(self, &self->groups[g]);
        if (self->groups[g].deal == DEAL_QUEUE && plan->of_group[g] > rows)
            plan_shrink(self, plan, g, plan->of_group[g] - (uint32_t)rows);
    }
}

/* Returns the number of groups that a plan wants items from. */
static uint32_t groups_wanted(const struct mixer *self, const struct plan *plan)
{
    uint32_t n = 0;
    for (uint32_t g = 0; g < self->n_groups; g++)
        n += plan->of_group[g] > 0;
    return n;
}

bool plans_hurry(struct mixer *self)
{
    struct plan *plan = plan_at(self, self->build);
    uint32_t wanted = groups_wanted(self, plan);
    bool asked = plan->state == PLAN_PAID;
    if (!asked)
        hurry_drawn(self, plan);
    hurry_paid(self, plan, asked);
    return groups_wanted(self, plan) == wanted && !(self->options.whole && plan->missing);
}

bool plans_hurry_call(struct mixer *self)
{
    const struct plan *plan = plan_at(self, self->build);
    if (self->build == self->tail)
        return true;
    plans_hurry(self);
    if (plan->count > plan->missing && !(self->options.whole && plan->missing))
        return true;
    plans_drop(self); /* what a whole batch lacks is waited for, and its items are kept */
    return false;
}

void plans_drop(struct mixer *self)
{
    for (uint64_t at = self->build; at < self->tail; at++)
        for (uint32_t g = 0; g < self->n_groups; g++)
            if (plan_at(self, at)->state == PLAN_PAID && self->groups[g].deal == DEAL_PERMITS)
                self->groups[g].stock += plan_at(self, at)->of_group[g];
    self->tail = self->build;
    self->asked = 0;
    for (uint32_t p = 0; p < self->n_parts; p++) {
        struct part *part = &self->parts[p];
        part->needed = part->excused = 0;
        if (is_fresh(part) && !part->removes)
            part_drop_rows(part);
    }
}
