/* Entries: what is recorded of an effect on the broker's state, one struct each. Rooms that change the state fill them in (effects.h);
 * journal/record.h says how they lie in files. Numbers are little-endian, and no struct has holes. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

/* Most bytes of the data of an entry; its head and its name come on top (RECORD_MOST of journal/record.h). */
#define ENTRY_MOST (1u << 30)

enum entry_type {
    ENTRY_START = 1, /* first in every file: struct entry_start */
    ENTRY_TABLE, /* every table, after START: struct entry_table, then a TableInfo (protobuf), with its counters in `restored` */
    ENTRY_CHUNK,       /* struct entry_chunk, sizes, codecs, data */
    ENTRY_LAYOUT,      /* struct entry_named (id in `number`), then a Layout with its columns (protobuf). A checkpoint
                        * has all that are alive, used by an item or not: the journal after it does not repeat them */
    ENTRY_INSERT,      /* struct entry_insert, places of its chunks */
    ENTRY_REMOVE,      /* struct entry_slot */
    ENTRY_PRIORITY,    /* struct entry_priority */
    ENTRY_PICK,        /* struct entry_pick, n times struct entry_picked: a sample, or a part of one */
    ENTRY_RESET,       /* nothing more: the table is empty, its counters are 0 */
    ENTRY_LIMITER,     /* struct entry_limiter: settings and counters */
    ENTRY_SESSION,     /* struct entry_named (ordinal in `number`), then a Hello (protobuf): opened. Its first key is in
                        * Hello.oldest_number */
    ENTRY_FORM,        /* struct entry_named (ordinal in `number`), then a Layout as the writer registered it */
    ENTRY_PROGRESS,    /* struct entry_progress, n times struct entry_flow */
    ENTRY_REJECTION,   /* struct entry_rejection, text: an item of a session was refused */
    ENTRY_SESSION_END, /* struct entry_named (ordinal in `number`): closed for good */
    ENTRY_SLOT,        /* struct entry_value, name, value: a parameter slot */
    ENTRY_COUNTER,     /* struct entry_value, name: a counter */
    ENTRY_REPLY,       /* struct entry_request, frame: what a finished request was answered with */
    ENTRY_ANSWERED,    /* struct entry_request: this sample was answered with all its picks */
    ENTRY_FORGET,      /* struct entry_request: its picks, or its reply, are no longer needed */
    ENTRY_SELECTOR,    /* struct entry_selector, state: rng and counters of a sampler or remover */
    ENTRY_CHECKPOINT, /* second in a checkpoint: struct entry_checkpoint. All but items is written whole in each, also in
                        * one that is a change of its base */
    ENTRY_ITEM,       /* in a checkpoint: struct entry_item, places of its chunks: the slot holds this */
    ENTRY_FREE,       /* in a checkpoint: struct entry_slot: the slot holds nothing any more */
    ENTRY_SELECTION, /* in a checkpoint: struct entry_selection, n times struct entry_selected, places of all chunks; with
                       * PICK_GROUPED n keys of groups */
    ENTRY_ORDINAL,   /* struct entry_named: running number of the next session (ordinals.h) */
    ENTRY_END,       /* last in a checkpoint: struct entry_end. Without it, the file is not a checkpoint */
    ENTRY_PARTS, /* right before END, in the same record: struct entry_named (the checkpoint's number), then uint64_t numbers of
                  * the segments that it needs */
    ENTRY_EPISODES, /* struct entry_named: number of episodes of which the table has got items */
    ENTRY_CHARGE, /* struct entry_named: number of samples that the limiter has counted, and that are picked elsewhere */
    ENTRY_GROUP, /* struct entry_group: the item that the next INSERT or ITEM puts into the slot is a member of this group */
    ENTRY_HIDE,      /* struct entry_slot: its item is in neither sampler nor remover */
    ENTRY_SHOW,      /* struct entry_slot: it is again */
    ENTRY_SLOT_PART, /* struct entry_part, name, data: a part of a value that is too large for one entry */
    ENTRY_SLOT_WHOLE, /* struct entry_value (in value_bytes: the value's number), name: the parts are a version of a slot. Version 0:
                       * they are dropped */
    ENTRY_TYPES
};

struct entry_head {
    uint32_t size; /* with this head and without padding */
    uint16_t type;
    uint16_t table; /* index in the file's TABLE entries, or 0 */
};

struct entry_start {
    uint64_t instance; /* of the broker's process */
    int64_t wall_ns;   /* CLOCK_REALTIME and the broker's clock, at one instant */
    int64_t clock_ns;
    uint64_t previous; /* number of the file of this kind before it; 0: none */
    uint64_t after;    /* of a segment: the place where the journal that it goes on from ends. The end of the segment
                        * before; after a start, load.end: what lies between is no part of the state. 0: nothing is
                        * before it, or it is not known */
    uint64_t loaded;   /* of the first segment of a process: the checkpoint that it loaded, or 0 */
    uint64_t next;     /* and the number that its own first one gets: those between are no part of the state. 0: not the
                        * first segment of a process */
    uint32_t flags, pad;
};
enum {
    START_CHUNKS_ONLY = 1, /* the journal is off: only chunks follow, and a loader can skip them */
    START_FRESH = 2        /* the process was told to load nothing, so no older file is part of the state */
};

