#include "agent/run/claim.h"

#include <time.h>

#include "agent/run/stop.h"
#include "agent/run/worker.h"
#include "proto/base/error.h"

/* Duration of a block: many round trips, but short enough that counted and taken steps hardly differ. */
#define BLOCK_NS (10 * NS_PER_MS)
/* A block is at most this part of each actor's share of the remaining steps. */
#define PARTS_LEFT 8
#define MOST_STEPS (UINT64_C(1) << 20)
/* Time between two checks of the stop flag. */
#define POLL_MS 200
#define GIVE_BACK_MS 500
/* Time between two additions to the counter of taken steps. */
#define TELL_NS (100 * NS_PER_MS)
/* Steps are given back only while this many times as many remain for all actors. */
#define FAR_FROM_END 16

void claim_init(struct claim *self, const struct claim_options *options)
{
    *self = (struct claim){.options = *options};
    if (self->options.least == 0)
        self->options.least = 1;
    if (self->options.sharers == 0)
        self->options.sharers = 1;
}

void claim_init_actor(struct claim *self, rp_client *client, const struct run_config *config, uint32_t environments,
                      const atomic_bool *stop)
{
    uint64_t part = (uint64_t)config->actors.pull_every;
    claim_init(self, &(struct claim_options){.client = client,
                                             .counter = COUNTER_STEPS,
                                             .taken = COUNTER_TAKEN,
                                             .clock = clock_system(),
                                             .limit = config->stop.steps,
                                             .least = part > environments ? part : environments,
                                             .sharers = run_config_actors(config),
                                             .stop = stop});
}

static uint64_t left_to_all(const struct claim *self)
{
    if (self->options.limit == 0)
        return UINT64_MAX;
    return self->seen < self->options.limit ? (uint64_t)(self->options.limit - self->seen) : 0;
}

/* Adds steps that were taken to their counter. */
static void tell_taken(struct claim *self, uint64_t taken)
{
    int64_t value = 0;
    if (!self->options.taken || taken <= self->told || self->begun_ns - self->told_ns < TELL_NS ||
        (self->telling && rp_counter_end(&self->telling, 0, &value, NULL) == RP_DEADLINE_EXCEEDED))
        return;
    self->told_ns = self->begun_ns;
    self->telling = rp_counter_begin(self->options.client, self->options.taken, (int64_t)(taken - self->told), NULL);
    if (self->telling)
        self->told = taken;
}

static void tell_last(struct claim *self)
{
    int64_t value = 0;
    if (self->telling)
        (void)rp_counter_end(&self->telling, GIVE_BACK_MS, &value, NULL);
    rp_counter_forget(&self->telling);
    if (self->options.taken && self->handed > self->told)
        rp_counter_add(self->options.client, self->options.taken, (int64_t)(self->handed - self->told), GIVE_BACK_MS,
                       NULL, NULL);
    self->told = self->handed;
}

void claim_fini(struct claim *self)
{
    tell_last(self);
    uint64_t unused = self->left;
    int64_t before = 0;
    if (self->ahead && rp_counter_end(&self->ahead, GIVE_BACK_MS, &before, NULL) == RP_OK)
        unused += self->asked;
    rp_counter_forget(&self->ahead);
    if (unused > 0 && left_to_all(self) / FAR_FROM_END / self->options.sharers >= unused)
        rp_counter_add(self->options.client, self->options.counter, -(int64_t)unused, GIVE_BACK_MS, NULL, NULL);
    self->left = 0;
}

/* The steps that BLOCK_NS allows at the speed of the previous block, and at most twice as many as that block had: it
 * may have been quick by chance. */
static void resize_block(struct claim *self, int64_t now_ns)
{
    int64_t lasted = now_ns - self->begun_ns;
    double steps = (double)self->block * (double)BLOCK_NS / (double)(lasted > 0 ? lasted : 1);
    double most = 2.0 * (double)self->block;
    steps = steps < most ? steps : most;
    self->size = steps > (double)MOST_STEPS ? MOST_STEPS : (uint64_t)steps;
}

