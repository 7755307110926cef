/* Plans: which batch gets how many items from where. */
#include <string.h>

#include "agent/client/sampler/mixer_impl.h"
#include "agent/client/sampler/shares.h"
#include "proto/base/error.h"

double part_weight(const struct part *self)
{
    return self->known && !self->away && self->size ? self->mass : 0;
}

static bool is_dealt(enum deal deal)
{
    return deal == DEAL_PERMITS || deal == DEAL_MASS;
}

/* True if each distinct batch needs items that were asked for it alone: those of another could come twice. A queue gives each once. */
static bool is_fresh(const struct part *self)
{
    return self->mixer->options.distinct && self->known && self->deal != DEAL_QUEUE;
}

uint64_t plans_want(struct mixer *self, uint32_t group, enum plan_state state)
{
    uint64_t sum = 0;
    for (uint64_t at = self->build; at < self->tail; at++)
        if (plan_at(self, at)->state == state)
            sum += plan_at(self, at)->of_group[group];
    return sum;
}

/* True if a part that has items was asked for them and has not answered. */
static bool queue_comes(const struct mixer *self, const struct group *group)
{
    for (uint32_t p = group->first; p < group->first + group->n; p++)
        for (const struct pick *pick = self->parts[p].asked.first; pick && !self->parts[p].away; pick = pick->next)
            if (pick->sure || pick->arrived)
                return true;
    return false;
}

/* ---- drawing ---- */

/* Returns how many items the next batch has; 0: no batch now. */
static uint32_t next_count(const struct mixer *self)
{
    uint64_t max = self->options.max_samples, planned = self->got + self->asked;
    if (self->stopping || self->ending || self->tail - self->head >= self->window)
        return 0;
    if (self->options.on_demand && (!self->wanted || self->build < self->tail))
        return 0;
    if (max && planned >= max)
        return 0;
    return !max || max - planned > self->options.batch_size ? self->options.batch_size : (uint32_t)(max - planned);
}

