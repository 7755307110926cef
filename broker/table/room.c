#include "broker/table/room.h"

#include <stdio.h>

#include "broker/loop/loop.h"
#include "broker/table/tables.h"
#include "proto/base/error.h"
#include "proto/base/log.h"

#define MIB (1024.0 * 1024.0)

bool room_is_kept(const struct table *self)
{
    return self->config->max_times_sampled && limiter_counts(&self->limiter) && table_sampleable(self, 1) > 0;
}

/* Returns what is left for chunks: a sixteenth at least, so that a table that once had very many small items goes on with large
 * ones. */
static uint64_t left_for_chunks(const struct store *store, uint64_t limit)
{
    uint64_t least = limit / 16;
    return store->overhead + least < limit ? limit - store->overhead : least;
}

/* True if one more item would exceed this much memory.
 *
 * Slots and keys stay with their table when items go: only chunks are freed. So a table that needs a further slot evicts while all
 * memory exceeds the limit, and gets the slot of another item. It stops growing a little earlier, in proportion to what cannot be
 * given back: or every change of what others hold would cost a great many small items. */
static bool exceeds(const struct table *self, uint64_t limit)
{
    const struct store *store = self->store;
    if (store_chunk_memory(store) > left_for_chunks(store, limit))
        return true;
    uint64_t margin = limit == self->tables->storage_budget ? store->overhead / 16 : 0;
    return self->in.free == NO_SLOT && store_memory(store) + margin > limit;
}

/* True if something should be evicted. Chunks that are about to go to disk make room without that: inserts wait for them
 * before they come here. */
static bool wants_room(const struct table *self)
{
    const struct tables *tables = self->tables;
    const struct disk_tier *disk = &tables->disk;
    return (exceeds(self, tables->storage_budget) && !tables_disk_is_full(tables)) ||
           (disk->ctx && disk->wants_room(disk->ctx));
}

/* Bytes that the item adds to the table. */
static uint64_t added_bytes(const struct table *self, const struct span *span)
{
    struct chunk *const *chunks = span_chunks(span);
    uint64_t bytes = 0;
    for (uint32_t i = 0; i < span->n; i++)
        bytes += chunk_is_in(chunks[i], self->in.account) ? 0 : chunks[i]->bytes;
    return bytes;
}

static bool exceeds_max_bytes(const struct table *self, const struct span *span)
{
    uint64_t most = (uint64_t)self->config->max_bytes;
    return most && self->bytes + added_bytes(self, span) > most;
}

static bool exceeds_memory(const struct table *self)
{
    return self->waiters ? exceeds(self, (uint64_t)self->tables->config->memory_limit) : wants_room(self);
}

static bool has_to_wait(const struct table *self, const struct span *span)
{
    if (!limiter_counts(&self->limiter))
        return false;
    if (self->in.size == 0) /* only a sampler that holds picked items can make room */
        return self->waiters && exceeds_memory(self);
    return (exceeds_memory(self) || exceeds_max_bytes(self, span)) && room_is_kept(self);
}

bool room_waits_(struct table *self, const struct span *span)
{
    if (!has_to_wait(self, span))
        return false;
    self->waits_for_room = self->tables->waits_for_room = true;
    return true;
}

/* The first time is logged: the table will not get as large as its configuration says. */
static void note_evicted(struct table *self, uint32_t n)
{
    struct table_stats *stats = &self->stats;
    if (stats->evicted_for_memory == 0) {
        stats->evicted_for_memory_ns = self->loop->now_ns;
        log_line(LEVEL_WARN, "B0210", "a table evicts items because memory is full",
                 "table=%s items=%u max_size=%lld memory_bytes=%llu memory_limit=%lld", self->name, self->in.size,
                 (long long)self->config->max_size, (unsigned long long)store_memory(self->store),
                 (long long)self->tables->config->memory_limit);
    }
    stats->evicted_for_memory += n;
}

uint64_t room_held(const struct table *self)
{
    return self->bytes + contents_memory(&self->in);
}

const struct table *room_holder(const struct tables *tables)
{
    const struct table *largest = &tables->list[0];
    for (uint32_t i = 1; i < tables->n; i++)
        if (room_held(&tables->list[i]) > room_held(largest))
            largest = &tables->list[i];
    return largest;
}

/* True if memory is lost in places that nobody fits into, because keys are far apart or the sizes of chunks have changed. Then the
 * table shrinks slowly, by one more item for each that comes, until these places come free. */
static bool loses_memory(const struct table *self)
{
    const struct store *store = self->store;
    uint64_t budget = self->tables->storage_budget, waste = store_waste(store);
    return (waste > 0 && store_chunk_memory(store) + waste > left_for_chunks(store, budget)) ||
           (store_memory(store) > budget && contents_are_full(&self->in));
}

/* At the memory limit a table evicts its own items first; only when it has none left is the item refused. */
rp_status room_make(struct table *self, rp_error *err)
{
    const struct tables *tables = self->tables;
    uint32_t evicted = 0;
    if (!room_is_kept(self)) {
        /* One pick of a remover that picks at random would free no slab before nearly all old items are gone. */
        bool (*evict)(struct table *) = store_waste(self->store) > 0 ? table_evict_sparse : table_evict;
        while (evicted < EVICTIONS_PER_INSERT && wants_room(self) && evict(self))
            evicted++;
        if (loses_memory(self) && !tables_disk_is_full(tables) && evict(self))
            evicted++;
        if (evicted)
            note_evicted(self, evicted);
    }
    if (self->in.size > 0 || !exceeds(self, (uint64_t)tables->config->memory_limit))
        return RP_OK;
    uint64_t used = store_memory(self->store);
    const struct table *holder = room_holder(tables);
    return err_set(
        err, RP_RESOURCE_EXHAUSTED,
        "memory is full: %llu of %lld bytes are in use and this table has nothing left to remove; table '%s' "
        "holds most, %llu bytes. Lower its max_size or max_bytes, or raise memory_limit",
        (unsigned long long)used, (long long)tables->config->memory_limit, holder->name,
        (unsigned long long)room_held(holder));
}

void room_explain(const struct table *self, const struct span *span, char *text, size_t size)
{
    if (!self->config->max_times_sampled || !has_to_wait(self, span))
        return;
    double used = (double)store_memory(self->store) / MIB;
    double limit = (double)self->tables->config->memory_limit / MIB;
    const struct table *holder = room_holder(self->tables);
    if (self->waiters && exceeds_memory(self))
        snprintf(
            text, size,
            "needs memory: %.1f MiB of %.1f MiB are in use (memory_limit), and a sampler waits for more items: ask "
            "for smaller batches, or raise memory_limit",
            used, limit);
    else if (exceeds_memory(self))
        snprintf(
            text, size,
            "needs memory: %.1f MiB are in use, of which table '%s' holds %.1f MiB, and tables may have %.1f MiB "
            "(memory_limit less ingest_budget); the %u items of this table are not evicted, since they still have to "
            "be sampled: inserts continue when they are",
            used, holder->name, (double)room_held(holder) / MIB, (double)self->tables->storage_budget / MIB,
            self->in.size);
    else
        snprintf(text, size,
                 "needs room: the table has %.1f MiB of at most %.1f MiB (max_bytes); its %u items are not evicted, "
                 "since they still have to be sampled: inserts continue when they are",
                 (double)self->bytes / MIB, (double)self->config->max_bytes / MIB, self->in.size);
}
