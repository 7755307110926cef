/* After anything that may unblock a table, its waiters are served in order and its blocked flows in turn, until the limiter
 * stops both. */
#include "broker/session/pump.h"

#include "broker/loop/loop.h"
#include "broker/sample/waiter.h"
#include "broker/session/flow.h"
#include "broker/table/table.h"

/* Time that one table may take before the sockets are looked at again. */
#define PUMP_BUDGET_NS (300 * NS_PER_US)
#define INSERTS_PER_TURN 16u

static bool may_insert(struct table *table, const struct flow *flow)
{
    return limiter_insertable(&table->limiter, 1) && !tables_disk_is_full(table->tables) &&
           !room_waits(table, &flow->queue[flow->head].arrival.span);
}

void pump_explain_insert(const struct table *table, char *text, size_t size)
{
    limiter_explain_insert(&table->limiter, text, size);
    const struct disk_tier *disk = &table->tables->disk;
    if (!text[0] && disk->ctx)
        disk->explain_insert(disk->ctx, text, size);
    const struct flow *flow = table->blocked;
    if (!text[0] && flow)
        room_explain(table, &flow->queue[flow->head].arrival.span, text, size);
}

/* Lets blocked flows insert in turn. True: at least one did. */
static bool pump_inserts(struct table *table)
{
    bool progress = false;
    struct flow *flow = table->blocked;
    for (uint32_t n = 0; flow && n < INSERTS_PER_TURN && may_insert(table, flow); n++) {
        table->blocked = flow->next;
        if (!flow_resolve_first(flow))
            return progress; /* tried again once a second */
        /* Rejections behind the item waited only for their predecessors: they are due as well. */
        while (flow->count && flow->queue[flow->head].status != RP_OK && flow_resolve_first(flow)) {
        }
        progress = true;
        flow = table->blocked;
    }
    return progress;
}

static bool pump_samples(struct table *table)
{
    bool progress = false;
    while (table->waiters && table_sampleable(table, 1)) {
        if (!table->waiters->serve(table->waiters, &progress))
            break;
    }
    return progress;
}

static bool pump_table(struct table *table)
{
    const struct clock *clock = &table->loop->clock;
    table->loop->now_ns = clock_now(clock); /* what waited is measured by it */
    int64_t end = table->loop->now_ns + PUMP_BUDGET_NS;
    bool more = true;
    while (more) {
        bool sampled = table->waiters && pump_samples(table);
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
        if ((table->waiters || table->blocked) && pump_table(table))
            table_mark(table);
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
