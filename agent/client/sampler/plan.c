/* See sampler.h. */
#include "agent/client/sampler/sampler.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "proto/base/error.h"
#include "proto/base/text.h"

#define AHEAD_BYTES (UINT64_C(64) << 20)
/* However many batches the caller wants ahead, their replies take no more: as much as a broker lets a client leave unread. */
#define MOST_AHEAD_BYTES (UINT64_C(256) << 20)

/* ---- draws: the counts of a multinomial distribution ---- */

static double usable(double weight)
{
    return weight > 0 && isfinite(weight) ? weight : 0;
}

/* Returns the first index whose sum is above `at`. Without branches: half of them would be predicted wrongly. */
static uint32_t find(const double *sums, uint32_t n, double at)
{
    uint32_t low = 0;
    while (n > 1) {
        uint32_t half = n / 2;
        low += sums[low + half - 1] > at ? 0 : half;
        n -= half;
    }
    return low;
}

/* Draws `count` times an index below n, with probabilities in proportion to the weights, and adds to counts how often each was drawn.
 * Weights that are not positive and finite count as 0. room: working memory for n numbers. False: all weights are 0, and nothing
 * was drawn. */
static bool shares_draw(struct rng *rng, const double *weights, uint32_t n, uint32_t count, uint32_t *counts,
                        double *room)
{
    double sum = 0;
    uint32_t last = 0; /* with a weight: rounding must not lead to one without */
    for (uint32_t i = 0; i < n; i++) {
        sum += usable(weights[i]);
        room[i] = sum;
        last = usable(weights[i]) > 0 ? i : last;
    }
    if (!(sum > 0) || !isfinite(sum))
        return false;
    if (n == 1)
        counts[0] += count;
    for (uint32_t k = 0; k < count && n > 1; k++) {
        uint32_t drawn = find(room, n, rng_unit(rng) * sum);
        counts[drawn < last ? drawn : last]++;
    }
    return true;
}

/* The same without replacement: index i stands for sizes[i] things with equal shares of its weight, and each thing is drawn at most
 * once. Returns how many were drawn: fewer than count if there are no more things. */
static uint32_t shares_draw_distinct(struct rng *rng, const double *weights, const uint64_t *sizes, uint32_t n,
                                     uint32_t count, uint32_t *counts)
{
    for (uint32_t k = 0; k < count; k++) {
        double sum = 0;
        for (uint32_t i = 0; i < n; i++)
            if (counts[i] < sizes[i])
                sum += usable(weights[i]) * (1 - (double)counts[i] / (double)sizes[i]);
        double at = rng_unit(rng) * sum;
        uint32_t drawn = n;
        for (uint32_t i = 0; i < n && at >= 0; i++) {
            double left = counts[i] < sizes[i] ? usable(weights[i]) * (1 - (double)counts[i] / (double)sizes[i]) : 0;
            if (left > 0) {
                drawn = i;
                at -= left;
            }
        }
        if (drawn == n)
            return k;
        counts[drawn]++;
    }
    return count;
}

/* Makes items of groups that were drawn. */
static void multiply(uint32_t *counts, uint32_t n, uint32_t unit)
{
    for (uint32_t i = 0; i < n && unit > 1; i++)
        counts[i] *= unit;
}

/* Returns the items of the groups that are whole. */
static uint64_t whole_groups(const struct rp_sampler *self, uint64_t items)
{
    return self->unit > 1 ? items - items % self->unit : items;
}

/* ---- what parts and groups have ---- */

static bool is_dealt(enum deal deal)
{
    return deal == DEAL_PERMITS || deal == DEAL_MASS;
}

/* True if each distinct batch needs items that were asked for it alone: those of another could come twice. A queue gives each
 * once. */
static bool is_fresh(const struct part *self)
{
    return self->sampler->options.distinct && self->known && self->deal != DEAL_QUEUE;
}

/* Returns the rows that no plan needs and that exist nowhere else; for distinct batches, those of one pick. */
static uint64_t part_spare(const struct part *self)
{
    uint64_t spare = self->removes && self->rows > self->needed ? self->rows - self->needed : 0;
    uint32_t first = spare && self->sampler->options.distinct ? part_first_rows(self) : UINT32_MAX;
    return spare < first ? spare : first;
}

static uint64_t group_spare(const struct rp_sampler *self, const struct group *group)
{
    uint64_t sum = 0;
    for (uint32_t p = group->first; p < group->first + group->n; p++)
        sum += part_spare(&self->parts[p]);
    return sum;
}

