#include "broker/service/info.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "broker/checkpoint/checkpoint.h"
#include "broker/journal/stream.h"
#include "broker/service/service.h"
#include "broker/session/session.h"
#include "broker/spill/spill.h"
#include "proto/base/dtype.h"
#include "proto/base/error.h"
#include "proto/base/format.h"

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
    Replay__MemoryInfo *info = pb_messages(arena, &replay__memory_info__descriptor, 1, NULL);
    const struct store *store = service->store;
    const struct slab_bytes *slabs = slab_bytes(store->slabs);
    struct shm_bytes shared = store_shared(store);
    info->chunks = store_chunk_memory(store);
    info->shared = shared.used;
    info->slabs_free = slabs->reserved - slabs->used + shared.reserved - shared.used;
    info->session_chunks = service->sessions->kept_bytes;
    info->params = service->params->bytes;
    info->params_staged = service->params->staged_bytes;
    info->params_old = service->params->old_bytes;
    info->kept_samples = service->samples->kept.list.bytes;
    info->kept_replies = service->peers->kept_replies.list.bytes;
    info->unread_replies = unread_bytes(service->peers);
    info->journal = service->stream ? service->stream->backlog + service->stream->out.used : 0;
    for (uint32_t i = 0; i < service->tables->n; i++)
        info->items += contents_memory(&service->tables->list[i].in);
    return info;
}

static void add_commands(struct arena *arena, const struct service *service, Replay__ServerInfo *info)
{
    info->n_commands = service->n_commands;
    Replay__CommandInfo *list =
        pb_messages(arena, &replay__command_info__descriptor, info->n_commands, &info->commands);
    for (uint32_t i = 0; i < service->n_commands; i++) {
        const struct command_stats *stats = &service->commands[i];
        list[i].name = arena_text(arena, stats->name);
        list[i].calls = stats->calls;
        list[i].errors = stats->errors;
        list[i].total_ns = stats->total_ns;
        list[i].max_ns = stats->max_ns;
        COPY_HISTOGRAM(arena, &list[i], times, &stats->times.latency);
        COPY_HISTOGRAM(arena, &list[i], wait_times, &stats->times.waited);
    }
}

static void add_failures(struct arena *arena, const struct peers *peers, Replay__ServerInfo *info)
{
    info->n_failed = STATUS_COUNT - 1;
    Replay__StatusInfo *list = pb_messages(arena, &replay__status_info__descriptor, info->n_failed, &info->failed);
    for (uint32_t status = 1; status < STATUS_COUNT; status++) {
        list[status - 1].status = arena_text(arena, rp_status_name((int32_t)status));
        list[status - 1].count = peers->counters.failed[status];
    }
}

static Replay__ServerInfo *server_info(struct arena *arena, const struct service *service)
{
    Replay__ServerInfo *info = pb_messages(arena, &replay__server_info__descriptor, 1, NULL);
    const struct peers *peers = service->peers;
    const struct sessions *sessions = service->sessions;
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
    info->shared_clients = kept_samples_readers(&service->samples->kept) + sessions->n_borrowed;
    info->shared_samples = service->samples->shared_samples;
    return info;
}

/* ---- slots, counters, the disk ---- */

static void add_params(struct arena *arena, const struct service *service, Replay__InfoReply *out)
{
    const struct params *params = service->params;
    out->n_slots = params->n_slots;
    out->n_counters = params->n_counters;
    Replay__SlotInfo *slots = pb_messages(arena, &replay__slot_info__descriptor, out->n_slots, &out->slots);
    Replay__CounterInfo *counters =
        pb_messages(arena, &replay__counter_info__descriptor, out->n_counters, &out->counters);
    for (uint32_t i = 0; i < params->n_slots; i++) {
        struct param_slot *slot = &params->slots[i];
        slots[i].name = arena_text(arena, slot->name);
        slots[i].version = slot->version;
        slots[i].bytes = param_slot_bytes(slot);
        slots[i].age_ns = (uint64_t)(service->loop->now_ns - slot->put_ns);
    }
    for (uint32_t i = 0; i < params->n_counters; i++) {
        counters[i].name = arena_text(arena, params->counters[i].name);
        counters[i].value = params->counters[i].value;
    }
}

