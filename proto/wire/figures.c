#include "proto/wire/figures.h"

#include <math.h>
#include <string.h>

#include "proto/base/text.h"

/* 1 microsecond to 137 seconds; 1 millisecond to 52 days; 0 to a million versions. */
static const struct figure_scale latency = {10, 37, 1, 1e9}, age = {20, 52, 2, 1e9}, versions = {0, 20, 1, 1};

#define PLAIN(name, fold)                                                                                              \
    {                                                                                                                  \
        name, FOLD_##fold, FIGURE_PLAIN, NULL, NULL, NULL, NULL                                                        \
    }
#define COUNTER(name, metric, help)                                                                                    \
    {                                                                                                                  \
        name, FOLD_SUM, FIGURE_COUNTER, metric, NULL, help, NULL                                                       \
    }
#define GAUGE(name, fold, metric, help)                                                                                \
    {                                                                                                                  \
        name, FOLD_##fold, FIGURE_GAUGE, metric, NULL, help, NULL                                                      \
    }
#define SHARE(name, metric, label, help)                                                                               \
    {                                                                                                                  \
        name, FOLD_SUM, FIGURE_GAUGE, metric, label, help, NULL                                                        \
    }
/* The second row is for the sum of a histogram. */
#define HISTOGRAM(name, metric, help, scale)                                                                           \
    {name, FOLD_SUM, FIGURE_HISTOGRAM, metric, NULL, help, &(scale)}, PLAIN(name "_sum", SUM)
#define END                                                                                                            \
    {                                                                                                                  \
        NULL, FOLD_FIRST, FIGURE_PLAIN, NULL, NULL, NULL, NULL                                                         \
    }

static const struct figure server_rows[] = {
    PLAIN("instance", FIRST),
    GAUGE("uptime_ns", FIRST, "replay_uptime_seconds", "Time since the broker started."),
    GAUGE("session_count", SUM, "replay_sessions", "Open sessions, one per writer."),
    GAUGE("expired_count", SUM, "replay_sessions_expired", "Sessions that ended and can still be resumed."),
    GAUGE("peer_count", SUM, "replay_peers", "Routes of clients that the broker has sent replies to."),
    GAUGE("shared_clients", SUM, "replay_shared_memory_clients",
          "Samplers and writers on the same host that exchange data with the broker in memory."),
    COUNTER("shared_samples", "replay_shared_memory_samples", "Items that samplers have read there."),
    GAUGE("waiter_count", SUM, "replay_waiting_requests", "Requests that wait for their answer."),
    COUNTER("messages_in", "replay_messages_received", "Messages from clients, requests and ingest."),
    COUNTER("messages_bad", "replay_messages_bad", "Messages that could not be read."),
    COUNTER("messages_stale", "replay_messages_stale", "Ingest messages of a session or an epoch that has ended."),
    COUNTER("message_gaps", "replay_messages_after_gap",
            "Ingest messages that were ignored because an earlier one was lost."),
    COUNTER("replies_dropped", "replay_replies_dropped", "Replies whose client was gone or did not read."),
    COUNTER("bytes_in", "replay_received_bytes", "Bytes of all messages from clients."),
    COUNTER("bytes_out", "replay_sent_bytes", "Bytes of all replies and notices to clients."),
    GAUGE("granted_bytes", SUM, "replay_credit_granted_bytes",
          "Credit of all sessions that is granted and not returned."),
    GAUGE("ingest_budget", SUM, "replay_credit_limit_bytes", "Most credit of all sessions."),
    GAUGE("longest_stretch_ns", MOST, "replay_longest_stretch_seconds",
          "Most processor time that one turn of the core thread has taken."),
    COUNTER("snapshots", "replay_snapshots", "Snapshots that the core thread has made for HTTP."),
    COUNTER("snapshot_cpu_ns", "replay_snapshots_cpu_seconds", "Processor time of the core thread for snapshots."),
    GAUGE("snapshot_longest_ns", MOST, "replay_snapshot_longest_seconds",
          "Most processor time of the core thread for one snapshot."),
    GAUGE("memory_bytes", SUM, "replay_memory_counted_bytes",
          "Memory that memory_limit bounds: chunks, items, sessions, and what is kept for retries."),
    GAUGE("memory_limit", SUM, "replay_memory_limit_bytes",
          "Limit of the counted memory: at it, tables evict or writers wait."),
    GAUGE("chunk_count", SUM, "replay_chunks", "Chunks, in memory and on disk."),
    GAUGE("chunk_bytes", SUM, "replay_stored_bytes", "Data of all chunks as it is stored."),
    GAUGE("raw_bytes", SUM, "replay_raw_bytes", "The same data before compression."),
    HISTOGRAM("insert_times", "replay_insert_duration_seconds",
              "From the arrival of a message until an item of it is in its table, waiting included.", latency),
    HISTOGRAM("insert_wait_times", "replay_insert_wait_seconds", "The same, of items that did not go in at once.",
              latency),
    HISTOGRAM("journal_wait_times", "replay_journal_wait_seconds",
              "How long messages to clients waited for the journal.", latency),
    END,
};

