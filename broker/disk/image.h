/* The state of a broker as plain data, made by applying entries: a checkpoint, those it is based on, then the segments
 * after it. The broker restores its tables from an image; replay-ctl shows, verifies and exports one. Nothing here needs
 * a running broker. */
#ifndef BROKER_DISK_IMAGE_H
#define BROKER_DISK_IMAGE_H

#include "broker/disk/folder.h"
#include "replay.pb-c.h"

struct image_layout {
    uint32_t refs;
    uint32_t table;  /* index in image.tables */
    uint32_t serial; /* unique within the image */
    uint32_t packed_size;
    uint8_t *packed; /* the Layout message as it was written */
    Replay__Layout *wire;
    void *user; /* the restorer's */
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
    uint64_t total_inserts, total_samples, updates, episodes, rejected, evicted, resets;
    struct image_item *items; /* by slot; zeros are mapped as they are touched, so holes cost nothing */
    uint32_t high, capacity, size;
    uint64_t order;       /* the highest rank of an item: what is inserted or updated comes after all others */
    int64_t last_ns;      /* the newest insert_ns */
    uint8_t *selector[2]; /* state of sampler and remover, or NULL; gone as soon as a later entry changed the table */
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
    Replay__Layout **forms; /* as registered, by the writer's id; NULL: none of this id */
    uint32_t n_forms;
    struct entry_flow *flows; /* by index in image.tables; of tables that it did not use: zeros */
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

struct image_reply {
    uint64_t client, id;
    uint8_t *frame;
    size_t size;
};
/* As many as the broker itself remembers: of more, the oldest go. */
#define IMAGE_REPLIES 4096u
#define IMAGE_REJECTIONS 8192u

/* A sample that may be asked for again. Items as they were when they were picked. */
struct image_selection {
    uint64_t client, id, table_size;
    uint32_t table, want, flags;
    bool answered;
    struct image_item *items; /* times_sampled and priority as picked. n == 0: only the key and numbers are known */
    double *probability;
    uint32_t n;
};

/* What was found on the way: damage, cuts, fallbacks. */
struct image_note {
    bool damage; /* otherwise: for information */
    char text[300];
};

struct image {
    uint64_t checkpoint; /* number, or 0: none was used */
    uint64_t end;        /* place in the journal up to which it was applied: goes into entry_start.after. 0: none was */
    uint64_t journal_entries, journal_bytes; /* applied after the checkpoint */
    int64_t wall_ns, clock_ns;               /* what insert_ns and put_ns count in: the newest START, or image_rebase */
    uint64_t next_ordinal;
    bool exact; /* nothing was applied after the checkpoint: selectors go on as they were */
    bool whole; /* all that the folder has was applied; false: see the notes, and write a whole checkpoint soon */
    uint32_t most_slots; /* no table may have more: set between init and load where memory is scarce */
    struct image_table *tables;
    uint32_t n_tables;
    struct image_session **sessions; /* by rising ordinal */
    uint32_t n_sessions;
    struct image_slot *slots;
    uint32_t n_slots;
    struct image_counter *counters;
    uint32_t n_counters;
    struct image_reply *replies; /* oldest first */
    uint32_t n_replies;
    struct image_selection **selections; /* oldest first */
    uint32_t n_selections;
    struct image_note *notes;
    uint32_t n_notes;
    struct image_impl *impl;
};

void image_init(struct image *self);
void image_fini(struct image *self);
/* Applies one entry that passed entry_check. RP_BAD_MESSAGE: it can not follow what is there (a slot that is taken, a
 * table that was not named), and nothing was changed. */
rp_status image_apply(struct image *self, const struct entry_view *entry, rp_error *err);
/* After the last image_apply: forgotten replies and selections leave their arrays, and times count in the clock of the
 * newest START. image_load does it. */
void image_finish(struct image *self);
/* Makes all times count in another process's clock, given by one instant in both; none lies after that instant, and the
 * order of insertion stays. */
void image_rebase(struct image *self, int64_t wall_ns, int64_t clock_ns);
/* Reads the checkpoint `number` (0: the newest valid one; damaged ones are noted and the one before is tried), those it
 * is based on, and the segments after it. until_checkpoint: leaves the segments out. RP_NOT_FOUND: there is nothing to
 * load. RP_DATA_LOSS: there was something, and nothing of it can be loaded; the notes say why. A torn end of the last
 * segment is noted; with `cut`, the file is cut there. */
rp_status image_load(struct image *self, const struct folder *folder, uint64_t number, bool until_checkpoint, bool cut,
                     rp_error *err);
void image_note(struct image *self, bool damage, const char *format, ...) RP_PRINTF(3, 4);
uint64_t image_size(const struct image *self); /* items of all tables */

/* What a checkpoint says at its start. */
struct checkpoint_about {
    struct entry_start start;
    struct entry_checkpoint head;
    struct entry_part *parts; /* head.n_parts, owned */
};
rp_status checkpoint_peek(const struct folder *folder, uint64_t number, struct checkpoint_about *out, rp_error *err);
void checkpoint_about_fini(struct checkpoint_about *self);

/* Reads chunks of segments in the order of their places, front to back, without the rest: many small ones cost one large
 * read. Calls fn for each place that is asked for (ascending, each once); a damaged chunk ends it with an error. */
typedef rp_status chunk_fn(void *ctx, uint64_t at, const struct chunk_view *chunk, rp_error *err);
rp_status chunks_read(const struct folder *folder, const uint64_t *at, uint64_t n, chunk_fn *fn, void *ctx,
                      rp_error *err);

/* Everything in one file: every record, entry and chunk. An error: it can not be read at all. */
struct verify_result {
    uint64_t bytes, records, entries, chunks;
    uint64_t chunk_bytes;        /* data of the chunks, as stored */
    uint64_t types[ENTRY_TYPES]; /* entries of each type */
    struct entry_start start;
    struct entry_checkpoint checkpoint; /* of a checkpoint */
    struct entry_end end;               /* of a checkpoint that has one */
    bool damaged;
    uint64_t damaged_at;    /* offset of the first damage */
    uint64_t damaged_bytes; /* that could not be read, all told */
    uint64_t sound_after;   /* records after the first damage that are whole */
    char text[300];         /* what is wrong there, in words; empty: nothing */
};
rp_status disk_verify_file(const struct folder *folder, enum disk_kind kind, uint64_t number, struct verify_result *out,
                           rp_error *err);

#endif