static Replay__DiskInfo *disk_info(struct arena *arena, const struct service *service)
{
    const struct stream *stream = service->stream;
    if (!stream)
        return NULL;
    Replay__DiskInfo *info = pb_messages(arena, &replay__disk_info__descriptor, 1, NULL);
    info->folder = arena_text(arena, stream->folder.path);
    info->journal = stream->journal;
    int64_t sync_ns = service->config->journal_ns;
    info->fsync = arena_text(arena, sync_ns < 0 ? "never" : sync_ns == 0 ? "always" : "interval");
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
    const struct checkpoints *checkpoints = service->checkpoints;
    if (!checkpoints)
        return info;
    int64_t age_ns = service->loop->now_ns - checkpoints->last_ns;
    info->checkpoint = checkpoints->last.number;
    info->checkpoint_bytes = checkpoints->last.written_bytes;
    info->checkpoint_items = checkpoints->last.items;
    info->checkpoint_took_ns = checkpoints->last.took_ns;
    info->checkpoint_age_ns = checkpoints->last.number && age_ns > 0 ? (uint64_t)age_ns : 0;
    info->checkpoint_running = checkpoint_is_running(checkpoints);
    info->checkpoint_progress = checkpoint_progress(checkpoints);
    return info;
}

static void info_fill(struct arena *arena, const struct service *service, Replay__InfoReply *out)
{
    replay__info_reply__init(out);
    out->server = server_info(arena, service);
    out->server->snapshots = service->snapshots;
    out->server->snapshot_cpu_ns = service->snapshots_cpu_ns;
    out->server->snapshot_longest_ns = service->snapshot_longest_ns;
    out->disk = disk_info(arena, service);
    add_params(arena, service, out);
    out->tables = arena_take(arena, service->tables->n, sizeof(*out->tables));
}

/* ---- tables ---- */

