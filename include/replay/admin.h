/* Inspects and operates a broker. Each question can also be answered as JSON text, with the names of replay.proto: 64-bit numbers
 * as JSON numbers, bytes as hexadecimal strings, NaN and infinities as the strings "NaN", "Infinity" and "-Infinity".
 *
 * A broker of several shards is one broker here: all shards are asked at once, and their answers become one. Counts, sizes,
 * rates, bytes, bounds and cursors are sums; ages and staleness are means over the samples of late. A shard that does not answer
 * holds up the others by a second at most: what only reads leaves it out and names it, what changes something fails and names it. */
#ifndef REPLAY_ADMIN_H
#define REPLAY_ADMIN_H

#include <stdint.h>

#include "replay/client.h"
#include "replay/error.h"
#include "replay/sampler.h"
#include "replay/types.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct rp_limiter_info {
    const char *kind;
    double samples_per_insert, min_size, min_diff, max_diff;
    uint64_t inserts, samples, deletes;
    double cursor;            /* inserts * samples_per_insert - samples */
    const char *inserts_wait; /* "", or the reason why an insert would wait */
    const char *samples_wait;
} rp_limiter_info;

/* A field of a table's items: shape counts steps first, unless the field has no steps; 0: any number of steps. */
typedef struct rp_signature_field {
    const char *name;
    int32_t dtype; /* an rp_dtype */
    uint32_t rank;
    uint32_t shape[RP_MAX_RANK + 1];
} rp_signature_field;

typedef struct rp_table_info {
    const char *name, *sampler, *remover;
    rp_limiter_info limiter;
    uint64_t size, max_size; /* items */
    uint64_t bytes, max_bytes;
    uint32_t max_times_sampled;
    uint32_t reserved;
    double insert_rate, sample_rate, update_rate; /* recent, in items/s */
    uint64_t waiting_inserts, waiting_samplers;
    uint64_t updates, updates_missing, rejected, evicted, orphaned_picks;
    uint64_t episodes; /* of which items were inserted; since the last reset */
    double mean_age_s, mean_staleness, total_priority;
    uint64_t evicted_for_memory; /* of evicted: to free memory; since the broker started */
    uint64_t unique_samples;     /* items that were sampled at least once; since the last reset */
    uint64_t deleted_episodes;   /* of episodes: all their items have left the table */
    const char *metadata;        /* text about the table, from the broker's configuration; "": none */
    /* The fields that the configuration prescribes for all items; otherwise those of the newest item. */
    const rp_signature_field *signature;
    uint32_t n_signature; /* 0: not known: nothing was inserted since the last reset, or the broker restarted empty */
    uint32_t prescribed;  /* 1: all items have this signature */
} rp_table_info;

typedef struct rp_server_info {
    const char *release, *service, *ingest, *events;
    uint64_t instance, uptime_ns;
    uint64_t memory_bytes, memory_limit, chunk_count, chunk_bytes, raw_bytes, granted_bytes;
    uint64_t session_count, waiter_count, messages_in, messages_bad, replies_dropped, longest_stretch_ns;
} rp_server_info;

typedef struct rp_slot_info {
    const char *name;
    uint64_t version, bytes, age_ns;
} rp_slot_info;

typedef struct rp_counter_info {
    const char *name;
    int64_t value;
} rp_counter_info;

typedef struct rp_session_info {
    const char *name;
    uint8_t id[16]; /* the first 4 bytes of the session's id, then zeros: the broker shows no more */
    uint32_t ordinal;
    uint32_t expired; /* 1: the session has expired, and only its numbers are kept */
    uint64_t received, chunk_bytes, silent_ns, rejected;
    uint64_t resolved, waiting; /* items of all tables */
    uint32_t shard;             /* that has the session: a writer has one at each shard */
    uint32_t reserved;
} rp_session_info;

