/* All tables of a broker, and what they share.
 *
 * This room owns the tables with their items, limiters, key maps, extensions and plug-ins, the ordinals of keys, and the
 * decision what to evict when memory is full. It offers insert, sample, update and removal on a table (table.h). It may use
 * the loop, the store, the selectors, the extensions and the configuration. What waits at a table, what is copied to a checkpoint and what
 * lies on disk is known to rooms above, through opaque pointers and the hooks in struct disk_tier and struct marks. */
#ifndef BROKER_TABLES_H
#define BROKER_TABLES_H

#include "broker/loop/timer.h"
#include "broker/table/ordinals.h"
#include "broker/table/plugin.h"
#include "broker/table/table.h"

struct broker_config;
struct rng;

/* The disk as a second tier for chunks that are not used. ctx NULL: all chunks are in memory. */
struct disk_tier {
    void *ctx;
    /* True if inserts have to wait until chunks have gone to disk. */
    bool (*is_full)(void *ctx);
    /* True if the disk is used up, so that tables have to evict. */
    bool (*wants_room)(void *ctx);
    /* Writes what inserts wait for; nothing if they do not wait. */
    void (*explain_insert)(void *ctx, char *text, size_t size);
};

struct tables {
    struct loop *loop;
    struct store *store;
    struct layouts *layouts;
    const struct broker_config *config;
    struct table *list;
    uint32_t n;
    uint32_t next_account;   /* see struct contents */
    struct table *dirty;     /* tables that the pump has to look at, by next_dirty */
    bool waits_for_room;     /* inserts of some table do: room.h */
    uint64_t storage_budget; /* bytes of chunks that tables may have: memory_limit less the ingest budget */
    struct disk_tier disk;
    struct ordinals ordinals;
    struct plugins plugins;
    struct timer soft; /* removal from tables with a soft capacity, at the shortest of their intervals */
};

/* Loads the plug-ins. The caller has set loop, store, layouts and config, which are borrowed. */
rp_status tables_init(struct tables *self, rp_error *err);
/* Creates the configured tables, empty. */
rp_status tables_create(struct tables *self, struct rng *seeds, rp_error *err);
/* Starts to remove the surplus of soft capacities. A timer has been reserved. */
void tables_start(struct tables *self);
/* Once a second: rates; and inserts that found no memory are tried again. */
void tables_tick(struct tables *self);
/* Destroys the tables and what they share. Items that hold chunks release them: the store and the layouts are still there. */
void tables_fini(struct tables *self);

/* NULL: no table has this name. */
struct table *tables_find(const struct tables *self, const char *name, size_t size);

/* True if inserts have to wait until chunks have gone to disk. */
static inline bool tables_disk_is_full(const struct tables *self)
{
    return self->disk.ctx && self->disk.is_full(self->disk.ctx);
}

/* Something has changed that may unblock inserts or samples of the table: the pump looks at it. */
static inline void table_mark(struct table *table)
{
    if (table->dirty)
        return;
    table->dirty = true;
    table->next_dirty = table->tables->dirty;
    table->tables->dirty = table;
}

#endif
