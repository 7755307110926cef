/* The broker's way to its files: entries are appended to a record in memory, records are handed to the disk writer (a czmq
 * actor, disk_writer.c) that writes them to segments, and the disk writer says how far it is. Nothing here waits for a disk.
 *
 * There is a stream whenever the broker keeps anything on disk. With the journal on, every effect goes through it
 * (journal.h); without, chunks alone, when a checkpoint or the spilling of cold ones needs them there.
 *
 * Records have running numbers. What a client is told must not be undone by a crash, so with the journal on a message
 * leaves only when the records before it are durable (commit.h): written (fsync never, interval), or synced (always). */
#ifndef BROKER_STREAM_H
#define BROKER_STREAM_H

#include "broker/disk/folder.h"
#include "broker/journal/disk_writer.h"
#include "broker/journal/durable_state.h"
#include "broker/journal/segments.h"
#include "broker/journal/space.h"
#include "broker/loop/effects.h"
#include "broker/store/store.h"

/* Why nothing more should be taken in. */
enum stream_hold {
    HOLD_NOTHING,
    HOLD_TROUBLE,    /* the disk cannot be written */
    HOLD_MEMORY,     /* there is no memory for the next record before another is written */
    HOLD_SPACE,      /* the rest of the disk is for a checkpoint */
    HOLD_COMPACTION, /* a checkpoint that is to free space comes first */
    HOLD_JOURNAL,    /* the journal is as long as it may be before the checkpoint under way has ended */
    HOLD_BACKLOG     /* the disk is slow */
};

/* What the stream asks whoever makes checkpoints, and what it reports. */
enum checkpoint_activity {
    CHECKPOINT_NONE,
    CHECKPOINT_RUNS,
    CHECKPOINT_MAKES_ROOM /* a checkpoint that is to free space is wanted or runs */
};
struct checkpoint_ops {
    enum checkpoint_activity (*activity)(const void *ctx);
    /* Returns the estimated bytes of a whole checkpoint. */
    uint64_t (*bytes)(const void *ctx);
    /* The disk writer has finished this checkpoint, or (ok is false) has given it up. */
    void (*finished)(void *ctx, uint64_t number, bool ok);
};

struct stream {
    struct effects effects; /* first: journal.c gets from it to the stream */
    struct durable_state state;
    const struct checkpoint_ops *ops; /* NULL: no checkpoints are made */
    void *ops_ctx;
    struct folder folder;
    struct disk_pool pool;
    struct disk_writer *disk_writer;
    bool journal; /* effects are recorded */
    /* the record that is being filled */
    struct disk_job *job; /* NULL: used is 0 */
    uint8_t *record;      /* its data */
    size_t used, capacity;
    struct disk_job *next_job;  /* for the record after it: taken ahead, at the start of a turn */
    struct disk_job *large_job; /* for an entry that no usual record has room for; of large_bytes */
    size_t large_bytes;
    size_t last;              /* offset of the last entry's head; 0: none */
    uint64_t number;          /* running number of the record being filled; used == 0: it is empty */
    uint64_t durable;         /* running number of the last durable one */
    uint64_t segment, offset; /* where that record will stand */
    uint64_t after;           /* for the next START entry: up to where files were applied (disk/record.h); or 0 */
    uint64_t loaded, next;    /* the same: which checkpoint was loaded, which will be the next */
    bool fresh;               /* the same: all older files are no part of the state */
    uint64_t origin;          /* the checkpoint that was loaded at the start; 0: none */
    uint64_t first_own;       /* segments before it have a journal that was loaded; 0: none of them has */
    uint64_t segment_bytes;   /* a segment is not larger than this, whatever space_segment says */
    size_t start_used;        /* of a record that has nothing but the segment's first entries */
    size_t first_bytes;       /* of the first entries of the newest segment */
    uint64_t given;           /* bytes handed over, of everything */
    uint64_t backlog;         /* of those, what is not written */
    uint64_t backlog_most;
    bool starved;          /* at the start of this turn there was no memory for next_job */
    bool leave;            /* the segment is to end: there was no memory for the next one */
    bool full;             /* see stream_is_full */
    enum stream_hold hold; /* why */
    uint64_t free;         /* bytes of the disk when `written` was counted; SPACE_UNKNOWN */
    uint64_t look_at;      /* bytes handed over and in the record, at which it may be full */
    uint64_t message_at;   /* the same before the newest message of a writer */
    struct space space;    /* as of the disk writer's last news; its `free` as of the last record */
    struct segments segments;
    char trouble[256]; /* why it can not write; empty: all is well */
    int64_t trouble_ns;
    uint64_t failures;            /* syncs that are known to have failed */
    uint64_t bad_first, bad_last; /* segments of which nobody knows what is on the disk; bad_last 0: none */
    uint64_t journal_bytes;       /* since the last checkpoint */
};

