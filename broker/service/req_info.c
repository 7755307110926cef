/* Info: the state of a running broker, with numbers. */
#include <string.h>

#include "broker/checkpoint/checkpoint.h"
#include "broker/journal/stream.h"
#include "broker/service/arena.h"
#include "broker/service/info_signature.h"
#include "broker/service/service.h"
#include "broker/session/flow.h"
#include "broker/session/limiter_info.h"
#include "broker/session/session.h"
#include "broker/spill/spill.h"
#include "proto/base/error.h"

#define SESSION_SHOWN_BYTES 4u
#define SESSIONS_PER_PAGE 256u
#define STATS_MOST 32u

struct stat_sink {
    struct arena *arena;
    Replay__TableInfo *info;
};

static void emit_stat(void *ctx, const char *name, double value)
{
    struct stat_sink *sink = ctx;
    if (sink->info->n_stats == STATS_MOST)
        return;
    Replay__StatInfo *stat = arena_take(sink->arena, 1, sizeof *stat);
    char *copy = arena_take(sink->arena, 1, strlen(name) + 1);
    if (!stat || !copy)
        return;
    replay__stat_info__init(stat);
    stat->name = strcpy(copy, name);
    stat->value = value;
    sink->info->stats[sink->info->n_stats++] = stat;
}

static Replay__TableInfo *table_info(struct arena *arena, const struct table *table)
{
    Replay__TableInfo *info = arena_take(arena, 1, sizeof *info);
    struct limiter_info *limiter = arena_take(arena, 1, sizeof *limiter);
    Replay__StatInfo **stats = arena_take(arena, STATS_MOST, sizeof(*stats));
    if (arena->failed)
        return NULL;
    const struct table_stats *from = &table->stats;
    replay__table_info__init(info);
    limiter_info(table, limiter);
    info->name = arena_borrow(table->name);
    info->sampler = arena_borrow(table->sampler_ops->name);
    info->remover = arena_borrow(table->remover_ops->name);
    info->limiter = &limiter->body;
    info->size = table->in.size;
    info->max_size = (uint64_t)table->config->max_size;
    info->bytes = table->bytes;
    info->max_bytes = (uint64_t)table->config->max_bytes;
    info->max_times_sampled = (uint32_t)table->config->max_times_sampled;
    info->insert_rate = table_rate(table, 0);
    info->sample_rate = table_rate(table, 1);
    info->update_rate = table_rate(table, 2);
    info->waiting_inserts = table->n_waiting_items;
    info->waiting_samplers = table->n_waiters;
    info->updates = from->updates;
    info->updates_missing = from->updates_missing;
    info->rejected = from->rejected;
    info->evicted = from->evicted;
    info->evicted_for_memory = from->evicted_for_memory;
    info->orphaned_picks = from->orphaned_picks;
    info->episodes = from->episodes;
    info->unique_samples = from->unique_samples;
    info->deleted_episodes = table_deleted_episodes(table);
    info->mean_age_s = from->mean_age_s;
    info->mean_staleness = from->mean_staleness;
    info->metadata = table->metadata;
    info_signature(arena, table, info);
    info->total_priority = table->sampler_ops->total ? table->sampler_ops->total(table->in.sampler) : 0;
    info->stats = stats;
    struct stat_sink sink = {arena, info};
    for (uint32_t i = 0; i < table->n_extensions; i++)
        if (table->extensions[i].ops->stats)
            table->extensions[i].ops->stats(table->extensions[i].self, emit_stat, &sink);
    return info;
}

/* The reply borrows the counts until it is sent. */
static void add_times(const struct histogram *from, uint64_t **counts, size_t *n)
{
    *counts = (uint64_t *)(uintptr_t)from->counts;
    *n = histogram_used(from);
}

