/* Credit says how many items per table, and how many bytes, a session may have unresolved.
 *
 * Windows start small, double while they are used up, and are shared among the sessions that write. The sum of all byte
 * grants (offered - returned) never exceeds the ingest budget; one item at a time may always be sent, so a session
 * without any grant still makes progress.
 *
 * A grant that a writer knows of cannot be taken back: its messages may be in flight. When the budget is short, a session
 * that uses little of its grant is asked to keep less (Credit.keep_bytes), and its client releases the rest in a heartbeat
 * (Heartbeat.released_bytes). The window of a client that does not support this shrinks as the client uses it: nothing is
 * added until the smaller window is used up. */
#include "broker/session/flow.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "broker/config/config.h"
#include "broker/loop/loop.h"
#include "broker/peer/identity.h"
#include "broker/sample/samples.h"
#include "broker/session/session.h"
#include "proto/base/error.h"
#include "proto/base/need.h"
#include "proto/base/utf8.h"

/* ---- grants ---- */

#define FIRST_WINDOW_ITEMS 64u
#define FIRST_WINDOW_BYTES (1u << 20)
/* The n-th session begins with budget / (IDLE_PART * (n + 1)) bytes at most. The sum is harmonic: 1,000 sessions hold less
 * than half of the budget, even if none of them ever releases credit. */
#define IDLE_PART 16u
#define SHARED_WINDOW_ITEMS 40000u
/* Window of a table that is being sampled: a deep queue of inserts delays samplers. */
#define SAMPLED_WINDOW_ITEMS 4000u
#define LEAST_WINDOW_ITEMS 256u
#define REJECTIONS_PER_MESSAGE 32u
/* Unread rejections after which a session gets no more credit. */
#define REJECTIONS_MOST 1024u

static uint64_t least(uint64_t a, uint64_t b)
{
    return a < b ? a : b;
}

void credit_mark(struct session *self, bool urgent)
{
    self->urgent |= urgent;
    if (self->dirty)
        return;
    self->dirty = true;
    LIST_INSERT_HEAD(&self->sessions->dirty, self, news);
}

/* Returns how many sessions share the windows: those that write, and this one. */
static uint64_t writers(const struct session *self)
{
    return (uint64_t)self->sessions->n_writing + (self->writing ? 0 : 1);
}

static uint64_t most_bytes(const struct session *self)
{
    const struct sessions *sessions = self->sessions;
    uint64_t own = (uint64_t)self->owner->quota.granted_bytes;
    uint64_t most = least(WINDOW_BYTES, sessions->ingest_budget / (writers(self) + 1));
    return own ? least(most, own / ((uint64_t)self->owner->sessions + 1)) : most;
}

/* Returns the window of a session that does not write. */
static uint64_t idle_bytes(const struct sessions *sessions)
{
    uint64_t part = sessions->ingest_budget / IDLE_PART / ((uint64_t)sessions->n_open + 1);
    return least(FIRST_WINDOW_BYTES, part ? part : 1);
}

static uint64_t most_items(const struct flow *flow, uint32_t flows)
{
    const struct session *self = flow->session;
    uint64_t all = flow->table->sampled_lately ? SAMPLED_WINDOW_ITEMS : SHARED_WINDOW_ITEMS;
    uint64_t fair = all / writers(self);
    if (fair < LEAST_WINDOW_ITEMS)
        fair = LEAST_WINDOW_ITEMS;
    uint64_t most = least(WINDOW_ITEMS, fair);
    uint64_t rate = (uint64_t)self->owner->quota.inserts_per_second;
    if (rate) /* a short queue: credit that comes later is what limits the rate */
        most = least(most, rate / 10 ? rate / 10 : 1);
    if (self->items) {
        /* Cap the window so that one blocked table cannot consume the bytes that the session's other tables need. */
        uint64_t mean = self->received_bytes / self->items + sizeof(struct pending_item);
        uint64_t share = self->window_bytes / (flows > 1 ? 2 * flows : 1) / mean;
        most = least(most, share ? share : 1);
    }
    return most;
}

