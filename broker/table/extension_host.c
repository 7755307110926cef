#include "broker/table/extension_host.h"

#include <string.h>

#include "broker/table/room.h"
#include "broker/table/tables.h"

static bool in_use(const struct table *table, uint32_t slot)
{
    return slot < table->in.high && table->in.items[slot].span.n > 0;
}

static bool host_view(void *ctx, uint32_t slot, rp_item_view *out)
{
    const struct table *table = ctx;
    if (!in_use(table, slot))
        return false;
    table_view(table, slot, out);
    return true;
}

static bool host_set_priority(void *ctx, uint32_t slot, double priority)
{
    struct table *table = ctx;
    if (!in_use(table, slot) || table_check_priority(table, priority, NULL) != RP_OK)
        return false;
    table_set_priority(table, slot, priority);
    return true;
}

static bool host_copy_to(void *ctx, uint32_t slot, const char *other_table, double priority)
{
    struct table *table = ctx, *other = tables_find(table->tables, other_table, strlen(other_table));
    if (!in_use(table, slot) || !other || other == table || table_check_priority(other, priority, NULL) != RP_OK)
        return false;
    const struct item *item = &table->in.items[slot];
    struct arrival arrival = {.key = item->key, .priority = priority, .policy = item->policy};
    if (!span_copy(&item->span, &arrival.span, table->store, table->layouts))
        return false;
    if (room_waits(other, &arrival.span) || table_insert(other, &arrival, NULL) != RP_OK) {
        span_release(&arrival.span, table->store, table->layouts);
        return false;
    }
    table_mark(other);
    return true;
}

rp_extension_host extension_host(struct table *table)
{
    return (rp_extension_host){table, host_view, host_set_priority, host_copy_to};
}
