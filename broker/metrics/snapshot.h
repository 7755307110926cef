/* The metrics room: what other threads may know of a running broker.
 *
 * The room owns histograms (histogram.h), the plain structs of a snapshot (this header), and the place where the core thread
 * hands snapshots over (exchange.h). It may use proto/base and the list of errors, and knows no other room: rooms that measure
 * embed histograms, service/snapshot_maker.c fills a snapshot in, and http/ shows it.
 *
 * A snapshot is made by the core thread, given away, and never changed after that. Each struct is consistent in itself. In a
 * broker with very many sessions they are copied over several turns, so two structs may be some milliseconds apart. */
#ifndef BROKER_SNAPSHOT_H
#define BROKER_SNAPSHOT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "broker/metrics/histogram.h"

/* Parts that are made only if somebody asks for them. */
enum snapshot_part {
    SNAPSHOT_STATE = 1,    /* everything but the lists below */
    SNAPSHOT_SESSIONS = 2, /* the list of sessions */
    SNAPSHOT_WAITS = 4,    /* sentences: what waits, and for what */
};

/* Most sentences of a snapshot: each takes the core thread about a microsecond. */
#define SNAPSHOT_WAITS_MOST 250u
#define SNAPSHOT_STATUSES 20u

struct snapshot_server {
    const char *release;
    const char *service, *ingest, *events; /* endpoints */
    uint64_t instance;                     /* random number of this run */
    double uptime_s;
    uint64_t longest_stretch_ns; /* most processor time that one turn took */
    uint64_t sessions, tombstones, waiters, peers;
    uint64_t messages_in, messages_bad, messages_stale, message_gaps, replies_dropped;
    uint64_t bytes_in, bytes_out;
    uint64_t granted_bytes, ingest_budget; /* credit of all sessions; most of it */
    uint64_t failed[SNAPSHOT_STATUSES];    /* replies with an error, by rp_status */
    /* snapshots so far, this one not counted */
    uint64_t snapshots, snapshot_cpu_ns, snapshot_longest_ns;
};

/* Bytes by owner. The items under `chunks` are parts of it. */
struct snapshot_memory {
    uint64_t counted;                              /* what memory_limit bounds */
    uint64_t chunks;                               /* chunks in memory */
    uint64_t limit;                                /* memory_limit */
    uint64_t slabs_free;                           /* reserved for further small chunks */
    uint64_t sessions_kept;                        /* of chunks: kept for later items of open sessions */
    uint64_t params;                               /* parameter values */
    uint64_t kept_samples, kept_replies;           /* for retries */
    uint64_t items;                                /* slots of items, as far as they were used, and keys */
    uint64_t unread;                               /* replies that clients have not read yet */
    uint64_t journal;                              /* records that are not written yet */
    uint64_t chunk_count, stored_bytes, raw_bytes; /* of chunks: number, data, and data before compression */
};

struct snapshot_disk {
    bool on; /* something is kept on disk */
    bool journal;
    const char *folder, *fsync, *trouble;
    uint64_t segments, bytes, journal_bytes, written_bytes, backlog_bytes, failed_syncs, waiting_replies;
    uint64_t spilled_chunks, spilled_bytes, fetched_chunks, fetched_bytes;
    uint64_t checkpoint, checkpoint_bytes, checkpoint_items;
    double free_bytes;    /* of the disk, besides what waits to be written; NAN: not known */
    double reserve_bytes; /* with fewer free bytes inserts wait */
    double checkpoint_took_s, checkpoint_age_s, checkpoint_progress;
    bool checkpoint_running;
};

struct snapshot_table {
    const char *name, *sampler, *remover, *limiter;
    const char *inserts_wait, *samples_wait; /* what they wait for, with SNAPSHOT_WAITS; "": for nothing */
    uint64_t size, max_size, bytes, max_bytes, max_times_sampled;
    double samples_per_insert, min_size, cursor, min_diff, max_diff; /* a bound without limit is infinite */
    uint64_t limiter_inserts, limiter_samples, limiter_deletes;
    /* since this process started, whatever the table was restored with */
    uint64_t inserts, samples, updates, updates_missing, rejected, evicted, evicted_for_memory, orphaned_picks, permits;
    uint64_t episodes, deleted_episodes, unique_samples, waiting_inserts, waiting_samplers;
    double insert_rate, sample_rate, update_rate, mean_age_s, mean_staleness, total_priority;
    struct histogram age, staleness; /* of sampled items: nanoseconds; versions of the policy */
};

struct snapshot_flow {
    const char *table;
    uint64_t resolved, allowed, waiting, rejected;
};

struct snapshot_session {
    char name[64];
    uint32_t ordinal;
    bool expired;
    uint64_t received, items, rejected;
    uint64_t received_bytes, chunk_bytes;
    uint64_t granted_bytes, used_bytes; /* credit in bytes: granted and not returned; of these, sent */
    uint64_t waiting;                   /* items */
    double silent_s;
    const struct snapshot_flow *flows;
    uint32_t n_flows;
};

struct snapshot_slot {
    const char *name;
    uint64_t version, bytes;
    double age_s;
};

struct snapshot_counter {
    const char *name;
    int64_t value;
};

struct snapshot_command {
    const char *name;
    uint64_t calls, errors, total_ns, max_ns;
    struct histogram latency, waited; /* nanoseconds from request to reply; of those that were not answered at once */
};

struct snapshot_wait {
    const char *who, *kind, *table, *text;
    uint64_t count, got;
    double waited_s;
    double rate; /* "network": bytes/s that arrive */
};

struct snapshot_block;

struct snapshot {
    unsigned parts;  /* of enum snapshot_part */
    int64_t made_ns; /* CLOCK_MONOTONIC */
    uint64_t cpu_ns; /* processor time of the core thread */
    struct snapshot_server server;
    struct snapshot_memory memory;
    struct snapshot_disk disk;
    struct histogram insert, insert_wait,
        commit; /* nanoseconds: items; items that waited; messages that waited for the journal */
    struct snapshot_table *tables;
    uint32_t n_tables;
    struct snapshot_session *sessions;
    uint32_t n_sessions;
    struct snapshot_slot *slots;
    uint32_t n_slots;
    struct snapshot_counter *counters;
    uint32_t n_counters;
    struct snapshot_command *commands;
    uint32_t n_commands;
    struct snapshot_wait *waits;
    uint32_t n_waits;
    bool waits_cut; /* there are more */
    /* memory of all of the above */
    struct snapshot_block *blocks;
    bool failed; /* there was no memory for something */
};

/* NULL: no memory. */
struct snapshot *snapshot_new(void);
void snapshot_destroy(struct snapshot **self);
/* Returns zeroed memory that lives as long as the snapshot. NULL: no memory. */
void *snapshot_take(struct snapshot *self, size_t count, size_t size);
/* Copies a text. Without memory it is "". */
const char *snapshot_text(struct snapshot *self, const char *text);

#endif
