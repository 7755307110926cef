/* The stream: the broker's way to its files. Entries are appended to a record in memory; full records go to the disk
 * writer (disk_writer.h), which writes them to segments and reports its progress. Nothing here waits for a disk.
 *
 * There is a stream whenever the broker keeps anything on disk. With the journal on, it implements the effects
 * (loop/effects.h) that other rooms report; without it, it takes only the chunks that a checkpoint or spilling needs on disk.
 * loop/entries.h describes the entries; checkpoint/loading.c applies them.
 *
 * The room owns the stream, its segments, the thread that writes and syncs files (disk_writer.h), the rules for space on the disk
 * (space.h), and the format of the files (record.h, folder.h) with its readers (reader.h, load.h, verify.h), which need no broker:
 * replay-ctl reads files with them.
 *
 * Records have running numbers. A crash must not undo what a client was told, so with the journal on a message leaves
 * only when the records before it are durable (peer/commit.h): written (fsync never, interval) or synced (fsync
 * always). */
#pragma once

#include "broker/journal/disk_writer.h"
#include "broker/journal/durable_state.h"
#include "broker/journal/folder.h"
#include "broker/journal/space.h"
#include "broker/loop/effects.h"
#include "broker/session/session.h"
#include "broker/store/params.h"
#include "broker/store/store.h"
#include "broker/table/table.h"

/* A segment file: it can be removed if nothing in it is in use, and is worth moving chunks from if little is. */
struct segment_use {
    uint64_t number;
    uint64_t bytes; /* size of the file */
    uint64_t live;  /* bytes of chunks in use that lie there */
    bool lost;      /* a sync of it has failed: nothing new relies on it, even after its chunks were written again */
    bool moving;    /* sparse or bad: the checkpoint in progress moves its live chunks */
    uint64_t named; /* chunks there that the checkpoint in progress names */
};

struct segments {
    struct segment_use *list; /* sorted by number */
    uint32_t n, capacity;
    uint32_t n_lost;      /* segments with `lost` set */
    uint64_t total_bytes; /* sum of bytes */
    uint64_t live;        /* sum of live */
};

/* Why inserts should wait. */
enum stream_hold {
    HOLD_NOTHING,
    HOLD_TROUBLE,    /* the disk cannot be written */
    HOLD_SPACE,      /* what is left of the disk is reserved for a checkpoint */
    HOLD_COMPACTION, /* a checkpoint that frees space comes first */
    HOLD_JOURNAL,    /* the journal has reached its limit while a checkpoint is in progress */
    HOLD_BACKLOG     /* the disk is slow */
};

/* What the stream asks the checkpoint room, and what it reports to it. */
enum checkpoint_activity {
    CHECKPOINT_NONE,
    CHECKPOINT_RUNS,
    CHECKPOINT_MAKES_ROOM /* a checkpoint that is to free space is wanted or runs */
};
struct checkpoint_ops {
    enum checkpoint_activity (*activity)(const void *ctx);
    /* Returns the estimated bytes of a whole checkpoint. */
    uint64_t (*bytes)(const void *ctx);
    /* The disk writer has finished this checkpoint (why is NULL), or has given it up. */
    void (*finished)(void *ctx, uint64_t number, const char *why);
};

struct stream {
    struct durable_state state;
    const struct checkpoint_ops *ops; /* NULL: no checkpoints are made */
    void *ops_ctx;
    struct folder folder;
    struct disk_writer *disk_writer;
    bool journal;             /* effects are recorded */
    struct recorder out;      /* the record being filled */
    uint64_t number;          /* running number of the record being filled */
    uint64_t durable;         /* running number of the last durable record */
    uint64_t segment, offset; /* place of the record being filled */
    struct entry_start start; /* what the next START entry says about earlier files */
    uint64_t origin;          /* the checkpoint that was loaded at the start; 0: none */
    bool dropped;             /* the files have what the start has dropped: a checkpoint is due */
    uint64_t first_own;       /* segments before this number have a journal that was loaded; 0: none has */
    uint64_t segment_bytes;   /* most bytes of a segment; space_segment may say less */
    size_t start_used;        /* bytes of a record that holds nothing but the segment's first entries */
    size_t first_bytes;       /* bytes of the first entries of the newest segment */
    uint64_t given;           /* bytes of all records handed to the disk writer */
    uint64_t backlog;         /* bytes of those that are not written yet */
    uint64_t backlog_most;
    bool full;             /* see stream_is_full */
    int64_t full_ns;       /* since when */
    enum stream_hold hold; /* why */
    uint64_t free;         /* bytes free on the disk when the news was written; or SPACE_UNKNOWN */
    uint64_t look_at;      /* given + used at which the stream may become full */
    uint64_t message_at;   /* given + used before the newest message of a writer */
    struct space space;    /* as of the last news; its `free` as of the last record */
    struct segments segments;
    char trouble[256]; /* why the disk cannot be written; empty: it can */
    int64_t trouble_ns;
    uint64_t failures;            /* number of failed syncs that are known */
    uint64_t bad_first, bad_last; /* range of segments whose contents on disk are unknown; bad_last 0: none */
    uint64_t journal_bytes;       /* bytes of journal since the last checkpoint */
};