/* Counts bytes that are no longer granted. */
static void take_back(struct session *self, uint64_t bytes)
{
    self->sessions->granted_bytes -= least(bytes, self->sessions->granted_bytes);
    self->owner->granted_bytes -= least(bytes, self->owner->granted_bytes);
}

static void grant_bytes(struct session *self)
{
    struct sessions *sessions = self->sessions;
    uint64_t used = self->returned_bytes - self->told_returned;
    if (used >= self->window_bytes / 8) /* a single item may have been larger than the window */
        self->window_bytes = 2 * (used > self->window_bytes ? used : self->window_bytes);
    uint64_t most = most_bytes(self);
    if (self->window_bytes > most)
        self->window_bytes = most;
    uint64_t want = self->returned_bytes + self->window_bytes;
    if (want <= self->offered_bytes)
        return;
    uint64_t room =
        sessions->granted_bytes < sessions->ingest_budget ? sessions->ingest_budget - sessions->granted_bytes : 0;
    uint64_t own = (uint64_t)self->owner->quota.granted_bytes, has = self->owner->granted_bytes;
    if (own) /* what the session's key may be granted beyond what it has */
        room = least(room, own > has ? own - has : 0);
    credit_offer(self, least(want - self->offered_bytes, room));
}

static void grant_items(struct flow *flow, uint32_t flows)
{
    if (!flow->window)
        flow->window = FIRST_WINDOW_ITEMS;
    if (flow->resolved - flow->told_resolved >= flow->window / 8)
        flow->window *= 2;
    uint64_t most = most_items(flow, flows);
    if (flow->window > most)
        flow->window = most;
    if (flow->resolved + flow->window > flow->allowed)
        flow->allowed = flow->resolved + flow->window;
}

void credit_offer(struct session *self, uint64_t bytes)
{
    struct sessions *sessions = self->sessions;
    self->offered_bytes += bytes;
    sessions->granted_bytes += bytes;
    self->owner->granted_bytes += bytes;
    if (self->allowed_bytes < self->offered_bytes)
        self->allowed_bytes = self->offered_bytes;
}

void credit_refresh(struct session *self)
{
    if (self->rejection_count > REJECTIONS_MOST)
        return;
    if (identity_owes_s(self->owner, self->sessions->loop->now_ns) > 0.0) {
        credit_mark(self, true); /* a notice brings the credit when the key has paid */
        return;
    }
    grant_bytes(self);
    uint32_t flows = 0;
    for (uint32_t i = 0; i < self->n_tables; i++)
        flows += self->flows[i].arrived > 0;
    for (uint32_t i = 0; i < self->n_tables; i++)
        grant_items(&self->flows[i], flows);
}

uint64_t credit_allowed(const struct session *self)
{
    return self->offered_bytes + self->released_bytes;
}

static void set_writing(struct session *self, bool writing)
{
    if (self->writing != writing)
        self->sessions->n_writing += writing ? 1 : UINT32_MAX;
    self->writing = writing;
}

void credit_use(struct session *self)
{
    set_writing(self, true);
}

void credit_open(struct session *self)
{
    struct sessions *sessions = self->sessions;
    self->window_bytes = least(idle_bytes(sessions), most_bytes(self));
    /* A tombstone keeps only its promise (allowed_bytes): credit starts anew, and what the writer sends again is accepted up
     * to the promise. */
    self->offered_bytes = self->returned_bytes;
    self->told_returned = self->measured_bytes = self->returned_bytes;
    self->measured_ns = sessions->loop->now_ns;
    self->released_bytes = self->keep_bytes = 0;
    credit_refresh(self);
}

void credit_close(struct session *self)
{
    if (self->tombstone)
        return; /* closed when it expired */
    set_writing(self, false);
    take_back(self, self->offered_bytes - self->returned_bytes);
    /* Everything that has arrived counts as returned. */
    self->offered_bytes = self->returned_bytes = self->received_bytes;
}

void credit_return(struct session *self, uint64_t bytes)
{
    self->returned_bytes += bytes;
    take_back(self, bytes);
}

