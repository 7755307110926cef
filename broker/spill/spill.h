/* Spilling: tables that are larger than memory. Cold chunks lie in segments and are read back when they are sampled.
 *
 * With storage.memory set, a chunk's data is an object of its own, which can be freed while the chunk's
 * head stays. A clock hand passes over the items and frees the data of chunks that were neither inserted nor sampled
 * since its last visit, once the data is written to a segment. A sample that needs data from disk is parked while the
 * fetcher (a czmq actor) reads it, and is then answered as usual. Clients see a slower sample and nothing else.
 *
 * The room owns the hand and the budgets, parked samples and their reads, and without checkpoints the segment files. It fills in the hooks of tables (struct disk_tier) and samples (struct
 * sample_parking). It uses the stream, tables, samples and the disk format. */
#pragma once

#include "broker/config/config.h"
#include "broker/journal/stream.h"
#include "broker/loop/idmap.h"
#include "broker/loop/loop.h"
#include "broker/sample/samples.h"
#include "broker/spill/fetcher.h"
#include "broker/table/table.h"
#include "proto/base/log.h"

struct need;

struct spill {
    struct durable_state state;
    struct stream *stream;
    struct fetcher *fetcher;
    uint64_t memory; /* storage.memory: most bytes of data in memory */
    uint64_t disk;   /* storage.disk: most bytes of chunks in segments; 0: no limit */
    /* parked waiters, oldest first. Those before not_admitted have all their chunks pinned or being read */
    struct waiter_list parked;
    struct waiter *not_admitted;
    struct idmap needs; /* chunks that are pinned or being read */
    struct need *reads, **reads_end;
    uint64_t pinned_bytes;
    uint64_t bring_bytes; /* bytes that spill_bring has ordered */
    struct idmap lost;    /* places that spill_bring could not read */
    bool arrived;         /* something was read since the waiters were last checked */
    /* the clock hand */
    struct chore hand;
    bool hand_runs;
    uint32_t hand_table, hand_slot;
    bool round;       /* alternates between rounds */
    bool round_whole; /* this round began at the first item */
    uint64_t round_work, round_waiting;
    bool idle;    /* the last round found nothing to do */
    bool stalled; /* and nothing to wait for: the data in memory cannot be freed */
    bool news;    /* something was written or read since the hand started */
    uint64_t idle_bytes;
    int64_t idle_ns;
    bool disk_full; /* chunks could not be written because storage.disk is used up */
    bool held;      /* inserts wait for memory */
    /* chunks before place durable_at are written; those before mark_at are when record mark_number is durable */
    uint64_t durable_at, mark_at, mark_number;
    uint64_t moving; /* segment whose chunks are being moved; 0: none */
    int64_t swept_ns, move_after_ns;
    /* counters */
    uint64_t fetched_chunks, fetched_bytes; /* data that was read back */
    uint64_t damaged_chunks;
    struct log_limit log;
};

/* After stream_open, before anything is stored. *out stays NULL if storage.memory is 0. */
rp_status spill_open(struct spill **out, const struct durable_state *state, struct stream *stream, rp_error *err);
/* Before the tables are destroyed. Waiters have been cancelled. */
void spill_close(struct spill **self);
/* Takes what the fetcher has read, answers samples whose data is complete, and starts the hand if too much is in
 * memory. In every turn. True: there is more to do at once. */
bool spill_run(struct spill *self);
/* The socket to poll. */
void *spill_socket(const struct spill *self);
/* True if nothing is in progress. For tests. */
bool spill_is_quiet(const struct spill *self);

/* ---- samples ---- */

/* Has a chunk's data read if it is not in memory, to move the chunk to another segment. */
enum spill_brings { SPILL_HERE, SPILL_COMING, SPILL_LOST /* it cannot be read */ };
enum spill_brings spill_bring(struct spill *self, struct chunk *chunk);
/* Returns the running count of chunks that were read or could not be. NULL-safe. */
uint64_t spill_reads(const struct spill *self);

/* Returns the bytes of data that may be in memory now. */
uint64_t spill_cap(const struct spill *self);
