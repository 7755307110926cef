/* How many batches are under way, and how many of their items each group gives. */
#include <string.h>

#include "agent/client/sampler/mixer_impl.h"
#include "agent/client/sampler/shares.h"

/* Returns the items that come late, in addition to those that plans want: they count for max_samples, which is exact. */
static uint64_t late_items(const struct mixer *self)
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
static uint32_t next_count(const struct mixer *self)
{
    uint64_t max = self->options.max_samples, planned = self->got + self->asked + (max ? late_items(self) : 0);
    if (self->stopping || self->tail - self->head >= self->window)
        return 0;
    bool one = self->options.on_demand || self->ending; /* plan at a time */
    if ((self->options.on_demand && !self->wanted) || (one && self->build < self->tail))
        return 0;
    if (self->ending) { /* what is left */
        uint64_t left = 0;
        for (uint32_t g = 0; g < self->n_groups; g++)
            left += group_left(self, &self->groups[g]);
        return left < self->options.batch_size ? (uint32_t)left : self->options.batch_size;
    }
    if (max && planned >= max)
        return 0;
    return !max || max - planned > self->options.batch_size ? self->options.batch_size : (uint32_t)(max - planned);
}

/* Draws how many items of a plan each group gives; if the stream ends, those that are left. */
static void draw_groups(struct mixer *self, struct plan *plan, uint32_t count)
{
    double *shares = self->room + self->n_parts;
    for (uint32_t g = 0; g < self->n_groups; g++) {
        uint64_t left = self->ending ? group_left(self, &self->groups[g]) : 0;
        shares[g] = self->groups[g].share;
        plan->of_group[g] = left < count ? (uint32_t)left : count;
        count -= plan->of_group[g];
    }
    if (!self->ending)
        shares_draw(&self->rng, shares, self->n_groups, count, plan->of_group, self->room);
}

static void draw(struct mixer *self, uint32_t count, int64_t now_ns)
{
    struct plan *plan = plan_at(self, self->tail++);
    plan->state = PLAN_DRAWN;
    plan->count = self->ending ? self->options.batch_size : count;
    plan->missing = plan->count - count;
    plan->drawn_ns = now_ns;
    plan->waited_ns = 0;
    memset(plan->need, 0, self->n_parts * sizeof *plan->need);
    memset(plan->share, 0, self->n_parts * sizeof *plan->share);
    draw_groups(self, plan, count);
    self->asked += count;
}

static uint32_t least_window(const struct mixer *self)
{
    uint32_t ahead = LEAST_AHEAD * self->widest, wanted = self->options.in_flight;
    ahead = ahead > wanted ? ahead : wanted;
    return ahead < self->capacity ? ahead : self->capacity;
}

/* A burst asks each part for about a batch or more, and several bursts are under way at once: while one is picked, another is sent,
 * and another decoded. */
static uint32_t burst_size(const struct mixer *self)
{
    uint32_t burst = self->window / 8 > self->widest ? self->window / 8 : self->widest;
    return burst < self->window / 2 ? burst : self->window / 2;
}

bool plans_due(const struct mixer *self)
{
    uint64_t used = self->tail - self->head, room = self->window > used ? self->window - used : 0;
    return room >= 1 && room >= burst_size(self);
}

/* Returns how many batches the limiters of a group could pay for, half of the way between their bounds. */
static uint32_t payable(const struct mixer *self, const struct group *group)
{
    double width = 0;
    for (uint32_t p = group->first; p < group->first + group->n; p++)
        width += self->parts[p].buffer;
    double batches = width / 2 / (self->options.batch_size * group->share);
    bool bound = group->deal == DEAL_PERMITS && width > 0; /* 0: the limiters have not both bounds */
    return !bound || !(batches < self->capacity) ? self->capacity : (uint32_t)batches;
}

void plans_set_most(struct mixer *self, uint64_t batch_bytes)
{
    uint64_t most = batch_bytes ? AHEAD_BYTES / batch_bytes : self->capacity;
    for (uint32_t g = 0; g < self->n_groups; g++)
        most = payable(self, &self->groups[g]) < most ? payable(self, &self->groups[g]) : most;
    self->most = most < self->capacity ? (uint32_t)most : self->capacity;
}

void plans_note_wait(struct mixer *self)
{
    const struct plan *front = plan_at(self, self->head);
    bool comes = self->head < self->tail && front->state != PLAN_DRAWN;
    for (uint32_t g = 0; g < self->n_groups && comes && front->state == PLAN_PAID; g++)
        if (self->groups[g].deal == DEAL_QUEUE)
            comes = group_comes(self, &self->groups[g]);
    self->waits += comes;
}

/* Lets more batches be under way while the caller waits for them, and fewer while it never does. */
static void set_window(struct mixer *self)
{
    uint32_t least = least_window(self), most = self->most > least ? self->most : least;
    if (2 * self->waits > burst_size(self))
        self->window += (self->window + 3) / 4;
    else if (self->waits == 0)
        self->window -= (self->window + 15) / 16;
    self->waits = 0;
    self->window = self->window < least ? least : self->window > most ? most : self->window;
}

void plans_draw(struct mixer *self, int64_t now_ns)
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
