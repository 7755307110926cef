/* What the files checkpoint*.c share.
 *
 *   checkpoint.c        when one is made: reasons, timers, the end
 *   checkpoint_begin.c  the instant: what is copied at once
 *   checkpoint_copy.c   marks, and the copying of items in slices
 *   checkpoint_file.c   records on their way to the disk writer
 *   checkpoint_keep.c   which files are needed, and which are removed */
#ifndef BROKER_CHECKPOINT_RUN_H
#define BROKER_CHECKPOINT_RUN_H

#include <zmq.h>

#include "broker/checkpoint/checkpoint.h"
#include "broker/config/config.h"
#include "broker/journal/journal.h"
#include "broker/journal/stream.h"
#include "broker/loop/loop.h"
#include "broker/table/tables.h"
#include "proto/base/log.h"

/* How far it runs ahead of the disk writer; well below what makes the stream call itself full. */
static inline uint64_t checkpoint_ahead(const struct stream *stream)
{
    uint64_t part = stream->backlog_most / 4, most = UINT64_C(32) << 20;
    return part < most ? part : most;
}
/* A chain of changes has so many links at most. */
#define CHECKPOINT_LINKS 16u

/* A table whose items are copied. */
struct copied_table {
    struct table *table;
    struct contents *in; /* the table's; after a reset what was in it */
    struct marks *marks; /* of those contents */
    struct chore *then;  /* frees them after a reset */
};

/* A parameter slot as it was. */
struct copied_slot {
    const char *name; /* slots stay */
    uint64_t version;
    int64_t put_ns;
    zmq_msg_t value;
};

/* A sample that may be asked for again. The chunks are held. */
struct copied_selection {
    uint32_t table;
    struct entry_selection head;
    struct entry_selected *items;
    struct chunk **refs;
};

/* A segment that entries of the file name. */
struct named_segment {
    uint64_t number, chunks, bytes;
    bool moving; /* it is mostly dead, or bad: what lives there is moved */
    bool bad;    /* it could not be synced: no entry names what was moved */
};

/* Whether the checkpoint needs the segment. The journal after its instant may name chunks where they were before they
 * were moved. */
static inline bool named_is_needed(const struct named_segment *self, uint64_t journal)
{
    return self->chunks > 0 || (self->moving && !self->bad && journal);
}

struct checkpoint {
    struct chore chore;
    struct checkpoints *checkpoints;
    const struct durable_state *state;
    struct stream *stream;
    uint64_t number, base, journal;
    enum checkpoint_reason reason;
    int64_t start_ns;
    uint64_t failures; /* syncs that were known to have failed at its instant */
    bool waits;        /* for the disk writer to catch up, or for chunks to be read: it is not among the chores */
    uint64_t reads;    /* it waits until so many have been read (spill_reads); 0: not for that */
    uint32_t near_table, near_slot, near_tries; /* how often it has waited for the chunks of which item */
    bool ended;                                 /* all was handed over */
    bool failed;                                /* error says why */
    char error[256];
    /* the file */
    struct disk_job *job; /* of the record; NULL: there is none */
    uint8_t *record;      /* its data, with room for its head */
    size_t used, capacity;
    uint64_t offset, entries;
    uint64_t chunk_bytes; /* put into segments on the way */
    uint64_t replaces;    /* bytes of journal, if it becomes whole */
    /* what is to be written */
    struct copied_table *tables;
    uint32_t n_tables, table_at;
    struct copied_slot *slots;
    uint32_t n_slots, slot_at;
    struct copied_selection *selections;
    uint32_t n_selections, selection_at, selections_capacity;
    struct named_segment *segments; /* by number */
    uint32_t n_segments, segments_capacity, last_segment;
    /* of the state at the instant */
    uint64_t items, chunks, bytes;
    uint64_t slots_all, slots_done;
};

/* A checkpoint that is there. */
struct kept_checkpoint {
    uint64_t number, base, journal;
    uint64_t *segments;
    uint32_t n_segments;
    bool useless; /* damaged; or the broker was started from an older one */
};

struct checkpoints {
    struct durable_state state;
    struct stream *stream;
    struct spill *spill; /* NULL: all chunks are in memory */
    struct checkpoint_listener listener;
    struct checkpoint *running;
    uint64_t next; /* number of the next one */
    bool wanted;
    enum checkpoint_reason reason; /* of the wanted one */
    struct timer period, progress;
    bool low;                       /* the disk is short of space */
    int64_t heal_ns, heal_pause_ns; /* when bad segments are next written anew, and the pause after the last try */
    int64_t not_before_ns;          /* after a failure those that nobody asked for wait */
    uint32_t slice;                 /* slots of a slice */
    /* the chain that the next one may be a change of */
    uint64_t base, base_bytes, chain_bytes;
    uint32_t links;
    /* what there is */
    struct kept_checkpoint *kept; /* by number */
    uint32_t n_kept, kept_capacity;
    uint64_t *dead; /* segments without a live chunk when the last one was handed over; with a journal, when it began */
    uint32_t n_dead;
    uint64_t last; /* the newest that is whole; 0: none */
    int64_t last_ns;
    uint64_t last_base, last_items, last_bytes, last_took_ns;
};

/* checkpoint_file.c */
/* An entry_sink's room. Never NULL. */
void *checkpoint_entry(struct checkpoint *self, uint16_t type, uint32_t table, size_t size);
struct entry_sink checkpoint_sink(struct checkpoint *self);
void checkpoint_flush(struct checkpoint *self);
/* A record of its own for a large value, which the disk writer copies: the body of the entry is `size` bytes of `front`,
 * then the message, which is moved from. */
void checkpoint_large(struct checkpoint *self, uint16_t type, const void *front, size_t size, zmq_msg_t *value);
/* The disk writer is told to give a checkpoint its name, to drop it; to remove a file. False: no memory. */
bool checkpoint_tell(struct checkpoints *self, enum disk_job_what what, enum disk_kind kind, uint64_t number);
/* Counts a chunk that an entry names, and gives its place; puts it there, or moves it, if need be. */
uint64_t checkpoint_place(struct checkpoint *self, struct chunk *chunk);
struct named_segment *checkpoint_segment(struct checkpoint *self, uint64_t number);
RP_PRINTF(2, 3) void checkpoint_fail(struct checkpoint *self, const char *format, ...);

/* checkpoint_begin.c */
struct checkpoint *checkpoint_begin(struct checkpoints *checkpoints, enum checkpoint_reason reason, rp_error *err);
void checkpoint_free(struct checkpoint *self);

/* checkpoint_copy.c */
bool checkpoint_step(struct chore *chore);
/* Tables are let go of: after this nothing more is copied. */
void checkpoint_let_go(struct checkpoint *self);
/* Copies items for the marks of tables. */
extern const struct copier checkpoint_copier;

/* checkpoint.c */
/* All was copied: the end of the file, and its name. */
void checkpoint_end(struct checkpoint *self);
void checkpoint_abandon(struct checkpoint *self);
const char *checkpoint_reason_name(enum checkpoint_reason reason);

/* checkpoint_keep.c */
rp_status checkpoints_read(struct checkpoints *self, rp_error *err);
bool checkpoints_keep(struct checkpoints *self, const struct checkpoint *finished);
/* Removes files that are needed no more. */
void checkpoints_clean(struct checkpoints *self);
/* Before the end is handed over: which segments could go. */
void checkpoints_note_dead(struct checkpoints *self);
void checkpoints_keep_fini(struct checkpoints *self);

#endif
