/* Where inserts that wait and samplers that wait meet: after anything that may unblock a table, its waiters are served in
 * order and its blocked flows in turn, until the limiter stops both. */
#include <stdlib.h>
#include <string.h>

#include "broker/broker.h"
#include "broker/sample/sample.h"
#include "broker/session/session.h"
#include "broker/spill/spill.h"
#include "broker/table/room.h"
#include "proto/base/error.h"

/* Work of one table before the sockets are looked at again. */
#define PUMP_BUDGET_NS (300 * NS_PER_US)
#define INSERTS_PER_TURN 16u

bool flow_push(struct flow *flow, const struct pending *pending)
{
    if (flow->count == flow->capacity) {
        uint32_t capacity = flow->capacity ? flow->capacity * 2 : 64;
        struct pending *queue = malloc(capacity * sizeof *queue);
        if (!queue)
            return false;
        for (uint32_t i = 0; i < flow->count; i++)
            queue[i] = flow->queue[(flow->head + i) % flow->capacity];
        free(flow->queue);
        flow->queue = queue;
        flow->capacity = capacity;
        flow->head = 0;
    }
    flow->queue[(flow->head + flow->count) % flow->capacity] = *pending;
    struct table *table = flow->table;
    table->n_waiting_items++;
    if (flow->count++ == 0) {
        flow->blocked_ns = table->broker->loop.now_ns;
        struct flow *first = table->blocked;
        flow->next = first ? first : flow;
        flow->prev = first ? first->prev : flow;
        flow->prev->next = flow;
        flow->next->prev = flow;
        if (!first)
            table->blocked = flow;
    }
    return true;
}

bool flow_merge_rejection(struct flow *flow)
{
    struct pending *last = flow->count ? &flow->queue[(flow->head + flow->count - 1) % flow->capacity] : NULL;
    if (!last || last->status == RP_OK || last->more == UINT32_MAX)
        return false;
    last->more++;
    return true;
}

static void flow_unblock(struct flow *flow)
{
    struct table *table = flow->table;
    if (flow->next == flow) {
        table->blocked = NULL;
    } else {
        flow->prev->next = flow->next;
        flow->next->prev = flow->prev;
        if (table->blocked == flow)
            table->blocked = flow->next;
    }
    flow->prev = flow->next = NULL;
}

static struct pending flow_pop(struct flow *flow)
{
    struct pending pending = flow->queue[flow->head];
    flow->head = (flow->head + 1) % flow->capacity;
    flow->table->n_waiting_items--;
    flow->blocked_ns = flow->table->broker->loop.now_ns;
    if (--flow->count == 0)
        flow_unblock(flow);
    return pending;
}

/* The rest of a dropped session's queue. */
struct drop {
    struct chore chore;
    struct broker *broker;
    struct pending *queue;
    uint32_t head, count, capacity;
};

/* False: all is done. */
static bool drop_some(struct drop *self)
{
    for (uint32_t i = 0; i < 256 && self->count; i++, self->count--) {
        struct pending *pending = &self->queue[self->head];
        span_release(&pending->arrival.span, &self->broker->store, &self->broker->layouts);
        free(pending->text);
        if (pending->inbound && --pending->inbound->waiting == 0)
            free(pending->inbound);
        self->head = (self->head + 1) % self->capacity;
    }
    if (self->count)
        return true;
    free(self->queue);
    return false;
}

static bool drop_step(struct chore *chore)
{
    if (drop_some((struct drop *)chore))
        return true;
    free(chore);
    return false;
}

void flow_drop(struct broker *broker, struct flow *flow)
{
    if (flow->count == 0) {
        free(flow->queue);
    } else {
        flow->table->n_waiting_items -= flow->count;
        flow_unblock(flow);
        struct drop *drop = calloc(1, sizeof *drop);
        struct drop now = {{NULL, drop_step}, broker, flow->queue, flow->head, flow->count, flow->capacity};
        if (drop) {
            *drop = now;
            chores_add(&broker->loop.chores, &drop->chore);
        } else { /* no memory to do it later */
            while (drop_some(&now)) {
            }
        }
    }
    flow->queue = NULL;
    flow->head = flow->count = flow->capacity = 0;
}

rp_status flow_insert(struct flow *flow, const struct arrival *arrival, rp_error *err)
{
    uint32_t episode = span_chunks(&arrival->span)[0]->episode + 1;
    RP_TRY(table_insert(flow->table, arrival, err));
    flow->table->stats.episodes += episode != flow->episode;
    flow->episode = episode;
    return RP_OK;
}