/* Opens the folder and starts the disk writer; nothing is written before stream_begin. */
rp_status stream_open(struct stream **out, const struct durable_state *state, rp_error *err);
/* Whether effects are recorded from now on. */
void stream_record(struct stream *self, bool on);
/* After the state was restored (or found missing): a new segment begins, with START and TABLE entries. */
rp_status stream_begin(struct stream *self, rp_error *err);
/* Writes what is left, waits for it for at most timeout_ms, ends the disk writer. */
void stream_close(struct stream **self, int timeout_ms);

/* Room for an entry's body of so many bytes, 8-byte aligned, to be filled in before the next call. Never NULL. */
void *stream_entry(struct stream *self, uint16_t type, uint32_t table, size_t size);
/* Makes the last entry larger by so many bytes, a multiple of 8, and gives the room. NULL: there is none, or no entry. */
void *stream_extend(struct stream *self, size_t bytes);
/* An entry that ends with a large message, which is shared, and copied by the disk writer. It ends the record, too: what was in
 * it goes along, if that is no more than a few KiB. Gives its place. */
uint64_t stream_entry_large(struct stream *self, uint16_t type, uint32_t table, const void *body, size_t size,
                            zmq_msg_t *rest);
/* A sync of the segment failed: what lives there must be written anew, and nothing may rely on it. */
static inline bool stream_is_bad(const struct stream *self, uint64_t segment)
{
    return __builtin_expect(self->bad_last != 0, 0) && segment >= self->bad_first && segment <= self->bad_last;
}
/* The chunk has no place, or none that can be relied on. A chunk that no item had while a lost segment was written anew
 * still lies there: a writer may send a further item over it. */
bool stream_is_lost(const struct stream *self, uint64_t segment);
static inline bool stream_lacks(const struct stream *self, const struct chunk *chunk)
{
    return !chunk->at || (__builtin_expect(self->segments.n_lost != 0, 0) &&
                          stream_is_lost(self, disk_number(chunk->at)) && chunk_is_here(chunk));
}
/* Puts a chunk there if it lacks a place; chunk->at says where. False: it is larger than a record, there is no memory for
 * one of its own, and nothing has changed. */
bool stream_chunk(struct stream *self, struct chunk *chunk);
/* Puts it there again, from a segment that is mostly dead. */
bool stream_chunk_again(struct stream *self, struct chunk *chunk);
/* Before an item is inserted: puts its large chunks there, so that no memory is needed for those that are left. False: there
 * was no memory. */
bool stream_chunks_first(struct stream *self, struct chunk *const *chunks, uint32_t n);
/* A chunk that lies in a segment was restored; is freed. */
void stream_chunk_known(struct stream *self, const struct chunk *chunk);
void stream_chunk_dead(struct stream *self, const struct chunk *chunk);
/* Has a segment removed that nobody needs, and forgets it. Not the one that is being written. */
void stream_remove_segment(struct stream *self, uint64_t number);

/* Gives the disk writer a job, counted in the backlog: records and ends of checkpoints go this way. Before the end of a
 * checkpoint the stream's own record is handed over, so that the chunks that it names are there first. Whoever gives
 * much must keep an eye on the backlog: above backlog_most the broker takes nothing in. */
void stream_give(struct stream *self, struct disk_job *job);
/* A checkpoint that knew of so many failures has ended: no state lies in bad segments any more. */
void stream_healed(struct stream *self, uint64_t failures);
/* Hands the record over at the end of a turn, unless it is small and the disk writer is busy: it then gets larger. */
void stream_flush(struct stream *self);
/* Hands it over now. */
void stream_hand_over(struct stream *self);
/* Takes what the disk writer has to say. At the start of every turn, and when its socket wakes the loop. */
void stream_run(struct stream *self);
/* The number that must be durable before something that is true now may be told. */
static inline uint64_t stream_now(const struct stream *self)
{
    bool empty = !self->used || (!self->journal && self->used == self->start_used);
    return empty ? self->number - 1 : self->number;
}
/* After a message of a writer: whether the journal has room for one more. */
bool stream_has_room(struct stream *self);
/* The size at which a segment ends: at the end of the turn in which it is so large. */
uint64_t stream_segment_bytes(const struct stream *self);
/* It can not keep up, or not write at all: with the journal on, nothing more should be taken in. Says why (text may be
 * NULL). */
bool stream_is_full(const struct stream *self, char *text, size_t size);

/* ---- between stream.c and stream_record.c ---- */

/* Begins a segment; `after`: see the field. Only while all effects are recorded: a segment's first entries hold the state
 * of counters. False: no memory, and nothing has changed. */
bool stream_segment_begin(struct stream *self, uint64_t number, uint64_t after);
/* Begins the next segment. Without memory the present one goes on, and the end of the next turn tries again. */
void stream_segment_next(struct stream *self);
/* Works out whether the stream is full, and why. */
void stream_update_full(struct stream *self);

#endif