/* One shard of a broker that has several, by itself. */
typedef struct rp_shard_info {
    const char *service; /* endpoint */
    const char *problem; /* "", or why the shard is missing from the sums: then nothing below is known */
    rp_server_info server;
    const rp_table_info *tables; /* without their signatures */
    uint32_t n_tables;
    uint32_t shard; /* its number */
} rp_shard_info;

typedef struct rp_info {
    rp_server_info server;
    const rp_table_info *tables;
    const rp_slot_info *slots;
    const rp_counter_info *counters;
    const rp_session_info *sessions; /* only if asked for */
    uint32_t n_tables, n_slots, n_counters, n_sessions;
    const rp_shard_info *shards; /* in the order of their numbers */
    uint32_t n_shards;           /* 0: the broker is alone */
    uint32_t reserved;
} rp_info;

/* A request or an insert that waits inside the broker. */
typedef struct rp_wait {
    const char *who; /* "actor-3", or a client's number */
    const char *
        kind; /* "insert", "sample", "permit", "params", "reduce", "bye", "journal"; "network": data on its way to the broker;
                * "shard": one that does not answer */
    const char *table; /* or slot, or group */
    const char *text;  /* the reason, with numbers; of one of several shards: "shard 2: ...", unless it waits for all of
                        * them */
    uint64_t count, got, waited_ns;
    double rate; /* "network": bytes/s that arrive from the writer */
} rp_wait;

typedef struct rp_waits {
    const rp_wait *waits;
    uint32_t n;
} rp_waits;

typedef struct rp_item_info {
    uint64_t key;
    double priority;
    uint64_t age_ns, policy, step, bytes;
    uint32_t times_sampled, session, length, chunks, episode;
    uint32_t shard; /* that has the item */
} rp_item_info;

/* Gives the state of the broker; free it with rp_info_free. table NULL: all tables. sessions 1: also the list of sessions,
 * which may be long. */
RP_API rp_status rp_admin_info(rp_client *client, const char *table, uint32_t sessions, int64_t timeout_ms,
                               rp_info **out, rp_error *err);
RP_API void rp_info_free(rp_info **info);
/* Gives everything that waits inside the broker, with reasons; free it with rp_waits_free. */
RP_API rp_status rp_admin_why(rp_client *client, int64_t timeout_ms, rp_waits **out, rp_error *err);
RP_API void rp_waits_free(rp_waits **waits);
/* A cursor of rp_admin_list is a place in the table of a shard, and above these bits the number of the shard. Any place below the
 * size of that table may be given, to look at a part of it. */
#define RP_CURSOR_BITS 40
/* Lists up to *n items of a table, starting at *cursor (0: the first). Sets *n to the number of items written and *cursor to the
 * start of the next page, or to 0 after the last page. The items of shards come one shard after another. RP_UNAVAILABLE from a
 * broker of several shards: the next one does not answer; *cursor is then the start of the one after it, or 0. */
RP_API rp_status rp_admin_list(rp_client *client, const char *table, uint64_t *cursor, rp_item_info *items, uint32_t *n,
                               int64_t timeout_ms, rp_error *err);
/* Fetches items by key; a fetch does not count as a sample. Missing keys are left out: see the batch's keys.
 * RP_FAILED_PRECONDITION: the items do not all have the same fields; fetch them in groups that do. */
RP_API rp_status rp_admin_fetch(rp_client *client, const char *table, const uint64_t *keys, uint32_t n,
                                int64_t timeout_ms, rp_batch **out, rp_error *err);
/* Removes all items of a table and sets its limiter to zero. removed may be NULL. */
RP_API rp_status rp_admin_reset(rp_client *client, const char *table, int64_t timeout_ms, uint64_t *removed,
                                rp_error *err);

/* A checkpoint that was written. */
typedef struct rp_checkpoint_info {
    uint64_t struct_size;
    uint64_t number;
    uint64_t based_on; /* number of the checkpoint that this one is an increment of; 0: a full checkpoint */
    uint64_t items;    /* of all tables */
    uint64_t written_bytes, took_ns;
} rp_checkpoint_info;

