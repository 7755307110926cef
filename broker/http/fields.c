#include "broker/http/fields.h"

#include <inttypes.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>

#include "broker/http/threads.h"
#include "broker/metrics/snapshot.h"

#define COUNTER(owner, member, kind, metric, help)                                                                     \
    {                                                                                                                  \
#member, kind, offsetof(owner, member), METRIC_COUNTER, metric, NULL, help                                     \
    }
#define GAUGE(owner, member, kind, metric, help)                                                                       \
    {                                                                                                                  \
#member, kind, offsetof(owner, member), METRIC_GAUGE, metric, NULL, help                                       \
    }
#define SHARE(owner, member, metric, label, help)                                                                      \
    {                                                                                                                  \
#member, FIELD_U64, offsetof(owner, member), METRIC_GAUGE, metric, label, help                                 \
    }
/* In JSON only. */
#define PLAIN(owner, member, kind)                                                                                     \
    {                                                                                                                  \
#member, kind, offsetof(owner, member), METRIC_NONE, NULL, NULL, NULL                                          \
    }
#define END                                                                                                            \
    {                                                                                                                  \
        NULL, FIELD_U64, 0, METRIC_NONE, NULL, NULL, NULL                                                              \
    }

#define S struct snapshot_server
const struct field server_fields[] = {
    PLAIN(S, release, FIELD_TEXT),
    PLAIN(S, instance, FIELD_HEX),
    PLAIN(S, service, FIELD_TEXT),
    PLAIN(S, ingest, FIELD_TEXT),
    PLAIN(S, events, FIELD_TEXT),
    GAUGE(S, uptime_s, FIELD_REAL, "replay_uptime_seconds", "Time since the broker started."),
    GAUGE(S, sessions, FIELD_U64, "replay_sessions", "Open sessions, one per writer."),
    GAUGE(S, tombstones, FIELD_U64, "replay_sessions_expired", "Sessions that ended and can still be resumed."),
    GAUGE(S, peers, FIELD_U64, "replay_peers", "Routes of clients that the broker has sent replies to."),
    GAUGE(S, waiters, FIELD_U64, "replay_waiting_requests", "Requests that wait for their answer."),
    COUNTER(S, messages_in, FIELD_U64, "replay_messages_received", "Messages from clients, requests and ingest."),
    COUNTER(S, messages_bad, FIELD_U64, "replay_messages_bad", "Messages that could not be read."),
    COUNTER(S, messages_stale, FIELD_U64, "replay_messages_stale",
            "Ingest messages of a session or an epoch that has ended."),
    COUNTER(S, message_gaps, FIELD_U64, "replay_messages_after_gap",
            "Ingest messages that were ignored because an earlier one was lost."),
    COUNTER(S, replies_dropped, FIELD_U64, "replay_replies_dropped", "Replies whose client was gone or did not read."),
    COUNTER(S, bytes_in, FIELD_U64, "replay_received_bytes", "Bytes of all messages from clients."),
    COUNTER(S, bytes_out, FIELD_U64, "replay_sent_bytes", "Bytes of all replies and notices to clients."),
    GAUGE(S, granted_bytes, FIELD_U64, "replay_credit_granted_bytes",
          "Credit of all sessions that is granted and not returned."),
    GAUGE(S, ingest_budget, FIELD_U64, "replay_credit_limit_bytes", "Most credit of all sessions (ingest_budget)."),
    GAUGE(S, longest_stretch_ns, FIELD_NS, "replay_longest_stretch_seconds",
          "Most processor time that one turn of the core thread has taken."),
    COUNTER(S, snapshots, FIELD_U64, "replay_snapshots", "Snapshots that the core thread has made for HTTP."),
    COUNTER(S, snapshot_cpu_ns, FIELD_NS, "replay_snapshots_cpu_seconds",
            "Processor time of the core thread for snapshots."),
    GAUGE(S, snapshot_longest_ns, FIELD_NS, "replay_snapshot_longest_seconds",
          "Most processor time of the core thread for one snapshot."),
    END,
};
#undef S