#define MEMORY "replay_memory_bytes"
#define MEMORY_HELP                                                                                                    \
    "Memory by owner. Kept samples hold chunks that may be counted under chunks as well; all else is apart."
static const struct figure memory_rows[] = {
    SHARE("chunks", MEMORY, "owner=\"chunks\"", MEMORY_HELP),
    SHARE("slabs_free", MEMORY, "owner=\"slabs_free\"", MEMORY_HELP),
    SHARE("items", MEMORY, "owner=\"items\"", MEMORY_HELP),
    SHARE("params", MEMORY, "owner=\"params\"", MEMORY_HELP),
    SHARE("kept_samples", MEMORY, "owner=\"kept_samples\"", MEMORY_HELP),
    SHARE("kept_replies", MEMORY, "owner=\"kept_replies\"", MEMORY_HELP),
    SHARE("unread_replies", MEMORY, "owner=\"unread_replies\"", MEMORY_HELP),
    SHARE("journal", MEMORY, "owner=\"journal\"", MEMORY_HELP),
    GAUGE("session_chunks", SUM, "replay_session_chunk_bytes",
          "Part of owner=\"chunks\" that open sessions hold for later items."),
    GAUGE("params_staged", SUM, "replay_params_staged_bytes",
          "Part of owner=\"params\": values of which parts are missing."),
    GAUGE("params_old", SUM, "replay_params_old_bytes", "Part of owner=\"params\": old versions that are being read."),
    GAUGE("shared", SUM, "replay_shared_memory_bytes",
          "Part of owner=\"chunks\" that is in memory which clients on the same host may read."),
    END,
};

/* The oldest checkpoint says from when on all is on disk, and the slowest one when that is so again. */
static const struct figure disk_rows[] = {
    PLAIN("journal", FIRST),
    GAUGE("segments", SUM, "replay_disk_segments", "Segment files."),
    GAUGE("bytes", SUM, "replay_disk_bytes", "Bytes of all segment files."),
    GAUGE("free_bytes", LEAST, "replay_disk_free_bytes", "Bytes that are free on the disk; NaN: not known."),
    GAUGE("reserve_bytes", SUM, "replay_disk_reserve_bytes",
          "Bytes that stay free for a checkpoint: with fewer, inserts wait."),
    GAUGE("journal_bytes", SUM, "replay_journal_bytes", "Bytes of journal since the last checkpoint."),
    COUNTER("written_bytes", "replay_disk_written_bytes", "Bytes that the disk writer has written."),
    GAUGE("backlog_bytes", SUM, "replay_disk_backlog_bytes", "Bytes that wait for the disk writer."),
    COUNTER("failed_syncs", "replay_disk_sync_failures", "Syncs that failed."),
    GAUGE("waiting_replies", SUM, "replay_journal_waiting_messages",
          "Messages to clients that wait until the journal is durable."),
    GAUGE("spilled_chunks", SUM, "replay_spilled_chunks", "Chunks whose data is on disk only."),
    GAUGE("spilled_bytes", SUM, "replay_spilled_bytes", "Data that is on disk only."),
    COUNTER("fetched_chunks", "replay_fetched_chunks", "Chunks that were read back from disk."),
    COUNTER("fetched_bytes", "replay_fetched_bytes", "Bytes that were read back from disk."),
    GAUGE("checkpoint", LEAST, "replay_checkpoint_number", "Number of the newest whole checkpoint; 0: none."),
    GAUGE("checkpoint_bytes", SUM, "replay_checkpoint_bytes", "Bytes of that checkpoint."),
    GAUGE("checkpoint_items", SUM, "replay_checkpoint_items", "Items of that checkpoint."),
    GAUGE("checkpoint_took_ns", MOST, "replay_checkpoint_duration_seconds", "How long that checkpoint took."),
    GAUGE("checkpoint_age_ns", MOST, "replay_checkpoint_age_seconds", "Time since that checkpoint."),
    GAUGE("checkpoint_running", MOST, "replay_checkpoint_running", "1 while a checkpoint is made."),
    GAUGE("checkpoint_progress", FIRST, "replay_checkpoint_progress_ratio",
          "Share of the running checkpoint that is written."),
    END,
};

