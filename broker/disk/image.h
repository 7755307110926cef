/* An image: the state of a broker as plain data, built by applying entries of a checkpoint, of those that it is based
 * on, and of the segments after it. The broker restores its tables from an image; replay-ctl shows, verifies and
 * exports one. Nothing here needs a running broker. */
#ifndef BROKER_DISK_IMAGE_H
#define BROKER_DISK_IMAGE_H

#include "broker/disk/folder.h"
#include "broker/loop/idmap.h"
#include "replay.pb-c.h"

struct image_layout {
    uint32_t refs;
    uint32_t table; /* index in image.tables */
    uint32_t packed_size;
    uint8_t *packed; /* the Layout message as it was written */
    Replay__Layout *wire;
    void *user; /* the user's of the image */
};

/* n == 0: the slot is free. */
struct image_item {
    uint64_t key;
    double priority;
    int64_t insert_ns; /* in the clock of the newest file's process */
    uint64_t policy;
    uint64_t order[2];
    struct image_layout *layout;
    union {
        uint64_t one;
        uint64_t *many; /* places of chunks; n > 1: owned */
    };
    uint32_t n, offset, length, times_sampled;
};
static inline const uint64_t *image_chunks(const struct image_item *self)
{
    return self->n > 1 ? self->many : &self->one;
}

struct image_table {
    char *name;
    Replay__TableSpec *spec;
    Replay__TableInfo *info; /* names of sampler and remover, settings: as of the newest file */
    struct entry_limiter limiter;
    uint64_t total_inserts, total_samples, updates, episodes, unique_samples, rejected, evicted, resets;
    struct image_item *items; /* by slot; pages of zeros are mapped when they are touched, so holes cost nothing */
    uint32_t high, capacity, size;
    uint64_t order;       /* the highest rank of an item; what is inserted or updated ranks after it */
    int64_t last_ns;      /* the newest insert_ns */
    uint8_t *selector[2]; /* state of sampler and remover; NULL once a later entry has changed the table */
    uint32_t selector_bytes[2];
};

struct image_rejection {
    uint32_t table, status, more;
    uint64_t item, key;
    char *text;
};

struct image_session {
    uint32_t ordinal, epoch;
    Replay__Hello *hello; /* id, name, columns */
    uint64_t received, counted, received_bytes, allowed_bytes, confirmed_rejections;
    Replay__Layout **forms; /* as registered, by the writer's id; NULL: no such id */
    uint32_t n_forms;
    struct entry_flow *flows; /* by index in image.tables; zeros for tables that it did not use */
    uint32_t n_flows;
    struct image_rejection *rejections; /* not confirmed */
    uint32_t n_rejections;
};

struct image_slot {
    char *name;
    uint64_t version;
    int64_t put_ns;
    uint8_t *value;
    uint64_t bytes;
};

struct image_counter {
    char *name;
    int64_t value;
};

/* A request that may be repeated: the first member of a reply or of a selection. */
struct image_request {
    uint64_t client, id;
    struct image_request *older, *newer;
};
struct image_requests {
    struct image_request *oldest, *newest;
    uint32_t n;
    struct idmap by_name;
};

struct image_reply {
    struct image_request request;
    uint8_t *frame;
    size_t size;
};
static inline struct image_reply *image_reply(struct image_request *request)
{
    return (struct image_reply *)request;
}
/* As many as the broker itself keeps; the oldest are dropped. */
#define IMAGE_REPLIES 8192u
#define IMAGE_REJECTIONS 8192u

/* A sample that may be asked for again, with its items as they were picked. */
struct image_selection {
    struct image_request request;
    uint64_t table_size;
    uint32_t table, want, flags;
    bool answered;
    struct image_item *items; /* times_sampled and priority as picked. n == 0: only the key and numbers are known */
    double *probability;
    uint32_t n;
};

static inline struct image_selection *image_selection(struct image_request *request)
{
    return (struct image_selection *)request;
}

/* What was found while loading: damage, cuts, fallbacks. */
struct image_note {
    bool damage; /* false: information */
    char text[300];
};