#define P struct process_use
const struct field process_fields[] = {
    PLAIN(P, pid, FIELD_U64),
    GAUGE(P, threads, FIELD_U64, "process_threads", "Threads of the broker's process."),
    GAUGE(P, open_files, FIELD_U64, "process_open_fds", "Open file descriptors."),
    GAUGE(P, resident_bytes, FIELD_U64, "process_resident_memory_bytes", "Memory that is in RAM."),
    GAUGE(P, virtual_bytes, FIELD_U64, "process_virtual_memory_bytes", "Address space."),
    COUNTER(P, cpu_s, FIELD_REAL, "process_cpu_seconds", "Processor time of all threads."),
    GAUGE(P, start_s, FIELD_REAL, "process_start_time_seconds", "When the process started, since 1970."),
    END,
};
#undef P

#define T struct thread_use
const struct field thread_fields[] = {
    PLAIN(T, name, FIELD_NAME),
    COUNTER(T, cpu_s, FIELD_REAL, "replay_thread_cpu_seconds",
            "Processor time of a thread: its rate is the thread's busy share."),
    GAUGE(T, busy, FIELD_REAL, "replay_thread_busy_ratio", "Share of the time since an earlier scrape that it ran."),
    END,
};
#undef T

#define M struct snapshot_memory
#define MEMORY "replay_memory_bytes"
#define MEMORY_HELP                                                                                                    \
    "Memory by owner. Kept samples hold chunks that may be counted under chunks as well; all else is apart."
const struct field memory_fields[] = {
    SHARE(M, chunks, MEMORY, "owner=\"chunks\"", MEMORY_HELP),
    SHARE(M, slabs_free, MEMORY, "owner=\"slabs_free\"", MEMORY_HELP),
    SHARE(M, items, MEMORY, "owner=\"items\"", MEMORY_HELP),
    SHARE(M, params, MEMORY, "owner=\"params\"", MEMORY_HELP),
    SHARE(M, kept_samples, MEMORY, "owner=\"kept_samples\"", MEMORY_HELP),
    SHARE(M, kept_replies, MEMORY, "owner=\"kept_replies\"", MEMORY_HELP),
    SHARE(M, unread, MEMORY, "owner=\"unread_replies\"", MEMORY_HELP),
    SHARE(M, journal, MEMORY, "owner=\"journal\"", MEMORY_HELP),
    GAUGE(M, counted, FIELD_U64, "replay_memory_counted_bytes",
          "Memory that memory_limit bounds: chunks, items, sessions, and what is kept for retries."),
    GAUGE(M, limit, FIELD_U64, "replay_memory_limit_bytes",
          "Most bytes of replay_memory_counted_bytes (memory_limit)."),
    GAUGE(M, sessions_kept, FIELD_U64, "replay_session_chunk_bytes",
          "Part of owner=\"chunks\" that open sessions hold for later items."),
    GAUGE(M, chunk_count, FIELD_U64, "replay_chunks", "Chunks, in memory and on disk."),
    GAUGE(M, stored_bytes, FIELD_U64, "replay_stored_bytes", "Data of all chunks as it is stored."),
    GAUGE(M, raw_bytes, FIELD_U64, "replay_raw_bytes", "The same data before compression."),
    END,
};
#undef M