static const struct figure status_rows[] = {
    COUNTER("count", "replay_replies_failed", "Replies with an error, by status."),
    END,
};

static const struct figure command_rows[] = {
    COUNTER("calls", "replay_requests", "Requests by command."),
    COUNTER("errors", "replay_requests_failed", "Requests that were refused at once, by command."),
    COUNTER("total_ns", "replay_request_handler_seconds", "Time that handlers took, without waiting."),
    GAUGE("max_ns", MOST, "replay_request_handler_longest_seconds", "The longest time that a handler took."),
    HISTOGRAM("times", "replay_request_duration_seconds", "From a request to its reply, waiting included.", latency),
    HISTOGRAM("wait_times", "replay_request_wait_seconds", "The same, of requests that were not answered at once.",
              latency),
    END,
};

static const struct figure table_rows[] = {
    GAUGE("size", SUM, "replay_table_items", "Items in the table."),
    GAUGE("max_size", SUM, "replay_table_max_items", "Most items of the table (max_size)."),
    GAUGE("bytes", SUM, "replay_table_bytes", "Data of the chunks that its items use, each counted once."),
    GAUGE("max_bytes", SUM, "replay_table_max_bytes", "Most such bytes (max_bytes); 0: no limit."),
    PLAIN("max_times_sampled", FIRST),
    COUNTER("total_inserts", "replay_table_inserts", "Items that were inserted."),
    COUNTER("total_samples", "replay_table_samples", "Items that were sampled, each time counted."),
    COUNTER("updates", "replay_table_updates", "Priorities that were changed."),
    COUNTER("updates_missing", "replay_table_updates_missing", "Updates of items that had left the table."),
    COUNTER("rejected", "replay_table_rejected", "Items that were rejected."),
    COUNTER("evicted", "replay_table_evicted", "Items that were removed to make room."),
    COUNTER("evicted_for_memory", "replay_table_evicted_for_memory",
            "The part of them that memory_limit or the disk made necessary."),
    COUNTER("stale", "replay_table_stale", "Items that left because they were more than max_lag versions behind."),
    GAUGE("leased", SUM, "replay_table_leased", "Items that samplers have and have not acknowledged yet."),
    COUNTER("returned", "replay_table_returned", "Items that came back without an acknowledgement."),
    COUNTER("dead", "replay_table_dead", "Items that went to dead_table, after max_deliveries."),
    GAUGE("version", MOST, "replay_table_policy_version", "Version of the parameters that its items are held against."),
    PLAIN("max_lag", FIRST),
    PLAIN("group_size", FIRST),
    GAUGE("open_groups", SUM, "replay_table_open_groups", "Groups that wait for members."),
    COUNTER("complete_groups", "replay_table_complete_groups", "Groups that got their last member."),
    PLAIN("short_groups", SUM),
    COUNTER("dropped_groups", "replay_table_dropped_groups", "Groups that were dropped because members were missing."),
    COUNTER("orphaned_picks", "replay_table_orphaned_picks", "Sampled items whose reply could not be delivered."),
    COUNTER("permits", "replay_table_permits",
            "Samples that the limiter has counted for permits, to be picked at any shard."),
    GAUGE("episodes", SUM, "replay_table_episodes", "Episodes of which items were inserted since a reset."),
    GAUGE("deleted_episodes", SUM, "replay_table_deleted_episodes", "Those of which no item is left."),
    GAUGE("unique_samples", SUM, "replay_table_unique_samples", "Items that were sampled at least once."),
    GAUGE("waiting_inserts", SUM, "replay_table_waiting_inserts", "Items that wait to be inserted."),
    GAUGE("waiting_samplers", SUM, "replay_table_waiting_samplers", "Sample requests that wait for items."),
    PLAIN("insert_rate", SUM),
    PLAIN("sample_rate", SUM),
    PLAIN("update_rate", SUM),
    PLAIN("prescribed", FIRST),
    GAUGE("mean_age_s", MEAN, "replay_table_mean_age_seconds", "Running mean age of sampled items."),
    GAUGE("mean_staleness", MEAN, "replay_table_mean_staleness_versions",
          "Running mean of how many policy versions sampled items are behind."),
    GAUGE("total_priority", SUM, "replay_table_total_priority", "Sum of the sampler's weights; 0: it has none."),
    HISTOGRAM("ages", "replay_sampled_age_seconds", "Age of items when they were sampled.", age),
    HISTOGRAM("staleness", "replay_sampled_staleness_versions",
              "Versions of the policy that were published between an item's making and its sampling.", versions),
    END,
};