struct image {
    uint64_t checkpoint; /* number of the checkpoint; 0: none was used */
    uint64_t end;        /* place up to which the journal was applied, for entry_start.after; 0: none was */
    uint64_t journal_entries, journal_bytes; /* applied after the checkpoint */
    int64_t wall_ns, clock_ns;               /* one instant in wall time and in the clock of insert_ns and put_ns */
    uint64_t next_ordinal;
    bool exact;            /* nothing was applied after the checkpoint, so selectors go on as they were */
    bool whole;            /* all of the journal was applied, up to a torn end; false: see the notes */
    uint64_t lost_inserts; /* not whole: inserts that can be read and could not be applied */
    uint32_t most_slots;   /* most slots of a table; set between init and load where memory is scarce */
    struct image_table *tables;
    uint32_t n_tables;
    struct image_session **sessions; /* sorted by ordinal */
    uint32_t n_sessions;
    struct image_slot *slots;
    uint32_t n_slots;
    struct image_counter *counters;
    uint32_t n_counters;
    struct image_requests replies, selections;
    struct image_note *notes;
    uint32_t n_notes;
    /* ---- while it is loaded ---- */
    struct entry_start start; /* of the newest file */
    bool started, in_checkpoint;
    bool naming; /* the start of a segment is read only for the names of its tables; its counters are out of date */
    /* Times are kept in the clock of the first process: a time of the newest process plus `adjust`. */
    int64_t adjust;
    uint32_t *map; /* from the newest file's table index to the index in image.tables, or UINT32_MAX */
    uint32_t n_map;
    struct image_layout **layouts; /* by id, each with a reference */
    uint32_t n_layouts;
    struct image_session *last; /* the session that was last looked up */
    uint32_t tables_capacity, sessions_capacity, slots_capacity, counters_capacity, notes_capacity;
};

void image_init(struct image *self);
void image_fini(struct image *self);
/* Resets everything but notes and limits. */
void image_clear(struct image *self);
/* Applies one entry that passed entry_check. RP_BAD_MESSAGE: it contradicts the state (a slot that is taken, a table
 * that was not named); nothing has changed. */
rp_status image_apply(struct image *self, const struct entry_view *entry, rp_error *err);
/* After the last image_apply: converts times to the clock of the newest START. image_load does it. */
void image_finish(struct image *self);
/* Converts all times to another process's clock, given by one instant in wall time and in that clock. No time is after
 * that instant, and the order of insertion stays. */
void image_rebase(struct image *self, int64_t wall_ns, int64_t clock_ns);
/* Reads the checkpoint `number` (0: the newest valid one; a damaged one is noted, and the one before it tried), those
 * that it is based on, and the segments after it. until_checkpoint: without the segments. RP_NOT_FOUND: there is
 * nothing to load. RP_DATA_LOSS: nothing of what is there can be loaded; the notes say why. A torn end of the last
 * segment, which has nothing sound behind it, is noted; with `cut`, the file is cut off there. */
rp_status image_load(struct image *self, const struct folder *folder, uint64_t number, bool until_checkpoint, bool cut,
                     rp_error *err);
void image_note(struct image *self, bool damage, const char *format, ...) RP_PRINTF(3, 4);
uint64_t image_size(const struct image *self); /* number of items in all tables */

/* What a checkpoint says at its start. */
struct checkpoint_about {
    struct entry_start start;
    struct entry_checkpoint head;
};
rp_status checkpoint_peek(const struct folder *folder, uint64_t number, struct checkpoint_about *out, rp_error *err);

/* Reads the chunks at these places (ascending, each once) and calls fn for each. Many small chunks cost one large
 * read. A damaged chunk ends it with an error. */
typedef rp_status chunk_fn(void *ctx, uint64_t at, const struct chunk_view *chunk, rp_error *err);
rp_status chunks_read(const struct folder *folder, const uint64_t *at, uint64_t n, chunk_fn *fn, void *ctx,
                      rp_error *err);

/* Checks everything in one file: every record, entry and chunk. An error: the file cannot be read at all. */
struct verify_result {
    uint64_t bytes, records, entries, chunks;
    uint64_t chunk_bytes;        /* data of the chunks, as stored */
    uint64_t types[ENTRY_TYPES]; /* entries of each type */
    struct entry_start start;
    struct entry_checkpoint checkpoint; /* of a checkpoint */
    struct entry_end end;               /* of a checkpoint that has one */
    bool damaged;
    uint64_t damaged_at;    /* offset of the first damage */
    uint64_t damaged_bytes; /* total of bytes that are damaged */
    uint64_t sound_after;   /* number of whole records after the first damage */
    char text[300];         /* what is wrong there; empty: nothing */
};
rp_status disk_verify_file(const struct folder *folder, enum disk_kind kind, uint64_t number, struct verify_result *out,
                           rp_error *err);

#endif