uint64_t flows_unresolved(const struct session *session)
{
    uint64_t n = 0;
    for (uint32_t i = 0; i < session->n_tables; i++)
        n += session->flows[i].arrived - session->flows[i].resolved;
    return n;
}

void credit_measure(struct session *self)
{
    struct sessions *sessions = self->sessions;
    /* Some clients poll for credit with many heartbeats per second. */
    if (sessions->loop->now_ns - self->measured_ns < sessions->config->expiry_ns / CONFIG_HEARTBEATS / 2)
        return;
    uint64_t used = self->received_bytes - self->measured_bytes, keep = idle_bytes(sessions);
    self->measured_ns = sessions->loop->now_ns;
    self->measured_bytes = self->received_bytes;
    set_writing(self, used > 0 || flows_unresolved(self) > 0);
    self->keep_bytes = 0;
    uint64_t own = (uint64_t)self->owner->quota.granted_bytes;
    if (sessions->granted_bytes <= sessions->ingest_budget / 2 && (!own || self->owner->granted_bytes <= own / 2))
        return;
    keep = keep > 2 * used ? keep : 2 * used;
    if (self->window_bytes > keep)
        self->window_bytes = keep;
    if (self->offered_bytes - self->received_bytes > keep)
        self->keep_bytes = keep;
}

void credit_release(struct session *self, uint64_t released)
{
    struct sessions *sessions = self->sessions;
    if (released <= self->released_bytes || released > credit_allowed(self))
        return; /* known already; or more than it ever had */
    /* A single item that needed no credit may have used up what is released here. */
    uint64_t bytes = least(released - self->released_bytes, self->offered_bytes - self->received_bytes);
    self->released_bytes = released;
    self->offered_bytes -= bytes;
    self->allowed_bytes = self->offered_bytes; /* no less than what it has sent */
    take_back(self, bytes);
    uint64_t left = self->offered_bytes - self->returned_bytes, idle = idle_bytes(sessions);
    left = left > idle ? left : idle;
    if (self->window_bytes > left)
        self->window_bytes = left;
    self->keep_bytes = 0;
}

/* ---- rejections ---- */

void credit_reject(struct flow *flow, uint64_t key, rp_status status, const char *text)
{
    flow->rejected++;
    flow->table->stats.rejected++;
    struct rejection rejection = {flow->table->id, status, flow->resolved + 1, key, (char *)(uintptr_t)text};
    credit_reject_at(flow->session, &rejection);
}

void credit_reject_at(struct session *self, const struct rejection *rejection)
{
    struct sessions *sessions = self->sessions;
    uint32_t held;
    if (log_allow(&sessions->reject_log, 5, sessions->loop->now_ns, &held)) {
        log_line(LEVEL_WARN, "B0203", "item rejected", "session=%s table=%s key=%llu status=%s text=%s held_back=%u",
                 log_text(self->name),
                 rejection->table < sessions->tables->n ? sessions->tables->list[rejection->table].name : "-",
                 (unsigned long long)rejection->key, rp_status_name((int32_t)rejection->status),
                 log_text(rejection->text), held);
    }
    credit_mark(self, true);
    EFFECT(sessions->loop, rejection, self, rejection);
    credit_keep_rejection(self, rejection);
}

void credit_keep_rejection(struct session *self, const struct rejection *rejection)
{
    uint32_t count = self->rejection_count, capacity = self->rejection_capacity;
    if (count >= REJECTIONS_KEPT)
        return; /* the writer ignores its credit: Credit.rejected still counts it */
    if (count == capacity) {
        struct rejection *ring = need_alloc((capacity ? capacity * 2 : 16) * sizeof *ring);
        for (uint32_t i = 0; i < count; i++)
            ring[i] = self->rejections[(self->rejection_head + i) % capacity];
        free(self->rejections);
        self->rejections = ring;
        self->rejection_capacity = capacity ? capacity * 2 : 16;
        self->rejection_head = 0;
    }
    struct rejection *kept = &self->rejections[(self->rejection_head + count) % self->rejection_capacity];
    *kept = *rejection;
    kept->text = need_text(rejection->text ? rejection->text : "");
    utf8_clean(kept->text, strlen(kept->text)); /* it may quote what a client sent, cut in the middle of a character */
    self->rejection_count++;
}