Replay__Column **info_signature(struct arena *arena, const struct signature *signature)
{
    Replay__Column **list, *columns = pb_messages(arena, &replay__column__descriptor, signature->n, &list);
    for (uint32_t i = 0; i < signature->n; i++) {
        columns[i].name = arena_text(arena, signature->fields[i].name);
        columns[i].dtype = arena_text(arena, dtype_name(signature->fields[i].dtype));
        columns[i].n_shape = signature->fields[i].rank;
        columns[i].shape = arena_copy(arena, signature->fields[i].shape, columns[i].n_shape * sizeof *columns[i].shape);
    }
    return list;
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
    if (!wire)
        return;
    info->n_signature = wire->n_fields;
    Replay__Column *columns = pb_messages(arena, &replay__column__descriptor, wire->n_fields, &info->signature);
    for (size_t i = 0; i < wire->n_fields; i++) {
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
    Replay__StatInfo *stat = pb_messages(sink->arena, &replay__stat_info__descriptor, 1, NULL);
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

static Replay__TableInfo *info_table(struct arena *arena, const struct table *table)
{
    Replay__TableInfo *info = arena_copy(arena, &table->stats, sizeof *info); /* what the table counts by itself */
    struct limiter_info *limiter = arena_take(arena, 1, sizeof *limiter);
    limiter_info(table, limiter);
    info->limiter = &limiter->body;
    info->name = arena_text(arena, table->name);
    info->sampler = arena_text(arena, table->sampler_ops->name); /* a plug-in's is gone with the plug-in */
    info->remover = arena_text(arena, table->remover_ops->name);
    info->metadata = arena_text(arena, table->metadata);
    if (table->restored.total_inserts)
        info->restored = arena_copy(arena, &table->restored, sizeof table->restored);
    info->size = table->in.size;
    info->leased = table->in.leased;
    info->max_size = (uint64_t)table->config->max_size;
    info->bytes = table->bytes;
    info->max_bytes = (uint64_t)table->config->max_bytes;
    info->version = table->version;
    if (table->max_lag >= 0) {
        info->has_max_lag_case = REPLAY__TABLE_INFO__HAS_MAX_LAG_MAX_LAG;
        info->max_lag = (uint32_t)table->max_lag;
    }
    info->max_times_sampled = (uint32_t)table->config->max_times_sampled;
    info->group_size = (uint32_t)table->config->group_size;
    info->open_groups = table->in.groups.n_open;
    info->insert_rate = table_rate(table, 0);
    info->sample_rate = table_rate(table, 1);
    info->update_rate = table_rate(table, 2);
    info->waiting_inserts = table->n_waiting_items;
    info->waiting_samplers = table->waiters.n;
    info->deleted_episodes = table_deleted_episodes(table);
    info->total_priority = table->sampler_ops->total ? table->sampler_ops->total(table->in.sampler) : 0;
    COPY_HISTOGRAM(arena, info, ages, &table->sampled_age);
    COPY_HISTOGRAM(arena, info, staleness, &table->sampled_staleness);
    info->prescribed = table->signature.n > 0;
    info->n_signature = table->signature.n;
    if (table->signature.n)
        info->signature = info_signature(arena, &table->signature);
    else if (table->newest_layout != NO_LAYOUT)
        from_layout(arena, layouts_at(table->layouts, table->newest_layout), info);
    add_stats(arena, table, info);
    return info;
}

/* ---- sessions ---- */

static Replay__SessionInfo *info_session(struct arena *arena, const struct session *session)
{
    Replay__SessionInfo *info = pb_messages(arena, &replay__session_info__descriptor, 1, NULL);
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
        n += session->flows[i].arrived > 0;
    Replay__SessionTable *tables = pb_messages(arena, &replay__session_table__descriptor, n, &info->tables);
    for (uint32_t i = 0; info->n_tables < n; i++) {
        const struct flow *flow = &session->flows[i];
        if (!flow->arrived)
            continue;
        Replay__SessionTable *table = &tables[info->n_tables++];
        table->table = arena_text(arena, flow->table->name);
        table->resolved = flow->resolved;
        table->allowed = flow->allowed;
        table->waiting = flow->arrived - flow->resolved;
        table->rejected = flow->rejected;
        info->rejected += table->rejected;
        info->waiting += table->waiting;
    }
    return info;
}

/* ---- why something stands still, in sentences ---- */

struct why {
    const struct service *service;
    struct arena *arena;
    Replay__WhyReply *reply;
    uint32_t most;
};

/* Adds a line about `count` of what waits, at which table (NULL: at none), and for what. Texts may quote what clients sent. NULL: no
 * further lines are wanted. */
RP_PRINTF(7, 8)
static Replay__Wait *add_wait(struct why *self, const char *who, const char *kind, const char *table, uint64_t count,
                              int64_t since_ns, const char *format, ...)
{
    char text[600];
    va_list args;
    self->reply->more = self->reply->n_waits == self->most;
    if (self->reply->more)
        return NULL;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    Replay__Wait *wait = pb_messages(self->arena, &replay__wait__descriptor, 1, NULL);
    wait->who = arena_text(self->arena, who);
    wait->kind = arena_text(self->arena, kind);
    wait->table = arena_text(self->arena, table);
    wait->text = arena_text(self->arena, text);
    wait->count = count;
    wait->waited_ns = (uint64_t)(self->service->loop->now_ns - since_ns);
    self->reply->waits[self->reply->n_waits++] = wait;
    return wait;
}

/* The functions below add lines. False: no further lines are wanted. */

static bool add_requests(struct why *self)
{
    for (const struct wait *at = self->service->peers->waits.first; at; at = at->next) {
        struct wait_text why = {0};
        char who[64];
        at->ops->explain(at, &why);
        snprintf(who, sizeof who, "client %016llx", (unsigned long long)at->client);
        Replay__Wait *wait = add_wait(self, who, at->ops->kind, why.table, why.count, at->since_ns, "%s", why.text);
        if (!wait)
            return false;
        wait->got = why.got;
    }
    return true;
}

static bool add_watchers(struct why *self)
{
    const struct watchers *watchers = &self->service->samples->watchers;
    for (uint32_t i = 0; i < watchers->n; i++) {
        const struct watcher *watcher = &watchers->list[i];
        char who[64], text[400];
        if (!watcher_waits(watcher, self->service->loop->now_ns))
            continue;
        snprintf(who, sizeof who, "client %016llx", (unsigned long long)watcher->client);
        watcher_explain(watcher, text, sizeof text);
        Replay__Wait *wait =
            add_wait(self, who, "sample", watcher->table->name, watcher->wanted, watcher->since_ns, "%s", text);
        if (!wait)
            return false;
        wait->has_shard_case = REPLAY__WAIT__HAS_SHARD_ALL_SHARDS;
        wait->all_shards = true;
    }
    return true;
}

/* Of each session whose items wait for a table. */
static bool add_flows(struct why *self, const struct table *table)
{
    const struct flow *flow = table->blocked;
    bool more = true;
    for (uint32_t i = 0; i < table->n_blocked && more; i++, flow = flow->next) {
        char why[256] = "";
        pump_explain_insert(table, why, sizeof why);
        more = add_wait(self, flow->session->name, "insert", table->name, flow->count, flow->blocked_ns,
                        "table '%s': %u items wait; %s", table->name, flow->count,
                        why[0] ? why : "about to be inserted") != NULL;
    }
    return more;
}

/* Of each writer that waits for its data to arrive. */
static bool add_transits(struct why *self)
{
    for (const struct session *session = LIST_FIRST(&self->service->sessions->list); session;
         session = LIST_NEXT(session, link)) {
        const struct transit *transit = &session->transit;
        char text[256];
        if (!transit_holds(session))
            continue;
        transit_explain(session, text, sizeof text);
        Replay__Wait *wait =
            add_wait(self, session->name, "network", NULL, transit->messages, transit->since_ns, "%s", text);
        if (!wait)
            return false;
        wait->rate = transit->rate;
    }
    return true;
}

/* Of evictions: nobody waits for them, but a table may have fewer items than a sampler waits for. */
static bool add_evicted(struct why *self, const struct table *table)
{
    format_buffer held;
    uint64_t n = table->stats.evicted_for_memory;
    if (n == 0)
        return true;
    const struct table *holder = room_holder(table->tables);
    return add_wait(self, "broker", "memory", table->name, n, table->evicted_for_memory_ns,
                    "table '%s': %llu items were evicted because of %s; it has %u where max_size is %lld, and "
                    "table '%s' holds most, %s: raise that, or lower max_size",
                    table->name, (unsigned long long)n, table->evicted_by, table->in.size,
                    (long long)table->config->max_size, holder->name, format_bytes(held, room_held(holder))) != NULL;
}

/* Of items that were too old, while a sampler waits for more. */
static bool add_stale(struct why *self, const struct table *table)
{
    uint64_t n = table->waiters.n ? table->stats.stale : 0;
    return n == 0 ||
           add_wait(
               self, "broker", "stale", table->name, n, table->stale_ns,
               "table '%s': %llu items were more than max_lag %lld versions behind, and left; '%s' has version %llu, "
               "and the newest item was made by version %llu%s",
               table->name, (unsigned long long)n, (long long)table->max_lag, table->config->policy_slot,
               (unsigned long long)table->version, (unsigned long long)table->newest_policy,
               table->newest_policy ? "" : ": its writer does not stamp it (set_policy)") != NULL;
}

/* How long a group may lack members before it is worth a line. */
#define GROUP_WAITS_NS NS_PER_S

/* Of groups that lack members. */
static bool add_groups(struct why *self, const struct table *table)
{
    char open[200];
    const struct groups *groups = &table->in.groups;
    table_explain_groups(table, open, sizeof open);
    int64_t since_ns = open[0] ? table_group_since_ns(table, groups->oldest) : 0;
    if (!open[0] || self->service->loop->now_ns - since_ns < GROUP_WAITS_NS)
        return true;
    Replay__Wait *wait = add_wait(self, "broker", "group", table->name, (uint64_t)groups->n_open * groups->size,
                                  since_ns, "table '%s': %s; after %.3g s it is %s", table->name, open,
                                  (double)table->config->group_deadline_ns / (double)NS_PER_S,
                                  table->config->group_incomplete == GROUP_DROP ? "dropped" : "delivered as it is");
    if (wait)
        wait->got = groups->hidden;
    return wait != NULL;
}

static bool add_journal(struct why *self)
{
    const struct stream *stream = self->service->stream;
    const struct commit *commit = &self->service->peers->commit;
    char why[256] = "the disk is slow";
    if (!stream || (!stream_is_full(stream, why, sizeof why) && !commit_is_stuck(self->service->peers)))
        return true;
    int64_t since_ns = stream->trouble[0] ? stream->trouble_ns
                       : stream->full     ? stream->full_ns
                                          : commit_since_ns(self->service->peers);
    return add_wait(self, "broker", "journal", NULL, commit->count, since_ns, "%s: %llu messages to clients wait; %s",
                    stream->folder.path, (unsigned long long)commit->count, why) != NULL;
}

/* Fills in what waits, at most so many lines: the journal, inserts, data on its way, requests, samplers that wait for all shards; then
 * groups that lack members, and evictions that samplers may wait because of. */
static void info_waits(struct arena *arena, const struct service *service, uint32_t most, Replay__WhyReply *out)
{
    struct why why = {service, arena, out, most};
    out->waits = arena_take(arena, most, sizeof(*out->waits));
    bool more = add_journal(&why);
    for (uint32_t i = 0; more && i < service->tables->n; i++)
        more = add_flows(&why, &service->tables->list[i]);
    more = more && add_transits(&why) && add_requests(&why) && add_watchers(&why);
    for (uint32_t i = 0; more && i < service->tables->n; i++)
        more = add_groups(&why, &service->tables->list[i]) && add_evicted(&why, &service->tables->list[i]) &&
               add_stale(&why, &service->tables->list[i]);
}

/* ---- requests ---- */

/* Adds a page of sessions, newest first. The cursor is the serial number to continue from. */
static void add_sessions(struct arena *arena, const struct sessions *sessions, uint64_t cursor,
                         Replay__InfoReply *reply)
{
    const struct session *session = LIST_FIRST(&sessions->list);
    reply->sessions = arena_take(arena, SESSIONS_PER_PAGE, sizeof(*reply->sessions));
    while (session && cursor && session->serial > cursor)
        session = LIST_NEXT(session, link);
    for (; session; session = LIST_NEXT(session, link)) {
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
    return RP_OK;
}

rp_status req_why(struct service *service, struct request *request, rp_error *err)
{
    (void)err;
    struct arena arena = {0};
    Replay__WhyReply reply = REPLAY__WHY_REPLY__INIT;
    info_waits(&arena, service, WAITS_MOST, &reply);
    request_ok(service->peers, request, REPLAY__REPLY__BODY_WHY, &reply.base);
    arena_fini(&arena);
    return RP_OK;
}

/* ---- snapshots: made in stages, the state of rooms that are small, tables in slices, sessions in slices, sentences ---- */

#define TABLES_PER_STEP 64u
/* Of sessions, a step copies as many as this many flows allow; a session costs as much as some flows by itself. */
#define WORK_PER_STEP 4096u
#define SESSION_WORK 15u
/* Most sentences: each takes the core thread about a microsecond. */
#define SNAPSHOT_WAITS_MOST 250u

/* A stage. True: it is done. */
typedef bool stage_fn(struct snapshot_maker *self);

static bool stage_state(struct snapshot_maker *self)
{
    struct snapshot *snapshot = self->snapshot;
    info_fill(&snapshot->arena, self->service, &snapshot->info);
    return true;
}

static bool stage_tables(struct snapshot_maker *self)
{
    const struct tables *tables = self->service->tables;
    struct snapshot *snapshot = self->snapshot;
    size_t *n = &snapshot->info.n_tables;
    for (uint32_t i = 0; i < TABLES_PER_STEP && *n < tables->n; i++, ++*n)
        snapshot->info.tables[*n] = info_table(&snapshot->arena, &tables->list[*n]);
    return *n == tables->n;
}

/* Each flow of a session is a cache miss. */
static bool stage_sessions(struct snapshot_maker *self)
{
    struct sessions *sessions = self->service->sessions;
    struct snapshot *snapshot = self->snapshot;
    size_t *n = &snapshot->info.n_sessions;
    if (!(snapshot->parts & SNAPSHOT_SESSIONS))
        return true;
    if (!snapshot->info.sessions) { /* sessions that open from now on are not met: they stand before the others */
        self->sessions_most = sessions->by_id.count;
        snapshot->info.sessions = arena_take(&snapshot->arena, self->sessions_most, sizeof(*snapshot->info.sessions));
        sessions->walk = LIST_FIRST(&sessions->list);
    }
    for (uint32_t work = 0; sessions->walk && work < WORK_PER_STEP; work += SESSION_WORK + sessions->tables->n) {
        const struct session *session = sessions->walk;
        sessions->walk = *n + 1 < self->sessions_most ? LIST_NEXT(session, link) : NULL;
        snapshot->info.sessions[(*n)++] = info_session(&snapshot->arena, session);
    }
    return !sessions->walk;
}

static bool stage_waits(struct snapshot_maker *self)
{
    struct snapshot *snapshot = self->snapshot;
    if (snapshot->parts & SNAPSHOT_WAITS)
        info_waits(&snapshot->arena, self->service, SNAPSHOT_WAITS_MOST, &snapshot->why);
    return true;
}

static stage_fn *const stages[] = {stage_state, stage_tables, stage_sessions, stage_waits};
#define N_STAGES (sizeof stages / sizeof stages[0])

/* Runs the next slice; small stages that follow each other are one slice. */
static bool snapshot_step(struct chore *chore)
{
    struct snapshot_maker *self =
        (struct snapshot_maker *)(void *)((char *)chore - offsetof(struct snapshot_maker, chore));
    struct snapshot *snapshot = self->snapshot;
    int64_t start = clock_of(CLOCK_THREAD_CPUTIME_ID);
    while (self->stage < N_STAGES && stages[self->stage](self))
        self->stage++;
    snapshot->cpu_ns += (uint64_t)(clock_of(CLOCK_THREAD_CPUTIME_ID) - start);
    self->running = self->stage < N_STAGES;
    if (self->running)
        return true;
    self->snapshot = NULL;
    struct service *service = self->service;
    service->snapshots++;
    service->snapshots_cpu_ns += snapshot->cpu_ns;
    if (snapshot->cpu_ns > service->snapshot_longest_ns)
        service->snapshot_longest_ns = snapshot->cpu_ns;
    exchange_give(&self->exchange, snapshot);
    return false;
}

void snapshot_maker_init(struct snapshot_maker *self, struct service *service, int wake_fd)
{
    *self = (struct snapshot_maker){.service = service, .chore = {.step = snapshot_step}};
    exchange_init(&self->exchange, wake_fd);
}

void snapshot_maker_fini(struct snapshot_maker *self)
{
    if (!self->service)
        return;
    if (self->running)
        chores_remove(&self->service->loop->chores, &self->chore);
    snapshot_destroy(&self->snapshot);
    exchange_fini(&self->exchange);
    *self = (struct snapshot_maker){0};
}

void snapshot_maker_begin(struct snapshot_maker *self, unsigned parts)
{
    self->snapshot = snapshot_new();
    self->snapshot->parts = parts | SNAPSHOT_STATE;
    self->snapshot->made_ns = clock_ns();
    self->stage = 0;
    self->running = true;
    chores_add(&self->service->loop->chores, &self->chore);
}
