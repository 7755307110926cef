/* Replay tables.
 *
 * This room owns the tables with their items, limiters, key maps, extensions and plug-ins, the ordinals of keys, and the
 * decision what to evict when memory is full. It offers insert, sample, update and removal on a table (table.h). It may use
 * the loop, the store, the selectors, the extensions and the configuration. What waits at a table, what is copied to a checkpoint and what
 * lies on disk is known to rooms above, through opaque pointers and the hooks in struct disk_tier and struct marks.
 *
 * A table: items over shared chunks, picked by a sampler and a remover, held back by a limiter.
 *
 * The table owns its items, its selectors, its limiter and its extensions. Flows that wait to insert and waiters that wait to
 * sample are linked to their table, but belong to rooms above: the table only tests whether there are any.
 *
 * Items live in slots of one reserved array: slot numbers are small, stable and reused, and selectors know nothing else. */
#pragma once

#include <stdbool.h>
#include <stdint.h>
#include <sys/queue.h>

#include "broker/config/config.h"
#include "broker/loop/histogram.h"
#include "broker/loop/loop.h"
#include "broker/select/extension.h"
#include "broker/select/limiter.h"
#include "broker/table/contents.h"
#include "broker/table/ordinals.h"
#include "proto/base/log.h"
#include "replay.pb-c.h"
#include "replay/plugin.h"

struct flow;
struct loop;
struct param_slot;
struct params;
struct rng;
struct tables;
struct waiter;

/* An item that is to be inserted. */
struct arrival {
    uint64_t key;
    double priority;
    uint64_t policy;
    uint64_t group; /* key of its group; 0: none */
    struct span span;
    const struct flow *flow; /* the item is the flow's next one; NULL: an extension inserts it */
    bool same_episode;       /* the flow's item before it was of the same episode, and the table was not reset since */
};

struct extension {
    const rp_extension_ops *ops;
    void *self;
    rp_extension_host host;
};

#define NO_LAYOUT UINT32_MAX
#define TABLE_RATE_SECONDS 10u

/* Most items that are evicted at once, by an insert or a slice of the chore that does the rest: nothing stalls the loop. */
#define EVICTIONS_AT_ONCE 256u

/* Inserts, samples and updates at each of the last seconds. */
struct table_history {
    uint64_t counts[TABLE_RATE_SECONDS + 1][3];
    int64_t at_ns[TABLE_RATE_SECONDS + 1];
    uint32_t at, n;
};

/* Samples that wait, oldest first: sample/samples.h appends and removes them. */
struct waiter_list {
    TAILQ_HEAD(waiter_queue, waiter) queue;
    uint64_t n;
};

