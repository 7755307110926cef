/* The caller's side of a mixer: waits for batches and takes them. */
#include "agent/client/sampler/mixer_impl.h"
#include "proto/base/error.h"

/* How long before the caller's deadline the brokers are asked why there is no sample. */
#define ASK_WHY_NS (200 * NS_PER_MS)
/* How long on_demand waits for answers that are due. */
#define GRACE_NS (2 * NS_PER_S)
/* How long it waits for the answers to cancels when the caller has ended the wait. */
#define STOP_NS (100 * NS_PER_MS)

static bool has_ended(const struct mixer *self)
{
    uint64_t left = 0;
    for (uint32_t g = 0; g < self->n_groups && self->ending; g++)
        left += group_left(self, &self->groups[g]);
    bool over = self->ending && !left && !mixer_is_owed(self, false) && !mixer_is_owed(self, true);
    return self->head == self->tail && (over || (self->options.max_samples && self->got >= self->options.max_samples));
}

/* Skips batches without items. */
static bool has_batch(struct mixer *self)
{
    while (self->head < self->build && plan_at(self, self->head)->state == PLAN_READY &&
           !plan_at(self, self->head)->batches) {
        self->head++;
        mixer_wake(self); /* there is room for another plan */
    }
    return self->head < self->build && plan_at(self, self->head)->state == PLAN_READY;
}

static void ask_why(struct mixer *self)
{
    for (uint32_t p = 0; p < self->n_parts; p++)
        part_ask_why(&self->parts[p]);
}

/* Waits until there is something to take; false: the deadline has passed, or the caller has ended the wait. */
static bool wait_for_batch(struct mixer *self, int64_t timeout_ms)
{
    int64_t deadline = conn_deadline(timeout_ms), ask_at = INT64_MAX;
    bool waited = false;
    if (timeout_ms > 0 && deadline != INT64_MAX) {
        int64_t early = (deadline - conn_now()) / 4;
        ask_at = deadline - (early < ASK_WHY_NS ? early : ASK_WHY_NS);
    }
    for (;;) {
        int64_t wake = self->inlined ? mixer_step(self) : INT64_MAX;
        if (has_batch(self) || self->error.status != RP_OK || has_ended(self))
            return true;
        if (!waited)
            plans_note_wait(self);
        waited = true;
        int64_t now = conn_now();
        if (now >= deadline)
            return false;
        if (now >= ask_at) {
            ask_at = INT64_MAX;
            ask_why(self);
            continue;
        }
        wake = wake < deadline ? wake : deadline;
        if (wake > now && !(self->inlined && self->news) &&
            !conn_wait(mixer_conn(self), &self->ready, &self->lock, ask_at < wake ? ask_at : wake) && conn_is_stopped())
            return false;
    }
}

/* on_demand: leaves nothing in flight. If the time is over, the batch does with what there is. */
static void settle(struct mixer *self)
{
    int64_t end = conn_now() + GRACE_NS;
    bool dropped = false;
    uint32_t hurries = 0; /* the first may ask for items, and the second takes what has come */
    self->wanted = false;
    while (conn_now() < end) {
        int64_t wake = mixer_step(self);
        if (self->stalled)
            return; /* no memory: the caller learns it now, and the next call goes on */
        bool quiet = mixer_is_quiet(self);
        if (quiet && (has_batch(self) || self->build == self->tail || dropped || self->error.status != RP_OK))
            return;
        if (quiet && !self->news && hurries < 2) {
            hurries++;
            dropped = !plans_hurry_call(self);
        } else if (!self->news)
            conn_wait(mixer_conn(self), &self->ready, &self->lock, wake < end ? wake : end);
    }
    plans_drop(self);
    for (uint32_t p = 0; p < self->n_parts; p++)
        part_abandon(&self->parts[p]);
}

/* on_demand: the caller has ended the wait. Items that are on their way and exist nowhere else are kept for the next call. */
static void settle_now(struct mixer *self)
{
    int64_t end = conn_now() + STOP_NS;
    self->wanted = false;
    plans_drop(self);
    for (uint32_t p = 0; p < self->n_parts; p++) {
        part_abandon(&self->parts[p]);
        if (self->groups[self->parts[p].group].deal == DEAL_PLAIN) /* others answer soon, or keep the items for later */
            part_recall(&self->parts[p]);
    }
    do
        mixer_step(self);
    while (!mixer_is_quiet(self) && conn_now() < end && conn_wait(mixer_conn(self), &self->ready, &self->lock, end));
}

static rp_status give_error(struct mixer *self, rp_error *err)
{
    rp_status status = err_set(err, (rp_status)self->error.status, "%s", self->error.text);
    self->error = (rp_error){0};
    if (self->stalled) {
        self->stalled = false;
        for (uint32_t p = 0; p < self->n_parts; p++)
            pthread_cond_signal(&self->parts[p].work);
    }
    mixer_wake(self);
    return status;
}

static rp_status give_batch(struct mixer *self, rp_batch **batch)
{
    struct plan *plan = plan_at(self, self->head);
    *batch = batch_list_take(&plan->batches);
    self->stats.batches++;
    self->stats.items += (*batch)->info.n;
    if (!plan->batches) {
        self->head++;
        if (self->inlined || plans_due(self))
            mixer_wake(self);
    }
    return RP_OK;
}

static rp_status timed_out(struct mixer *self, int64_t timeout_ms, rp_error *err)
{
    char why[256];
    mixer_explain(self, why, sizeof why);
    return err_set(err, RP_DEADLINE_EXCEEDED, "no batch from table '%s' within %lld ms: %s",
                   self->parts[0].source.table, (long long)timeout_ms, why);
}

static rp_status ended(const struct mixer *self, rp_error *err)
{
    if (self->ending)
        return err_set(err, RP_END_OF_STREAM, "%s", self->end_text);
    return err_set(err, RP_END_OF_STREAM, "all of the %llu samples asked for were given",
                   (unsigned long long)self->options.max_samples);
}

rp_status mixer_next(struct mixer *self, rp_batch **batch, int64_t timeout_ms, rp_error *err)
{
    rp_status status;
    if (timeout_ms == 0)
        conn_look(mixer_conn(self));
    pthread_mutex_lock(&self->lock);
    self->wanted = true;
    self->deadline_ns = conn_deadline(timeout_ms);
    bool got = wait_for_batch(self, timeout_ms), stopped = !got && conn_is_stopped();
    if (self->options.on_demand && stopped)
        settle_now(self);
    else if (self->options.on_demand && (!got || !mixer_is_quiet(self))) {
        settle(self);
        got = got || has_batch(self) || self->error.status != RP_OK;
    }
    self->wanted = false;
    if (!got)
        status = stopped ? conn_stopped(err) : timed_out(self, timeout_ms, err);
    else if (has_batch(self))
        status = give_batch(self, batch);
    else if (self->error.status != RP_OK)
        status = give_error(self, err);
    else
        status = ended(self, err);
    pthread_mutex_unlock(&self->lock);
    return status;
}

void mixer_stop(struct mixer *self)
{
    pthread_mutex_lock(&self->lock);
    self->stop = true; /* plans and requests belong to the thread that plans, which may be in the middle of one */
    mixer_wake(self);
    pthread_mutex_unlock(&self->lock);
}

void mixer_get_stats(struct mixer *self, rp_sampler_stats *out)
{
    pthread_mutex_lock(&self->lock);
    *out = self->stats;
    for (uint64_t at = self->head; at < self->tail; at++)
        if (plan_at(self, at)->state == PLAN_READY)
            out->ready++;
        else
            out->requested++;
    pthread_mutex_unlock(&self->lock);
}
