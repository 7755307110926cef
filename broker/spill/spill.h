/* More than memory holds: cold chunks lie in segments, and are read back when they are sampled.
 *
 * With storage.memory set, a chunk's data is an object of its own (CHUNK_SPLIT), so that it can go while its head stays.
 * A clock hand passes over the items: a chunk that was neither inserted nor sampled since the hand last came by loses its
 * data, once that is written to a segment. A sample whose picks need data that is not here waits, parked, while the
 * fetcher (a czmq actor of its own) reads it; then it is answered as any other. Clients see a slower sample, no more.
 *
 * spill.c has the hand and the budgets, spill_park.c the waiters and the reads, spill_move.c the files. */
#ifndef BROKER_SPILL_H
#define BROKER_SPILL_H

#include "broker/config/config.h"
#include "broker/journal/stream.h"
#include "broker/loop/idmap.h"
#include "broker/loop/loop.h"
#include "broker/sample/samples.h"
#include "broker/spill/fetcher.h"
#include "broker/table/tables.h"
#include "proto/base/log.h"

struct hand;
struct need;

struct spill {
    struct durable_state state;
    struct stream *stream;
    struct fetcher *fetcher;
    uint64_t memory; /* most bytes of data that stay */
    uint64_t disk;   /* most bytes of chunks in segments; 0: no limit */
    /* waiters: in the order in which they came. The first of them have what is here pinned, and the rest ordered */
    struct waiter *parked, **parked_end;
    struct waiter *not_admitted;
    uint64_t n_parked;
    struct idmap needs; /* chunks that are pinned or being read */
    struct need *reads, **reads_end;
    uint64_t pinned_bytes;
    uint64_t bring_bytes; /* of spill_bring, under way */
    struct idmap lost;    /* places that spill_bring could not read */
    bool arrived;         /* something was read since the waiters were last looked at */
    /* the clock hand */
    struct hand *hand; /* NULL: it rests */
    uint32_t hand_table, hand_slot;
    bool round;       /* alternates */
    bool round_whole; /* this round began at the first item */
    uint64_t round_work, round_waiting;
    bool idle;    /* the last round found nothing to do now */
    bool stalled; /* nor anything to wait for: what is here must stay */
    bool news;    /* since the hand began: something was written or read */
    uint64_t idle_bytes;
    int64_t idle_ns;
    bool disk_full; /* chunks could not be put into segments for want of storage.disk */
    bool held;      /* inserts wait for it */
    /* places up to durable_at are written; those up to mark_at when record mark_number is */
    uint64_t durable_at, mark_at, mark_number;
    uint64_t moving; /* segment whose chunks are written again; 0: none */
    int64_t swept_ns, move_after_ns;
    /* counted */
    uint64_t let_go_chunks, let_go_bytes;   /* data that went */
    uint64_t fetched_chunks, fetched_bytes; /* and that came back */
    uint64_t damaged_chunks;
    struct log_limit log;
};

/* After stream_open, before anything is stored. Nothing to do if storage.memory is 0. */
rp_status spill_open(struct spill **out, const struct durable_state *state, struct stream *stream, rp_error *err);
/* Before the tables go. Waiters have been cancelled. */
void spill_close(struct spill **self);
/* Takes what the fetcher has read, answers whose data is complete, and lets data go where there is too much. In every
 * turn. True: more could be done at once. */
bool spill_run(struct spill *self);
/* The socket to poll. */
void *spill_socket(const struct spill *self);
/* Nothing is under way: for tests. */
bool spill_is_quiet(const struct spill *self);

/* ---- samples ---- */

/* Returns the hooks by which samples wait until their chunks are read. */
struct sample_parking spill_parking(struct spill *self);
/* For moving chunks between segments: if the chunk's data is not here, it is read, and stays for a while. */
enum spill_brings { SPILL_HERE, SPILL_COMING, SPILL_LOST /* it can not be read */ };
enum spill_brings spill_bring(struct spill *self, struct chunk *chunk);
/* Running count of chunks that were read, or could not be. */
uint64_t spill_reads(const struct spill *self);

/* ---- budgets ---- */

/* Data of chunks that may stay now. */
uint64_t spill_cap(const struct spill *self);
/* Inserts have to wait until data has gone. */
bool spill_is_full(struct spill *self);
/* What they wait for; nothing if they do not. */
void spill_explain_insert(struct spill *self, char *text, size_t size);
/* storage.disk is used up: something must be removed before more is inserted. */
bool spill_wants_room(const struct spill *self);

/* ---- within ---- */

/* spill_park.c */
bool spill_take_reads(struct spill *self);
void spill_order_reads(struct spill *self);
/* At the end: what was asked for is wanted no more. */
void spill_drop_reads(struct spill *self);
/* spill_move.c: without checkpoints, nobody else cares for the files. */
bool spill_owns_files(const struct spill *self);
bool spill_move_chunk(struct spill *self, struct chunk *chunk);
void spill_sweep(struct spill *self);

#endif
