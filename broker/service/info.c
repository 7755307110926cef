#include "broker/service/info.h"

#include <math.h>
#include <string.h>

#include "broker/checkpoint/checkpoint.h"
#include "broker/journal/stream.h"
#include "broker/service/service.h"
#include "broker/service/why.h"
#include "broker/session/flow.h"
#include "broker/session/limiter_info.h"
#include "broker/session/session.h"
#include "broker/spill/spill.h"
#include "proto/base/dtype.h"
#include "proto/base/error.h"

#define SESSION_SHOWN_BYTES 4u
#define SESSIONS_PER_PAGE 256u
#define STATS_MOST 32u
#define WAITS_MOST 1000u

static uint64_t *copy_counts(struct arena *arena, const struct histogram *from, size_t *n)
{
    *n = histogram_used(from);
    return arena_copy(arena, from->counts, *n * sizeof *from->counts);
}

/* Copies a histogram into the members NAME, n_NAME and NAME_sum of a message. */
#define COPY_HISTOGRAM(arena, message, name, from)                                                                     \
    ((message)->name = copy_counts(arena, from, &(message)->n_##name), (message)->name##_sum = (from)->sum)

/* ---- the server ---- */

static uint64_t unread_bytes(const struct peers *peers)
{
    uint64_t bytes = 0;
    for (uint32_t i = 0; peers->by_route.mask && i <= peers->by_route.mask; i++) {
        struct peer *peer = peers->by_route.entries[i].value;
        long long pending = peer ? atomic_load_explicit(&peer->pending_bytes, memory_order_relaxed) : 0;
        bytes += pending > 0 ? (uint64_t)pending : 0;
    }
    return bytes;
}

static Replay__MemoryInfo *memory_info(struct arena *arena, const struct service *service)
{
    Replay__MemoryInfo *info = arena_take(arena, 1, sizeof *info);
    const struct store *store = service->store;
    replay__memory_info__init(info);
    info->chunks = store_chunk_memory(store);
    info->slabs_free = slab_bytes(store->slabs)->reserved - slab_bytes(store->slabs)->used;
    info->session_chunks = service->sessions->kept_bytes;
    info->params = service->params->bytes;
    info->kept_samples = service->samples->kept.bytes;
    info->kept_replies = service->peers->kept_replies.bytes;
    info->unread_replies = unread_bytes(service->peers);
    info->journal = service->stream ? service->stream->backlog + service->stream->out.used : 0;
    for (uint32_t i = 0; i < service->tables->n; i++)
        info->items += contents_memory(&service->tables->list[i].in);
    return info;
}

static void add_commands(struct arena *arena, const struct service *service, Replay__ServerInfo *info)
{
    uint32_t n;
    const struct command *rows = dispatch_commands(&n);
    Replay__CommandInfo *list = arena_take(arena, n, sizeof *list);
    info->commands = arena_take(arena, n, sizeof(*info->commands));
    for (uint32_t i = 0; i < n; i++) {
        const struct command_stats *stats = &service->commands[i];
        replay__command_info__init(&list[i]);
        list[i].name = arena_text(arena, rows[i].name);
        list[i].calls = stats->calls;
        list[i].errors = stats->errors;
        list[i].total_ns = stats->total_ns;
        list[i].max_ns = stats->max_ns;
        COPY_HISTOGRAM(arena, &list[i], times, &stats->times.latency);
        COPY_HISTOGRAM(arena, &list[i], wait_times, &stats->times.waited);
        info->commands[info->n_commands++] = &list[i];
    }
}

static void add_failures(struct arena *arena, const struct peers *peers, Replay__ServerInfo *info)
{
    Replay__StatusInfo *list = arena_take(arena, STATUS_COUNT, sizeof *list);
    info->failed = arena_take(arena, STATUS_COUNT, sizeof(*info->failed));
    for (uint32_t status = 1; status < STATUS_COUNT; status++) {
        replay__status_info__init(&list[status]);
        list[status].status = arena_text(arena, rp_status_name((int32_t)status));
        list[status].count = peers->counters.failed[status];
        info->failed[info->n_failed++] = &list[status];
    }
}

static Replay__ServerInfo *server_info(struct arena *arena, const struct service *service)
{
    Replay__ServerInfo *info = arena_take(arena, 1, sizeof *info);
    const struct peers *peers = service->peers;
    const struct sessions *sessions = service->sessions;
    replay__server_info__init(info);
    info->release = arena_text(arena, rp_version());
    info->service = arena_text(arena, peers->told.service);
    info->ingest = arena_text(arena, peers->told.ingest);
    info->events = arena_text(arena, peers->told.events);
    info->instance = service->instance;
    info->uptime_ns = (uint64_t)(service->loop->now_ns - service->loop->start_ns);
    info->longest_stretch_ns = service->loop->longest_stretch_ns;
    info->memory_bytes = store_memory(service->store);
    info->memory_limit = (uint64_t)service->config->memory_limit;
    info->chunk_count = service->store->chunks;
    info->chunk_bytes = service->store->bytes;
    info->raw_bytes = service->store->raw_bytes;
    info->granted_bytes = sessions->granted_bytes;
    info->ingest_budget = sessions->ingest_budget;
    info->session_count = sessions->n_open;
    info->expired_count = sessions->by_id.count - sessions->n_open;
    info->waiter_count = peers->waits.count;
    info->peer_count = peers->by_route.count;
    info->messages_in = peers->counters.messages_in;
    info->messages_bad = peers->counters.messages_bad;
    info->messages_stale = sessions->ingest_stale;
    info->message_gaps = sessions->ingest_gaps;
    info->replies_dropped = peers->counters.replies_dropped;
    info->bytes_in = peers->counters.bytes_in;
    info->bytes_out = peers->counters.bytes_out;
    COPY_HISTOGRAM(arena, info, insert_times, &sessions->insert);
    COPY_HISTOGRAM(arena, info, insert_wait_times, &sessions->insert_wait);
    COPY_HISTOGRAM(arena, info, journal_wait_times, &peers->commit.waited);
    add_commands(arena, service, info);
    add_failures(arena, peers, info);
    info->memory = memory_info(arena, service);
    return info;
}

/* ---- slots, counters, the disk ---- */

static void add_params(struct arena *arena, const struct service *service, Replay__InfoReply *out)
{
    const struct params *params = service->params;
    Replay__SlotInfo *slots = arena_take(arena, params->n_slots, sizeof *slots);
    Replay__CounterInfo *counters = arena_take(arena, params->n_counters, sizeof *counters);
    out->slots = arena_take(arena, params->n_slots, sizeof(*out->slots));
    out->counters = arena_take(arena, params->n_counters, sizeof(*out->counters));
    for (uint32_t i = 0; i < params->n_slots; i++) {
        struct param_slot *slot = &params->slots[i];
        replay__slot_info__init(&slots[i]);
        slots[i].name = arena_text(arena, slot->name);
        slots[i].version = slot->version;
        slots[i].bytes = zmq_msg_size(&slot->value);
        slots[i].age_ns = (uint64_t)(service->loop->now_ns - slot->put_ns);
        out->slots[out->n_slots++] = &slots[i];
    }
    for (uint32_t i = 0; i < params->n_counters; i++) {
        replay__counter_info__init(&counters[i]);
        counters[i].name = arena_text(arena, params->counters[i].name);
        counters[i].value = params->counters[i].value;
        out->counters[out->n_counters++] = &counters[i];
    }
}

static Replay__DiskInfo *disk_info(struct arena *arena, const struct service *service)
{
    static const char *const modes[] = {"never", "interval", "always"};
    const struct stream *stream = service->stream;
    if (!stream)
        return NULL;
    Replay__DiskInfo *info = arena_take(arena, 1, sizeof *info);
    replay__disk_info__init(info);
    info->folder = arena_text(arena, stream->folder.path);
    info->journal = stream->journal;
    info->fsync = arena_text(arena, modes[stream->journal ? service->config->journal_fsync : FSYNC_NEVER]);
    info->segments = stream->segments.n;
    info->bytes = stream->segments.total_bytes;
    info->free_bytes = stream->space.free == SPACE_UNKNOWN ? (double)NAN : (double)stream->space.free;
    info->reserve_bytes = (double)space_reserve(&stream->space);
    info->journal_bytes = stream->journal ? stream->journal_bytes : 0;
    info->written_bytes = stream->given - stream->backlog;
    info->backlog_bytes = stream->backlog;
    info->failed_syncs = stream->failures;
    info->trouble = arena_text(arena, stream->trouble);
    info->waiting_replies = service->peers->commit.count;
    info->spilled_chunks = service->store->spilled_chunks;
    info->spilled_bytes = service->store->spilled_bytes;
    info->fetched_chunks = service->spill ? service->spill->fetched_chunks : 0;
    info->fetched_bytes = service->spill ? service->spill->fetched_bytes : 0;
    struct checkpoint_report report = checkpoints_report(service->checkpoints);
    info->checkpoint = report.last;
    info->checkpoint_bytes = report.bytes;
    info->checkpoint_items = report.items;
    info->checkpoint_took_ns = report.took_ns;
    info->checkpoint_age_ns = report.age_ns;
    info->checkpoint_running = report.running != 0;
    info->checkpoint_progress = report.done;
    return info;
}

void info_fill(struct arena *arena, const struct service *service, Replay__InfoReply *out)
{
    replay__info_reply__init(out);
    out->server = server_info(arena, service);
    out->disk = disk_info(arena, service);
    add_params(arena, service, out);
    out->tables = arena_take(arena, service->tables->n, sizeof(*out->tables));
}

/* ---- tables ---- */

/* Adds a column for each of n fields of the table's signature. */
static Replay__Column *add_columns(struct arena *arena, Replay__TableInfo *info, size_t n)
{
    Replay__Column *columns = arena_take(arena, n, sizeof *columns);
    info->signature = arena_take(arena, n, sizeof(*info->signature));
    for (size_t i = 0; i < n; i++) {
        replay__column__init(&columns[i]);
        info->signature[i] = &columns[i];
    }
    info->n_signature = n;
    return columns;
}

static void prescribed(struct arena *arena, const struct signature *signature, Replay__TableInfo *info)
{
    Replay__Column *columns = add_columns(arena, info, signature->n);
    for (uint32_t i = 0; i < signature->n; i++) {
        columns[i].name = arena_text(arena, signature->fields[i].name);
        columns[i].dtype = arena_text(arena, dtype_name(signature->fields[i].dtype));
        columns[i].n_shape = signature->fields[i].rank;
        columns[i].shape = arena_copy(arena, signature->fields[i].shape, columns[i].n_shape * sizeof *columns[i].shape);
    }
    info->prescribed = true;
}

static void *arena_alloc(void *arena, size_t size)
{
    return arena_take(arena, 1, size);
}

static void arena_free(void *arena, void *memory)
{
    (void)arena, (void)memory; /* freed with the arena */
}

/* A field has the shape of its column, with the number of steps before it unless it is squeezed. */
static void from_layout(struct arena *arena, const struct layout *layout, Replay__TableInfo *info)
{
    ProtobufCAllocator allocator = {arena_alloc, arena_free, arena};
    size_t size;
    const uint8_t *message = layout_message(layout, &size);
    const Replay__Layout *wire = replay__layout__unpack(&allocator, size, message);
    Replay__Column *columns = wire ? add_columns(arena, info, wire->n_fields) : NULL;
    for (size_t i = 0; columns && i < wire->n_fields; i++) {
        const Replay__Field *field = wire->fields[i];
        const Replay__Column *column = wire->columns[field->column];
        size_t steps = field->squeeze ? 0 : 1;
        columns[i].name = field->name;
        columns[i].dtype = column->dtype;
        columns[i].shape = arena_take(arena, column->n_shape + steps, sizeof *columns[i].shape);
        if (steps)
            columns[i].shape[0] = field->count;
        if (column->n_shape)
            memcpy(columns[i].shape + steps, column->shape, column->n_shape * sizeof *column->shape);
        columns[i].n_shape = column->n_shape + steps;
    }
}

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
    replay__stat_info__init(stat);
    stat->name = arena_text(sink->arena, name);
    stat->value = value;
    sink->info->stats[sink->info->n_stats++] = stat;
}

static void add_stats(struct arena *arena, const struct table *table, Replay__TableInfo *info)
{
    struct stat_sink sink = {arena, info};
    info->stats = table->n_extensions ? arena_take(arena, STATS_MOST, sizeof(*info->stats)) : NULL;
    for (uint32_t i = 0; i < table->n_extensions; i++)
        if (table->extensions[i].ops->stats)
            table->extensions[i].ops->stats(table->extensions[i].self, emit_stat, &sink);
}

static Replay__TableRestored *restored_info(struct arena *arena, const Replay__TableInfo *from)
{
    if (!from->total_inserts)
        return NULL;
    Replay__TableRestored *info = arena_take(arena, 1, sizeof *info);
    replay__table_restored__init(info);
    info->total_inserts = from->total_inserts;
    info->total_samples = from->total_samples;
    info->updates = from->updates;
    info->rejected = from->rejected;
    info->evicted = from->evicted;
    return info;
}

Replay__TableInfo *info_table(struct arena *arena, const struct table *table)
{
    Replay__TableInfo *info = arena_copy(arena, &table->stats, sizeof *info); /* what the table counts by itself */
    struct limiter_info *limiter = arena_take(arena, 1, sizeof *limiter);
    limiter_info(table, limiter);
    info->limiter = &limiter->body;
    info->name = arena_text(arena, table->name);
    info->sampler = arena_text(arena, table->sampler_ops->name); /* a plug-in's is gone with the plug-in */
    info->remover = arena_text(arena, table->remover_ops->name);
    info->metadata = arena_text(arena, table->metadata);
    info->restored = restored_info(arena, &table->restored);
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
    info->deleted_episodes = table_deleted_episodes(table);
    info->total_priority = table->sampler_ops->total ? table->sampler_ops->total(table->in.sampler) : 0;
    COPY_HISTOGRAM(arena, info, ages, &table->sampled_age);
    COPY_HISTOGRAM(arena, info, staleness, &table->sampled_staleness);
    if (table->signature.n)
        prescribed(arena, &table->signature, info);
    else if (table->newest_layout != NO_LAYOUT)
        from_layout(arena, layouts_at(table->layouts, table->newest_layout), info);
    add_stats(arena, table, info);
    return info;
}

/* ---- sessions ---- */

Replay__SessionInfo *info_session(struct arena *arena, const struct session *session)
{
    Replay__SessionInfo *info = arena_take(arena, 1, sizeof *info);
    replay__session_info__init(info);
    info->name = arena_text(arena, session->name);
    /* Enough to tell sessions apart, too little to resume one: that takes the whole id. */
    info->session = (ProtobufCBinaryData){SESSION_SHOWN_BYTES, arena_copy(arena, session->id, SESSION_SHOWN_BYTES)};
    info->ordinal = session->ordinal;
    info->expired = session->tombstone;
    info->received = session->received;
    info->items = session->items;
    info->received_bytes = session->received_bytes;
    info->chunk_bytes = session->chunk_bytes;
    info->granted_bytes = session->offered_bytes - session->returned_bytes;
    info->used_bytes = session->received_bytes - session->returned_bytes;
    info->silent_ns = (uint64_t)(session->sessions->loop->now_ns - session->seen_ns);
    uint32_t n = 0;
    for (uint32_t i = 0; i < session->n_tables; i++)
        n += session->flows[i] && session->flows[i]->arrived;
    Replay__SessionTable *tables = arena_take(arena, n, sizeof *tables);
    info->tables = arena_take(arena, n, sizeof(*info->tables));
    for (uint32_t i = 0; info->n_tables < n; i++) {
        const struct flow *flow = session->flows[i];
        if (!flow || !flow->arrived)
            continue;
        Replay__SessionTable *table = &tables[info->n_tables];
        replay__session_table__init(table);
        table->table = arena_text(arena, flow->table->name);
        table->resolved = flow->resolved;
        table->allowed = flow->allowed;
        table->waiting = flow->arrived - flow->resolved;
        table->rejected = flow->rejected;
        info->rejected += table->rejected;
        info->waiting += table->waiting;
        info->tables[info->n_tables++] = table;
    }
    return info;
}

/* ---- waits ---- */

struct wait_sink {
    struct arena *arena;
    Replay__WhyReply *reply;
    uint32_t most;
    int64_t now_ns;
};

static bool add_wait(void *ctx, const struct why_line *line)
{
    const struct wait_sink *self = ctx;
    self->reply->more = self->reply->n_waits == self->most;
    if (self->reply->more)
        return false;
    Replay__Wait *wait = arena_take(self->arena, 1, sizeof *wait);
    replay__wait__init(wait);
    wait->who = arena_text(self->arena, line->who);
    wait->kind = arena_text(self->arena, line->kind);
    wait->table = arena_text(self->arena, line->table);
    wait->text = arena_text(self->arena, line->text);
    wait->count = line->count;
    wait->got = line->got;
    wait->rate = line->rate;
    if (line->all_shards) {
        wait->has_shard_case = REPLAY__WAIT__HAS_SHARD_ALL_SHARDS;
        wait->all_shards = true;
    }
    wait->waited_ns = (uint64_t)(self->now_ns - line->since_ns);
    self->reply->waits[self->reply->n_waits++] = wait;
    return true;
}

void info_waits(struct arena *arena, const struct service *service, uint32_t most, Replay__WhyReply *out)
{
    struct wait_sink sink = {arena, out, most, service->loop->now_ns};
    out->waits = arena_take(arena, most, sizeof(*out->waits));
    why_each(service, add_wait, &sink);
}

/* ---- requests ---- */

/* Adds a page of sessions, newest first. The cursor is the serial number to continue from. */
static void add_sessions(struct arena *arena, const struct sessions *sessions, uint64_t cursor,
                         Replay__InfoReply *reply)
{
    const struct session *session = sessions->list;
    reply->sessions = arena_take(arena, SESSIONS_PER_PAGE, sizeof(*reply->sessions));
    while (session && cursor && session->serial > cursor)
        session = session->next;
    for (; session; session = session->next) {
        if (reply->n_sessions == SESSIONS_PER_PAGE) {
            reply->session_cursor = session->serial;
            return;
        }
        reply->sessions[reply->n_sessions++] = info_session(arena, session);
    }
}

rp_status req_info(struct service *service, struct request *request, rp_error *err)
{
    const Replay__Info *ask = (const Replay__Info *)request->body;
    const struct table *only = NULL;
    if (ask->table[0] && !(only = tables_find(service->tables, ask->table, strlen(ask->table))))
        return err_set(err, RP_NOT_FOUND, "no table '%.64s'", ask->table);
    struct arena arena = {0};
    Replay__InfoReply reply;
    info_fill(&arena, service, &reply);
    for (uint32_t i = 0; i < service->tables->n; i++)
        if (!only || only == &service->tables->list[i])
            reply.tables[reply.n_tables++] = info_table(&arena, &service->tables->list[i]);
    if (ask->sessions)
        add_sessions(&arena, service->sessions, ask->session_cursor, &reply);
    request_ok(service->peers, request, REPLAY__REPLY__BODY_INFO, &reply.base);
    arena_fini(&arena);
    return request->answered ? RP_OK : err_set(err, RP_NO_MEMORY, "no memory for the information");
}

rp_status req_why(struct service *service, struct request *request, rp_error *err)
{
    struct arena arena = {0};
    Replay__WhyReply reply = REPLAY__WHY_REPLY__INIT;
    info_waits(&arena, service, WAITS_MOST, &reply);
    request_ok(service->peers, request, REPLAY__REPLY__BODY_WHY, &reply.base);
    arena_fini(&arena);
    return request->answered ? RP_OK : err_set(err, RP_NO_MEMORY, "no memory for the answer");
}