void credit_confirm(struct session *self, uint64_t confirmed)
{
    while (self->rejection_count && self->confirmed_rejections < confirmed) {
        free(self->rejections[self->rejection_head].text);
        self->rejection_head = (self->rejection_head + 1) % self->rejection_capacity;
        self->rejection_count--;
        self->confirmed_rejections++;
    }
}

/* ---- the Credit message ---- */

void pump_explain_insert(const struct table *table, char *text, size_t size)
{
    const struct flow *flow = table->blocked;
    limiter_explain_insert(&table->limiter, text, size);
    if (!text[0] && flow)
        table_explain_begin(table, flow->queue[flow->head].arrival.group, text, size);
    const struct disk_tier *disk = &table->tables->disk;
    if (!text[0] && disk->ctx)
        disk->explain_insert(disk->ctx, text, size);
    if (!text[0] && flow)
        room_explain(table, &flow->queue[flow->head].arrival.span, text, size);
    size_t used = strlen(text);
    if (used && limiter_counts(&table->limiter) && table->in.leased)
        snprintf(text + used, size - used, "; %u items are under lease, and count when they are acknowledged",
                 table->in.leased);
}

static void add_rejections(struct arena *arena, const struct session *session, Replay__Credit *out)
{
    uint32_t n = session->rejection_count < REJECTIONS_PER_MESSAGE ? session->rejection_count : REJECTIONS_PER_MESSAGE;
    Replay__Rejection *list = n ? pb_messages(arena, &replay__rejection__descriptor, n, &out->rejections) : NULL;
    out->n_rejections = n;
    out->first_rejection = session->confirmed_rejections;
    for (uint32_t i = 0; i < n; i++) {
        const struct rejection *from =
            &session->rejections[(session->rejection_head + i) % session->rejection_capacity];
        list[i].table = from->table;
        list[i].item = from->item;
        list[i].key = from->key;
        list[i].status = (uint32_t)from->status;
        list[i].text = from->text;
    }
}

static char *explain_flow(struct arena *arena, const struct flow *flow)
{
    char text[512], why[400] = "";
    pump_explain_insert(flow->table, why, sizeof why);
    snprintf(text, sizeof text, "table '%s' holds back %llu items of this session: %s", flow->table->name,
             (unsigned long long)(flow->arrived - flow->resolved), why[0] ? why : "about to be inserted");
    return arena_text(arena, text);
}

static void add_flows(struct arena *arena, struct session *session, bool explain, Replay__Credit *out)
{
    uint32_t n = session->n_tables;
    out->table = arena_take(arena, n, sizeof *out->table);
    out->resolved = arena_take(arena, 3 * (size_t)n, sizeof *out->resolved);
    out->allowed = out->resolved + n;
    out->rejected = out->allowed + n;
    out->waiting = explain ? arena_take(arena, n, sizeof(*out->waiting)) : NULL;
    out->n_table = out->n_resolved = out->n_allowed = out->n_rejected = n;
    for (uint32_t i = 0; i < n; i++) {
        struct flow *flow = &session->flows[i];
        out->table[i] = i;
        out->resolved[i] = flow->told_resolved = flow->resolved;
        out->allowed[i] = flow->allowed;
        out->rejected[i] = flow->rejected;
        if (explain && flow->arrived > flow->resolved)
            out->waiting[out->n_waiting++] = explain_flow(arena, flow);
    }
}

Replay__Credit *credit_message(struct arena *arena, struct session *session, bool explain)
{
    EFFECT(session->sessions->loop, progress, session);
    Replay__Credit *out = pb_messages(arena, &replay__credit__descriptor, 1, NULL);
    out->received = session->received;
    out->gap = session->gap;
    out->epoch = session->epoch;
    out->session = session->ordinal;
    out->allowed_bytes = credit_allowed(session);
    out->keep_bytes = session->keep_bytes;
    out->returned_bytes = session->told_returned = session->returned_bytes;
    add_flows(arena, session, explain, out);
    add_rejections(arena, session, out);
    session->told_ns = session->sessions->loop->now_ns;
    return out;
}