static void add_commands(struct arena *arena, const struct service *service, Replay__ServerInfo *info)
{
    uint32_t n;
    const struct command *rows = dispatch_commands(&n);
    Replay__CommandInfo *list = arena_take(arena, n, sizeof *list);
    info->commands = arena_take(arena, n, sizeof(*info->commands));
    if (arena->failed)
        return;
    for (uint32_t i = 0; i < n; i++) {
        replay__command_info__init(&list[i]);
        list[i].name = arena_borrow(rows[i].name);
        list[i].calls = service->commands[i].calls;
        list[i].errors = service->commands[i].errors;
        list[i].total_ns = service->commands[i].total_ns;
        list[i].max_ns = service->commands[i].max_ns;
        add_times(&service->commands[i].times.latency, &list[i].times, &list[i].n_times);
        add_times(&service->commands[i].times.waited, &list[i].wait_times, &list[i].n_wait_times);
        info->commands[info->n_commands++] = &list[i];
    }
}

static Replay__ServerInfo *server_info(struct arena *arena, struct service *service)
{
    Replay__ServerInfo *info = arena_take(arena, 1, sizeof *info);
    if (!info)
        return NULL;
    replay__server_info__init(info);
    info->release = arena_borrow(rp_version());
    info->instance = service->instance;
    info->uptime_ns = (uint64_t)(service->loop->now_ns - service->loop->start_ns);
    info->memory_bytes = store_memory(service->store);
    info->memory_limit = (uint64_t)service->config->memory_limit;
    info->chunk_count = service->store->chunks;
    info->chunk_bytes = service->store->bytes;
    info->raw_bytes = service->store->raw_bytes;
    info->granted_bytes = service->sessions->granted_bytes;
    info->session_count = service->sessions->n_open;
    info->waiter_count = service->peers->waits.count;
    info->messages_in = service->peers->counters.messages_in;
    info->messages_bad = service->peers->counters.messages_bad;
    info->replies_dropped = service->peers->counters.replies_dropped;
    info->longest_stretch_ns = service->loop->longest_stretch_ns;
    info->service = service->peers->told.service;
    info->ingest = service->peers->told.ingest;
    info->events = service->peers->told.events;
    add_times(&service->sessions->insert, &info->insert_times, &info->n_insert_times);
    add_times(&service->sessions->insert_wait, &info->insert_wait_times, &info->n_insert_wait_times);
    add_times(&service->peers->commit.waited, &info->journal_wait_times, &info->n_journal_wait_times);
    add_commands(arena, service, info);
    return info;
}

static Replay__SessionInfo *session_info(struct arena *arena, const struct service *service, struct session *session)
{
    Replay__SessionInfo *info = arena_take(arena, 1, sizeof *info);
    Replay__SessionTable *tables = arena_take(arena, session->n_tables, sizeof *tables);
    Replay__SessionTable **list = arena_take(arena, session->n_tables, sizeof(*list));
    if (arena->failed)
        return NULL;
    replay__session_info__init(info);
    info->name = session->name;
    /* Enough to tell sessions apart, too little to resume one: that takes the whole id. */
    info->session = (ProtobufCBinaryData){SESSION_SHOWN_BYTES, session->id};
    info->ordinal = session->ordinal;
    info->received = session->received;
    info->chunk_bytes = session->chunk_bytes;
    info->silent_ns = (uint64_t)(service->loop->now_ns - session->seen_ns);
    info->expired = session->tombstone;
    info->tables = list;
    for (uint32_t i = 0; i < session->n_tables; i++) {
        const struct flow *flow = session->flows[i];
        if (!flow || !flow->arrived)
            continue;
        Replay__SessionTable *table = &tables[info->n_tables];
        replay__session_table__init(table);
        table->table = arena_borrow(flow->table->name);
        table->resolved = flow->resolved;
        table->allowed = flow->allowed;
        table->waiting = flow->arrived - flow->resolved;
        info->rejected += flow->rejected;
        list[info->n_tables++] = table;
    }
    return info;
}

/* Adds a page of sessions, newest first. The cursor is the serial number to continue from. */
static void add_sessions(struct arena *arena, const struct service *service, uint64_t cursor, Replay__InfoReply *reply)
{
    reply->sessions = arena_take(arena, SESSIONS_PER_PAGE, sizeof(*reply->sessions));
    struct session *session = service->sessions->list;
    while (session && cursor && session->serial > cursor)
        session = session->next;
    for (; session && reply->sessions; session = session->next) {
        if (reply->n_sessions == SESSIONS_PER_PAGE) {
            reply->session_cursor = session->serial;
            return;
        }
        Replay__SessionInfo *info = session_info(arena, service, session);
        if (info)
            reply->sessions[reply->n_sessions++] = info;
    }
}

