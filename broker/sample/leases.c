#include "broker/sample/leases.h"

#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "broker/loop/entries.h"
#include "broker/peer/peers.h"
#include "broker/sample/samples.h"
#include "proto/base/error.h"
#include "proto/base/need.h"

/* Items that are returned in one slice. */
#define SLICE_ITEMS 256u
/* Leases that an explanation looks at. */
#define LOOKS 4096u

static void account(struct leases *self, int64_t bytes)
{
    self->samples->store->overhead += (uint64_t)bytes;
}

struct lease *lease_numbered(const struct leases *self, uint32_t number)
{
    return number && number <= self->n ? self->list[number - 1] : NULL;
}

/* ---- holders ---- */

static struct lease_holder *holder_make(struct leases *self, uint64_t client)
{
    struct lease_holder *holder = idmap_get(&self->clients, client);
    if (holder)
        return holder;
    holder = need_alloc(sizeof *holder);
    *holder = (struct lease_holder){.client = client, .descriptor = -1};
    TAILQ_INIT(&holder->leases);
    LIST_INSERT_HEAD(&self->holders, holder, link);
    idmap_put(&self->clients, client, holder);
    return holder;
}

static void holder_leave(struct leases *self, struct lease *lease)
{
    struct lease_holder *holder = lease->holder;
    TAILQ_REMOVE(&holder->leases, lease, link);
    lease->holder = NULL;
    if (!TAILQ_EMPTY(&holder->leases))
        return;
    LIST_REMOVE(holder, link);
    idmap_remove(&self->clients, holder->client);
    free(holder);
}

static void holder_heard(struct leases *self, struct lease_holder *holder, int descriptor)
{
    if (holder->gone) {
        LIST_REMOVE(holder, link);
        LIST_INSERT_HEAD(&self->holders, holder, link);
    }
    holder->descriptor = descriptor;
    holder->connection = 0;
    holder->missing = holder->gone = false;
    (void)connection_has_ended(self->samples->peers, descriptor, &holder->connection);
}

void leases_heard(struct leases *self, const struct request *request)
{
    struct lease_holder *holder = idmap_get(&self->clients, request->head.client);
    if (holder)
        holder_heard(self, holder, request->descriptor);
}

/* ---- life of a lease ---- */

struct lease *lease_make(struct leases *self, uint64_t client, uint64_t id, struct table *table, uint32_t ms)
{
    struct lease *lease = need_alloc(sizeof *lease);
    struct lease_holder *holder = holder_make(self, client);
    if (!self->n_free && self->n == self->capacity) {
        self->capacity = self->capacity ? 2 * self->capacity : 64;
        self->list = need_resize(self->list, self->capacity, sizeof *self->list);
        self->free = need_resize(self->free, self->capacity, sizeof *self->free);
    }
    uint32_t number = self->n_free ? self->free[--self->n_free] : ++self->n;
    *lease = (struct lease){
        .leases = self, .holder = holder, .client = client, .id = id, .table = table, .number = number, .ms = ms};
    lease->slots = lease->few;
    lease->capacity = LEASE_FEW;
    self->list[number - 1] = lease;
    TAILQ_INSERT_TAIL(&holder->leases, lease, link);
    account(self, sizeof *lease);
    return lease;
}

static size_t block_bytes(const struct lease *self)
{
    return self->slots == self->few ? 0 : self->capacity * sizeof *self->slots;
}

static void lease_free(struct lease *lease)
{
    struct leases *self = lease->leases;
    timer_clear(&self->samples->loop->timers, &lease->timer);
    if (lease->waiter)
        lease->waiter->lease = NULL;
    if (lease->holder)
        holder_leave(self, lease);
    self->list[lease->number - 1] = NULL;
    self->free[self->n_free++] = lease->number;
    account(self, -(int64_t)(sizeof *lease + block_bytes(lease)));
    if (lease->slots != lease->few)
        free(lease->slots);
    free(lease);
}

static void list_slot(struct lease *self, uint32_t slot)
{
    if (self->n == self->capacity) {
        account(self->leases, -(int64_t)block_bytes(self));
        bool few = self->slots == self->few;
        self->capacity = few ? LEASE_BLOCK : 2 * self->capacity;
        self->slots = need_resize(few ? NULL : self->slots, self->capacity, sizeof *self->slots);
        if (few)
            memcpy(self->slots, self->few, sizeof self->few);
        account(self->leases, (int64_t)block_bytes(self));
    }
    self->slots[self->n++] = slot;
    self->left++;
}