static void draw(struct mixer *self, uint32_t count, int64_t now_ns)
{
    struct plan *plan = plan_at(self, self->tail++);
    plan->state = PLAN_DRAWN;
    plan->count = count;
    plan->missing = 0;
    plan->drawn_ns = now_ns;
    plan->waited_ns = 0;
    memset(plan->of_group, 0, self->n_groups * sizeof *plan->of_group);
    memset(plan->need, 0, self->n_parts * sizeof *plan->need);
    memset(plan->share, 0, self->n_parts * sizeof *plan->share);
    for (uint32_t g = 0; g < self->n_groups; g++)
        self->room[self->n_parts + g] = self->groups[g].share;
    shares_draw(&self->rng, self->room + self->n_parts, self->n_groups, count, plan->of_group, self->room);
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
    return group->deal != DEAL_PERMITS || !(batches < self->capacity) ? self->capacity : (uint32_t)batches;
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
            comes = queue_comes(self, &self->groups[g]);
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

/* ---- paying ---- */

/* True if parts of the group can give items, `want` different ones if they are to be distinct, and all that are there have told their
 * masses. */
static bool group_has_items(const struct mixer *self, const struct group *group, uint32_t want)
{
    double mass = 0;
    uint64_t size = 0, min_size = 0;
    for (uint32_t p = group->first; p < group->first + group->n; p++) {
        mass += part_weight(&self->parts[p]);
        if (!self->parts[p].known && !self->parts[p].away)
            return false;
        if (!self->parts[p].away) {
            size += self->parts[p].size;
            min_size += self->parts[p].min_size;
        }
    }
    bool enough = !self->options.distinct || self->options.flexible || size >= want;
    return mass > 0 && enough && (group->deal != DEAL_MASS || size >= min_size);
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

/* The plan does without some items; what was paid for them is there again. */
static void shrink(struct mixer *self, struct plan *plan, uint32_t group, uint32_t count)
{
    if (plan->state == PLAN_PAID && self->groups[group].deal == DEAL_PERMITS)
        self->groups[group].stock += count;
    plan->of_group[group] -= count;
    plan->missing += count;
    self->asked -= count;
}

/* With `flexible`, a plan takes the permits that there are. */
static bool group_pays(struct mixer *self, struct plan *plan, uint32_t g, bool front)
{
    struct group *group = &self->groups[g];
    uint32_t want = plan->of_group[g];
    if (group->deal == DEAL_UNKNOWN)
        return false;
    if (!is_dealt(group->deal) || want == 0)
        return true;
    if (!group_has_items(self, group, want))
        return false;
    if (group->deal == DEAL_MASS || group->stock >= want)
        return true;
    if (!front || !self->options.flexible || group->stock == 0 || !is_starved(self, group))
        return false;
    shrink(self, plan, g, want - (uint32_t)group->stock);
    return true;
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

static void pay(struct mixer *self, struct plan *plan)
{
    int64_t now = conn_now();
    plan->state = PLAN_PAID;
    for (uint32_t g = 0; g < self->n_groups; g++) {
        struct group *group = &self->groups[g];
        uint32_t want = plan->of_group[g];
        if (group->deal == DEAL_PLAIN) {
            plan->need[group->first] = want;
            plan->share[group->first] = group->share;
            self->parts[group->first].needed += want;
        } else if (is_dealt(group->deal) && want) {
            group->stock -= group->deal == DEAL_PERMITS ? want : 0;
            plan->waited_ns = group->deal == DEAL_PERMITS ? now - plan->drawn_ns : plan->waited_ns;
            uint32_t drawn = draw_parts(self, plan, group, want, group->share);
            if (drawn < want)
                shrink(self, plan, g, want - drawn);
        }
    }
}

/* True if more permits are about to come, and it is better to wait for them: one request then serves several batches. */
static bool more_comes(struct mixer *self)
{
    bool idle = true, comes = false;
    for (uint32_t p = 0; p < self->n_parts; p++)
        idle = idle && !self->parts[p].outstanding && !self->parts[p].rows;
    for (uint32_t g = 0; g < self->n_groups; g++)
        comes = comes || (self->groups[g].out && plans_want(self, g, PLAN_DRAWN) > self->groups[g].stock);
    return comes && !idle;
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
        for (uint32_t g = 0; g < self->n_groups; g++)
            if (!group_pays(self, plan, g, at == self->build))
                return;
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
            shrink(self, plan, part->group, moved - drawn);
    }
    return true;
}

/* A plan does without items of a part. */
static void excuse(struct mixer *self, struct plan *plan, struct part *part, uint32_t count)
{
    plan->need[part - self->parts] -= count;
    part->needed -= count;
    shrink(self, plan, part->group, count);
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

/* Returns the rows that are there for a group. */
static uint64_t group_rows(const struct mixer *self, const struct group *group)
{
    uint64_t rows = 0;
    for (uint32_t p = group->first; p < group->first + group->n; p++)
        rows += self->parts[p].rows;
    return rows;
}

/* The plan waits for the limiter: it gets the permits that there are. */
static void hurry_drawn(struct mixer *self, struct plan *plan)
{
    for (uint32_t g = 0; g < self->n_groups; g++) {
        struct group *group = &self->groups[g];
        uint64_t have = group->deal == DEAL_PERMITS ? group->stock : plan->of_group[g];
        if (is_dealt(group->deal) && !group_has_items(self, group, self->options.whole ? plan->of_group[g] : 0))
            have = 0;
        if (group->deal == DEAL_UNKNOWN || self->options.whole)
            have = have < plan->of_group[g] || group->deal == DEAL_UNKNOWN ? 0 : have;
        if (plan->of_group[g] > have)
            shrink(self, plan, g, plan->of_group[g] - (uint32_t)have);
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
            if (is_fresh(part))
                part_forget(part);
        }
    }
    for (uint32_t g = 0; g < self->n_groups; g++) {
        uint64_t rows = group_rows(self, &self->groups[g]);
        if (self->groups[g].deal == DEAL_QUEUE && plan->of_group[g] > rows)
            shrink(self, plan, g, plan->of_group[g] - (uint32_t)rows);
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
        return true; /* what a whole batch lacks is waited for, and its items are kept */
    plans_drop(self);
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
        if (is_fresh(part))
            part_drop_rows(part);
    }
}

/* ---- building ---- */

static bool is_complete(const struct mixer *self, const struct plan *plan)
{
    for (uint32_t p = 0; p < self->n_parts; p++)
        if (plan->need[p] > self->parts[p].rows)
            return false;
    for (uint32_t g = 0; g < self->n_groups; g++)
        if (self->groups[g].deal == DEAL_QUEUE && group_rows(self, &self->groups[g]) < plan->of_group[g])
            return false;
    return true;
}

/* With `flexible`, a plan takes the items that are in the queues now. */
static void take_what_is_there(struct mixer *self, struct plan *plan)
{
    for (uint32_t g = 0; g < self->n_groups && self->options.flexible; g++) {
        const struct group *group = &self->groups[g];
        uint64_t rows = group->deal == DEAL_QUEUE ? group_rows(self, group) : 0;
        if (rows && rows < plan->of_group[g] && !queue_comes(self, group))
            shrink(self, plan, g, plan->of_group[g] - (uint32_t)rows);
    }
}

bool plans_wait_no_more(struct mixer *self)
{
    struct plan *plan = plan_at(self, self->build);
    return self->build < self->tail && plan->state == PLAN_PAID && (self->options.flexible || is_complete(self, plan));
}

/* Lets the parts of a queue give its items, the fullest first, so that none of them grows old. */
static void deal_queue(struct mixer *self, struct plan *plan, const struct group *group, uint32_t count)
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

static void finish_batches(struct mixer *self, struct plan *plan)
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
        if (!batch->text[0] && several)
            strcpy(batch->text, "the items of the batch do not all have the same fields");
        else if (!batch->text[0] && plan->missing)
            mixer_explain(self, batch->text, sizeof batch->text);
    }
    if (!self->options.on_demand)
        plans_set_most(self, bytes);
}