void flow_resolved(struct broker *broker, struct flow *flow, struct inbound *inbound)
{
    flow->resolved++;
    if (inbound && --inbound->waiting == 0) {
        credit_return(broker, flow->session, inbound->bytes);
        free(inbound);
    }
    credit_mark(broker, flow->session, false);
}

/* Resolves the first item of a flow. False: no memory: it goes on waiting. */
static bool flow_settle_first(struct broker *broker, struct flow *flow)
{
    struct pending *first = &flow->queue[flow->head];
    rp_error err = {0};
    rp_status status = first->status;
    const char *text = first->text;
    if (!credit_reserve(flow->session))
        return false;
    if (status == RP_OK) {
        status = flow_insert(flow, &first->arrival, &err);
        text = err.text;
        if (status == RP_NO_MEMORY)
            return false;
        if (status != RP_OK)
            span_release(&first->arrival.span, &broker->store, &broker->layouts);
    }
    struct pending pending = flow_pop(flow);
    if (pending.more) /* all of them */
        EFFECT(&broker->loop, together, 8192);
    if (status != RP_OK)
        credit_reject(broker, flow, pending.arrival.key, status, text);
    free(pending.text);
    flow->resolved += pending.more;
    flow->rejected += pending.more;
    flow->table->stats.rejected += pending.more;
    flow_resolved(broker, flow, pending.inbound);
    if (pending.more)
        EFFECT(&broker->loop, progress, flow->session);
    return true;
}

static bool may_insert(const struct broker *broker, struct table *table, const struct flow *flow)
{
    return limiter_insertable(&table->limiter, 1) && !(broker->spill && spill_is_full(broker)) &&
           !room_waits(table, &flow->queue[flow->head].arrival.span);
}

void pump_explain_insert(const struct table *table, char *text, size_t size)
{
    limiter_explain_insert(&table->limiter, text, size);
    if (!text[0])
        spill_explain_insert(table->broker, text, size);
    if (!text[0])
        room_explain(table, text, size);
}

/* Lets blocked flows insert in turn. True: at least one did. */
static bool pump_inserts(struct broker *broker, struct table *table)
{
    bool progress = false;
    struct flow *flow = table->blocked;
    for (uint32_t n = 0; flow && n < INSERTS_PER_TURN && may_insert(broker, table, flow); n++) {
        table->blocked = flow->next;
        if (!flow_settle_first(broker, flow))
            return progress; /* once a second it is tried again */
        /* Rejections behind it are due as well: they wait for their predecessors only. */
        while (flow->count && flow->queue[flow->head].status != RP_OK && flow_settle_first(broker, flow)) {
        }
        progress = true;
        flow = table->blocked;
    }
    return progress;
}

static bool pump_samples(struct broker *broker, struct table *table)
{
    bool progress = false;
    while (table->waiters && table_sampleable(table, 1)) {
        struct waiter *waiter = table->waiters;
        uint32_t before = waiter->picks.n;
        waiter_fill(waiter);
        progress |= waiter->picks.n > before;
        if (!waiter_is_done(waiter))
            break;
        sample_answer(broker, waiter, NULL);
    }
    return progress;
}

void pump_mark(struct table *table)
{
    if (table->dirty)
        return;
    table->dirty = true;
    table->next_dirty = table->broker->tables.dirty;
    table->broker->tables.dirty = table;
}

static bool pump_table(struct broker *broker, struct table *table)
{
    int64_t end = clock_now(&broker->loop.clock) + PUMP_BUDGET_NS;
    bool more = true;
    while (more) {
        bool sampled = table->waiters && pump_samples(broker, table);
        bool inserted = table->blocked && pump_inserts(broker, table);
        more = sampled || inserted;
        if (more && clock_now(&broker->loop.clock) >= end)
            return true;
    }
    return false;
}

bool pump_run(struct broker *broker)
{
    struct table *dirty = broker->tables.dirty;
    broker->tables.dirty = NULL;
    while (dirty) {
        struct table *table = dirty;
        dirty = table->next_dirty;
        table->dirty = false;
        if ((table->waiters || table->blocked) && pump_table(broker, table))
            pump_mark(table);
    }
    return broker->tables.dirty != NULL;
}
