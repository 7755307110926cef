#include "broker/service/snapshot_fill.h"

#include <math.h>
#include <string.h>

#include "broker/checkpoint/checkpoint.h"
#include "broker/journal/stream.h"
#include "broker/service/service.h"
#include "broker/service/why.h"
#include "broker/session/flow.h"
#include "broker/session/pump.h"
#include "broker/spill/spill.h"
#include "proto/base/error.h"

_Static_assert(SNAPSHOT_STATUSES == STATUS_COUNT, "one counter for each status");

/* A bound of the limiter beyond this is none. */
#define UNBOUNDED 1e17

static double seconds(int64_t ns)
{
    return ns > 0 ? (double)ns / (double)NS_PER_S : 0;
}

/* ---- state ---- */

static void fill_server(struct snapshot *self, const struct service *service)
{
    struct snapshot_server *out = &self->server;
    const struct peers *peers = service->peers;
    const struct sessions *sessions = service->sessions;
    out->release = rp_version();
    out->service = snapshot_text(self, peers->told.service);
    out->ingest = snapshot_text(self, peers->told.ingest);
    out->events = snapshot_text(self, peers->told.events);
    out->instance = service->instance;
    out->uptime_s = seconds(service->loop->now_ns - service->loop->start_ns);
    out->longest_stretch_ns = service->loop->longest_stretch_ns;
    out->sessions = sessions->n_open;
    out->tombstones = sessions->by_id.count - sessions->n_open;
    out->waiters = peers->waits.count;
    out->peers = peers->by_route.count;
    out->messages_in = peers->counters.messages_in;
    out->messages_bad = peers->counters.messages_bad;
    out->messages_stale = sessions->ingest_stale;
    out->message_gaps = sessions->ingest_gaps;
    out->replies_dropped = peers->counters.replies_dropped;
    out->bytes_in = peers->counters.bytes_in;
    out->bytes_out = peers->counters.bytes_out;
    out->granted_bytes = sessions->granted_bytes;
    out->ingest_budget = sessions->ingest_budget;
    memcpy(out->failed, peers->counters.failed, sizeof out->failed);
    self->insert = sessions->insert;
    self->insert_wait = sessions->insert_wait;
    self->commit = peers->commit.waited;
}

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

static void fill_memory(struct snapshot *self, const struct service *service)
{
    struct snapshot_memory *out = &self->memory;
    const struct store *store = service->store;
    out->counted = store_memory(store);
    out->chunks = store_chunk_memory(store);
    out->limit = (uint64_t)service->config->memory_limit;
    out->slabs_free = slab_bytes(store->slabs)->reserved - slab_bytes(store->slabs)->used;
    out->sessions_kept = service->sessions->kept_bytes;
    out->params = service->params->bytes;
    out->kept_samples = service->samples->kept.bytes;
    out->kept_replies = service->peers->kept_replies.bytes;
    out->unread = unread_bytes(service->peers);
    out->journal = service->stream ? service->stream->backlog + service->stream->used : 0;
    out->chunk_count = store->chunks;
    out->stored_bytes = store->bytes;
    out->raw_bytes = store->raw_bytes;
    for (uint32_t i = 0; i < service->tables->n; i++)
        out->items += contents_memory(&service->tables->list[i].in);
}

static void fill_disk(struct snapshot *self, const struct service *service)
{
    static const char *const modes[] = {"never", "interval", "always"};
    struct snapshot_disk *out = &self->disk;
    const struct stream *stream = service->stream;
    out->folder = out->trouble = "";
    out->fsync = modes[stream && stream->journal ? service->config->journal_fsync : FSYNC_NEVER];
    if (!stream)
        return;
    out->on = true;
    out->journal = stream->journal;
    out->folder = snapshot_text(self, stream->folder.path);
    out->trouble = snapshot_text(self, stream->trouble);
    out->segments = stream->segments.n;
    out->bytes = stream->segments.total_bytes;
    out->free_bytes = stream->space.free == SPACE_UNKNOWN ? (double)NAN : (double)stream->space.free;
    out->reserve_bytes = (double)space_reserve(&stream->space);
    out->journal_bytes = stream->journal ? stream->journal_bytes : 0;
    out->written_bytes = stream->given - stream->backlog;
    out->backlog_bytes = stream->backlog;
    out->failed_syncs = stream->failures;
    out->waiting_replies = service->peers->commit.count;
    out->spilled_chunks = service->store->spilled_chunks;
    out->spilled_bytes = service->store->spilled_bytes;
    out->fetched_chunks = service->spill ? service->spill->fetched_chunks : 0;
    out->fetched_bytes = service->spill ? service->spill->fetched_bytes : 0;
    struct checkpoint_report report = checkpoints_report(service->checkpoints);
    out->checkpoint = report.last;
    out->checkpoint_bytes = report.bytes;
    out->checkpoint_items = report.items;
    out->checkpoint_took_s = seconds((int64_t)report.took_ns);
    out->checkpoint_age_s = seconds((int64_t)report.age_ns);
    out->checkpoint_progress = report.done;
    out->checkpoint_running = report.running != 0;
}

