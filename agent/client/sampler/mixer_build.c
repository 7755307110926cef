/* Batches whose items are there are dealt out: each part copies its own. */
#include <string.h>

#include "agent/client/sampler/mixer_impl.h"
#include "proto/base/error.h"

static bool parts_have(const struct mixer *self, const struct plan *plan)
{
    for (uint32_t p = 0; p < self->n_parts; p++)
        if (plan->need[p] > self->parts[p].rows)
            return false;
    return true;
}

static bool is_complete(const struct mixer *self, const struct plan *plan)
{
    if (!parts_have(self, plan))
        return false;
    for (uint32_t g = 0; g < self->n_groups; g++)
        if (self->groups[g].deal == DEAL_QUEUE && group_rows(self, &self->groups[g]) < plan->of_group[g])
            return false;
    return true;
}

/* Lets a plan take rows of part q, which are there for later plans, instead of those that part p cannot give. */
static void exchange(struct mixer *self, struct plan *plan, uint32_t p, uint32_t q)
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
static void gather(struct mixer *self, struct plan *plan)
{
    for (uint32_t p = 0; p < self->n_parts && !self->options.distinct; p++) {
        const struct part *part = &self->parts[p];
        const struct group *group = &self->groups[part->group];
        bool owes = self->options.max_samples && part->outstanding; /* with others there would be too many */
        if (plan->need[p] <= part->rows || part_comes(part) || owes)
            continue;
        for (uint32_t q = group->first; q < group->first + group->n && plan->need[p] > part->rows; q++)
            exchange(self, plan, p, q);
    }
}

/* With `flexible`, the next plan takes what is there, if nothing more is about to come. */
static void take_what_is_there(struct mixer *self, const struct plan *plan)
{
    for (uint32_t g = 0; g < self->n_groups; g++)
        if (plan_offer(self, plan, g) < plan->of_group[g] && group_comes(self, &self->groups[g]))
            return;
    if (plan_has_some(self, plan))
        plans_hurry(self);
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
        double share = plan->share[p] < 1 ? plan->share[p] : 1; /* a sum may be rounded up */
        if (copy->rows && !part_peek(&self->parts[p], copy->rows, share, &pieces))
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
    bool dealt = false;
    while (self->build < self->tail && !self->stalled) {
        struct plan *plan = plan_at(self, self->build);
        if (plan->state == PLAN_PAID && !is_complete(self, plan)) {
            gather(self, plan);
            if (self->options.flexible)
                take_what_is_there(self, plan);
        }
        if (plan->state != PLAN_PAID || !is_complete(self, plan))
            break;
        bool empty = plan->count == plan->missing;
        if (!empty && !deal(self, plan))
            break;
        plan->state = empty ? PLAN_READY : PLAN_DEALT;
        dealt = dealt || !empty;
        self->asked -= plan->count - plan->missing;
        self->got += plan->join ? plan->count - plan->missing : 0;
        self->build++;
        self->news = self->news || self->build < self->tail; /* plans that wait for permits may be paid now */
        for (uint32_t p = 0; p < self->n_parts && self->inlined; p++)
            while (part_copy(&self->parts[p]))
                ;
    }
    const struct plan *front = plan_at(self, self->build);
    bool more = dealt && self->late && self->build < self->tail && front->state == PLAN_PAID;
    if (dealt && !(more && plan_has_some(self, front))) { /* when the time is over, all plans get what is there */
        self->last_ns = conn_now();
        self->late = false;
    }
    for (uint32_t p = 0; p < self->n_parts; p++) /* once for all batches: waking a thread costs more than a copy */
        if (self->parts[p].copies)
            pthread_cond_signal(&self->parts[p].work);
    pthread_cond_signal(&self->ready);
}