uint64_t plans_want(const struct rp_sampler *self, uint32_t group, enum plan_state state)
{
    uint64_t sum = 0;
    for (uint64_t at = self->build; at < self->tail; at++)
        if (plan_at(self, at)->state == state)
            sum += plan_at(self, at)->of_group[group];
    return sum;
}

/* Returns the rows of a part that no plan needs and that may exist nowhere else. */
static uint64_t part_left(const struct part *self)
{
    return part_is_last(self) && self->rows > self->needed ? self->rows - self->needed : 0;
}

uint64_t plans_left(const struct rp_sampler *self)
{
    uint64_t sum = 0;
    for (uint32_t p = 0; p < self->n_parts; p++)
        sum += part_left(&self->parts[p]);
    return sum;
}

/* True if a part of the group had items when it was asked for some, and has not answered. */
static bool group_comes(const struct rp_sampler *self, const struct group *group)
{
    for (uint32_t p = group->first; p < group->first + group->n; p++)
        if (part_comes(&self->parts[p]))
            return true;
    return false;
}

/* ---- paying ---- */

/* Adds up the parts of a group that are there. False: some of them have not told their masses. */
static bool group_sum(const struct rp_sampler *self, const struct group *group, struct group_sum *out)
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
static bool has_enough(const struct rp_sampler *self, const struct group *group, const struct group_sum *sum,
                       uint32_t want)
{
    bool enough = !self->options.distinct || self->flexible || sum->size >= want;
    return sum->mass > 0 && enough && (group->deal != DEAL_MASS || sum->size >= sum->min_size);
}

static bool group_has_items(const struct rp_sampler *self, const struct group *group, uint32_t want)
{
    struct group_sum sum;
    return !self->ending && group_sum(self, group, &sum) && has_enough(self, group, &sum, want);
}

uint32_t group_lacks(const struct rp_sampler *self, uint32_t g, struct group_sum *out)
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
static bool is_starved(const struct rp_sampler *self, const struct group *group)
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

/* The plan does without some items; what was paid for them is there again. */
static void plan_shrink(struct rp_sampler *self, struct plan *plan, uint32_t group, uint32_t count)
{
    if (plan->state == PLAN_PAID && self->groups[group].deal == DEAL_PERMITS)
        self->groups[group].stock += count;
    plan->of_group[group] -= count;
    plan->missing += count;
    self->asked -= count;
}

/* True if a group could pay its items of a plan; with `flexible`, the front plan also does with fewer. */
static bool group_pays(struct rp_sampler *self, const struct plan *plan, uint32_t g, bool front)
{
    struct group *group = &self->groups[g];
    uint32_t want = plan->of_group[g];
    if (group->deal == DEAL_UNKNOWN)
        return false;
    if (!is_dealt(group->deal) || want == 0)
        return true;
    uint64_t spare = group_spare(self, group);
    bool enough = spare >= want || (spare && (self->flexible || self->options.distinct));
    if (!enough && !group_has_items(self, group, want))
        return false;
    if (group->deal == DEAL_MASS || group->stock >= want)
        return true;
    return front && self->flexible && group->stock >= self->unit && is_starved(self, group);
}

/* Draws which parts of a group give `count` items of a plan, which stand for a share of all. Returns how many were drawn. */
static uint32_t draw_parts(struct rp_sampler *self, struct plan *plan, const struct group *group, uint32_t count,
                           double share)
{
    uint32_t drawn = 0, *counts = self->counts;
    double *weights = self->room + self->n_parts, sum = 0;
    memset(counts, 0, group->n * sizeof *counts);
    for (uint32_t i = 0; i < group->n; i++) {
        weights[i] = part_weight(&self->parts[group->first + i]);
        self->sizes[i] = self->parts[group->first + i].size / self->unit;
        sum += weights[i];
    }
    if (!(sum > 0))
        return 0; /* no part can give items */
    if (self->options.distinct)
        drawn =
            self->unit * shares_draw_distinct(&self->rng, weights, self->sizes, group->n, count / self->unit, counts);
    else if (shares_draw(&self->rng, weights, group->n, count / self->unit, counts, self->room))
        drawn = count;
    multiply(counts, group->n, self->unit);
    for (uint32_t i = 0; i < group->n; i++) {
        plan->share[group->first + i] += share * weights[i] / sum;
        plan->need[group->first + i] += counts[i];
        self->parts[group->first + i].needed += counts[i];
    }
    return drawn;
}

/* Gives a plan the spare rows of a group. Each stands for a share of all items. */
static void take_spare(struct rp_sampler *self, struct plan *plan, const struct group *group, uint32_t count,
                       double share)
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
static void pay_group(struct rp_sampler *self, struct plan *plan, uint32_t g)
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

