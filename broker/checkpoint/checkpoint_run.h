/* What three files share: the checkpoint in progress, and all that the broker knows about checkpoints.
 *
 *   checkpoint.c        when checkpoints are made: reasons, timers, how they end
 *   checkpoint_begin.c  the instant: what is copied at once
 *   checkpoint_copy.c   copies items in slices, up to the end of the file
 *
 * Modules of their own: checkpoint_file.h writes the file, checkpoint_keep.h knows which files are needed. */
#ifndef BROKER_CHECKPOINT_RUN_H
#define BROKER_CHECKPOINT_RUN_H

#include <zmq.h>

#include "broker/checkpoint/checkpoint.h"
#include "broker/checkpoint/checkpoint_keep.h"
#include "broker/config/config.h"
#include "broker/loop/loop.h"
#include "broker/table/table.h"
#include "proto/base/log.h"

/* Returns how many bytes a checkpoint may be ahead of the disk writer: well below what makes the stream full. */
static inline uint64_t checkpoint_ahead(const struct stream *stream)
{
    uint64_t part = stream->backlog_most / 4, most = UINT64_C(32) << 20;
    return part < most ? part : most;
}
/* Most incremental checkpoints on one base. */
#define CHECKPOINT_LINKS 16u

/* A table whose items are being copied. */
struct copied_table {
    struct table *table;
    struct contents *in; /* the table's contents; after a reset, its old contents */
    struct marks *marks; /* the marks of these contents */
    struct chore *then;  /* frees the old contents after a reset */
};

/* A parameter slot as it was at the instant. */
struct copied_slot {
    const char *name; /* borrowed: slots are never removed */
    uint64_t version;
    int64_t put_ns;
    zmq_msg_t value;
};

/* A sample that may be asked for again, with references to its chunks. */
struct copied_selection {
    uint32_t table;
    struct entry_selection head;
    struct entry_selected *items;
    struct chunk **refs;
};

struct checkpoint {
    struct chore chore;
    struct checkpoints *checkpoints;
    const struct durable_state *state;
    struct stream *stream;
    uint64_t number;
    uint64_t base;    /* number of the checkpoint that it changes; 0: it is whole */
    uint64_t journal; /* where the journal after its instant begins; 0: there is none */
    enum checkpoint_reason reason;
    int64_t start_ns;
    uint64_t failures; /* number of failed syncs that were known at its instant */
    bool waits;        /* it waits for the disk writer, or for chunks to be read, and is not among the chores */
    uint64_t reads;    /* it waits until spill_reads() has this value; 0: it does not wait for reads */
    uint32_t near_table, near_slot, near_tries; /* the item whose chunks it waits for, and how often it has */
    bool ended;                                 /* everything was handed to the disk writer */
    struct checkpoint_file file;
    uint64_t replaces; /* bytes of journal that it makes superfluous */
    /* what has to be written */
    struct copied_table *tables;
    uint32_t n_tables, table_at;
    struct copied_slot *slots;
    uint32_t n_slots, slot_at;
    struct copied_selection *selections;
    uint32_t n_selections, selection_at, selections_capacity;
    /* totals of the state at the instant */
    uint64_t items, chunks, bytes;
    uint64_t slots_all, slots_done;
};

struct checkpoints {
    struct durable_state state;
    struct stream *stream;
    struct spill *spill; /* NULL: all chunks are in memory */
    struct checkpoint_listener listener;
    struct checkpoint *running;
    uint64_t next; /* number of the next checkpoint */
    bool wanted;
    enum checkpoint_reason reason; /* of the wanted checkpoint */
    struct timer period, progress;
    bool low;              /* the disk is short of space */
    int64_t heal_ns;       /* when a checkpoint to replace bad segments may begin */
    int64_t heal_pause_ns; /* pause after its last failure */
    int64_t not_before_ns; /* after a failure: when a checkpoint that no client asked for may begin */
    uint32_t slice;        /* most slots that a slice copies */
    /* the chain that the next incremental checkpoint continues */
    uint64_t base, base_bytes, chain_bytes;
    uint32_t links;
    struct kept_checkpoints kept;
    uint64_t last; /* number of the newest whole checkpoint; 0: none. The next fields are about it */
    int64_t last_ns;
    uint64_t last_base, last_items, last_bytes, last_took_ns;
};

/* checkpoint_begin.c */
struct checkpoint *checkpoint_begin(struct checkpoints *checkpoints, enum checkpoint_reason reason, rp_error *err);
void checkpoint_free(struct checkpoint *self);

/* checkpoint_copy.c */
bool checkpoint_step(struct chore *chore);
/* Stops copying: marks no longer point to the checkpoint. */
void checkpoint_let_go(struct checkpoint *self);
/* Copies items for the marks of tables. */
extern const struct copier checkpoint_copier;

/* checkpoint.c */
/* Removes files that are no longer needed. */
void checkpoints_clean(struct checkpoints *self);
void checkpoint_abandon(struct checkpoint *self);
const char *checkpoint_reason_name(enum checkpoint_reason reason);

#endif