struct table {
    struct tables *tables;
    struct loop *loop; /* this and the next two: those of tables */
    struct store *store;
    struct layouts *layouts;
    const struct table_config *config;
    const char *name;
    uint32_t id;
    uint32_t capacity; /* slots */
    const rp_selector_ops *sampler_ops, *remover_ops;
    struct contents in;
    int64_t max_lag;            /* < 0: items never become too old */
    uint64_t version;           /* of the parameters in the slot policy_slot */
    uint64_t newest_policy;     /* of the last item inserted */
    int64_t stale_ns;           /* time of the last eviction in stats.stale */
    uint32_t evictions;         /* EVICTIONS_AT_ONCE in groups */
    uint32_t spared;            /* leader of the open group that gets the next member; NO_SLOT: none */
    struct timer group_timer;   /* looks at the open groups when the oldest may be due */
    struct log_limit group_log; /* groups that are dropped */
    double low, high;           /* priorities that are allowed without asking the selectors */
    struct limiter limiter;
    uint64_t bytes;
    struct extension *extensions;
    uint32_t n_extensions;
    bool hook_insert, hook_sample, hook_update, hook_delete;
    bool one_by_one; /* a pick may change what the next pick sees */
    struct signature signature;
    uint32_t newest_layout; /* of the last item inserted, held; NO_LAYOUT: none was */
    char *metadata;         /* a copy: from the configuration, or from the files if that has none */
    uint64_t seed;
    uint64_t resets;
    int64_t last_insert_ns; /* insert times are strictly increasing: they are the order of insertion */
    uint32_t stamp;         /* of the newest distinct batch */
    uint32_t stamped;       /* that of the last one that picked */
    uint32_t last_evicted;  /* slot */
    struct chore trimming;  /* evicts the surplus and stale items, while `removing` */
    bool removing;
    bool waits_for_room;     /* inserts do */
    Replay__TableInfo stats; /* what the table counts by itself; all else in it is made for each answer (info_table) */
    Replay__TableRestored restored; /* those that files keep, as files had them when this process started */
    double mean_weight;             /* samples that stats.mean_age_s and mean_staleness are over */
    int64_t evicted_for_memory_ns;  /* time of the first eviction in stats.evicted_for_memory */
    int64_t evicted_lately_ns;      /* time of the last one */
    const char *evicted_by;         /* the setting that it was for */
    struct table_history history;
    struct histogram sampled_age;       /* of items when they were sampled, in nanoseconds */
    struct histogram sampled_staleness; /* versions of the policy that were put since the item was made */
    bool sampled_lately;                /* in the last second or two */
    /* used by the rooms above */
    struct flow *blocked; /* ring of flows with items that wait; the next one to insert */
    struct flow *look;    /* with groups: the next of them that may have a member of an open one; NULL: blocked */
    uint32_t n_blocked;   /* flows in the ring */
    uint32_t refused;     /* of them: in a row, since anything changed, that may not insert */
    struct waiter_list waiters;
    uint64_t n_waiting_items;
    bool dirty; /* in tables.dirty: table_mark */
    struct table *next_dirty;
};

/* Slots that a table needs: one more than fits, since an item is inserted before another is removed. */
static inline uint32_t table_slots(const struct table_config *config)
{
    return (uint32_t)(config->max_size + 1 + (config->soft_capacity ? config->max_size / 4 + 1 : 0));
}

/* Gives a table that is being restored this many slots, since items keep their slot numbers. Its slots and counters are kept;
 * nothing else is filled yet. */
rp_status table_grow(struct table *self, uint32_t capacity, rp_error *err);

/* Checks whether this priority can be used here: finite, not negative, and what the selectors require. */
rp_status table_check_priority_(const struct table *self, double priority, rp_error *why);
static inline rp_status table_check_priority(const struct table *self, double priority, rp_error *why)
{
    return priority >= self->low && priority <= self->high ? RP_OK : table_check_priority_(self, priority, why);
}
/* Inserts an item, counts it, then evicts the surplus. Does not ask the limiter: the caller has. On RP_OK the table takes the
 * span's references. ALREADY_EXISTS, RESOURCE_EXHAUSTED, NO_MEMORY: nothing has changed. */
rp_status table_insert(struct table *self, const struct arrival *arrival, rp_error *err);
/* Enters the key and the chunks of an item that has this slot. An error: nothing has changed. */
rp_status table_enter(struct table *self, uint32_t slot, uint64_t key, const struct span *span, rp_error *err);
/* Returns the priority by which the slot stands in the selectors. */
double table_priority(const struct table *self, uint32_t slot);
/* Notes that the newest item has this layout, which says what the table stores. NO_LAYOUT: that is not known. */
void table_newest_layout(struct table *self, uint32_t layout);
/* Sets the metadata, which is copied. */
void table_set_metadata(struct table *self, const char *text);
/* Returns the slot of a key. UINT32_MAX: no such key. */
uint32_t table_find(const struct table *self, uint64_t key);
/* Removes an item, and all others of its group. */
void table_remove(struct table *self, uint32_t slot);
/* Hides an item: it keeps its slot, its key, its memory and its place in the window of versions, and is neither sampled nor evicted until
 * it is shown. A request may remove it. lease: the number of the lease that hides it (sample/leases.h), which records that; 0: none. */