/* ---- the queue ---- */

#define DROPS_PER_STEP 256u

static void queue_grow(struct flow *self)
{
    uint32_t capacity = self->capacity ? self->capacity * 2 : 64;
    struct pending_item *queue = need_resize(NULL, capacity, sizeof *queue);
    for (uint32_t i = 0; i < self->count; i++)
        queue[i] = self->queue[(self->head + i) % self->capacity];
    self->session->sessions->store->overhead += (capacity - self->capacity) * sizeof *queue;
    free(self->queue);
    self->queue = queue;
    self->capacity = capacity;
    self->head = 0;
}

static void block(struct flow *self)
{
    struct flow *first = self->table->blocked;
    self->blocked_ns = self->stopped_ns = self->session->sessions->loop->now_ns;
    self->next = first ? first : self;
    self->prev = first ? first->prev : self;
    self->prev->next = self;
    self->next->prev = self;
    if (!first)
        self->table->blocked = self;
    self->table->n_blocked++;
}

void flow_trace(const struct flow *self)
{
    struct loop *loop = self->session->sessions->loop;
    int64_t now = clock_now(&loop->clock);
    if (now > self->stopped_ns)
        trace_add(&loop->trace, self->table->name, "inserts that wait",
                  &(struct trace_span){.start_ns = self->stopped_ns,
                                       .duration_ns = now - self->stopped_ns,
                                       .who = self->session->ordinal,
                                       .count = self->count});
}

static void unblock(struct flow *self)
{
    struct table *table = self->table;
    if (trace_on(&self->session->sessions->loop->trace))
        flow_trace(self);
    if (self->next == self) {
        table->blocked = table->look = NULL;
    } else {
        self->prev->next = self->next;
        self->next->prev = self->prev;
        if (table->blocked == self)
            table->blocked = self->next;
        if (table->look == self)
            table->look = self->next;
    }
    table->n_blocked--;
    table->refused = 0;
    self->prev = self->next = NULL;
}

void flow_push(struct flow *self, const struct pending_item *item)
{
    if (self->count == self->capacity)
        queue_grow(self);
    self->queue[(self->head + self->count) % self->capacity] = *item;
    self->table->n_waiting_items++;
    if (self->count++ == 0)
        block(self);
}

static struct pending_item pop(struct flow *self)
{
    struct pending_item item = self->queue[self->head];
    self->head = (self->head + 1) % self->capacity;
    self->table->n_waiting_items--;
    self->blocked_ns = self->session->sessions->loop->now_ns;
    if (--self->count == 0)
        unblock(self);
    return item;
}

bool flow_merge_rejection(struct flow *self)
{
    struct pending_item *last = self->count ? &self->queue[(self->head + self->count - 1) % self->capacity] : NULL;
    if (!last || last->status == RP_OK || last->more == UINT32_MAX)
        return false;
    last->more++;
    return true;
}

/* ---- the end of a session ---- */

/* The queue of a flow that was dropped. */
struct queue_drop {
    struct chore chore;
    struct sessions *sessions;
    struct pending_item *queue;
    uint32_t head, count, capacity;
};

static bool drop_step(struct chore *chore)
{
    struct queue_drop *self = (struct queue_drop *)chore;
    for (uint32_t i = 0; i < DROPS_PER_STEP && self->count; i++, self->count--) {
        struct pending_item *item = &self->queue[self->head];
        span_release(&item->arrival.span, self->sessions->store, self->sessions->layouts);
        free(item->text);
        if (item->message && --item->message->waiting == 0)
            free(item->message);
        self->head = (self->head + 1) % self->capacity;
    }
    if (self->count)
        return true;
    free(self->queue);
    free(self);
    return false;
}