void plan_finish(struct mixer *self, struct plan *plan)
{
    rp_batch *batches = plan->join ? batch_join_finish(&plan->join) : NULL;
    pthread_mutex_lock(&self->lock);
    plan->batches = batches;
    if (batches)
        finish_batches(self, plan);
    plan->state = PLAN_READY;
    pthread_mutex_unlock(&self->lock);
    pthread_cond_signal(&self->ready);
}

/* Gives back what was dealt out of queues: it is dealt again at the next try. */
static void take_back(struct mixer *self, struct plan *plan)
{
    for (uint32_t p = 0; p < self->n_parts; p++) {
        if (self->groups[self->parts[p].group].deal != DEAL_QUEUE)
            continue;
        self->parts[p].needed -= plan->need[p];
        plan->need[p] = 0;
    }
}

/* Finds the rows of a plan, and a place in a batch for each. */
static rp_status prepare(struct mixer *self, struct plan *plan, rp_error *err)
{
    uint32_t pieces = 0;
    for (uint32_t g = 0; g < self->n_groups; g++)
        if (self->groups[g].deal == DEAL_QUEUE)
            deal_queue(self, plan, &self->groups[g], plan->of_group[g]);
    for (uint32_t p = 0; p < self->n_parts; p++) {
        struct copy *copy = &plan->copies[p];
        *copy = (struct copy){.plan = plan, .first = pieces, .rows = plan->need[p]};
        if (copy->rows && !part_peek(&self->parts[p], copy->rows, plan->share[p], &pieces))
            return err_set(err, RP_NO_MEMORY, "no memory to put a batch together");
        copy->n = pieces - copy->first;
    }
    struct batch_join_options options = {.beta = self->options.beta,
                                         .max_bytes = self->options.max_bytes,
                                         .sources = self->n_sources > 1,
                                         .shards = self->n_shards > 1};
    pthread_mutex_unlock(&self->lock);
    rp_status status = batch_join_new(self->pool, self->rows, pieces, &options, &plan->join, err);
    pthread_mutex_lock(&self->lock);
    return status;
}

/* Lets all parts copy their rows into the front batch. False: no memory; the caller gets the error, and it is tried again. */
static bool deal(struct mixer *self, struct plan *plan)
{
    rp_error error = {0};
    rp_status status = prepare(self, plan, &error);
    if (status != RP_OK)
        self->error = error;
    if (status == RP_NO_MEMORY) {
        self->stalled = true;
        take_back(self, plan);
        return false;
    }
    plan->left = 0;
    for (uint32_t p = 0; p < self->n_parts; p++) {
        self->parts[p].needed -= plan->need[p];
        plan->left += plan->need[p] > 0;
    }
    for (uint32_t p = 0; p < self->n_parts; p++)
        if (plan->need[p])
            part_deal(&self->parts[p], &plan->copies[p]);
    return true;
}

void plans_build(struct mixer *self)
{
    while (self->build < self->tail && !self->stalled) {
        struct plan *plan = plan_at(self, self->build);
        if (plan->state == PLAN_PAID)
            take_what_is_there(self, plan);
        if (plan->state != PLAN_PAID || !is_complete(self, plan))
            break;
        bool empty = plan->count == plan->missing;
        if (!empty && !deal(self, plan))
            break;
        plan->state = empty ? PLAN_READY : PLAN_DEALT;
        if (!empty) {
            self->last_ns = conn_now();
            self->late = false;
        }
        self->asked -= plan->count - plan->missing;
        self->got += plan->join ? plan->count - plan->missing : 0;
        self->build++;
        self->news = self->news || self->build < self->tail; /* plans that wait for permits may be paid now */
        for (uint32_t p = 0; p < self->n_parts && self->inlined; p++)
            while (part_copy(&self->parts[p]))
                ;
    }
    for (uint32_t p = 0; p < self->n_parts; p++) /* once for all batches: waking a thread costs more than a copy */
        if (self->parts[p].copies)
            pthread_cond_signal(&self->parts[p].work);
    pthread_cond_signal(&self->ready);
}