/* Makes a checkpoint of the broker's whole state and waits until it is on disk; the broker keeps serving meanwhile. After a
 * time-out the broker still completes the checkpoint. out may be NULL; otherwise set out->struct_size.
 * With shards: the number is that of the first shard, and the items and bytes are those of all.
 * RP_FAILED_PRECONDITION: the broker's configuration names no folder for checkpoints. */
RP_API rp_status rp_admin_checkpoint(rp_client *client, int64_t timeout_ms, rp_checkpoint_info *out, rp_error *err);

/* `set` names the members that are changed; the others are ignored. */
typedef enum rp_limiter_field {
    RP_LIMITER_SAMPLES_PER_INSERT = 1,
    RP_LIMITER_MIN_SIZE = 2,
    RP_LIMITER_MIN_DIFF = 4,
    RP_LIMITER_MAX_DIFF = 8,
    RP_LIMITER_ERROR_BUFFER = 16, /* sets both bounds around min_size * samples_per_insert */
} rp_limiter_field;

typedef struct rp_limiter_change {
    uint32_t struct_size;
    uint32_t set; /* rp_limiter_field bits */
    double samples_per_insert, min_size, min_diff, max_diff, error_buffer;
} rp_limiter_change;

/* Changes a table's limiter while the broker runs. Checks every value before it changes any. The change is in force when the
 * call returns; rp_admin_info shows the new state. Bounds that error_buffer has set follow a new ratio or min_size. With a journal
 * or a checkpoint the change survives a restart, until the configuration of the limiter is changed. With shards, each gets its part
 * of min_size, min_diff, max_diff and error_buffer, and a shard that is away keeps the old limiter until it is changed again. */
RP_API rp_status rp_admin_set_limiter(rp_client *client, const char *table, const rp_limiter_change *change,
                                      int64_t timeout_ms, rp_error *err);

/* The same calls with JSON text as their result; free it with rp_string_free. */
RP_API rp_status rp_admin_info_json(rp_client *client, const char *table, uint32_t sessions, int64_t timeout_ms,
                                    char **json, rp_error *err);
RP_API rp_status rp_admin_why_json(rp_client *client, int64_t timeout_ms, char **json, rp_error *err);
/* {"items": [...], "cursor": n}. */
RP_API rp_status rp_admin_list_json(rp_client *client, const char *table, uint64_t cursor, uint32_t limit,
                                    int64_t timeout_ms, char **json, rp_error *err);
/* {"items": [{"key": ..., "priority": ..., "fields": {"name": {"dtype", "shape", "values"}}}]}; at most max_values
 * numbers of each field are written, and "truncated" says whether there are more. */
RP_API rp_status rp_admin_fetch_json(rp_client *client, const char *table, const uint64_t *keys, uint32_t n,
                                     uint32_t max_values, int64_t timeout_ms, char **json, rp_error *err);
RP_API rp_status rp_admin_reset_json(rp_client *client, const char *table, int64_t timeout_ms, char **json,
                                     rp_error *err);
/* Changes the limiter and gives its new state; change NULL: only gives the state. */
RP_API rp_status rp_admin_limiter_json(rp_client *client, const char *table, const rp_limiter_change *change,
                                       int64_t timeout_ms, char **json, rp_error *err);
/* Records a trace of the broker and of all clients that take part, and gives it in Chrome's trace format, as an array of events:
 * Perfetto and Chrome's developer tools open it. Waits for duration_ms, at most a minute. RP_FAILED_PRECONDITION: another trace is
 * being recorded. */
RP_API rp_status rp_admin_trace_json(rp_client *client, int64_t duration_ms, char **json, rp_error *err);
RP_API void rp_string_free(char **text);

#ifdef __cplusplus
}
#endif

#endif