void flow_drop(struct flow *self)
{
    struct sessions *sessions = self->session->sessions;
    if (self->count == 0) {
        free(self->queue);
    } else {
        self->table->n_waiting_items -= self->count;
        unblock(self);
        struct queue_drop *drop = need_alloc(sizeof *drop);
        *drop = (struct queue_drop){{NULL, drop_step}, sessions, self->queue, self->head, self->count, self->capacity};
        chores_add(&sessions->loop->chores, &drop->chore);
    }
    sessions->store->overhead -= self->capacity * sizeof *self->queue;
    self->queue = NULL;
    self->head = self->count = self->capacity = 0;
}

/* ---- items are resolved ---- */

/* Refuses a key outside of the session's own range if another session has it. Checked when the item enters its table: while
 * the item waited, the key may have been handed out. */
static __attribute__((noinline)) rp_status check_foreign_key(const struct session *session, uint64_t key, rp_error *err)
{
    const struct ordinals *ordinals = &session->sessions->tables->ordinals;
    if (wire_key_shard(key ^ ordinals->prefix) || !ordinals->at[ordinal_of_key(key)].sessions)
        return RP_OK;
    return err_set(err, RP_PERMISSION_DENIED,
                   "key %llu belongs to another writer's session: use keys from %llu on, which HELLO gave to this one",
                   (unsigned long long)key, (unsigned long long)session->keys.base);
}

rp_status flow_insert(struct flow *self, struct arrival *arrival, rp_error *err)
{
    const struct key_range *own = &self->session->keys;
    if (__builtin_expect(arrival->key - own->base >= own->count, 0))
        RP_TRY(check_foreign_key(self->session, arrival->key, err));
    uint32_t episode = span_chunks(&arrival->span)[0]->episode + 1;
    arrival->same_episode = episode == self->episode && self->resets == self->table->resets;
    RP_TRY(table_insert(self->table, arrival, err));
    self->episode = episode;
    self->resets = self->table->resets;
    return RP_OK;
}

/* Inserts or rejects the first item of the queue. False: no memory, and the item keeps waiting. */
static bool flow_resolve_first(struct flow *self)
{
    struct sessions *sessions = self->session->sessions;
    struct pending_item *first = &self->queue[self->head];
    rp_error err = {0};
    rp_status status = first->status;
    const char *text = first->text;
    if (status == RP_OK) {
        status = flow_insert(self, &first->arrival, &err);
        text = err.text;
        if (status == RP_NO_MEMORY)
            return false;
        if (status != RP_OK)
            span_release(&first->arrival.span, sessions->store, sessions->layouts);
    }
    struct pending_item item = pop(self);
    if (status == RP_OK && item.message) {
        int64_t took = sessions->loop->now_ns - item.message->arrived_ns;
        histogram_add_ns(&sessions->insert, took, 1);
        histogram_add_ns(&sessions->insert_wait, took, 1);
    }
    if (item.more) /* the rejections that are only counted belong to the same record */
        EFFECT(sessions->loop, together, 8192);
    if (status != RP_OK)
        credit_reject(self, item.arrival.key, status, text);
    free(item.text);
    self->resolved += item.more + 1;
    self->rejected += item.more;
    self->table->stats.rejected += item.more;
    if (item.message && --item.message->waiting == 0) {
        credit_return(self->session, item.message->bytes);
        free(item.message);
    }
    credit_mark(self->session, false);
    if (item.more)
        EFFECT(sessions->loop, progress, self->session);
    return true;
}

/* ---- the pump ---- */

/* Time that one table may take before the sockets are looked at again. */
#define PUMP_BUDGET_NS (300 * NS_PER_US)
#define INSERTS_PER_TURN 16u

static bool may_insert(struct table *table, const struct flow *flow)
{
    const struct arrival *next = &flow->queue[flow->head].arrival;
    return table_insertable(table, next->group, 1) && !tables_disk_is_full(table->tables) &&
           !room_waits(table, &next->span);
}

/* Flows with groups that are looked at before the clock is. */
#define LOOKS_PER_TURN 64u