struct entry_limiter {
    uint32_t kind;
    uint32_t changed_from; /* 0: the settings are those of the configuration; otherwise a hash of what that said */
    double samples_per_insert, min_size, min_diff, max_diff, offset;
    uint64_t inserts, samples, deletes;
};

struct entry_table {
    struct entry_limiter limiter; /* in a checkpoint: at its instant. In a segment: at its start */
    uint64_t slots;               /* slots of the table; more than its max_size needs, if that was once larger */
    uint64_t resets;              /* running count of resets: tells whether a file was written before a reset */
};

struct entry_chunk {
    uint64_t step;
    uint32_t length, bytes, raw_bytes, session, episode;
    uint32_t crc; /* crc32c of sizes, codecs and data */
    uint8_t columns, absent, pad[6];
    /* uint32_t sizes[columns], uint8_t codecs[columns], data */
};

struct entry_named {
    uint64_t number;
};

struct entry_insert {
    uint32_t slot, n_chunks;
    uint64_t key;
    double priority;
    int64_t insert_ns; /* broker's clock; strictly increasing within a table: the order of insertion */
    uint64_t policy;
    uint32_t layout, offset, length;
    uint32_t session; /* ordinal; 0: inserted by an extension */
    uint64_t number;  /* of the item in (session, table): all before it are resolved */
    /* uint64_t chunks[n_chunks] */
};

struct entry_item {
    struct entry_insert insert;
    uint32_t times_sampled, hidden; /* hidden: HIDDEN ... */
    uint64_t
        order[2]; /* rank in the sampler and in the remover, see rp_selector_ops.order; under lease: client and id */
    /* uint64_t chunks[n_chunks] */
};

/* Of an item; the milliseconds of its lease follow above these bits. */
enum { HIDDEN = 1, HIDDEN_LEASED = 2, HIDDEN_ANSWERED = 4, HIDDEN_BITS = 3 };
struct entry_group {
    uint32_t slot, leader; /* leader: slot of the group's first member */
    uint64_t group;        /* key */
};

struct entry_slot {
    uint32_t slot, how; /* how: of SHOW, see enum table_show of table/table.h */
};

struct entry_priority {
    uint32_t slot, pad;
    double priority;
};

struct entry_pick {
    uint64_t client, id; /* of the request; 0, 0: it cannot be repeated */
    uint32_t want, n;
    uint64_t table_size;
    uint32_t flags, lease_ms; /* PICK_DISTINCT ... */
};
/* PICK_LEASED: the items are hidden, and the limiter has not counted the picks. PICK_PAID: the limiter was charged before, and has not
 * counted the picks, unless there is PICK_COUNTED, too: its table has no permits. PICK_COUNTED is about the picks of one entry; PICK_GROUPED
 * says that the groups of a selection's items follow; the others are what the client asked for. */
enum {
    PICK_DISTINCT = 1,
    PICK_FLEXIBLE = 2,
    PICK_WHOLE = 4,
    PICK_PAID = 8,
    PICK_COUNTED = 16,
    PICK_LEASED = 32,
    PICK_GROUPED = 64
};
static inline uint32_t pick_flags(bool distinct, bool flexible, bool whole)
{
    return (distinct ? PICK_DISTINCT : 0u) | (flexible ? PICK_FLEXIBLE : 0u) | (whole ? PICK_WHOLE : 0u);
}

struct entry_picked {
    uint32_t slot, times_sampled;
    double probability;
};

struct entry_progress {
    uint32_t session, epoch;
    uint64_t received, counted, received_bytes, allowed_bytes, confirmed_rejections;
    uint32_t n_flows, pad;
};

struct entry_flow {
    uint32_t table, pad;
    uint64_t resolved, rejected, allowed;
};

struct entry_rejection {
    uint32_t session, table; /* table: REJECTED_NOWHERE, or its index */
    uint64_t item, key;
    uint32_t status, pad;
    /* text without a zero */
};

struct entry_value {
    uint64_t version; /* of a slot; a counter's value */
    int64_t put_ns;
    uint32_t name_bytes, pad;
    uint64_t value_bytes;
};

struct entry_part {
    uint64_t put; /* number that names the value */
    uint64_t bytes, bf16_bytes, part_bytes;
    uint32_t part, name_bytes;
    uint64_t data_bytes;
};

struct entry_request {
    uint64_t client, id;
};

struct entry_selector {
    uint32_t which; /* 0 sampler, 1 remover */
    uint32_t bytes;
};

struct entry_checkpoint {
    uint64_t number;
    uint64_t base; /* the checkpoint whose state this one changes, or 0: it is whole */
    /* Start of a record: entries of segments from here on come after this checkpoint. 0: there is no journal. */
    uint64_t journal;
};

struct entry_selected {
    uint64_t key, age_ns, policy;
    double priority, probability;
    uint32_t times_sampled, layout, offset, length, chunks, pad;
};

struct entry_selection {
    uint64_t client, id;
    uint32_t want, n, n_chunks, flags;
    uint64_t table_size;
    uint32_t answered, pad;
};

struct entry_end {
    uint64_t items, chunks, bytes; /* of the state; bytes of chunks, as stored */
    uint64_t entries;              /* in this file, this one included */
};