static void pay(struct rp_sampler *self, struct plan *plan)
{
    int64_t now = clock_ns();
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
static bool more_comes(struct rp_sampler *self)
{
    bool idle = true, comes = false;
    for (uint32_t p = 0; p < self->n_parts; p++)
        idle = idle && !part_expected(&self->parts[p]) && !(self->parts[p].needed && self->parts[p].rows);
    for (uint32_t g = 0; g < self->n_groups; g++)
        comes = comes || (self->groups[g].out && plans_want(self, g, PLAN_DRAWN) > self->groups[g].stock);
    return comes && !idle;
}

/* True if items come that an earlier distinct batch did without: they are kept apart from those of the next. */
static bool earlier_come(const struct rp_sampler *self)
{
    for (uint32_t p = 0; p < self->n_parts; p++)
        if (is_fresh(&self->parts[p]) && part_expected(&self->parts[p]))
            return true;
    return false;
}

void plans_pay(struct rp_sampler *self)
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
        for (uint32_t g = 0; g < self->n_groups; g++) { /* the plan does with the permits that there are */
            const struct group *group = &self->groups[g];
            if (group->deal == DEAL_PERMITS && group->stock < plan->of_group[g])
                plan_shrink(self, plan, g, plan->of_group[g] - (uint32_t)whole_groups(self, group->stock));
        }
        pay(self, plan);
    }
}

/* ---- items that a part cannot give ---- */

bool plans_redraw(struct rp_sampler *self, struct part *part, uint64_t count)
{
    const struct group *group = part->group;
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
            plan_shrink(self, plan, (uint32_t)(part->group - self->groups), moved - drawn);
    }
    return true;
}

/* A plan does without items of a part. */
static void excuse(struct rp_sampler *self, struct plan *plan, struct part *part, uint32_t count)
{
    plan->need[part - self->parts] -= count;
    part->needed -= count;
    plan_shrink(self, plan, (uint32_t)(part->group - self->groups), count);
}

void plans_excuse(struct rp_sampler *self, struct part *part, uint64_t count)
{
    for (uint64_t at = self->tail; at > self->build && count > 0; at--) {
        struct plan *plan = plan_at(self, at - 1);
        uint32_t need = plan->state == PLAN_PAID ? plan->need[part - self->parts] : 0;
        uint32_t less = need < count ? need : (uint32_t)count;
        excuse(self, plan, part, less);
        count -= less;
    }
}

/* Returns the rows that are there for a group. */
static uint64_t group_rows(const struct rp_sampler *self, const struct group *group)
{
    uint64_t rows = 0;
    for (uint32_t p = group->first; p < group->first + group->n; p++)
        rows += self->parts[p].rows;
    return rows;
}

/* Returns how many items a group gives to a plan that is not paid: for the permits that there are, or the rows that are spare. */
static uint64_t offer_drawn(const struct rp_sampler *self, const struct group *group, uint32_t want)
{
    uint64_t spare = group_spare(self, group), paid = self->ending && spare > group->stock ? spare : group->stock;
    uint64_t have = group_has_items(self, group, self->whole ? want : 0) ? want : spare;
    if (group->deal == DEAL_PERMITS && have > paid)
        have = paid;
    return self->whole && have < want ? 0 : have;
}

/* Returns how many items a plan gets from a group if it waits no longer. */
static uint32_t plan_offer(const struct rp_sampler *self, const struct plan *plan, uint32_t g)
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
    return have < want ? (uint32_t)whole_groups(self, have) : want;
}

bool plan_has_some(const struct rp_sampler *self, const struct plan *plan)
{
    for (uint32_t g = 0; g < self->n_groups; g++)
        if (plan->of_group[g] && !plan_offer(self, plan, g))
            return false;
    return true;
}

/* Returns the number of groups that a plan wants items from. */
static uint32_t groups_wanted(const struct rp_sampler *self, const struct plan *plan)
{
    uint32_t n = 0;
    for (uint32_t g = 0; g < self->n_groups; g++)
        n += plan->of_group[g] > 0;
    return n;
}