void lease_take(struct lease *self, uint32_t slot)
{
    list_slot(self, slot);
    table_lease(self->table, slot, self->number);
}

/* The item of a slot in the list, unless it has left or is another one by now. */
static bool is_mine(const struct lease *self, uint32_t slot)
{
    const struct contents *in = &self->table->in;
    const struct item *item = &in->items[slot];
    return slot < in->high && item->span.n && item->stamp == (ITEM_HIDDEN | self->number);
}

static void lease_stop(struct lease *self);

static bool step(struct chore *chore)
{
    struct leases *self = (struct leases *)(void *)((char *)chore - offsetof(struct leases, chore));
    for (uint32_t left = SLICE_ITEMS; left;) {
        struct lease *lease = STAILQ_FIRST(&self->ending);
        if (!lease) {
            if (LIST_EMPTY(&self->gone)) {
                self->running = false;
                return false;
            }
            lease_stop(TAILQ_FIRST(&LIST_FIRST(&self->gone)->leases));
            continue;
        }
        /* In the order in which they were delivered. */
        for (; lease->left && left; left--) {
            uint32_t slot = lease->slots[lease->n - lease->left--];
            if (is_mine(lease, slot))
                table_return(lease->table, slot, lease->answered);
        }
        if (lease->left)
            return true;
        left -= left > 0; /* one without items is work, too */
        STAILQ_REMOVE_HEAD(&self->ending, ends);
        lease_free(lease);
    }
    return true;
}

static void run(struct leases *self)
{
    if (self->running)
        return;
    self->running = true;
    chores_add(&self->samples->loop->chores, &self->chore);
}

/* Returns the items, in slices. */
static void lease_end(struct lease *lease)
{
    struct leases *self = lease->leases;
    timer_clear(&self->samples->loop->timers, &lease->timer);
    holder_leave(self, lease);
    lease->left = lease->n; /* from the first on: those that were acknowledged are not its any more */
    STAILQ_INSERT_TAIL(&self->ending, lease, ends);
    run(self);
}

/* Ends the lease, and its waiter if it has one. */
static void lease_stop(struct lease *self)
{
    static const char text[] = "the lease has ended before its client had read its earlier replies";
    bool ends = self->answered || !self->waiter;
    if (self->answered && self->waiter)
        sample_refuse(self->waiter, RP_DEADLINE_EXCEEDED, text); /* a retry: the sample stays kept */
    else if (self->waiter)
        sample_fail(self->waiter, RP_DEADLINE_EXCEEDED, text);
    if (ends)
        lease_end(self);
}

static void fire(struct timer *timer)
{
    lease_stop(timer->ctx);
}

void lease_start(struct lease *self)
{
    struct loop *loop = self->leases->samples->loop;
    self->timer.fire = fire;
    self->timer.ctx = self;
    timer_set(&loop->timers, &self->timer, loop->now_ns + (int64_t)self->ms * NS_PER_MS);
}

void lease_new(struct leases *self, struct waiter *waiter, uint32_t ms)
{
    const struct wait *wait = &waiter->wait;
    lease_again(lease_make(self, wait->client, wait->id, waiter->table, ms), waiter);
}

void lease_again(struct lease *self, struct waiter *waiter)
{
    self->waiter = waiter;
    waiter->lease = self;
    holder_heard(self->leases, self->holder, waiter->wait.descriptor);
}

void lease_leave(struct lease *self)
{
    self->waiter = NULL;
    if (!self->answered)
        lease_end(self);
}

void lease_answered(struct lease *self)
{
    self->answered = true;
    lease_start(self);
}

rp_status lease_check(const struct wire_sample *ask, const struct table *table, uint64_t client, rp_error *err)
{
    if (table->config->max_times_sampled != 1)
        return err_set(err, RP_FAILED_PRECONDITION,
                       "table '%s' has no leases: they are for items that are sampled once, and its max_times_sampled "
                       "is %lld. Write max_times_sampled: 1, or sample without a lease",
                       table->name, (long long)table->config->max_times_sampled);
    if (table->in.groups.size)
        return err_set(err, RP_FAILED_PRECONDITION,
                       "table '%s' has no leases: the items of its groups leave together. Sample without a lease",
                       table->name);
    if (ask->lease_ms > WIRE_LEASE_MOST_MS)
        return err_set(err, RP_INVALID_ARGUMENT, "a lease of %u ms is too long: at most %u, a day", ask->lease_ms,
                       WIRE_LEASE_MOST_MS);
    if (!client)
        return err_set(err, RP_INVALID_ARGUMENT, "a lease belongs to a client: set Request.client");
    if (ask->paid)
        return err_set(err, RP_INVALID_ARGUMENT,
                       "a sample with a lease cannot be paid: it counts when it is acknowledged");
    return RP_OK;
}