static const struct figure stat_rows[] = {
    PLAIN("value", SUM),
    END,
};

/* What shards answer to changes. */
static const struct figure change_rows[] = {
    PLAIN("applied", SUM),
    PLAIN("missing", SUM),
    PLAIN("refused", SUM),
    END,
};

static const struct figure written_rows[] = {
    PLAIN("items", SUM),
    PLAIN("written_bytes", SUM),
    PLAIN("took_ns", MOST),
    END,
};

static const struct figure limiter_rows[] = {
    GAUGE("samples_per_insert", FIRST, "replay_limiter_samples_per_insert", "The limiter's target ratio."),
    GAUGE("min_size", BOUND, "replay_limiter_min_items", "Items before the first sample (min_size)."),
    GAUGE("cursor", SUM, "replay_limiter_cursor", "Inserts times the target ratio, less samples."),
    GAUGE("min_diff", BOUND, "replay_limiter_cursor_min", "Where samples wait for inserts; -Inf: never."),
    GAUGE("max_diff", BOUND, "replay_limiter_cursor_max", "Where inserts wait for samples; +Inf: never."),
    GAUGE("paused", MOST, "replay_limiter_paused", "1 while the table is paused: nobody inserts or samples."),
    PLAIN("batch", BOUND),
    PLAIN("inserts", SUM),
    PLAIN("samples", SUM),
    PLAIN("deletes", SUM),
    END,
};

static const struct figure session_rows[] = {
    PLAIN("ordinal", FIRST),
    PLAIN("expired", FIRST),
    PLAIN("received", FIRST),
    COUNTER("items", "replay_session_items", "Items that have arrived from the session."),
    COUNTER("rejected", "replay_session_rejected", "Those that were rejected."),
    COUNTER("received_bytes", "replay_session_received_bytes", "Bytes of its messages."),
    PLAIN("chunk_bytes", FIRST),
    GAUGE("granted_bytes", FIRST, "replay_session_credit_granted_bytes",
          "Credit that the session was granted and that is not returned."),
    GAUGE("used_bytes", FIRST, "replay_session_credit_used_bytes",
          "Part of it that is used by messages with unresolved items."),
    GAUGE("waiting", FIRST, "replay_session_waiting_items", "Items that wait for their table."),
    GAUGE("silent_ns", FIRST, "replay_session_silent_seconds", "Time since the last sign of life."),
    END,
};

/* A publisher puts parameters to all shards: readers of the slowest one get its version. */
static const struct figure slot_rows[] = {
    GAUGE("version", LEAST, "replay_params_version", "Version of the parameters in a slot."),
    GAUGE("bytes", FIRST, "replay_params_bytes", "Their bytes."),
    GAUGE("age_ns", FIRST, "replay_params_age_seconds", "Time since they were published."),
    END,
};

static const struct figure counter_rows[] = {
    GAUGE("value", FIRST, "replay_shared_value", "A named number that clients add to (counter)."),
    END,
};

static const struct figure process_rows[] = {
    PLAIN("pid", FIRST),
    GAUGE("thread_count", SUM, "process_threads", "Threads of the broker's process."),
    GAUGE("open_files", SUM, "process_open_fds", "Open file descriptors."),
    GAUGE("resident_bytes", SUM, "process_resident_memory_bytes", "Memory that is in RAM."),
    GAUGE("virtual_bytes", SUM, "process_virtual_memory_bytes", "Address space."),
    COUNTER("cpu_s", "process_cpu_seconds", "Processor time of all threads."),
    GAUGE("start_s", FIRST, "process_start_time_seconds", "When the process started, since 1970."),
    END,
};