/* Returns the flow that inserts next. NULL: none may, or *looks flows were looked at. */
static struct flow *next_flow(struct table *table, uint32_t *looks)
{
    if (may_insert(table, table->blocked))
        return table->blocked;
    /* Another flow may insert if it has a member of an open group. */
    for (; table->in.groups.slots && table->refused < table->n_blocked && *looks; --*looks) {
        struct flow *flow = table->look ? table->look : table->blocked;
        table->look = flow->next;
        table->refused++;
        if (may_insert(table, flow))
            return flow;
    }
    return NULL;
}

/* Lets blocked flows insert in turn. True: at least one did, or some have yet to be looked at. */
static bool pump_inserts(struct table *table)
{
    bool progress = false;
    uint32_t looks = LOOKS_PER_TURN;
    struct flow *flow;
    for (uint32_t n = 0; table->blocked && n < INSERTS_PER_TURN && (flow = next_flow(table, &looks)); n++) {
        if (flow == table->blocked)
            table->blocked = flow->next;
        table->refused = 0;
        if (!flow_resolve_first(flow))
            return progress; /* tried again once a second */
        /* Rejections behind the item waited only for their predecessors: they are due as well. */
        while (flow->count && flow->queue[flow->head].status != RP_OK && flow_resolve_first(flow)) {
        }
        progress = true;
    }
    return progress || (table->blocked && !looks);
}

static bool pump_samples(struct table *table)
{
    bool progress = false;
    for (struct waiter *first; (first = TAILQ_FIRST(&table->waiters.queue)) && table_sampleable(table, 1);)
        if (!first->serve(first, &progress))
            break;
    return progress;
}

static bool pump_table(struct table *table)
{
    const struct clock *clock = &table->loop->clock;
    table->loop->now_ns = clock_now(clock); /* what waited is measured by it */
    int64_t end = table->loop->now_ns + PUMP_BUDGET_NS;
    bool more = true;
    while (more) {
        bool sampled = table->waiters.n && pump_samples(table);
        if (sampled)
            table->refused = 0;
        bool inserted = table->blocked && pump_inserts(table);
        more = sampled || inserted;
        if (more && clock_now(clock) >= end)
            return true;
    }
    return false;
}

bool pump_run(struct tables *tables)
{
    struct table *dirty = tables->dirty;
    tables->dirty = NULL;
    while (dirty) {
        struct table *table = dirty;
        dirty = table->next_dirty;
        table->dirty = false;
        if ((table->waiters.n || table->blocked) && pump_table(table)) {
            uint32_t refused = table->refused;
            table_mark(table);
            table->refused = refused;
        }
    }
    return tables->dirty != NULL;
}

bool pump_wake(struct tables *tables)
{
    if (!tables->waits_for_room)
        return false;
    bool woken = false;
    tables->waits_for_room = false;
    for (uint32_t i = 0; i < tables->n; i++) {
        struct table *table = &tables->list[i];
        const struct flow *flow = table->blocked;
        if (!table->waits_for_room)
            continue;
        table->waits_for_room = false;
        if (!flow || room_waits(table, &flow->queue[flow->head].arrival.span))
            continue;
        table_mark(table);
        woken = true;
    }
    return woken;
}

void limiter_info(const struct table *table, struct limiter_info *out)
{
    const struct limiter *limiter = &table->limiter;
    replay__limiter_info__init(&out->body);
    out->body.kind = (char *)(uintptr_t)limiter_kind_name(limiter->kind);
    out->body.samples_per_insert = limiter->samples_per_insert;
    out->body.min_size = limiter->min_size_part;
    out->body.min_diff = limiter->min_diff;
    out->body.max_diff = limiter->max_diff;
    out->body.inserts = limiter->inserts;
    out->body.samples = limiter->samples;
    out->body.deletes = limiter->deletes;
    out->body.cursor = limiter_cursor(limiter);
    out->body.paused = limiter->paused;
    out->body.batch = limiter->batch;
    out->inserts_wait[0] = out->samples_wait[0] = '\0';
    pump_explain_insert(table, out->inserts_wait, sizeof out->inserts_wait);
    limiter_explain_sample(limiter, 1, out->samples_wait, sizeof out->samples_wait);
    out->body.inserts_wait = out->inserts_wait;
    out->body.samples_wait = out->samples_wait;
}