static void add_slots(struct arena *arena, struct service *service, Replay__InfoReply *reply)
{
    struct params *params = service->params;
    Replay__SlotInfo *slots = arena_take(arena, params->n_slots + 1, sizeof *slots);
    Replay__CounterInfo *counters = arena_take(arena, params->n_counters + 1, sizeof *counters);
    reply->slots = arena_take(arena, params->n_slots + 1, sizeof(*reply->slots));
    reply->counters = arena_take(arena, params->n_counters + 1, sizeof(*reply->counters));
    if (arena->failed)
        return;
    for (uint32_t i = 0; i < params->n_slots; i++) {
        replay__slot_info__init(&slots[i]);
        slots[i].name = params->slots[i].name;
        slots[i].version = params->slots[i].version;
        slots[i].bytes = zmq_msg_size(&params->slots[i].value);
        slots[i].age_ns = (uint64_t)(service->loop->now_ns - params->slots[i].put_ns);
        reply->slots[reply->n_slots++] = &slots[i];
    }
    for (uint32_t i = 0; i < params->n_counters; i++) {
        replay__counter_info__init(&counters[i]);
        counters[i].name = params->counters[i].name;
        counters[i].value = params->counters[i].value;
        reply->counters[reply->n_counters++] = &counters[i];
    }
}

static Replay__DiskInfo *disk_info(struct arena *arena, const struct service *service)
{
    static const char *const modes[] = {"never", "interval", "always"};
    struct stream *stream = service->stream;
    Replay__DiskInfo *info = stream ? arena_take(arena, 1, sizeof *info) : NULL;
    if (!info)
        return NULL;
    replay__disk_info__init(info);
    info->folder = stream->folder.path;
    info->journal = stream->journal;
    info->fsync = arena_borrow(modes[stream->journal ? service->config->journal_fsync : FSYNC_NEVER]);
    info->segments = stream->segments.n;
    info->bytes = stream->segments.total_bytes;
    info->journal_bytes = stream->journal ? stream->journal_bytes : 0;
    info->backlog_bytes = stream->backlog;
    info->trouble = stream->trouble;
    info->waiting_replies = service->peers->commit.count;
    info->spilled_chunks = service->store->spilled_chunks;
    info->spilled_bytes = service->store->spilled_bytes;
    info->fetched_chunks = service->spill ? service->spill->fetched_chunks : 0;
    struct checkpoint_report report = checkpoints_report(service->checkpoints);
    info->checkpoint = report.last;
    info->checkpoint_age_ns = report.age_ns;
    info->checkpoint_running = report.running != 0;
    info->checkpoint_progress = report.done;
    return info;
}

rp_status req_info(struct service *service, struct request *request, rp_error *err)
{
    const Replay__Info *ask = (const Replay__Info *)request->body;
    const struct table *only = NULL;
    if (ask->table[0] && !(only = tables_find(service->tables, ask->table, strlen(ask->table))))
        return err_set(err, RP_NOT_FOUND, "no table '%.64s'", ask->table);
    struct arena arena = {0};
    Replay__InfoReply reply = REPLAY__INFO_REPLY__INIT;
    reply.server = server_info(&arena, service);
    reply.tables = arena_take(&arena, service->tables->n, sizeof(*reply.tables));
    for (uint32_t i = 0; reply.tables && i < service->tables->n; i++) {
        Replay__TableInfo *info =
            only && only != &service->tables->list[i] ? NULL : table_info(&arena, &service->tables->list[i]);
        if (info)
            reply.tables[reply.n_tables++] = info;
    }
    add_slots(&arena, service, &reply);
    reply.disk = disk_info(&arena, service);
    if (ask->sessions)
        add_sessions(&arena, service, ask->session_cursor, &reply);
    if (!arena.failed)
        request_ok(service->peers, request, REPLAY__REPLY__BODY_INFO, &reply.base);
    arena_fini(&arena);
    return request->answered ? RP_OK : err_set(err, RP_NO_MEMORY, "no memory for the information");
}