#define D struct snapshot_disk
const struct field disk_fields[] = {
    PLAIN(D, folder, FIELD_TEXT),
    PLAIN(D, journal, FIELD_FLAG),
    PLAIN(D, fsync, FIELD_TEXT),
    PLAIN(D, trouble, FIELD_TEXT),
    GAUGE(D, segments, FIELD_U64, "replay_disk_segments", "Segment files."),
    GAUGE(D, bytes, FIELD_U64, "replay_disk_bytes", "Bytes of all segment files."),
    GAUGE(D, free_bytes, FIELD_REAL, "replay_disk_free_bytes", "Bytes that are free on the disk; NaN: not known."),
    GAUGE(D, reserve_bytes, FIELD_REAL, "replay_disk_reserve_bytes",
          "Bytes that stay free for a checkpoint: with fewer, inserts wait."),
    GAUGE(D, journal_bytes, FIELD_U64, "replay_journal_bytes", "Bytes of journal since the last checkpoint."),
    COUNTER(D, written_bytes, FIELD_U64, "replay_disk_written_bytes", "Bytes that the disk writer has written."),
    GAUGE(D, backlog_bytes, FIELD_U64, "replay_disk_backlog_bytes", "Bytes that wait for the disk writer."),
    COUNTER(D, failed_syncs, FIELD_U64, "replay_disk_sync_failures", "Syncs that failed."),
    GAUGE(D, waiting_replies, FIELD_U64, "replay_journal_waiting_messages",
          "Messages to clients that wait until the journal is durable."),
    GAUGE(D, spilled_chunks, FIELD_U64, "replay_spilled_chunks", "Chunks whose data is on disk only."),
    GAUGE(D, spilled_bytes, FIELD_U64, "replay_spilled_bytes", "Data that is on disk only."),
    COUNTER(D, fetched_chunks, FIELD_U64, "replay_fetched_chunks", "Chunks that were read back from disk."),
    COUNTER(D, fetched_bytes, FIELD_U64, "replay_fetched_bytes", "Bytes that were read back from disk."),
    GAUGE(D, checkpoint, FIELD_U64, "replay_checkpoint_number", "Number of the newest whole checkpoint; 0: none."),
    GAUGE(D, checkpoint_bytes, FIELD_U64, "replay_checkpoint_bytes", "Bytes of that checkpoint."),
    GAUGE(D, checkpoint_items, FIELD_U64, "replay_checkpoint_items", "Items of that checkpoint."),
    GAUGE(D, checkpoint_took_s, FIELD_REAL, "replay_checkpoint_duration_seconds", "How long that checkpoint took."),
    GAUGE(D, checkpoint_age_s, FIELD_REAL, "replay_checkpoint_age_seconds", "Time since that checkpoint."),
    GAUGE(D, checkpoint_running, FIELD_FLAG, "replay_checkpoint_running", "1 while a checkpoint is made."),
    GAUGE(D, checkpoint_progress, FIELD_REAL, "replay_checkpoint_progress_ratio",
          "Share of the running checkpoint that is written."),
    END,
};
#undef D

