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

/* True if something should be evicted. Chunks that are about to go to disk make room without that: inserts wait for them
 * before they come here. */
static bool wants_room(const struct tables *tables)
{
    const struct disk_tier *disk = &tables->disk;
    bool memory = store_memory(tables->store) > tables->storage_budget;
    return (memory && !tables_disk_is_full(tables)) || (disk->ctx && disk->wants_room(disk->ctx));
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
    if (!self->waiters)
        return wants_room(self->tables);
    return store_memory(self->store) > (uint64_t)self->tables->config->memory_limit;
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

/* Returns the table that holds most, for the message that refuses an item. */
static const struct table *largest_holder(const struct tables *tables)
{
    const struct table *largest = &tables->list[0];
    for (uint32_t i = 1; i < tables->n; i++)
        if (tables->list[i].bytes > largest->bytes)
            largest = &tables->list[i];
    return largest;
}

/* At the memory limit a table evicts its own items first; only when it has none left is the item refused. */
rp_status room_make(struct table *self, rp_error *err)
{
    const struct tables *tables = self->tables;
    uint32_t evicted = 0;
    if (wants_room(tables) && !room_is_kept(self)) {
        while (evicted < EVICTIONS_PER_INSERT && wants_room(tables) && table_evict(self))
            evicted++;
        if (evicted)
            note_evicted(self, evicted);
    }
    uint64_t used = store_memory(self->store);
    if (self->in.size > 0 || used <= (uint64_t)tables->config->memory_limit)
        return RP_OK;
    const struct table *holder = largest_holder(tables);
    return err_set(
        err, RP_RESOURCE_EXHAUSTED,
        "memory is full: %llu of %lld bytes are in use and this table has nothing left to remove; table '%s' "
        "holds most, %llu bytes. Lower its max_size or max_bytes, or raise memory_limit",
        (unsigned long long)used, (long long)tables->config->memory_limit, holder->name,
        (unsigned long long)holder->bytes);
}

void room_explain(const struct table *self, const struct span *span, char *text, size_t size)
{
    if (!self->config->max_times_sampled || !has_to_wait(self, span))
        return;
    double used = (double)store_memory(self->store) / MIB;
    double limit = (double)self->tables->config->memory_limit / MIB;
    if (self->waiters && exceeds_memory(self))
        snprintf(
            text, size,
            "needs memory: %.1f MiB of %.1f MiB are in use (memory_limit), and a sampler waits for more items: ask "
            "for smaller batches, or raise memory_limit",
            used, limit);
    else if (exceeds_memory(self))
        snprintf(
            text, size,
            "needs memory: %.1f MiB are in use and tables may have %.1f MiB (memory_limit less ingest_budget); the "
            "%u items of this table are not evicted, since they still have to be sampled: inserts continue when they "
            "are",
            used, (double)self->tables->storage_budget / MIB, self->in.size);
    else
        snprintf(text, size,
                 "needs room: the table has %.1f MiB of at most %.1f MiB (max_bytes); its %u items are not evicted, "
                 "since they still have to be sampled: inserts continue when they are",
                 (double)self->bytes / MIB, (double)self->config->max_bytes / MIB, self->in.size);
}