/* Opens the folder and starts the disk writer; nothing is written before stream_begin. */
rp_status stream_open(struct stream **out, const struct durable_state *state, rp_error *err);
/* Turns the recording of effects on or off. */
void stream_record(struct stream *self, bool on);
/* Begins a new segment, with START and TABLE entries. After the state was restored. */
void stream_begin(struct stream *self);
/* Hands over the last record, waits at most timeout_ms until everything is written, and ends the disk writer. */
void stream_close(struct stream **self, int timeout_ms);

/* True if a sync of the segment has failed: its live chunks must be written again, and nothing may rely on it. */
static inline bool stream_is_bad(const struct stream *self, uint64_t segment)
{
    return __builtin_expect(self->bad_last != 0, 0) && segment >= self->bad_first && segment <= self->bad_last;
}
/* True if the chunk has no place on disk, or none to rely on. A chunk that no item used while the chunks of a lost
 * segment were written again still lies there; a writer may yet send an item that uses it. */
bool stream_is_lost(const struct stream *self, uint64_t segment);
static inline bool stream_lacks(const struct stream *self, const struct chunk *chunk)
{
    return !chunk->at || (__builtin_expect(self->segments.n_lost != 0, 0) &&
                          stream_is_lost(self, disk_number(chunk->at)) && chunk_is_here(chunk));
}
/* Writes a chunk if it lacks a place, and sets chunk->at. False: there is no memory for a record as large as the
 * chunk; nothing has changed. */
bool stream_chunk(struct stream *self, struct chunk *chunk);
/* Writes the chunk again and sets its new place: to move it out of a sparse segment. */
bool stream_chunk_again(struct stream *self, struct chunk *chunk);
/* A chunk that lies in a segment was restored. */
void stream_chunk_known(struct stream *self, const struct chunk *chunk);
/* Returns NULL if there is no such segment. */
struct segment_use *segments_find(const struct segments *self, uint64_t number);
/* Removes a segment that nobody needs. Does nothing for the segment being written. */
void stream_remove_segment(struct stream *self, uint64_t number);

/* Gives the disk writer a job and counts it in the backlog. Before the end of a checkpoint the stream's own record is
 * handed over, so that the chunks that the checkpoint names come first. Callers that give much watch the backlog:
 * above backlog_most, inserts wait. */
void stream_give(struct stream *self, struct disk_job *job);
/* Has the disk writer abandon a checkpoint or remove a file. */
void stream_file_job(struct stream *self, enum disk_job_what what, enum disk_kind kind, uint64_t number);
/* A checkpoint that knew of so many failures has ended. If there were no more, nothing relies on bad segments any
 * longer. */
void stream_healed(struct stream *self, uint64_t failures);
/* Hands the record over at the end of a turn, unless it is small and the disk writer is busy; then the record grows. */
void stream_flush(struct stream *self);
/* Hands the record over now. */
void stream_hand_over(struct stream *self);
/* Reads the disk writer's news. At the start of every turn, and when its socket wakes the loop. */
void stream_run(struct stream *self);
/* Returns the number of the record that must be durable before clients may learn of the present state. */
static inline uint64_t stream_now(const struct stream *self)
{
    bool empty = !self->out.used || (!self->journal && self->out.used == self->start_used);
    return empty ? self->number - 1 : self->number;
}
/* True if the journal has room for another message of a writer. After each message. */
bool stream_has_room(struct stream *self);
/* Returns the size from which on a segment ends, at the end of a turn. */
uint64_t stream_segment_bytes(const struct stream *self);
/* True if the disk does not keep up or cannot be written: with the journal on, inserts should wait. Writes why to text
 * (may be NULL). */
bool stream_is_full(const struct stream *self, char *text, size_t size);

/* ---- state as entries ---- */

/* The caller sets the fields of start that are about earlier files. */
void journal_put_start(struct recorder *to, const struct durable_state *state, struct entry_start start);
void journal_put_table(struct recorder *to, const struct table *table);
void journal_put_ordinal(struct recorder *to, const struct ordinals *ordinals);
void journal_put_layout(struct recorder *to, const struct layout *layout);
/* Writes SESSION, its FORMs, PROGRESS, and its REJECTIONs that are not confirmed. */
void journal_put_session_all(struct recorder *to, const struct session *session);
/* A large value is shared with the disk writer, which copies it. One in parts is written with them. */
void journal_put_slot(struct recorder *to, struct param_slot *slot);
/* Writes the parts of a stage that are there. */
void journal_put_stage(struct recorder *to, struct param_stage *stage);
void journal_put_counter(struct recorder *to, const struct param_counter *counter);
void journal_put_reply(struct recorder *to, uint64_t client, uint64_t id, const void *frame, size_t size);
/* Returns the body of an ENTRY_INSERT for the item in a slot, with session and number 0. The caller adds the places of
 * its chunks. */
struct entry_insert journal_insert_body(const struct item *item, uint32_t slot);
/* Puts the ENTRY_GROUP of an item of a table with groups, before its ENTRY_INSERT or ENTRY_ITEM. */
void journal_put_group(struct recorder *to, const struct table *table, const struct contents *in, uint32_t slot);