#define T struct snapshot_table
const struct field table_fields[] = {
    PLAIN(T, name, FIELD_TEXT),
    PLAIN(T, sampler, FIELD_TEXT),
    PLAIN(T, remover, FIELD_TEXT),
    PLAIN(T, limiter, FIELD_TEXT),
    GAUGE(T, size, FIELD_U64, "replay_table_items", "Items in the table."),
    GAUGE(T, max_size, FIELD_U64, "replay_table_max_items", "Most items of the table (max_size)."),
    GAUGE(T, bytes, FIELD_U64, "replay_table_bytes", "Data of the chunks that its items use, each counted once."),
    GAUGE(T, max_bytes, FIELD_U64, "replay_table_max_bytes", "Most such bytes (max_bytes); 0: no limit."),
    PLAIN(T, max_times_sampled, FIELD_U64),
    COUNTER(T, inserts, FIELD_U64, "replay_table_inserts", "Items that were inserted."),
    COUNTER(T, samples, FIELD_U64, "replay_table_samples", "Items that were sampled, each time counted."),
    COUNTER(T, updates, FIELD_U64, "replay_table_updates", "Priorities that were changed."),
    COUNTER(T, updates_missing, FIELD_U64, "replay_table_updates_missing", "Updates of items that had left the table."),
    COUNTER(T, rejected, FIELD_U64, "replay_table_rejected", "Items that were rejected."),
    COUNTER(T, evicted, FIELD_U64, "replay_table_evicted", "Items that were removed to make room."),
    COUNTER(T, evicted_for_memory, FIELD_U64, "replay_table_evicted_for_memory",
            "The part of them that memory_limit or the disk made necessary."),
    COUNTER(T, orphaned_picks, FIELD_U64, "replay_table_orphaned_picks",
            "Sampled items whose reply could not be delivered."),
    COUNTER(T, permits, FIELD_U64, "replay_table_permits",
            "Samples that the limiter has counted for permits, to be picked at any shard."),
    GAUGE(T, episodes, FIELD_U64, "replay_table_episodes", "Episodes of which items were inserted since a reset."),
    GAUGE(T, deleted_episodes, FIELD_U64, "replay_table_deleted_episodes", "Those of which no item is left."),
    GAUGE(T, unique_samples, FIELD_U64, "replay_table_unique_samples", "Items that were sampled at least once."),
    GAUGE(T, waiting_inserts, FIELD_U64, "replay_table_waiting_inserts", "Items that wait to be inserted."),
    GAUGE(T, waiting_samplers, FIELD_U64, "replay_table_waiting_samplers", "Sample requests that wait for items."),
    PLAIN(T, insert_rate, FIELD_REAL),
    PLAIN(T, sample_rate, FIELD_REAL),
    PLAIN(T, update_rate, FIELD_REAL),
    GAUGE(T, samples_per_insert, FIELD_REAL, "replay_limiter_samples_per_insert", "The limiter's target ratio."),
    GAUGE(T, min_size, FIELD_REAL, "replay_limiter_min_items", "Items before the first sample (min_size)."),
    GAUGE(T, cursor, FIELD_REAL, "replay_limiter_cursor", "Inserts times the target ratio, less samples."),
    GAUGE(T, min_diff, FIELD_REAL, "replay_limiter_cursor_min", "Where samples wait for inserts; -Inf: never."),
    GAUGE(T, max_diff, FIELD_REAL, "replay_limiter_cursor_max", "Where inserts wait for samples; +Inf: never."),
    PLAIN(T, limiter_inserts, FIELD_U64),
    PLAIN(T, limiter_samples, FIELD_U64),
    PLAIN(T, limiter_deletes, FIELD_U64),
    GAUGE(T, mean_age_s, FIELD_REAL, "replay_table_mean_age_seconds", "Running mean age of sampled items."),
    GAUGE(T, mean_staleness, FIELD_REAL, "replay_table_mean_staleness_versions",
          "Running mean of how many policy versions sampled items are behind."),
    GAUGE(T, total_priority, FIELD_REAL, "replay_table_total_priority",
          "Sum of the sampler's weights; 0: it has none."),
    PLAIN(T, inserts_wait, FIELD_TEXT),
    PLAIN(T, samples_wait, FIELD_TEXT),
    END,
};
#undef T

#define S struct snapshot_session
const struct field session_fields[] = {
    PLAIN(S, name, FIELD_NAME),
    PLAIN(S, ordinal, FIELD_U32),
    PLAIN(S, expired, FIELD_FLAG),
    PLAIN(S, received, FIELD_U64),
    COUNTER(S, items, FIELD_U64, "replay_session_items", "Items that have arrived from the session."),
    COUNTER(S, rejected, FIELD_U64, "replay_session_rejected", "Those that were rejected."),
    COUNTER(S, received_bytes, FIELD_U64, "replay_session_received_bytes", "Bytes of its messages."),
    PLAIN(S, chunk_bytes, FIELD_U64),
    GAUGE(S, granted_bytes, FIELD_U64, "replay_session_credit_granted_bytes",
          "Credit that the session was granted and that is not returned."),
    GAUGE(S, used_bytes, FIELD_U64, "replay_session_credit_used_bytes",
          "Part of it that is used by messages with unresolved items."),
    GAUGE(S, waiting, FIELD_U64, "replay_session_waiting_items", "Items that wait for their table."),
    GAUGE(S, silent_s, FIELD_REAL, "replay_session_silent_seconds", "Time since the last sign of life."),
    END,
};
#undef S

#define F struct snapshot_flow
const struct field flow_fields[] = {
    PLAIN(F, table, FIELD_TEXT),  PLAIN(F, resolved, FIELD_U64), PLAIN(F, allowed, FIELD_U64),
    PLAIN(F, waiting, FIELD_U64), PLAIN(F, rejected, FIELD_U64), END,
};
#undef F