static uint64_t next_size(const struct claim *self)
{
    uint64_t share = left_to_all(self) / PARTS_LEFT / self->options.sharers;
    uint64_t size = self->size < share ? self->size : share;
    return size > self->options.least ? size : self->options.least;
}

static rp_status begin(struct claim *self, rp_error *err)
{
    rp_error why = {0};
    /* The caller may not have taken the steps that it got last, nor some that do not fill a round of it. */
    uint64_t open = self->out + self->options.least;
    tell_taken(self, self->handed > open ? self->handed - open : 0);
    self->asked = next_size(self);
    self->ahead = rp_counter_begin(self->options.client, self->options.counter, (int64_t)self->asked, &why);
    return self->ahead ? RP_OK : err_set(err, (rp_status)why.status, "%s", why.text);
}

/* Returns the counter's value after the addition in flight. RP_DEADLINE_EXCEEDED, also while no broker answers: it may be
 * tried again. */
static rp_status await(struct claim *self, int64_t timeout_ms, int64_t *value, rp_error *err)
{
    if (!self->ahead)
        RP_TRY(begin(self, err));
    rp_status status = rp_counter_end(&self->ahead, timeout_ms, value, err);
    if (status != RP_UNAVAILABLE)
        return status;
    if (!self->ahead && timeout_ms > 0)
        nanosleep(&(struct timespec){.tv_sec = timeout_ms / 1000, .tv_nsec = timeout_ms % 1000 * NS_PER_MS}, NULL);
    return RP_DEADLINE_EXCEEDED;
}

/* Makes the claimed block the present one; gives back what is beyond the limit. */
static rp_status take_block(struct claim *self, int64_t timeout_ms, rp_error *err)
{
    int64_t limit = self->options.limit, after = 0, from = clock_now(&self->options.clock);
    rp_status status = await(self, timeout_ms, &after, err);
    int64_t now = clock_now(&self->options.clock), before = after - (int64_t)self->asked;
    self->wait_ns += (uint64_t)(now - from);
    if (status != RP_OK)
        return status;
    resize_block(self, now);
    self->begun_ns = now;
    self->claims++;
    self->left = self->asked;
    if (limit > 0 && after > limit) {
        self->full = true;
        self->left = before < limit ? (uint64_t)(limit - before) : 0;
        after -= (int64_t)(self->asked - self->left);
        rp_counter_add(self->options.client, self->options.counter, -(int64_t)(self->asked - self->left), GIVE_BACK_MS,
                       NULL, NULL);
    }
    self->full |= limit > 0 && after >= limit;
    self->seen = after;
    self->block = self->left;
    self->total = before > 0 ? (uint64_t)before : 0;
    return RP_OK;
}

rp_status claim_try(struct claim *self, uint64_t most, int64_t timeout_ms, struct claim_steps *out, rp_error *err)
{
    *out = (struct claim_steps){0};
    if (self->left == 0 && !self->full)
        RP_TRY(take_block(self, timeout_ms, err));
    *out = (struct claim_steps){.n = self->left < most ? self->left : most, .total = self->total};
    self->left -= out->n;
    self->total += out->n;
    self->handed += out->n;
    self->out = out->n;
    if (!self->ahead && !self->full && self->left <= self->block / 2)
        RP_TRY(begin(self, err));
    return RP_OK;
}

rp_status claim_next(struct claim *self, uint64_t most, uint64_t *n, uint64_t *total, rp_error *err)
{
    struct claim_steps steps;
    rp_status status = claim_try(self, most, POLL_MS, &steps, err);
    while (status == RP_DEADLINE_EXCEEDED && !is_stopped(self->options.stop))
        status = claim_try(self, most, POLL_MS, &steps, err);
    *n = steps.n;
    *total = steps.total;
    return status == RP_DEADLINE_EXCEEDED ? err_set(err, RP_CANCELLED, "stopped while no broker counted steps")
                                          : status;
}

void claim_return(struct claim *self, uint64_t n)
{
    self->left += n;
    self->total -= n;
    self->handed -= n;
}