void table_hide(struct table *self, uint32_t slot, uint32_t lease);
/* Shows a hidden item: as if it were inserted now; or as the first in line, behind those shown so before it, and, if it was never
 * delivered, without the sample for which it was hidden. */
enum table_show { SHOW_LAST = 0, SHOW_FIRST = 1, SHOW_UNDELIVERED = 3 };
void table_show(struct table *self, uint32_t slot, enum table_show how);
/* Counts a sample of the item, but not with the limiter, and hides it for the lease. */
void table_lease(struct table *self, uint32_t slot, uint32_t lease);
/* The item returns from its lease. If it was delivered max_deliveries times, it moves to dead_table, unless that has no room. */
void table_return(struct table *self, uint32_t slot, bool delivered);
/* Returns the number of items that are not hidden; with groups, of groups that are not. */
static inline uint32_t table_visible(const struct table *self)
{
    return self->in.size - self->in.hidden;
}
/* The same in items; a group counts with all that it may have. */
static inline uint64_t table_items_shown(const struct table *self)
{
    return (uint64_t)table_visible(self) * (self->in.groups.size ? self->in.groups.size : 1);
}
/* Sets priorities that have been checked, one after another: a slot may stand there twice. A group has the mean of its members' ones. */
void table_update(struct table *self, uint32_t n, const uint32_t *slots, const double *priorities);
/* Makes the table empty, with a fresh limiter, at once; the old items are freed in slices. Waiters stay. */
rp_status table_reset(struct table *self, rp_error *err);
/* False: it has no visible items, or has items that are too old. These have to leave first. */
static inline bool table_is_ready(const struct table *self)
{
    return table_visible(self) && window_stale(&self->in.window) == UINT32_MAX;
}
/* Returns how many of `want` items a sample may take now, in total. Items under lease are as good as sampled. */
uint64_t table_sampleable(const struct table *self, uint64_t want);
/* Returns how many of `most` items the limiter lets in now, the next one a member of this group. With groups, at most one. */
uint64_t table_insertable_group(const struct table *self, uint64_t group);
static inline uint64_t table_insertable(const struct table *self, uint64_t group, uint64_t most)
{
    return self->in.groups.slots ? table_insertable_group(self, group) : limiter_insertable(&self->limiter, most);
}
/* Limiter lag over shards: inserts that other shards could let in for this one; and those that wait here, which room of other shards
 * would let in. At most one of them is above 0. */
uint64_t table_spare_room(const struct table *self);
uint64_t table_needed_room(const struct table *self);
/* Moves room for n inserts here, below 0 away, as far as spare and needed room go. Returns for how many. */
uint64_t table_move_room(struct table *self, int64_t n);
/* Write clauses: what open groups wait for ("3 groups wait for members: ..."), and why the next group may not begin. Empty: for
 * nothing. */
void table_explain_groups(const struct table *self, char *text, size_t size);
/* When the time of an open group began. One that was restored gets its time anew: its writers could not send while no broker ran. */
int64_t table_group_since_ns(const struct table *self, uint32_t leader);
void table_explain_begin(const struct table *self, uint64_t group, char *text, size_t size);
/* Returns the sum of what the sampler's probabilities are proportional to; without such a sum, the number of items. 0: the table is
 * not ready. */