bool plans_hurry(struct rp_sampler *self)
{
    struct plan *plan = plan_at(self, self->build);
    uint32_t wanted = groups_wanted(self, plan);
    bool paid = plan->state == PLAN_PAID;
    for (uint32_t g = 0; g < self->n_groups && !paid;
         g++) { /* it waits for the limiter, or for items: it gets what there is */
        bool asked = self->groups[g].deal == DEAL_QUEUE || self->groups[g].deal == DEAL_PLAIN;
        uint32_t have = asked ? plan->of_group[g] : plan_offer(self, plan, g);
        if (plan->of_group[g] > have)
            plan_shrink(self, plan, g, plan->of_group[g] - have);
    }
    if (!paid)
        pay(self, plan);
    for (uint32_t p = 0; p < self->n_parts; p++) { /* and then what its parts have given */
        struct part *part = &self->parts[p];
        bool waits = part->group->deal == DEAL_PLAIN || paid; /* others were not asked yet */
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
    return groups_wanted(self, plan) == wanted && !(self->whole && plan->missing);
}

void plans_drop(struct rp_sampler *self)
{
    if (self->alone)
        return; /* each plan has a request of its own, which is answered */
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

/* ---- how many plans there are ---- */

int64_t plans_timeout_ms(const struct rp_sampler *self, int64_t timeout_ms)
{
    int64_t end = self->options.on_demand ? self->deadline_ns : plans_end_ns(self);
    int64_t left = conn_left_ms(end);
    return left >= 0 && (timeout_ms < 0 || left < timeout_ms) ? left : timeout_ms;
}

/* Returns the items that come late, in addition to those that plans want: they count for max_samples, which is exact. */
static uint64_t late_items(const struct rp_sampler *self)
{
    uint64_t sum = 0;
    for (uint32_t p = 0; p < self->n_parts; p++) {
        const struct part *part = &self->parts[p];
        uint64_t wanted = part->needed > part->rows ? part->needed - part->rows : 0;
        if (part->removes && part->deal != DEAL_QUEUE && part->outstanding > wanted)
            sum += part->outstanding - wanted;
    }
    return sum;
}

/* Returns how many items the next batch has; 0: no batch now. */
static uint32_t next_count(const struct rp_sampler *self)
{
    uint64_t max = self->options.max_samples, planned = self->got + self->asked + (max ? late_items(self) : 0);
    if (self->stopping || (self->stop && !self->ending) || self->tail - self->head >= self->window)
        return 0;
    bool one = self->options.on_demand || self->ending; /* plan at a time */
    if ((self->options.on_demand && !self->wanted) || (one && self->build < self->tail))
        return 0;
    if (self->ending) { /* what is left */
        uint64_t left = plans_left(self);
        return left < self->options.batch_size ? (uint32_t)left : self->options.batch_size;
    }
    if (max && planned >= max)
        return 0;
    uint64_t left = max ? (max - planned + self->unit - 1) / self->unit * self->unit : UINT64_MAX;
    return left > self->options.batch_size ? self->options.batch_size : (uint32_t)left;
}

/* Draws how many items of a plan each group gives; if the stream ends, those that are left. */
static void draw_groups(struct rp_sampler *self, struct plan *plan, uint32_t count)
{
    double *shares = self->room + self->n_parts;
    for (uint32_t g = 0; g < self->n_groups; g++) {
        uint64_t left = 0;
        for (uint32_t i = 0; i < self->groups[g].n && self->ending; i++)
            left += part_left(&self->parts[self->groups[g].first + i]);
        shares[g] = self->groups[g].share;
        plan->of_group[g] = left < count ? (uint32_t)left : count;
        count -= plan->of_group[g];
    }
    if (!self->ending)
        shares_draw(&self->rng, shares, self->n_groups, count / self->unit, plan->of_group, self->room);
    if (!self->ending)
        multiply(plan->of_group, self->n_groups, self->unit);
}

static struct plan *draw(struct rp_sampler *self, uint32_t count, int64_t now_ns)
{
    struct plan *plan = plan_at(self, self->tail++);
    self->asked += count;
    if (self->alone) {
        plan->state = PLAN_DEALT;
        plan->count = count;
        self->build = self->tail;
        return plan;
    }
    plan->state = PLAN_DRAWN;
    plan->count = self->ending ? self->options.batch_size : count;
    plan->missing = plan->count - count;
    plan->drawn_ns = now_ns;
    plan->waited_ns = 0;
    memset(plan->need, 0, self->n_parts * sizeof *plan->need);
    memset(plan->share, 0, self->n_parts * sizeof *plan->share);
    draw_groups(self, plan, count);
    return plan;
}

/* A burst asks each part for about a batch or more, and several bursts are under way at once: while one is picked, another is sent,
 * and another decoded. Alone, a burst is half of the window: it wakes the threads of both sides once, while the other half can be taken. */
static uint32_t burst_size(const struct rp_sampler *self)
{
    uint32_t burst = self->window / 8 > self->widest ? self->window / 8 : self->widest, half = self->window / 2;
    return burst < half && !self->alone ? burst : half;
}

bool plans_due(const struct rp_sampler *self)
{
    uint64_t used = self->tail - self->head, room = self->window > used ? self->window - used : 0;
    return room >= 1 && room >= burst_size(self);
}

/* Returns how many batches the limiters of a group could pay for, half of the way between their bounds. */
static uint32_t payable(const struct rp_sampler *self, const struct group *group)
{
    double width = 0;
    for (uint32_t p = group->first; p < group->first + group->n; p++)
        width += self->parts[p].buffer;
    double batches = width / 2 / (self->options.batch_size * group->share);
    bool bound = group->deal == DEAL_PERMITS && width > 0; /* 0: the limiters have not both bounds */
    return !bound || !(batches < self->capacity) ? self->capacity : (uint32_t)batches;
}

void plans_note_wait(struct rp_sampler *self)
{
    const struct plan *front = plan_at(self, self->head);
    bool comes = self->head < self->tail && front->state != PLAN_DRAWN;
    for (uint32_t g = 0; g < self->n_groups && comes && front->state == PLAN_PAID; g++)
        if (self->groups[g].deal == DEAL_QUEUE)
            comes = group_comes(self, &self->groups[g]);
    self->waits += comes;
}

/* Returns how many of n batches may be ahead: at least one. */
static uint32_t ahead_fitting(const struct rp_sampler *self, uint32_t n)
{
    uint64_t batch = self->item_bytes * self->options.batch_size, fit = batch ? MOST_AHEAD_BYTES / batch : n;
    return fit >= n ? n : fit ? (uint32_t)fit : 1;
}

/* Lets more batches be under way while the caller waits for them, and fewer while it never does. */
static void set_window(struct rp_sampler *self)
{
    uint32_t ahead = LEAST_AHEAD * self->widest, wanted = self->options.in_flight,
             least = ahead > wanted ? ahead : wanted;
    least = least < self->capacity ? least : self->capacity;
    uint32_t most = self->most > least ? self->most : least;
    if (2 * self->waits > burst_size(self))
        self->window += (self->window + 3) / 4;
    else if (self->waits == 0)
        self->window -= (self->window + 15) / 16;
    self->waits = 0;
    self->window = self->window < least ? least : self->window > most ? most : self->window;
    self->window = ahead_fitting(self, self->window);
}

void plans_draw(struct rp_sampler *self, int64_t now_ns)
{
    if (!plans_due(self))
        return;
    if (!self->options.on_demand)
        set_window(self);
    if (self->build == self->tail)
        self->last_ns = now_ns; /* a stream without requests has not waited */
    for (uint32_t count; (count = next_count(self)) > 0;) {
        self->late = false; /* each plan is asked for once, even if the time-out is 0 */
        draw(self, count, now_ns);
    }
}

/* ---- a sampler alone ---- */

void plans_ask(struct rp_sampler *self)
{
    struct part *part = &self->parts[0];
    if (part->retry_ns && clock_ns() >= part->retry_ns)
        part->retry_ns = 0;
    if (self->sending || part->retry_ns || !plans_due(self))
        return;
    int64_t now = clock_ns();
    self->sending = true; /* requests leave in the order of their plans */
    self->window = ahead_fitting(self, self->capacity);
    for (uint32_t count; !part->retry_ns && (count = next_count(self)) > 0;) {
        if (self->asked == 0)
            self->last_ns = now; /* a stream without requests has not waited */
        struct plan *plan = draw(self, count, now);
        if (part_ask(part, count, now, plans_timeout_ms(self, -1), plan))
            continue;
        self->tail--; /* no memory */
        self->build--;
        self->asked -= count;
        part->retry_ns = now + RETRY_NS;
    }
    self->sending = false;
}

/* ---- what a batch waits for ---- */

/* How much longer than it should an answer may take before a time-out names the broker. */
#define LATE_NS (100 * NS_PER_MS)

static bool is_missing(const struct part *part)
{
    return part->away || !part->known || part_is_late(part, LATE_NS);
}

/* Writes "shards 1, 2 and 3" of the parts of a group that are missing, or of the others. Returns how many. */
static uint32_t name_parts(const struct rp_sampler *self, const struct group *group, bool missing, char *out,
                           size_t size)
{
    uint32_t n = 0, at = 0;
    for (uint32_t p = group->first; p < group->first + group->n; p++)
        n += is_missing(&self->parts[p]) == missing;
    for (uint32_t p = group->first; p < group->first + group->n; p++) {
        const struct part *part = &self->parts[p];
        if (is_missing(part) != missing)
            continue;
        const char *before = at == 0 ? (n > 1 ? "shards " : "shard ") : at + 1 == n ? " and " : ", ";
        if (self->n_shards > 1)
            text_append(out, size, "%s%u", before, part->shard);
        else
            text_append(out, size, "%s'%s'", at == 0 ? (n > 1 ? "tables " : "table ") : before, part->table);
        at++;
    }
    return n;
}

/* Adds what the limiter of the first broker that is there lacks: what it says is about its own part of the table. */
static void explain_limiter(const struct rp_sampler *self, const struct group *group, char *out, size_t size)
{
    for (uint32_t p = group->first; p < group->first + group->n; p++) {
        const struct part *part = &self->parts[p];
        if (part->why[0] == '\0' || (group->deal != DEAL_PLAIN && is_missing(part)))
            continue;
        if (self->n_shards > 1)
            text_append(out, size, "shard %u: ", part->shard);
        text_append(out, size, "%s; ", part->why);
        return;
    }
}

/* Adds what keeps brokers that answer from giving a group's items. */
static void explain_group(const struct rp_sampler *self, const struct group *group, char *out, size_t size)
{
    const struct plan *plan = self->build < self->tail ? plan_at(self, self->build) : NULL;
    uint64_t room = group->stock, want = plan ? plan->of_group[group - self->groups] : self->options.batch_size;
    const char *table = self->parts[group->first].table, *where = "";
    struct group_sum sum;
    group_sum(self, group, &sum);
    for (uint32_t p = group->first; p < group->first + group->n; p++)
        room += self->parts[p].away ? 0 : self->parts[p].room;
    /* What is known of a plain group's broker is its state at the start. */
    uint32_t missing = group->deal != DEAL_PLAIN ? name_parts(self, group, true, out, size) : 0;
    if (missing) {
        text_append(out, size, " %s not answer; ", missing > 1 ? "do" : "does");
        where = " on the shards that answer";
    } else if (self->n_shards > 1) {
        where = " on all shards";
    }
    if (plan && plan->state != PLAN_DRAWN && group->deal == DEAL_PERMITS)
        return; /* it has its permits, and waits for the items */
    if (group->deal == DEAL_PERMITS && room < want) {
        uint32_t there = name_parts(self, group, false, out, size);
        if (there)
            text_append(out, size, " %s room for %llu of %llu samples; ", there > 1 ? "have" : "has",
                        (unsigned long long)room, (unsigned long long)want);
    } else if (group->deal == DEAL_MASS && sum.size < sum.min_size) {
        text_append(out, size, "table '%s' has %llu items%s, min_size is %llu; ", table, (unsigned long long)sum.size,
                    where, (unsigned long long)sum.min_size);
        return;
    } else if (sum.size == 0 && group->deal != DEAL_PLAIN) {
        text_append(out, size, "table '%s' is empty%s", table, where);
        if (group_rows(self, group))
            text_append(out, size, ", and %llu of %llu items are here", (unsigned long long)group_rows(self, group),
                        (unsigned long long)want);
        text_append(out, size, "; ");
        return;
    } else if (self->options.distinct && sum.size < want && group->deal != DEAL_PLAIN) {
        text_append(out, size, "table '%s' has %llu items%s, and a batch of %llu is without replacement; ", table,
                    (unsigned long long)sum.size, where, (unsigned long long)want);
    }
    explain_limiter(self, group, out, size);
}

void plans_explain(const struct rp_sampler *self, char *out, size_t size)
{
    out[0] = '\0';
    for (uint32_t g = 0; g < self->n_groups; g++)
        explain_group(self, &self->groups[g], out, size);
    size_t used = strlen(out);
    if (used > 2)
        out[used - 2] = '\0'; /* the last "; " */
    else
        snprintf(out, size, "the broker%s not answered yet", self->alone ? " has" : "s have");
}

/* ---- batches whose items are there ---- */

static bool is_complete(const struct rp_sampler *self, const struct plan *plan)
{
    for (uint32_t p = 0; p < self->n_parts; p++)
        if (plan->need[p] > self->parts[p].rows)
            return false;
    for (uint32_t g = 0; g < self->n_groups; g++)
        if (self->groups[g].deal == DEAL_QUEUE && group_rows(self, &self->groups[g]) < plan->of_group[g])
            return false;
    return true;
}

/* Lets a plan take rows of part q, which are there for later plans, instead of those that part p cannot give. */
static void exchange(struct rp_sampler *self, struct plan *plan, uint32_t p, uint32_t q)
{
    uint64_t lack = plan->need[p] - self->parts[p].rows;
    uint64_t more = self->parts[q].rows > plan->need[q] ? self->parts[q].rows - plan->need[q] : 0;
    uint32_t n = (uint32_t)(lack < more ? lack : more);
    double share = plan->share[p] * n / plan->need[p];
    plan->share[p] -= share;
    plan->share[q] += share;
    plan->need[p] -= n;
    plan->need[q] += n;
    self->parts[p].needed -= n;
    self->parts[q].needed += n;
}

/* Items that nobody gives now are replaced by rows of the same group that are there: no row waits for a later plan. */
static void gather(struct rp_sampler *self, struct plan *plan)
{
    for (uint32_t p = 0; p < self->n_parts && !self->options.distinct; p++) {
        const struct part *part = &self->parts[p];
        const struct group *group = part->group;
        bool owes = self->options.max_samples && part->outstanding; /* with others there would be too many */
        if (plan->need[p] <= part->rows || part_comes(part) || owes)
            continue;
        for (uint32_t q = group->first; q < group->first + group->n && plan->need[p] > part->rows; q++)
            exchange(self, plan, p, q);
    }
}

/* With `flexible`, the next plan takes what is there, if nothing more is about to come. */
static void take_what_is_there(struct rp_sampler *self, const struct plan *plan)
{
    for (uint32_t g = 0; g < self->n_groups; g++)
        if (plan_offer(self, plan, g) < plan->of_group[g] && group_comes(self, &self->groups[g]))
            return;
    if (plan_has_some(self, plan))
        plans_hurry(self);
}

bool plans_wait_no_more(const struct rp_sampler *self)
{
    struct plan *plan = plan_at(self, self->build);
    return self->build < self->tail && plan->state == PLAN_PAID && (self->flexible || is_complete(self, plan));
}

/* Lets the parts of a queue give its items, the fullest first, so that none of them grows old. */
static void deal_queue(struct rp_sampler *self, struct plan *plan, const struct group *group, uint32_t count)
{
    while (count) {
        uint32_t best = group->first;
        for (uint32_t p = group->first; p < group->first + group->n; p++)
            if (self->parts[p].rows - plan->need[p] > self->parts[best].rows - plan->need[best])
                best = p;
        uint64_t left = self->parts[best].rows - plan->need[best];
        uint32_t part = left < count ? (uint32_t)left : count;
        plan->need[best] += part;
        plan->share[best] = group->share;
        self->parts[best].needed += part;
        count -= part;
    }
}

/* Fills in what batches say of the whole, and sets how many plans there may be at most: more if batches are small, never more than the
 * limiters can grant. */
static void finish_batches(struct rp_sampler *self, struct plan *plan)
{
    uint64_t size = 0, bytes = 0;
    for (uint32_t p = 0; p < self->n_parts; p++)
        size += self->parts[p].size;
    bool several = plan->batches && plan->batches->next;
    for (rp_batch *batch = plan->batches; batch; batch = batch->next) {
        batch->info.table_size = size;
        batch->info.waited_ns += (uint64_t)plan->waited_ns;
        for (uint32_t f = 0; f < batch->info.n_fields; f++)
            bytes += batch->fields[f].bytes;
        batch->info.partial = plan->missing > 0 || several;
        if (!batch->text[0] && plan->missing)
            plans_explain(self, batch->text, sizeof batch->text);
    }
    if (self->options.on_demand)
        return;
    uint64_t most = bytes ? AHEAD_BYTES / bytes : self->capacity;
    for (uint32_t g = 0; g < self->n_groups; g++)
        most = payable(self, &self->groups[g]) < most ? payable(self, &self->groups[g]) : most;
    self->most = most < self->capacity ? (uint32_t)most : self->capacity;
}

/* Finds the rows of a plan, and a place in a batch for each. */
static rp_status prepare(struct rp_sampler *self, struct plan *plan)
{
    struct batch_pieces *pieces = &self->pieces;
    pieces->n = 0;
    for (uint32_t g = 0; g < self->n_groups; g++)
        if (self->groups[g].deal == DEAL_QUEUE)
            deal_queue(self, plan, &self->groups[g], plan->of_group[g]);
    for (uint32_t p = 0; p < self->n_parts; p++) {
        struct copy *copy = &plan->copies[p];
        *copy = (struct copy){.plan = plan, .first = pieces->n, .rows = plan->need[p]};
        double share = plan->share[p] < 1 ? plan->share[p] : 1; /* a sum may be rounded up */
        if (copy->rows && !part_peek(&self->parts[p], copy->rows, share, pieces))
            return err_set(&plan->error, RP_NO_MEMORY, "no memory to put a batch together");
        copy->n = pieces->n - copy->first;
    }
    struct batch_join_options options = {.beta = self->options.beta,
                                         .max_bytes = self->options.max_bytes,
                                         .sources = self->n_sources > 1,
                                         .shards = self->n_shards > 1,
                                         .packed = self->tokens != NULL};
    pthread_mutex_unlock(&self->lock);
    rp_status status = batch_join_new(self->pool, pieces->rows, pieces->n, &options, &plan->join, &plan->error);
    pthread_mutex_lock(&self->lock);
    return status;
}

/* Lets all parts copy their rows into the front batch. False: no memory; the caller gets the error, and it is tried again. */
static bool deal(struct rp_sampler *self, struct plan *plan)
{
    plan->error.status = RP_OK;
    if (prepare(self, plan) == RP_NO_MEMORY) {
        self->error = plan->error;
        self->stalled = true;
        for (uint32_t p = 0; p < self->n_parts; p++) {
            if (self->parts[p].group->deal != DEAL_QUEUE)
                continue; /* what was dealt out of queues is dealt again at the next try */
            self->parts[p].needed -= plan->need[p];
            plan->need[p] = 0;
        }
        return false;
    }
    plan->left = 0;
    for (uint32_t p = 0; p < self->n_parts; p++)
        plan->left += plan->need[p] > 0;
    for (uint32_t p = 0; p < self->n_parts; p++) {
        struct part *part = &self->parts[p];
        struct copy *copy = &plan->copies[p];
        if (!plan->need[p])
            continue;
        part->needed -= copy->rows;
        part->rows -= copy->rows;
        part->dealt += copy->rows;
        *part->copies_end = copy;
        part->copies_end = &copy->next;
    }
    return true;
}

bool plans_copy(struct rp_sampler *self, struct part *part)
{
    struct copy *copy = part->copies;
    uint32_t rows = 0;
    if (!copy)
        return false;
    part->copies = NULL;
    part->copies_end = &part->copies;
    pthread_mutex_unlock(&self->lock);
    while (copy) {
        struct plan *plan = copy->plan;
        for (uint32_t i = copy->first; i < copy->first + copy->n && plan->join; i++)
            batch_join_copy(plan->join, i);
        rows += copy->rows;
        copy = copy->next;
        if (__atomic_sub_fetch(&plan->left, 1, __ATOMIC_ACQ_REL) != 0)
            continue; /* the plan belongs to others now */
        rp_batch *batches = plan->join ? batch_join_finish(&plan->join) : NULL;
        pthread_mutex_lock(&self->lock);
        plan->batches = batches;
        if (batches)
            finish_batches(self, plan);
        plan->state = PLAN_READY;
        pthread_mutex_unlock(&self->lock);
        pthread_cond_signal(&self->ready);
    }
    struct pick_list empty = TAILQ_HEAD_INITIALIZER(empty);
    pthread_mutex_lock(&self->lock);
    part_consume(part, rows, &empty);
    if (TAILQ_EMPTY(&empty))
        return true;
    pthread_mutex_unlock(&self->lock); /* a large message is not freed at once */
    pick_list_free(&empty);
    pthread_mutex_lock(&self->lock);
    return true;
}

void plans_build(struct rp_sampler *self)
{
    bool dealt = false;
    while (self->build < self->tail && !self->stalled) {
        struct plan *plan = plan_at(self, self->build);
        if (plan->state == PLAN_PAID && !is_complete(self, plan)) {
            gather(self, plan);
            if (self->flexible)
                take_what_is_there(self, plan);
        }
        if (plan->state != PLAN_PAID || !is_complete(self, plan))
            break;
        bool empty = plan->count == plan->missing;
        if (!empty && !deal(self, plan))
            break;
        if (empty)
            plan->error.status = RP_OK;
        plan->state = empty ? PLAN_READY : PLAN_DEALT;
        dealt = dealt || !empty;
        self->asked -= plan->count - plan->missing;
        self->got += plan->join ? plan->count - plan->missing : 0;
        self->build++;
        self->news = self->news || self->build < self->tail; /* plans that wait for permits may be paid now */
        for (uint32_t p = 0; p < self->n_parts && self->inlined; p++)
            while (plans_copy(self, &self->parts[p]))
                ;
    }
    const struct plan *front = plan_at(self, self->build);
    bool more = dealt && self->late && self->build < self->tail && front->state == PLAN_PAID;
    if (dealt && !(more && plan_has_some(self, front))) { /* when the time is over, all plans get what is there */
        self->last_ns = clock_ns();
        self->late = false;
    }
    for (uint32_t p = 0; p < self->n_parts; p++) /* once for all batches: waking a thread costs more than a copy */
        if (self->parts[p].copies)
            pthread_cond_signal(&self->parts[p].work);
    pthread_cond_signal(&self->ready);
}