static const struct figure thread_rows[] = {
    COUNTER("cpu_s", "replay_thread_cpu_seconds", "Processor time of a thread: its rate is the thread's busy share."),
    GAUGE("busy", MOST, "replay_thread_busy_ratio", "Share of the time since an earlier scrape that it ran."),
    END,
};

const struct figures server_figures = {&replay__server_info__descriptor, NULL, server_rows},
                     memory_figures = {&replay__memory_info__descriptor, NULL, memory_rows},
                     disk_figures = {&replay__disk_info__descriptor, NULL, disk_rows},
                     status_figures = {&replay__status_info__descriptor, "status", status_rows},
                     command_figures = {&replay__command_info__descriptor, "command", command_rows},
                     table_figures = {&replay__table_info__descriptor, "table", table_rows},
                     limiter_figures = {&replay__limiter_info__descriptor, "table", limiter_rows},
                     session_figures = {&replay__session_info__descriptor, "session", session_rows},
                     slot_figures = {&replay__slot_info__descriptor, "slot", slot_rows},
                     counter_figures = {&replay__counter_info__descriptor, "name", counter_rows},
                     process_figures = {&replay__process_info__descriptor, NULL, process_rows},
                     thread_figures = {&replay__thread_info__descriptor, "thread", thread_rows};

/* Not in /metrics by themselves. */
static const struct figures stat_figures = {&replay__stat_info__descriptor, NULL, stat_rows},
                            change_figures = {&replay__change_reply__descriptor, NULL, change_rows},
                            written_figures = {&replay__checkpoint_reply__descriptor, NULL, written_rows},
                            restored_figures = {&replay__table_restored__descriptor, NULL, table_rows};

static const struct figures *const all[] = {&server_figures,  &memory_figures,   &disk_figures,    &status_figures,
                                            &command_figures, &table_figures,    &limiter_figures, &session_figures,
                                            &slot_figures,    &counter_figures,  &process_figures, &thread_figures,
                                            &stat_figures,    &restored_figures, &change_figures,  &written_figures};

const struct figure *figure_find(const ProtobufCMessageDescriptor *of, const char *name)
{
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        for (const struct figure *row = all[i]->of == of ? all[i]->rows : NULL; row && row->name; row++)
            if (strcmp(row->name, name) == 0)
                return row;
    return NULL;
}

static double number(const ProtobufCFieldDescriptor *field, const void *at)
{
    switch (field->type) {
    case PROTOBUF_C_TYPE_FIXED64:
        return (double)*(const uint64_t *)at;
    case PROTOBUF_C_TYPE_SINT64:
        return (double)*(const int64_t *)at;
    case PROTOBUF_C_TYPE_UINT32:
        return (double)*(const uint32_t *)at;
    case PROTOBUF_C_TYPE_DOUBLE:
        return *(const double *)at;
    case PROTOBUF_C_TYPE_BOOL:
        return *(const protobuf_c_boolean *)at ? 1 : 0;
    default:
        return 0;
    }
}

/* Counters of a table that was restored begin at 0 like all others: a counter must not go back to another number. */
static double begun_at(const struct figure *figure, const ProtobufCMessage *message)
{
    if (figure->type != FIGURE_COUNTER || message->descriptor != table_figures.of)
        return 0;
    const Replay__TableRestored *restored = ((const Replay__TableInfo *)message)->restored;
    const ProtobufCFieldDescriptor *field =
        restored ? protobuf_c_message_descriptor_get_field_by_name(restored->base.descriptor, figure->name) : NULL;
    return field ? number(field, (const char *)restored + field->offset) : 0;
}

double figure_value(const struct figure *figure, const ProtobufCMessage *message)
{
    const ProtobufCFieldDescriptor *field =
        protobuf_c_message_descriptor_get_field_by_name(message->descriptor, figure->name);
    double value = number(field, (const char *)message + field->offset) - begun_at(figure, message);
    if (figure->fold == FOLD_BOUND && fabs(value) > FIGURE_NO_BOUND)
        return value > 0 ? INFINITY : -INFINITY;
    return text_ends(figure->name, "_ns") ? value / 1e9 : value;
}
