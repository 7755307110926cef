#include "broker/sample/samples.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "broker/loop/entries.h"
#include "broker/loop/loop.h"
#include "broker/peer/peers.h"
#include "broker/sample/reply.h"
#include "proto/base/error.h"
#include "proto/base/format.h"
#include "proto/base/need.h"

/* ---- waiters ---- */

#define PICK_AT_ONCE 256u
#define SPARE_WAITERS 64u

struct waiter *waiter_new(struct samples *samples, struct table *table)
{
    struct waiter *self = TAILQ_LAST(&samples->spare_waiters.queue, waiter_queue); /* its memory is warm */
    if (self) {
        waiter_remove(self);
        struct picks picks = self->picks;
        *self = (struct waiter){.picks = picks};
    } else {
        self = need_alloc(sizeof *self);
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
    if (samples->spare_waiters.n < SPARE_WAITERS) {
        waiter_append(self, &samples->spare_waiters);
        return;
    }
    picks_fini(&self->picks);
    free(self);
}

void waiter_append(struct waiter *self, struct waiter_list *list)
{
    self->list = list;
    TAILQ_INSERT_TAIL(&list->queue, self, link);
    list->n++;
}

void waiter_remove(struct waiter *self)
{
    if (!self->list)
        return;
    TAILQ_REMOVE(&self->list->queue, self, link);
    self->list->n--;
    self->list = NULL;
}

void waiter_set_aside(struct waiter *self, struct waiter_list *list)
{
    waiter_remove(self);
    waiter_append(self, list);
    picks_own(&self->picks, self->samples);
    table_mark(self->table);
}

/* ---- clients that do not read: their samples wait, and no reply is made that would only lie in memory ---- */

/* How often the broker looks whether they have read. */
#define HELD_NS NS_PER_MS

static bool is_held_up(const struct waiter *self)
{
    struct peers *peers = self->samples->peers;
    return peer_is_full(peers, peer_find(peers, &self->wait.to));
}

static bool is_held(const struct waiter *self)
{
    return self->list == &self->samples->held;
}

bool waiter_hold(struct waiter *self)
{
    struct samples *samples = self->samples;
    struct loop *loop = samples->loop;
    uint32_t not_logged;
    if (is_held(self) || !is_held_up(self))
        return is_held(self);
    waiter_set_aside(self, &samples->held);
    if (samples->held.n == 1)
        timer_set(&loop->timers, &samples->held_timer, loop->now_ns + HELD_NS);
    if (log_allow(&samples->peers->service_log, 5, loop->now_ns, &not_logged))
        log_line(LEVEL_WARN, "B0302", "samples wait: their client does not read its replies",
                 "table=%s wanted=%u held_back=%u", self->table->name, self->want, not_logged);
    return true;
}

/* Goes on with samples whose clients have read, the oldest first. */
static void look_at_held(struct timer *timer)
{
    struct samples *samples = timer->ctx;
    bool progress = false;
    for (struct waiter *waiter = TAILQ_FIRST(&samples->held.queue), *next; waiter; waiter = next) {
        next = TAILQ_NEXT(waiter, link);
        if (is_held_up(waiter))
            continue;
        waiter_remove(waiter);
        if (waiter->complete) {
            sample_answer(waiter, NULL);
        } else if (!waiter->serve(waiter, &progress)) {
            waiter_append(waiter, &waiter->table->waiters);
            table_mark(waiter->table);
        }
    }
    if (samples->held.n)
        timer_set(&samples->loop->timers, timer, samples->loop->now_ns + HELD_NS);
}

/* ---- picks ---- */

static bool skip_picked(void *ctx, uint32_t slot)
{
    const struct waiter *self = ctx;
    return self->table->in.items[slot].stamp == self->stamp;
}

/* Stamps the items that a distinct batch has already, if another batch has picked since: they are not picked again. */
static void stamp_picked(const struct waiter *self)
{
    struct table *table = self->table;
    for (uint32_t i = 0; i < self->picks.n; i++) {
        uint32_t slot = table_find(table, self->picks.key[i]);
        struct item *item = slot == NO_SLOT ? NULL : &table->in.items[slot];
        if (item && (uint64_t)item->insert_ns == self->picks.age_ns[i] && !item_is_hidden(item))
            item->stamp = self->stamp;
    }
    table->stamped = self->stamp;
}

static bool skip_none(void *ctx, uint32_t slot)
{
    (void)ctx, (void)slot;
    return false;
}

/* True if a batch of picks can be hidden after all of them are made: no pick sees what an extension did at the one before. */
static bool hides_at_once(const struct waiter *self)
{
    return self->lease && !self->table->hook_sample && self->table->sampler_ops->pick_distinct;
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

static void take_one(struct waiter *self, uint32_t slot)
{
    if (self->lease)
        lease_take(self->lease, slot);
    else
        table_sampled(self->table, slot);
}

/* Takes items that were picked, for which there is room. Returns how many. plain: the waiter borrows them, and nobody but the table
 * counts samples; a constant, so that the common case asks nothing for each pick. */
static inline __attribute__((always_inline)) uint32_t take_picked(struct waiter *self, const uint32_t *slots,
                                                                  const double *probabilities, uint32_t n, bool plain)
{
    struct table *table = self->table;
    struct picks *picks = &self->picks;
    uint32_t i = 0;
    for (; i < n && !self->full; i++) {
        picks_put(picks, table, slots[i], probabilities[i], plain || picks->borrowed);
        picks->times_sampled[picks->n - 1]++;
        if (!plain) {
            picks_heat(table, slots[i]);
            if (self->distinct)
                table->in.items[slots[i]].stamp = self->stamp;
            EFFECT(table->loop, pick, self, slots[i], probabilities[i]);
        }
        if (!plain && table->one_by_one)
            take_one(self, slots[i]);
        else
            table_sampled_alike(table, slots[i]);
        self->full = picks->n_refs >= CHUNKS_PER_REPLY;
    }
    return i;
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
    const rp_selector_ops *ops = table->sampler_ops;
    bool (*skip)(void *, uint32_t) = self->distinct ? skip_picked : n > 1 && self->lease ? skip_none : NULL;
    uint32_t got = skip ? ops->pick_distinct(table->in.sampler, n, skip, self, slots, probabilities)
                        : ops->pick(table->in.sampler, n, slots, probabilities);
    self->short_of_memory = got == RP_PICK_NO_MEMORY;
    if (self->short_of_memory)
        return 0;
    if (got > 0 || self->picks.n == 0) /* the size before the last pick, as the journal has it */
        self->picks.table_size = table_visible(table);
    if (got > 1)
        prefetch_picks(table, slots, got);
    uint32_t refs = 0;
    for (uint32_t i = 0; i < got; i++)
        refs += table->in.items[slots[i]].span.n;
    self->short_of_memory = !picks_reserve_refs(&self->picks, refs);
    if (self->short_of_memory)
        return 0;
    bool plain = self->picks.borrowed && !self->distinct && !table->one_by_one && !table->loop->effects &&
                 !table->tables->disk.ctx;
    return plain ? take_picked(self, slots, probabilities, got, true)
                 : take_picked(self, slots, probabilities, got, false);
}

/* The items that a whole batch lacks in which no item comes twice, or whose table gives each item once: the limiter may allow more samples
 * than there are items. */
static uint32_t missing_items(const struct waiter *self)
{
    const struct table *table = self->table;
    uint64_t shown = table_items_shown(table);
    bool once = (self->distinct || table->config->max_times_sampled == 1) && !table->waits_for_room;
    return once && self->whole && self->picks.n == 0 && shown < self->want ? self->want - (uint32_t)shown : 0;
}

/* Bytes in the journal of the pick and the removal of an item, and of the entry around them; each is less. */
#define PICK_BYTES 64u
#define PICKS_BYTES 256u

/* Adds all members of a group, in the order in which they came. False: no memory. */
static bool take_group(struct waiter *self, uint32_t leader, double probability)
{
    struct table *table = self->table;
    const struct group_member *slots = table->in.groups.slots;
    struct picks *picks = &self->picks;
    uint32_t n = slots[leader].n, slot = leader, refs = 0;
    for (uint32_t i = 0; i < n; i++, slot = slots[slot].next)
        refs += table->in.items[slot].span.n;
    self->short_of_memory = !picks_reserve(picks, n) || !picks_reserve_refs(picks, refs);
    if (self->short_of_memory)
        return false;
    picks->table_size = table_items_shown(table);
    EFFECT(table->loop, together, (size_t)n * PICK_BYTES + PICKS_BYTES);
    for (uint32_t i = 0; i < n; i++, slot = slots[slot].next) {
        (void)picks_add_member(picks, table, slot, probability); /* there is room */
        picks->times_sampled[picks->n - 1]++;
        EFFECT(table->loop, pick, self, slot, probability);
    }
    if (self->distinct)
        table->in.items[leader].stamp = self->stamp;
    self->empty += table->in.groups.size - n;
    self->full = picks->n_refs >= CHUNKS_PER_REPLY;
    table_sampled_group(table, leader);
    if (!waiter_is_counted(self))
        limiter_refund(&table->limiter, n);
    return true;
}

/* Prefetches the members of groups, in turn: each names the next. Inlined always: see prefetch_picks. */
static inline __attribute__((always_inline)) void prefetch_groups(const struct table *table, const uint32_t *leaders,
                                                                  uint32_t n)
{
    const struct groups *groups = &table->in.groups;
    uint32_t at[PICK_AT_ONCE];
    for (uint32_t i = 0; i < n; i++) {
        at[i] = leaders[i];
        __builtin_prefetch(&groups->slots[at[i]]);
        __builtin_prefetch(&table->in.items[at[i]], 1);
    }
    for (uint32_t k = 0; k < groups->size; k++)
        for (uint32_t i = 0; i < n; i++) {
            const char *chunk = (const char *)span_chunks(&table->in.items[at[i]].span)[0];
            __builtin_prefetch(chunk, 1);
            __builtin_prefetch(chunk + 64);
            at[i] = groups->slots[at[i]].next;
            __builtin_prefetch(&groups->slots[at[i]]);
            __builtin_prefetch(&table->in.items[at[i]], 1);
        }
}

/* Picks up to n groups, of which each may have at most `most` members. Returns how many. */
static uint32_t take_groups(struct waiter *self, uint32_t n, uint64_t most)
{
    struct table *table = self->table;
    const rp_selector_ops *ops = table->sampler_ops;
    uint32_t leaders[PICK_AT_ONCE], taken = 0;
    double probabilities[PICK_AT_ONCE];
    uint32_t got = self->distinct ? ops->pick_distinct(table->in.sampler, n, skip_picked, self, leaders, probabilities)
                                  : ops->pick(table->in.sampler, n, leaders, probabilities);
    self->short_of_memory = got == RP_PICK_NO_MEMORY;
    if (self->short_of_memory)
        return 0;
    if (got > 1)
        prefetch_groups(table, leaders, got);
    while (taken < got && !self->full && table->in.groups.slots[leaders[taken]].n <= most &&
           take_group(self, leaders[taken], probabilities[taken]))
        taken++;
    return taken;
}

/* Returns how many of `left` items the waiter may pick now. granted: the limiter has allowed them all. */
static inline uint64_t allowed(const struct waiter *self, bool granted, uint64_t left)
{
    if (self->paid)
        return table_is_ready(self->table) ? left : 0;
    return granted ? left : table_sampleable(self->table, left);
}

static void fill_groups(struct waiter *self, bool granted)
{
    uint32_t size = self->table->in.groups.size;
    while (self->picks.n + self->empty < self->want && !self->full) {
        uint64_t most = allowed(self, granted, self->want - self->picks.n - self->empty);
        uint64_t n = most / size; /* fewer: the next group may be one without all members */
        n = n == 0 || self->table->one_by_one ? 1 : n < PICK_AT_ONCE ? n : PICK_AT_ONCE;
        if (most == 0 || take_groups(self, (uint32_t)n, most < size ? most : size) < n)
            return;
    }
}

void waiter_count_empty(struct waiter *self)
{
    const struct groups *groups = &self->table->in.groups;
    const struct picks *picks = &self->picks;
    self->empty = 0;
    for (uint32_t i = 0, n; groups->slots && i < picks->n; i += n) {
        for (n = 1; n < groups->size && i + n < picks->n && picks->group[i + n] == picks->group[i];)
            n++;
        self->empty += groups->size - n;
    }
}

static void fill_items(struct waiter *self, bool granted)
{
    struct table *table = self->table;
    bool alone = table->one_by_one && !hides_at_once(self), counted = waiter_is_counted(self);
    while (self->picks.n < self->want && !self->full) {
        uint64_t n = allowed(self, granted, self->want - self->picks.n), most = alone ? 1 : PICK_AT_ONCE;
        uint32_t got = n ? waiter_take(self, (uint32_t)(n < most ? n : most)) : 0;
        if (!counted)
            limiter_refund(&table->limiter, got);
        if (got == 0)
            return;
    }
}

/* A whole batch is granted before its first pick: items that leave with its picks do not end it, though there may be fewer than
 * min_size then. */
static void fill(struct waiter *self)
{
    bool granted = self->whole && self->picks.n == 0;
    if (granted && (missing_items(self) || table_sampleable(self->table, self->want) < self->want))
        return;
    if (granted)
        EFFECT(self->table->loop, together, (size_t)self->want * PICK_BYTES + PICKS_BYTES);
    if (self->distinct && self->table->stamped != self->stamp)
        stamp_picked(self);
    if (self->table->in.groups.slots)
        fill_groups(self, granted);
    else
        fill_items(self, granted);
}

static __attribute__((noinline)) void fill_traced(struct waiter *self)
{
    struct loop *loop = self->table->loop;
    int64_t start = loop_trace_start(loop);
    uint32_t before = self->picks.n;
    fill(self);
    if (self->picks.n > before)
        loop_trace_end(loop, "fill", start, (struct trace_span){.count = self->picks.n - before});
}

void waiter_fill(struct waiter *self)
{
    if (self->seed && self->table->sampler_ops->seed)
        self->table->sampler_ops->seed(self->table->in.sampler, self->seed);
    self->seed = 0;
    if (trace_on(&self->table->loop->trace))
        fill_traced(self);
    else
        fill(self);
}

bool waiter_is_done(const struct waiter *self)
{
    return self->picks.n + self->empty >= self->want || self->full || (self->flexible && self->picks.n > 0);
}

/* Evictions count as the reason for too few items until inserts have gone on without them for this long. */
#define EVICTED_LATELY_NS (60 * NS_PER_S)

static void explain_evicted(const struct waiter *self, char *rest, size_t room)
{
    format_buffer held;
    const struct table *table = self->table, *holder = room_holder(table->tables);
    bool few = table->in.size < table->limiter.min_size || (self->distinct && table->in.size < self->want);
    if (few && table->stats.evicted_for_memory && table->last_insert_ns - table->evicted_lately_ns < EVICTED_LATELY_NS)
        snprintf(rest, room,
                 "; %llu of its items were evicted because of %s: raise that, or lower max_size of table '%s', which "
                 "holds most, %s",
                 (unsigned long long)table->stats.evicted_for_memory, table->evicted_by, holder->name,
                 format_bytes(held, room_held(holder)));
}

/* Writes a clause that says what a sample waits for. */
static void waiter_explain(const struct waiter *self, char *rest, size_t room)
{
    const struct table *table = self->table;
    uint32_t left = self->want - self->picks.n;
    rest[0] = '\0';
    bool groups = table->in.groups.slots;
    uint32_t least = self->whole ? left : groups ? table->in.groups.size : 1;
    if (table_sampleable(table, least) < least && !(groups && !table_visible(table)))
        limiter_explain_sample(&table->limiter, groups ? least : left, rest, room);
    if (!rest[0] && missing_items(self) && !self->distinct && !groups && !table->in.leased)
        snprintf(rest, room, "needs %u more inserts for a whole batch: the table has %u items, and gives each once",
                 missing_items(self), table->in.size);
    if (!rest[0] && table->in.leased) {
        char who[200];
        leases_explain(&self->samples->leases, table, who, sizeof who);
        snprintf(rest, room, "needs items: %s", who);
    }
    if (!rest[0] && groups) {
        char open[200];
        table_explain_groups(table, open, sizeof open);
        snprintf(rest, room, "needs a complete group%s%s%s", self->distinct ? " that is not in the batch yet" : "",
                 open[0] ? ": " : "", open);
    }
    if (!rest[0] && self->distinct)
        snprintf(rest, room,
                 "needs %u more items that are not in the batch yet: it is without replacement and the table has %u",
                 missing_items(self) ? missing_items(self) : left, table->in.size);
    if (!rest[0])
        snprintf(rest, room, table->in.size ? "waits for its turn" : "needs 1 more insert: the table is empty");
    explain_evicted(self, rest + strlen(rest), room - strlen(rest));
}

/* ---- answers ---- */

static void unpark(struct waiter *self)
{
    const struct sample_parking *parking = &self->samples->parking;
    if (parking->ctx)
        parking->unpark(parking->ctx, self);
}

static void waiter_end(struct waiter *self)
{
    unpark(self);
    if (self->lease)
        lease_leave(self->lease);
    waiter_remove(self);
    free(self->text);
    wait_end(&self->wait);
    kept_samples_unreserve(self);
    /* The picks may have made room for inserts, and the next waiter of the queue may be served now. */
    table_mark(self->table);
    waiter_release(self);
}

/* Returns why there are fewer items than asked for, where the caller has given no reason. */
static const char *explain_answer(const struct waiter *waiter, uint32_t n, char *out, size_t size)
{
    if (waiter->full)
        return "the batch is cut short: its items run over as many chunks as one reply may hold";
    if (!waiter->again || n >= waiter->want)
        return "";
    if (!waiter->gone)
        return "asked again: these are the items of the first answer";
    snprintf(
        out, size,
        "asked again: of the %u items of the first answer %u have been removed from the table since, to make room or "
        "by a request",
        n + waiter->gone, waiter->gone);
    return out;
}

/* Lets a waiter that is to be answered wait for data from disk, or for its client to read. False: for neither. */
static bool must_wait(struct waiter *waiter)
{
    const struct sample_parking *parking = &waiter->samples->parking;
    if (parking->ctx && parking->park(parking->ctx, waiter))
        return true;
    waiter->complete = waiter_hold(waiter);
    return waiter->complete;
}

static __attribute__((noinline)) bool reply_traced(const struct waiter *waiter, const struct picks *picks,
                                                   const char *text)
{
    struct loop *loop = waiter->samples->loop;
    int64_t start = loop_trace_start(loop);
    bool sent = reply_picks(waiter, picks, text);
    loop_trace_end(loop, "reply", start,
                   (struct trace_span){
                       .who = waiter->wait.client, .id = waiter->wait.id, .count = picks->n, .link = TRACE_REQUEST});
    return sent;
}

void sample_answer(struct waiter *waiter, const char *text)
{
    if (text) {
        free(waiter->text);
        waiter->text = need_text(text);
    }
    if (waiter->lease)
        lease_start(waiter->lease);
    if (must_wait(waiter))
        return;
    char why[200];
    struct picks *picks = waiter->fetch ? &waiter->picks : kept_samples_keep(waiter, true);
    text = waiter->text ? waiter->text : explain_answer(waiter, picks->n, why, sizeof why);
    bool sent =
        trace_on(&waiter->samples->loop->trace) ? reply_traced(waiter, picks, text) : reply_picks(waiter, picks, text);
    if (waiter->lease)
        lease_answered(waiter->lease);
    if (!sent && !waiter->fetch && !waiter->wait.client) /* nobody can ask for them again */
        waiter->table->stats.orphaned_picks += picks->n;
    waiter_end(waiter);
}

void sample_fail(struct waiter *waiter, rp_status status, const char *text)
{
    if (!waiter->fetch)
        kept_samples_lose(waiter);
    sample_refuse(waiter, status, text);
}

void sample_refuse(struct waiter *waiter, rp_status status, const char *text)
{
    request_fail(waiter->samples->peers, &waiter->wait.to, waiter->wait.id, status, text);
    waiter_end(waiter);
}

static void sample_explain(const struct wait *wait, struct wait_text *out)
{
    const struct waiter *self = (const struct waiter *)wait;
    char why[sizeof out->text];
    out->table = self->table->name;
    out->count = self->want;
    out->got = self->picks.n;
    if (is_held(self))
        snprintf(out->text, sizeof out->text,
                 "table '%s': %u of %u items picked; waits until its client has read earlier replies: more than %lld "
                 "bytes of them are unread (peer_backlog_bytes, or the limit of its key)",
                 self->table->name, self->picks.n, self->want, (long long)self->samples->config->peer_backlog_bytes);
    else if (self->park.state != PARK_NOT)
        self->samples->parking.explain(self, out->text, sizeof out->text);
    else {
        waiter_explain(self, why, sizeof why);
        snprintf(out->text, sizeof out->text, "table '%s': %u of %u items picked; %s", self->table->name, self->picks.n,
                 self->want, why);
    }
}

/* Answers with the picks so far, or with an error. A parked waiter stays parked. */
static void sample_expire(struct wait *wait)
{
    struct waiter *waiter = (struct waiter *)wait;
    struct wait_text why = {0};
    if (waiter->park.state != PARK_NOT || waiter->complete)
        return; /* it has all its items, and is answered as soon as its data was read from disk, or its client has read */
    sample_explain(wait, &why);
    if (waiter->picks.n > 0)
        sample_answer(waiter, why.text);
    else
        sample_refuse(waiter, RP_DEADLINE_EXCEEDED, why.text);
}

static void end_waiter(struct wait *wait)
{
    waiter_end((struct waiter *)wait);
}

/* The connection is lost, or the broker stops: the picks are kept, and a retry continues from them. */
static void cancel_sample(struct wait *wait, rp_status status, const char *text)
{
    struct waiter *self = (struct waiter *)wait;
    unpark(self);
    kept_samples_keep(self, false);
    sample_refuse(self, status, text);
}

static const struct wait_ops sample_ops = {"sample", sample_explain, end_waiter, cancel_sample, sample_expire};
static const struct wait_ops fetch_ops = {"fetch", sample_explain, end_waiter, NULL, NULL};

struct waiter *sample_of(struct wait *wait)
{
    return wait->ops == &sample_ops ? (struct waiter *)wait : NULL;
}

void sample_give_up(struct waiter *waiter)
{
    /* Items that have left their table for this sample are sent all the same: they are nowhere else. */
    if (waiter->picks.n && (picks_leave(waiter->table, waiter->flags) || waiter->again)) {
        sample_answer(waiter, "cancelled by the client");
        return;
    }
    unpark(waiter);
    if (waiter->picks.n && !waiter->lease)
        log_line(LEVEL_WARN, "B0304", "sampler gave up with items picked", "table=%s picks=%u", waiter->table->name,
                 waiter->picks.n);
    if (waiter->picks.n)
        kept_samples_lose(waiter);
    sample_refuse(waiter, RP_CANCELLED, "cancelled by the client");
}

bool sample_serve(struct waiter *self, bool *progress)
{
    if (!self->picks.n && waiter_hold(self)) /* one with picks stays first: others would mark its items as theirs */
        return true;
    if (!self->list && self->table->waiters.n)
        return false; /* others came first */
    uint32_t before = self->picks.n;
    waiter_fill(self);
    *progress |= self->picks.n > before;
    if (!waiter_is_done(self))
        return false;
    sample_answer(self, NULL);
    return true;
}

rp_status sample_begin(struct waiter *waiter, const struct request *request, uint64_t timeout_ms, rp_error *err)
{
    struct peers *peers = waiter->samples->peers;
    waiter->serve = sample_serve;
    rp_status status = wait_begin(peers, &waiter->wait, &sample_ops, NULL, request, timeout_ms, err);
    if (status == RP_OK && !kept_samples_reserve(waiter)) {
        wait_end(&waiter->wait);
        status = err_set(err, RP_NO_MEMORY, "no memory to keep a sample of %u items", waiter->want);
    }
    if (status != RP_OK) {
        kept_samples_unreserve(waiter);
        waiter_release(waiter);
    }
    return status;
}

rp_status fetch_begin(struct waiter *waiter, const struct request *request, rp_error *err)
{
    waiter->fetch = true;
    rp_status status = wait_begin(waiter->samples->peers, &waiter->wait, &fetch_ops, NULL, request, WAIT_FOREVER, err);
    if (status != RP_OK)
        waiter_release(waiter);
    return status;
}

void samples_each(const struct samples *samples, kept_image_fn *fn, void *ctx)
{
    kept_samples_each(samples, fn, ctx);
    for (struct wait *wait = samples->peers->waits.first; wait; wait = wait->next) {
        const struct waiter *waiter = sample_of(wait);
        if (!waiter || !wait->client || !waiter->picks.n)
            continue;
        if (waiter->again && !picks_leave(waiter->table, waiter->flags))
            continue; /* it is kept, and was given above */
        struct kept_image image = {kept_samples_info(waiter), waiter->picks};
        fn(ctx, &image);
    }
}

/* ---- permits ---- */

/* How a table is sampled over shards. */
enum { SHARDS_BY_PERMITS, SHARDS_BY_MASS, SHARDS_BY_QUEUE };

static uint32_t shard_mode(const struct table *table)
{
    bool once = table->config->max_times_sampled == 1 && strcmp(table->sampler_ops->name, "fifo") == 0;
    enum limiter_kind kind = table->limiter.kind;
    if (kind == LIMITER_QUEUE || kind == LIMITER_STACK || once)
        return SHARDS_BY_QUEUE;
    return limiter_takes_permits(&table->limiter) ? SHARDS_BY_PERMITS : SHARDS_BY_MASS;
}

rp_status permit_check(const struct table *table, const char *what, rp_error *err)
{
    enum limiter_kind kind = table->limiter.kind;
    return kind == LIMITER_QUEUE || kind == LIMITER_STACK
               ? err_set(
                     err, RP_FAILED_PRECONDITION,
                     "table '%s' has the limiter '%s', which counts the items that are taken: it has no %s. Ask for "
                     "plain samples",
                     table->name, limiter_kind_name(kind), what)
               : RP_OK;
}

void permit_state(const struct table *table, Replay__PermitReply *out)
{
    out->deal = shard_mode(table);
    out->room = table_sampleable(table, UINT32_MAX);
    out->mass = table_mass(table);
    out->size = table_items_shown(table);
    out->min_size = table->limiter.kind == LIMITER_NONE ? 0 : (uint64_t)table->limiter.min_size_part;
    out->buffer = limiter_span(&table->limiter);
    out->removes = table->one_by_one;
    if (table->limiter.kind != LIMITER_LAG)
        return;
    out->lag = true;
    out->version = table->version;
    out->insert_room = table_spare_room(table);
    out->insert_need = table_needed_room(table);
}

/* Charges the limiter, in one record of the journal with the answer. A table without a ratio counts its picks, and not its
 * permits. */
static void charge(struct table *table, uint32_t n)
{
    if (!limiter_takes_permits(&table->limiter))
        return;
    limiter_sampled(&table->limiter, n);
    table->stats.permits += n;
    EFFECT(table->loop, together, 2 * KEPT_REPLY_BYTES);
    EFFECT_ENTRY(table->loop, ENTRY_CHARGE, table->id, entry_named, n);
}

/* Charges and answers: a retry after a crash gets this answer. */
static void permit_grant(struct waiter *self, uint32_t n)
{
    struct table *table = self->table;
    struct peers *peers = self->samples->peers;
    Replay__PermitReply reply = REPLAY__PERMIT_REPLY__INIT;
    charge(table, n);
    permit_state(table, &reply);
    reply.granted = n;
    request_finish(peers, &self->wait, REPLAY__REPLY__BODY_PERMIT, &reply.base);
    waiter_end(self);
}

bool permit_serve(struct waiter *self, bool *progress)
{
    const struct table *table = self->table;
    uint64_t least = self->flexible ? 1 : limiter_most_at_once(&table->limiter, self->want);
    uint64_t n = table_sampleable(table, self->want);
    if (n < least)
        return false;
    *progress = true;
    permit_grant(self, (uint32_t)n);
    return true;
}

static void permit_explain(const struct wait *wait, struct wait_text *out)
{
    const struct waiter *self = (const struct waiter *)wait;
    const struct table *table = self->table;
    uint64_t least = self->flexible ? 1 : limiter_most_at_once(&table->limiter, self->want);
    char why[sizeof out->text];
    limiter_explain_sample(&table->limiter, least, why, sizeof why);
    out->table = table->name;
    out->count = self->want;
    snprintf(out->text, sizeof out->text, "table '%s': room for %llu of %u samples; %s", table->name,
             (unsigned long long)table_sampleable(table, self->want), self->want, why[0] ? why : "waits for its turn");
}

/* Answers with what can be granted now, or with an error. */
static void permit_expire(struct wait *wait)
{
    struct waiter *self = (struct waiter *)wait;
    const struct table *table = self->table;
    /* Those before it in the queue get what there is. */
    bool first = !table->waiters.n || TAILQ_FIRST(&table->waiters.queue) == self;
    uint64_t n = first ? table_sampleable(table, self->want) : 0;
    if (n > 0) {
        permit_grant(self, (uint32_t)n);
        return;
    }
    struct wait_text why = {0};
    permit_explain(wait, &why);
    Replay__PermitReply reply = REPLAY__PERMIT_REPLY__INIT;
    permit_state(table, &reply);
    request_send(self->samples->peers, &self->wait.to, self->wait.id,
                 &(struct answer){.status = RP_DEADLINE_EXCEEDED,
                                  .text = why.text,
                                  .field = REPLAY__REPLY__BODY_PERMIT,
                                  .body = &reply.base});
    waiter_end(self);
}

static const struct wait_ops permit_ops = {"permit", permit_explain, end_waiter, NULL, permit_expire};

rp_status permit_begin(struct waiter *self, const struct request *request, uint64_t timeout_ms, rp_error *err)
{
    self->serve = permit_serve;
    rp_status status = wait_begin(self->samples->peers, &self->wait, &permit_ops, NULL, request, timeout_ms, err);
    if (status != RP_OK)
        waiter_release(self);
    return status;
}

/* ---- watchers ---- */

/* Returns a place for one more: a free one, or that of whom nothing was heard for the longest time. */
static struct watcher *take_place(struct watchers *self)
{
    if (self->n < WATCHERS_MOST)
        return &self->list[self->n++];
    struct watcher *oldest = &self->list[0];
    for (uint32_t i = 1; i < self->n; i++)
        if (self->list[i].heard_ns < oldest->heard_ns)
            oldest = &self->list[i];
    return oldest;
}

void watchers_note(struct watchers *self, const struct watcher *heard)
{
    struct watcher *known = NULL;
    for (uint32_t i = 0; i < self->n; i++)
        if (self->list[i].client == heard->client && self->list[i].table == heard->table)
            known = &self->list[i];
    if (heard->wanted == 0) {
        if (known)
            *known = self->list[--self->n];
        return;
    }
    int64_t since_ns = known && watcher_waits(known, heard->heard_ns) ? known->since_ns : heard->heard_ns;
    if (!known)
        known = take_place(self);
    *known = *heard;
    known->since_ns = since_ns;
}

bool watcher_waits(const struct watcher *self, int64_t now_ns)
{
    return now_ns - self->heard_ns < WATCHER_NS;
}

void watcher_explain(const struct watcher *self, char *text, size_t size)
{
    unsigned long long items = self->size, least = self->min_size > 1 ? self->min_size : 1;
    const char *name = self->table->name;
    if (items < least)
        snprintf(text, size,
                 "table '%s': 0 of %u items picked; needs %llu more insert%s: all shards have %llu item%s, min_size is "
                 "%llu",
                 name, self->wanted, least - items, least - items == 1 ? "" : "s", items, items == 1 ? "" : "s", least);
    else if (items < self->wanted)
        snprintf(text, size,
                 "table '%s': 0 of %u items picked; needs %llu more items: the batch is without replacement, and all "
                 "shards have %llu",
                 name, self->wanted, self->wanted - items, items);
    else
        snprintf(text, size, "table '%s': 0 of %u items picked; waits for its turn", name, self->wanted);
}

/* ---- life ---- */

void samples_init(struct samples *self)
{
    kept_samples_init(&self->kept, self);
    leases_init(&self->leases, self);
    TAILQ_INIT(&self->held.queue);
    TAILQ_INIT(&self->spare_waiters.queue);
    self->held_timer = (struct timer){.fire = look_at_held, .ctx = self};
}

void samples_fini(struct samples *self)
{
    kept_samples_fini(&self->kept);
    leases_fini(&self->leases);
    for (struct waiter *waiter = TAILQ_FIRST(&self->spare_waiters.queue), *next; waiter; waiter = next) {
        next = TAILQ_NEXT(waiter, link);
        picks_fini(&waiter->picks);
        free(waiter);
    }
    reply_build_destroy(&self->build);
}