static void fill_params(struct snapshot *self, const struct service *service)
{
    const struct params *params = service->params;
    self->slots = snapshot_take(self, params->n_slots, sizeof *self->slots);
    self->counters = snapshot_take(self, params->n_counters, sizeof *self->counters);
    for (uint32_t i = 0; self->slots && i < params->n_slots; i++) {
        struct param_slot *slot = &params->slots[i];
        self->slots[self->n_slots++] = (struct snapshot_slot){
            .name = snapshot_text(self, slot->name),
            .version = slot->version,
            .bytes = zmq_msg_size(&slot->value),
            .age_s = seconds(service->loop->now_ns - slot->put_ns),
        };
    }
    for (uint32_t i = 0; self->counters && i < params->n_counters; i++)
        self->counters[self->n_counters++] =
            (struct snapshot_counter){snapshot_text(self, params->counters[i].name), params->counters[i].value};
}

static void fill_commands(struct snapshot *self, const struct service *service)
{
    uint32_t n;
    const struct command *rows = dispatch_commands(&n);
    self->commands = snapshot_take(self, n, sizeof *self->commands);
    for (uint32_t i = 0; self->commands && i < n; i++) {
        const struct command_stats *stats = &service->commands[i];
        self->commands[self->n_commands++] = (struct snapshot_command){
            .name = rows[i].name,
            .calls = stats->calls,
            .errors = stats->errors,
            .total_ns = stats->total_ns,
            .max_ns = stats->max_ns,
            .latency = stats->times.latency,
            .waited = stats->times.waited,
        };
    }
}

void snapshot_fill_state(struct snapshot *self, const struct service *service)
{
    fill_server(self, service);
    fill_memory(self, service);
    fill_disk(self, service);
    fill_params(self, service);
    fill_commands(self, service);
}

/* ---- tables ---- */

static double bound(double value)
{
    if (value > UNBOUNDED)
        return INFINITY;
    return value < -UNBOUNDED ? -INFINITY : value;
}

static void fill_limiter(struct snapshot_table *out, const struct limiter *limiter)
{
    out->limiter = limiter_kind_name(limiter->kind);
    out->samples_per_insert = limiter->samples_per_insert;
    out->min_size = limiter->min_size_part;
    out->cursor = limiter_cursor(limiter);
    out->min_diff = bound(limiter->min_diff);
    out->max_diff = bound(limiter->max_diff);
    out->limiter_inserts = limiter->inserts;
    out->limiter_samples = limiter->samples;
    out->limiter_deletes = limiter->deletes;
}

void snapshot_fill_table(struct snapshot *self, const struct table *table)
{
    struct snapshot_table *out = &self->tables[self->n_tables++];
    const struct table_stats *stats = &table->stats, *restored = &table->restored;
    out->name = snapshot_text(self, table->name);
    out->sampler = snapshot_text(self, table->sampler_ops->name); /* a plug-in's is gone with the plug-in */
    out->remover = snapshot_text(self, table->remover_ops->name);
    out->inserts_wait = out->samples_wait = "";
    fill_limiter(out, &table->limiter);
    out->size = table->in.size;
    out->max_size = (uint64_t)table->config->max_size;
    out->bytes = table->bytes;
    out->max_bytes = (uint64_t)table->config->max_bytes;
    out->max_times_sampled = (uint64_t)table->config->max_times_sampled;
    out->inserts = stats->total_inserts - restored->total_inserts;
    out->samples = stats->total_samples - restored->total_samples;
    out->updates = stats->updates - restored->updates;
    out->updates_missing = stats->updates_missing;
    out->rejected = stats->rejected - restored->rejected;
    out->evicted = stats->evicted - restored->evicted;
    out->evicted_for_memory = stats->evicted_for_memory;
    out->orphaned_picks = stats->orphaned_picks;
    out->permits = stats->permits;
    out->episodes = stats->episodes;
    out->deleted_episodes = table_deleted_episodes(table);
    out->unique_samples = stats->unique_samples;
    out->waiting_inserts = table->n_waiting_items;
    out->waiting_samplers = table->n_waiters;
    out->insert_rate = table_rate(table, 0);
    out->sample_rate = table_rate(table, 1);
    out->update_rate = table_rate(table, 2);
    out->mean_age_s = stats->mean_age_s;
    out->mean_staleness = stats->mean_staleness;
    out->total_priority = table->sampler_ops->total ? table->sampler_ops->total(table->in.sampler) : 0;
    out->age = table->sampled_age;
    out->staleness = table->sampled_staleness;
}