/* ---- what clients say ---- */

struct lease *lease_of(const struct leases *self, uint64_t client, const struct table *table, uint32_t slot)
{
    const struct item *item = &table->in.items[slot];
    struct lease *lease = item_is_hidden(item) ? lease_numbered(self, item_lease(item)) : NULL;
    return lease && lease->holder && lease->holder->client == client ? lease : NULL;
}

uint32_t leases_change(struct leases *self, uint64_t client, struct table *table, const struct wire_lease *ask,
                       const uint32_t *slots, uint32_t n)
{
    uint32_t found = 0;
    for (uint32_t i = 0; i < n; i++) {
        struct lease *lease = slots[i] == KEYMAP_NONE ? NULL : lease_of(self, client, table, slots[i]);
        if (!lease || !lease->answered)
            continue;
        found++;
        if (ask->op == WIRE_LEASE_TOUCH) {
            lease->ms = ask->ms;
            lease_start(lease);
            continue;
        }
        if (ask->op == WIRE_LEASE_ACK) {
            limiter_sampled(&table->limiter, 1);
            table_remove(table, slots[i]);
        } else {
            table_return(table, slots[i], true);
        }
        if (--lease->left == 0)
            lease_free(lease);
    }
    if (found && ask->op == WIRE_LEASE_ACK)
        EFFECT_ENTRY(table->loop, ENTRY_CHARGE, table->id, entry_named, found);
    return found;
}

/* ---- clients that are gone ---- */

void leases_sweep(struct leases *self)
{
    for (struct lease_holder *holder = LIST_FIRST(&self->holders), *next; holder; holder = next) {
        next = LIST_NEXT(holder, link);
        bool ended = connection_has_ended(self->samples->peers, holder->descriptor, &holder->connection);
        holder->gone = ended && holder->missing;
        holder->missing = ended;
        if (!holder->gone)
            continue;
        LIST_REMOVE(holder, link);
        LIST_INSERT_HEAD(&self->gone, holder, link);
        run(self);
    }
}

/* ---- explanations ---- */

void leases_explain(const struct leases *self, const struct table *table, char *text, size_t size)
{
    const struct lease_holder *most = NULL;
    uint32_t most_items = 0, looks = 0;
    int64_t first_ns = INT64_MAX;
    text[0] = '\0';
    for (const struct lease_holder *holder = LIST_FIRST(&self->holders); holder && looks < LOOKS;
         holder = LIST_NEXT(holder, link)) {
        uint32_t items = 0;
        const struct lease *lease = TAILQ_FIRST(&holder->leases);
        for (; lease && looks < LOOKS; lease = TAILQ_NEXT(lease, link), looks++) {
            if (lease->table != table)
                continue;
            items += lease->left;
            if (lease->timer.place && lease->timer.at_ns < first_ns)
                first_ns = lease->timer.at_ns;
        }
        most = items > most_items ? holder : most;
        most_items = items > most_items ? items : most_items;
    }
    if (!most)
        return;
    int used = snprintf(text, size, "%u item%s under lease, of which client %016llx has %u", table->in.leased,
                        table->in.leased == 1 ? " is" : "s are", (unsigned long long)most->client, most_items);
    if (first_ns != INT64_MAX && used > 0 && (size_t)used < size)
        snprintf(text + used, size - (size_t)used, "; the first lease ends in %.1f s",
                 (double)(first_ns - self->samples->loop->now_ns) / (double)NS_PER_S);
}

/* ---- restore ---- */

void lease_restore_item(struct lease *self, uint32_t slot)
{
    list_slot(self, slot);
    self->table->in.items[slot].stamp = ITEM_HIDDEN | self->number;
    self->table->in.leased++;
}

void lease_restored(struct lease *self, bool answered)
{
    self->answered = answered;
    if (answered)
        lease_start(self);
    else
        lease_end(self);
}

/* ---- life ---- */

void leases_init(struct leases *self, struct samples *samples)
{
    *self = (struct leases){.samples = samples, .chore = {.step = step}};
    STAILQ_INIT(&self->ending);
}

void leases_fini(struct leases *self)
{
    for (uint32_t i = 0; i < self->n; i++)
        if (self->list[i])
            lease_free(self->list[i]);
    free(self->list);
    free(self->free);
    idmap_fini(&self->clients);
    leases_init(self, self->samples);
}