#define P struct snapshot_slot
const struct field slot_fields[] = {
    PLAIN(P, name, FIELD_TEXT),
    GAUGE(P, version, FIELD_U64, "replay_params_version", "Version of the parameters in a slot."),
    GAUGE(P, bytes, FIELD_U64, "replay_params_bytes", "Their bytes."),
    GAUGE(P, age_s, FIELD_REAL, "replay_params_age_seconds", "Time since they were published."),
    END,
};
#undef P

#define C struct snapshot_counter
const struct field counter_fields[] = {
    PLAIN(C, name, FIELD_TEXT),
    GAUGE(C, value, FIELD_I64, "replay_shared_value", "A named number that clients add to (counter)."),
    END,
};
#undef C

#define C struct snapshot_command
const struct field command_fields[] = {
    PLAIN(C, name, FIELD_TEXT),
    COUNTER(C, calls, FIELD_U64, "replay_requests", "Requests by command."),
    COUNTER(C, errors, FIELD_U64, "replay_requests_failed", "Requests that were refused at once, by command."),
    COUNTER(C, total_ns, FIELD_NS, "replay_request_handler_seconds", "Time that handlers took, without waiting."),
    GAUGE(C, max_ns, FIELD_NS, "replay_request_handler_longest_seconds", "The longest time that a handler took."),
    END,
};
#undef C

#define W struct snapshot_wait
const struct field wait_fields[] = {
    PLAIN(W, who, FIELD_TEXT),      PLAIN(W, kind, FIELD_TEXT), PLAIN(W, table, FIELD_TEXT),
    PLAIN(W, text, FIELD_TEXT),     PLAIN(W, count, FIELD_U64), PLAIN(W, got, FIELD_U64),
    PLAIN(W, waited_s, FIELD_REAL), PLAIN(W, rate, FIELD_REAL), END,
};
#undef W

/* ---- values ---- */

double field_value(const struct field *field, const void *base)
{
    const char *at = (const char *)base + field->offset;
    switch (field->kind) {
    case FIELD_U64:
        return (double)*(const uint64_t *)(const void *)at;
    case FIELD_U32:
        return (double)*(const uint32_t *)(const void *)at;
    case FIELD_I64:
        return (double)*(const int64_t *)(const void *)at;
    case FIELD_REAL:
        return *(const double *)(const void *)at;
    case FIELD_NS:
        return (double)*(const uint64_t *)(const void *)at / 1e9;
    case FIELD_FLAG:
        return *(const bool *)(const void *)at ? 1 : 0;
    default:
        return 0;
    }
}

static void put_value(struct json *out, const struct field *field, const void *base)
{
    const char *at = (const char *)base + field->offset;
    char hex[20];
    switch (field->kind) {
    case FIELD_U64:
        json_unsigned(out, *(const uint64_t *)(const void *)at);
        return;
    case FIELD_I64:
        json_signed(out, *(const int64_t *)(const void *)at);
        return;
    case FIELD_FLAG:
        json_boolean(out, *(const bool *)(const void *)at);
        return;
    case FIELD_TEXT:
        json_string(out, *(const char *const *)(const void *)at);
        return;
    case FIELD_NAME:
        json_string(out, at);
        return;
    case FIELD_HEX:
        snprintf(hex, sizeof hex, "%016" PRIx64, *(const uint64_t *)(const void *)at);
        json_string(out, hex);
        return;
    default:
        json_number(out, field_value(field, base));
    }
}

/* Names of nanoseconds end in _ns, and are shown in seconds. */
void fields_json(struct json *out, const struct field *fields, const void *base)
{
    for (; fields->name; fields++) {
        char name[64];
        snprintf(name, sizeof name, "%s", fields->name);
        size_t size = strlen(name);
        if (fields->kind == FIELD_NS && size > 3)
            snprintf(name + size - 2, 2, "s");
        json_key(out, name);
        put_value(out, fields, base);
    }
}