/* ---- sessions ---- */

/* Adds the flows of the tables that the session has layouts for. The flows of all tables would be too many: each is a cache
 * miss. */
static void fill_flows(struct snapshot *self, struct snapshot_session *out, const struct session *session,
                       uint64_t *seen)
{
    struct snapshot_flow *flows = snapshot_take(self, session->n_layouts, sizeof *flows);
    for (uint32_t i = 0; flows && i < session->n_layouts; i++) {
        const struct table *table = session->layouts[i].table;
        const struct flow *flow = table && table->id < session->n_tables ? session->flows[table->id] : NULL;
        if (!flow || !flow->arrived || seen[table->id] == session->serial)
            continue;
        seen[table->id] = session->serial;
        uint64_t waiting = flow->arrived - flow->resolved;
        flows[out->n_flows++] = (struct snapshot_flow){
            .table = self->tables ? self->tables[table->id].name : "",
            .resolved = flow->resolved,
            .allowed = flow->allowed,
            .waiting = waiting,
            .rejected = flow->rejected,
        };
        out->waiting += waiting;
        out->rejected += flow->rejected;
    }
    out->flows = flows;
}

void snapshot_fill_session(struct snapshot *self, const struct session *session, uint64_t *seen)
{
    struct snapshot_session *out = &self->sessions[self->n_sessions++];
    if (session->next)
        __builtin_prefetch(session->next);
    memcpy(out->name, session->name, sizeof out->name);
    out->ordinal = session->ordinal;
    out->expired = session->tombstone;
    out->received = session->received;
    out->items = session->items;
    out->received_bytes = session->received_bytes;
    out->chunk_bytes = session->chunk_bytes;
    out->granted_bytes = session->offered_bytes - session->returned_bytes;
    out->used_bytes = session->received_bytes - session->returned_bytes;
    out->silent_s = seconds(session->sessions->loop->now_ns - session->seen_ns);
    if (session->n_layouts)
        fill_flows(self, out, session, seen);
}

/* ---- waits ---- */

struct wait_sink {
    struct snapshot *snapshot;
    int64_t now_ns;
};

static bool add_wait(void *ctx, const struct why_line *line)
{
    const struct wait_sink *sink = ctx;
    struct snapshot *self = sink->snapshot;
    self->waits_cut = self->n_waits == SNAPSHOT_WAITS_MOST;
    if (self->waits_cut)
        return false;
    self->waits[self->n_waits++] = (struct snapshot_wait){
        .who = snapshot_text(self, line->who),
        .kind = line->kind,
        .table = snapshot_text(self, line->table),
        .text = snapshot_text(self, line->text),
        .count = line->count,
        .got = line->got,
        .waited_s = seconds(sink->now_ns - line->since_ns),
        .rate = line->rate,
    };
    return true;
}

void snapshot_fill_waits(struct snapshot *self, const struct service *service)
{
    struct wait_sink sink = {self, service->loop->now_ns};
    self->waits = snapshot_take(self, SNAPSHOT_WAITS_MOST, sizeof *self->waits);
    if (self->waits)
        why_each(service, add_wait, &sink);
    for (uint32_t i = 0; i < self->n_tables; i++) {
        char text[256] = "";
        const struct table *table = &service->tables->list[i];
        pump_explain_insert(table, text, sizeof text);
        self->tables[i].inserts_wait = snapshot_text(self, text);
        limiter_explain_sample(&table->limiter, 1, text, sizeof text);
        self->tables[i].samples_wait = snapshot_text(self, text);
    }
}
