/* Room for one more item at the limits of memory: memory_limit, storage.disk, and the table's own max_bytes.
 *
 * A table whose items still owe samples (max_times_sampled is not reached, and the limiter counts samples against inserts)
 * keeps them: inserts wait until samples have made room. Any other table evicts. Samples never wait for memory, so
 * waiting inserts continue as soon as somebody samples the table. */
#ifndef BROKER_ROOM_H
#define BROKER_ROOM_H

#include "broker/table/tables.h"

/* True if the table's items owe samples that the limiter would allow now: then no item is evicted for memory. */
bool room_is_kept(const struct table *self);

/* True if an item over these chunks has to wait for room. An empty table takes an item in any case; a table whose sampler
 * waits for more items takes items up to memory_limit, since nothing else could ever make room. */
bool room_waits_(struct table *self, const struct span *span);
static inline bool room_waits(struct table *self, const struct span *span)
{
    return self->config->max_times_sampled && room_waits_(self, span);
}

/* True if memory may be nearly full: then room_make looks closer. */
static inline bool room_is_short(const struct tables *tables)
{
    const struct store *store = tables->store;
    return slab_bytes(store->slabs)->reserved + store->outside + store->overhead + store->overhead / 16 >
           tables->storage_budget;
}
/* Evicts for memory, if the table may. An error if memory is full and the table has nothing to remove. */
rp_status room_make(struct table *self, rp_error *err);
/* Returns the memory of the table: its slots and keys, and the data of its items. */
uint64_t room_held(const struct table *self);
/* Returns the table that holds most, for messages. */
const struct table *room_holder(const struct tables *tables);
/* Writes a clause that says why an item over these chunks waits for room. Empty: it does not wait. */
void room_explain(const struct table *self, const struct span *span, char *text, size_t size);

#endif
