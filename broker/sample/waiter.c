#include "broker/sample/waiter.h"

#include <stdio.h>
#include <stdlib.h>

#include "broker/loop/loop.h"
#include "broker/sample/samples.h"

#define PICK_AT_ONCE 256u
#define SPARE_WAITERS 64u
/* Most chunks of a reply: more would take too long. A batch is cut short there. */
#define CHUNKS_PER_REPLY (1u << 20)

struct waiter *waiter_new(struct samples *samples, struct table *table)
{
    struct waiter *self = samples->spare_waiters;
    if (self) {
        samples->spare_waiters = self->next;
        samples->n_spare_waiters--;
        struct picks picks = self->picks;
        *self = (struct waiter){.picks = picks};
    } else if (!(self = calloc(1, sizeof *self))) {
        return NULL;
    }
    self->samples = samples;
    self->table = table;
    return self;
}

void waiter_release(struct waiter *self)
{
    struct samples *samples = self->samples;
    picks_clear(&self->picks, samples);
    if (self->picks.capacity > 4 * PICK_AT_ONCE || self->picks.refs_capacity > 16 * PICK_AT_ONCE)
        picks_fini(&self->picks);
    if (samples->n_spare_waiters == SPARE_WAITERS) {
        picks_fini(&self->picks);
        free(self);
        return;
    }
    samples->n_spare_waiters++;
    self->next = samples->spare_waiters;
    samples->spare_waiters = self;
}

void waiter_enqueue(struct waiter *self)
{
    struct table *table = self->table;
    self->next = NULL;
    self->prev = table->waiters_end;
    *table->waiters_end = self;
    table->waiters_end = &self->next;
    table->n_waiters++;
    self->queued = true;
}

void waiter_unqueue(struct waiter *self)
{
    if (!self->queued)
        return;
    *self->prev = self->next;
    if (self->next)
        self->next->prev = self->prev;
    else
        self->table->waiters_end = self->prev;
    self->table->n_waiters--;
    self->queued = false;
}

static bool skip_picked(void *ctx, uint32_t slot)
{
    const struct waiter *self = ctx;
    return self->table->in.items[slot].stamp == self->stamp;
}

/* Prefetches what picks touch, stage by stage: everything is cold in a large table. Inlined always: gcc considers a function
 * that only prefetches to be without effect, and drops calls to it. */
static inline __attribute__((always_inline)) void prefetch_picks(const struct table *table, const uint32_t *slots,
                                                                 uint32_t n)
{
    for (uint32_t i = 0; i < n; i++)
        __builtin_prefetch(&table->in.items[slots[i]], 1);
    for (uint32_t i = 0; i < n; i++) {
        const struct span *span = &table->in.items[slots[i]].span;
        const char *chunk = (const char *)span_chunks(span)[0];
        __builtin_prefetch(chunk, 1);
        __builtin_prefetch(chunk + 64);
    }
}

/* Picks up to n items. Returns how many. */
static uint32_t waiter_take(struct waiter *self, uint32_t n)
{
    struct table *table = self->table;
    uint32_t slots[PICK_AT_ONCE];
    double probabilities[PICK_AT_ONCE];
    self->short_of_memory = !picks_reserve(&self->picks, n);
    if (self->short_of_memory)
        return 0;
    self->picks.table_size = table->in.size;
    const rp_selector_ops *ops = table->sampler_ops;
    uint32_t got = self->distinct ? ops->pick_distinct(table->in.sampler, n, skip_picked, self, slots, probabilities)
                                  : ops->pick(table->in.sampler, n, slots, probabilities);
    self->short_of_memory = got == RP_PICK_NO_MEMORY;
    if (self->short_of_memory)
        return 0;
    if (got > 1)
        prefetch_picks(table, slots, got);
    uint32_t refs = 0;
    for (uint32_t i = 0; i < got; i++)
        refs += table->in.items[slots[i]].span.n;
    self->short_of_memory = !picks_reserve_refs(&self->picks, refs);
    if (self->short_of_memory)
        return 0;
    for (uint32_t i = 0; i < got; i++) {
        if (!picks_add(&self->picks, table, slots[i], probabilities[i]))
            return i;
        if (self->distinct)
            table->in.items[slots[i]].stamp = self->stamp;
        self->picks.times_sampled[self->picks.n - 1]++;
        EFFECT(table->loop, pick, self, slots[i], probabilities[i]);
        table_sampled(table, slots[i]);
        if (self->picks.n_refs >= CHUNKS_PER_REPLY) {
            self->full = true;
            return i + 1;
        }
    }
    return got;
}

static void fill(struct waiter *self)
{
    struct table *table = self->table;
    if (self->whole && self->picks.n == 0 && table_sampleable(table, self->want) < self->want)
        return;
    while (self->picks.n < self->want && !self->full) {
        uint64_t n = table_sampleable(table, self->want - self->picks.n);
        if (table->one_by_one && n > 1)
            n = 1;
        if (n > PICK_AT_ONCE)
            n = PICK_AT_ONCE;
        if (n == 0 || waiter_take(self, (uint32_t)n) == 0)
            return;
    }
}

static void fill_paid(struct waiter *self)
{
    struct table *table = self->table;
    while (self->picks.n < self->want && !self->full && table->in.size) {
        uint32_t n = self->want - self->picks.n;
        uint32_t got = waiter_take(self, table->one_by_one ? 1 : n < PICK_AT_ONCE ? n : PICK_AT_ONCE);
        if (!waiter_is_counted(self))
            limiter_refund(&table->limiter, got);
        if (got == 0)
            return;
    }
}

static __attribute__((noinline)) void fill_traced(struct waiter *self, void (*how)(struct waiter *self))
{
    struct loop *loop = self->table->loop;
    int64_t start = loop_trace_start(loop);
    uint32_t before = self->picks.n;
    how(self);
    if (self->picks.n > before)
        loop_trace_end(loop, "fill", start, (struct trace_span){.count = self->picks.n - before});
}

void waiter_fill(struct waiter *self)
{
    if (trace_on(&self->table->loop->trace))
        fill_traced(self, fill);
    else
        fill(self);
}

void waiter_fill_paid(struct waiter *self)
{
    if (trace_on(&self->table->loop->trace))
        fill_traced(self, fill_paid);
    else
        fill_paid(self);
}

bool waiter_is_done(const struct waiter *self)
{
    return self->picks.n >= self->want || self->full || (self->flexible && self->picks.n > 0);
}

void waiter_explain(const struct waiter *self, char *text, size_t size)
{
    const struct table *table = self->table;
    uint32_t left = self->want - self->picks.n;
    int used = snprintf(text, size, "table '%s': %u of %u items picked; ", table->name, self->picks.n, self->want);
    if (used < 0 || (size_t)used >= size)
        return;
    char *rest = text + used;
    size_t room = size - (size_t)used;
    rest[0] = '\0';
    uint32_t least = self->whole ? left : 1;
    if (table_sampleable(table, least) < least)
        limiter_explain_sample(&table->limiter, left, rest, room);
    if (!rest[0] && self->distinct)
        snprintf(rest, room,
                 "needs %u more items that are not in the batch yet: it is without replacement and the table has %u",
                 left, table->in.size);
    if (!rest[0])
        snprintf(rest, room, table->in.size ? "waits for its turn" : "needs 1 more insert: the table is empty");
}