double table_mass(const struct table *self);
/* Counts alone: a sample of an item, and a reset. True: it is the item's first sample. */
static inline bool table_count_sample(struct table *self, struct item *item)
{
    bool first = item->times_sampled++ == 0;
    self->stats.unique_samples += first;
    self->stats.total_samples++;
    return first;
}
/* Counts a sample of the slot's item, runs hooks, and removes the item if that was its last sample. */
void table_sampled_one(struct table *self, uint32_t slot);
static inline void table_sampled_alike(struct table *self, uint32_t slot) /* of a table that is not one_by_one */
{
    if (self->in.marks)
        marks_touch(self->in.marks, self, &self->in, slot);
    self->in.unseen -= table_count_sample(self, &self->in.items[slot]);
    limiter_sampled(&self->limiter, 1);
}
static inline void table_sampled(struct table *self, uint32_t slot)
{
    table_sampled_alike(self, slot);
    if (self->one_by_one)
        table_sampled_one(self, slot);
}
/* The same for all members of a group. */
void table_sampled_group(struct table *self, uint32_t leader);
void table_count_reset(struct table *self);
/* Copies the counters that files keep, from TableInfo or TableRestored to either. */
void table_copy_counters(const ProtobufCMessage *from, ProtobufCMessage *to);
void table_view(const struct table *self, uint32_t slot, rp_item_view *out);
/* Returns how many of stats.episodes have no item in the table any more. */
uint64_t table_deleted_episodes(const struct table *self);
/* Items per second over the last seconds: kind 0 inserts, 1 samples, 2 updates. */
double table_rate(const struct table *self, uint32_t kind);
/* Evicts the surplus in slices: items above a soft capacity, items that a very large item displaces, or items that have become stale. */
void table_remove_surplus(struct table *self);
/* Changes max_lag of a table that has it. */
void table_set_max_lag(struct table *self, uint32_t lag);
/* Evicts the surplus at once: at the start. */
void table_remove_too_much(struct table *self);

/* ---- all tables of a broker, and what they share ---- */

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
    int64_t start_ns;        /* of the service, after their items were restored */
    struct table *dirty;     /* tables that the pump has to look at, by next_dirty */
    bool waits_for_room;     /* inserts of some table do */
    uint64_t storage_budget; /* bytes of chunks that tables may have: memory_limit less the ingest budget */
    struct disk_tier disk;
    struct ordinals ordinals;
    struct plugins plugins;
};

/* Loads the plug-ins. The caller has set loop, store, layouts and config, which are borrowed. */
rp_status tables_init(struct tables *self, rp_error *err);
/* Creates the configured tables, empty. */
rp_status tables_create(struct tables *self, struct rng *seeds, rp_error *err);
/* Tells the tables which versions the parameters have at the start, after their items were restored. */
void tables_follow(struct tables *self, const struct params *params);
/* The slot has a new version. Items that it makes too old are never sampled again. */
void tables_moved(struct tables *self, const struct param_slot *slot);
/* The service begins: the time of groups that were restored does, too. */
void tables_start(struct tables *self);
/* Once a second: rates; inserts that found no memory are tried again; and the surplus of soft capacities is evicted. */
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
    table->refused = 0;
    if (table->dirty)
        return;
    table->dirty = true;
    table->next_dirty = table->tables->dirty;
    table->tables->dirty = table;
}

/* ---- room for one more item ----
 *
 * Room for one more item at the limits of memory: memory_limit, storage.disk, and the table's own max_bytes.
 *
 * A table whose items still owe samples (max_times_sampled is not reached, and the limiter counts samples against inserts)
 * keeps them: inserts wait until samples have made room. Any other table evicts. Samples never wait for memory, so
 * waiting inserts continue as soon as somebody samples the table. */

/* True if an item over these chunks has to wait for room. An empty table takes an item in any case; a table whose sampler
 * waits for more items takes items up to memory_limit, since nothing else could ever make room. A table that is full of hidden items
 * takes none. */
bool room_waits_(struct table *self, const struct span *span);
static inline bool room_waits(struct table *self, const struct span *span)
{
    return (self->config->max_times_sampled || self->in.hidden) && room_waits_(self, span);
}

/* Returns the memory of the table: its slots and keys, and the data of its items. */
uint64_t room_held(const struct table *self);
/* Returns the table that holds most, for messages. */
const struct table *room_holder(const struct tables *tables);
/* Writes a clause that says why an item over these chunks waits for room. Empty: it does not wait. */
void room_explain(const struct table *self, const struct span *span, char *text, size_t size);
