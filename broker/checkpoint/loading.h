/* Loading: applies the entries of files to tables, sessions and parameters.
 *
 * An item goes straight into its slot, with the places of its chunks in the files; restore.c reads the chunks when all entries
 * are applied. Sessions become tombstones that their writers can resume. replay-ctl loads files in the same way without a
 * broker (struct offline): then no table is configured. */
#pragma once

#include "broker/journal/durable_state.h"
#include "broker/journal/load.h"
#include "broker/journal/reader.h"
#include "broker/loop/idmap.h"
#include "broker/loop/loop.h"
#include "broker/peer/kept.h"
#include "broker/sample/samples.h"
#include "broker/store/params.h"
#include "broker/table/table.h"

/* A table that the files name. Until loading ends, the spans of its items have the places of chunks instead of their
 * addresses, and no item is in a key map or a selector. */
struct loaded_table {
    struct table
        *table; /* if it is not configured: a table made for this, which has a name, slots and counters alone */
    bool configured;
    struct entry_limiter limiter; /* as in the files, with the counters of what was applied */
    Replay__TableInfo *info;      /* names of sampler and remover, settings: as of the newest file */
    uint32_t slots;               /* most slots that a file gives it */
    uint64_t (*rank)[2];          /* by slot: ranks in sampler and remover; NULL: the order of these does not matter */
    uint64_t highest;             /* rank; what is inserted or updated ranks after it */
    uint64_t returned;            /* highest rank of what was put back, below RANK_NEW */
    int64_t newest_ns;            /* highest time of insertion */
    uint8_t *selector[2];         /* state of sampler and remover at the checkpoint */
    uint32_t selector_bytes[2];
    uint32_t entered; /* items below this slot are in key map and accounts */
};

/* Ranks of items that were not put back begin here: rp_selector_ops.put_back. */
#define RANK_NEW (UINT64_C(1) << 63)

/* A lease. Items that are under it have its index + 1 as item_lease until they are restored. */
struct loaded_lease {
    uint64_t client, id;
    const struct table *table;
    uint32_t ms;
    bool answered;
    struct lease *lease; /* once it is restored */
};

/* A sample that may be asked for again. Its picks have places instead of chunks, as items have. */
struct loaded_selection {
    struct kept_image kept;
    bool configured; /* its table is */
    TAILQ_ENTRY(loaded_selection) link;
};

struct stream;

/* Item.stamp while files are loaded: an item that was picked, and by no lease. */
#define PICKED 1u

/* A number and its value: places of chunks, times, ranks. */
struct pair {
    uint64_t key, value;
};
/* Sorts by key; pairs with equal keys keep their order. False: no memory. */
bool pairs_sort(struct pair *pairs, uint64_t n);

struct loading {
    const struct durable_state *state;
    struct kept_replies *replies;
    const struct folder *folder;
    struct stream *stream; /* that counts chunks of segments; NULL without a broker */
    struct load files;
    uint32_t most_slots; /* most slots of a table that is not configured */
    struct loaded_table *tables;
    uint32_t n_tables;
    uint32_t *map; /* from the newest file's table index to the index in tables, or UINT32_MAX */
    uint32_t n_map;
    struct layout **layouts; /* by the files' ids, each with a reference */
    uint32_t n_layouts;
    struct idmap sessions;                                /* by ordinal; without a broker, only their number counts */
    TAILQ_HEAD(loaded_selections, loaded_selection) kept; /* oldest first */
    struct idmap selections;                              /* by client and id */
    struct loaded_lease *leases;
    uint32_t n_leases, leases_capacity;
    struct idmap leases_by_request; /* index + 1, by client and id */
    uint64_t next_ordinal;
    bool started, changed; /* a table was changed after the checkpoint, so selectors do not go on as they were */
    uint64_t instance;     /* of the process that wrote the newest file, */
    int64_t adjust;        /* whose times become the broker's by adding this */
    int64_t clock_ns;      /* at the start of the newest file */
    /* The entry that is being applied. */
    enum load_phase phase;
    const struct entry_view *entry;
    struct loaded_table *to; /* the table that the entry is about, if it is about one */
    rp_error *err;
    /* Chunks to read: the place, and the address of the pointer to the chunk. */
    struct pair *wanted;
    uint64_t n_wanted, next_wanted;
    bool read;    /* all chunks are there: spans have addresses */
    bool salvage; /* chunks that cannot be read are lost, and later the items that need them */
    uint64_t chunks, bytes, items, left_out;
    uint64_t lost; /* chunks */
};

/* Everything is borrowed. */
void loading_init(struct loading *self, const struct durable_state *state, struct kept_replies *replies);
/* Releases what nothing took over: after an error, all items and samples. */
void loading_fini(struct loading *self);
/* Applies an entry: load.apply. */
rp_status loading_apply(void *loading, enum load_phase phase, const struct entry_view *entry, rp_error *err);
/* The process that wrote what was loaded so far has ended. Nothing is newer than this time; the order of insertion stays. A lease without
 * an answer has ended, too, and its sample is forgotten: its items return. */
void loading_end_process(struct loading *self, int64_t now);
/* Returns the number of items in all tables. */
uint64_t loading_items(const struct loading *self);
/* Calls fn (may be NULL) for every chunk of items and samples, in the order of their places. Without a broker: of all tables. */
rp_status loading_read_chunks(struct loading *self, chunk_fn *fn, rp_error *err);
/* Lists the slots of a table with their times of insertion, sorted by them. NULL: no memory. */
struct pair *loading_by_age(const struct table *table);

/* The state of files without a broker: for reading only. Times are in wall time. */
struct offline {
    struct loop loop;
    struct layouts layouts;
    struct tables tables; /* none */
    struct params params;
    struct kept_replies replies;
    struct durable_state state;
    struct loading loading;
};
void offline_init(struct offline *self);
void offline_fini(struct offline *self);
/* Loads as load_files does. Nothing is written to the folder, which must outlive self. */
rp_status offline_load(struct offline *self, const struct folder *folder, uint64_t number, bool until_checkpoint,
                       rp_error *err);
/* Returns the places of an item's chunks. */
static inline const uint64_t *offline_places(const struct item *item)
{
    return (const uint64_t *)(const void *)span_chunks(&item->span);
}
