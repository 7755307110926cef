/* Information and waits as plain structs. Their strings point into the message, which is kept with the struct. */
#include <stdlib.h>
#include <string.h>

#include "agent/client/admin/admin.h"
#include "proto/base/dtype.h"
#include "proto/base/error.h"

/* ---- info ---- */

struct info_box {
    rp_info info;
    Replay__Reply *wire;
    rp_signature_field *fields; /* of all tables */
    rp_table_info *parts;       /* tables of all shards */
};

static void limiter_from(const Replay__LimiterInfo *from, rp_limiter_info *out)
{
    static const Replay__LimiterInfo none = REPLAY__LIMITER_INFO__INIT;
    from = from ? from : &none;
    *out = (rp_limiter_info){.kind = from->kind,
                             .samples_per_insert = from->samples_per_insert,
                             .min_size = from->min_size,
                             .min_diff = from->min_diff,
                             .max_diff = from->max_diff,
                             .inserts = from->inserts,
                             .samples = from->samples,
                             .deletes = from->deletes,
                             .cursor = from->cursor,
                             .inserts_wait = from->inserts_wait,
                             .samples_wait = from->samples_wait};
}

static void field_from(const Replay__Column *from, rp_signature_field *out)
{
    *out = (rp_signature_field){.name = from->name, .dtype = dtype_by_name(from->dtype)};
    for (; out->rank < from->n_shape && out->rank <= RP_MAX_RANK; out->rank++)
        out->shape[out->rank] = from->shape[out->rank];
}

static void table_from(const Replay__TableInfo *from, rp_table_info *out)
{
    *out = (rp_table_info){.name = from->name,
                           .sampler = from->sampler,
                           .remover = from->remover,
                           .size = from->size,
                           .max_size = from->max_size,
                           .bytes = from->bytes,
                           .max_bytes = from->max_bytes,
                           .max_times_sampled = from->max_times_sampled,
                           .insert_rate = from->insert_rate,
                           .sample_rate = from->sample_rate,
                           .update_rate = from->update_rate,
                           .waiting_inserts = from->waiting_inserts,
                           .waiting_samplers = from->waiting_samplers,
                           .updates = from->updates,
                           .updates_missing = from->updates_missing,
                           .rejected = from->rejected,
                           .evicted = from->evicted,
                           .orphaned_picks = from->orphaned_picks,
                           .episodes = from->episodes,
                           .mean_age_s = from->mean_age_s,
                           .mean_staleness = from->mean_staleness,
                           .total_priority = from->total_priority,
                           .evicted_for_memory = from->evicted_for_memory,
                           .unique_samples = from->unique_samples,
                           .deleted_episodes = from->deleted_episodes,
                           .metadata = from->metadata,
                           .prescribed = from->prescribed};
    limiter_from(from->limiter, &out->limiter);
}

static void server_from(const Replay__ServerInfo *from, rp_server_info *out)
{
    *out = (rp_server_info){.release = from->release,
                            .service = from->service,
                            .ingest = from->ingest,
                            .events = from->events,
                            .instance = from->instance,
                            .uptime_ns = from->uptime_ns,
                            .memory_bytes = from->memory_bytes,
                            .memory_limit = from->memory_limit,
                            .chunk_count = from->chunk_count,
                            .chunk_bytes = from->chunk_bytes,
                            .raw_bytes = from->raw_bytes,
                            .granted_bytes = from->granted_bytes,
                            .session_count = from->session_count,
                            .waiter_count = from->waiter_count,
                            .messages_in = from->messages_in,
                            .messages_bad = from->messages_bad,
                            .replies_dropped = from->replies_dropped,
                            .longest_stretch_ns = from->longest_stretch_ns};
}

static void session_from(const Replay__SessionInfo *from, rp_session_info *out)
{
    *out = (rp_session_info){.name = from->name,
                             .ordinal = from->ordinal,
                             .expired = from->expired,
                             .received = from->received,
                             .chunk_bytes = from->chunk_bytes,
                             .silent_ns = from->silent_ns,
                             .rejected = from->rejected,
                             .shard = from->shard};
    if (from->session.len)
        memcpy(out->id, from->session.data, from->session.len < sizeof out->id ? from->session.len : sizeof out->id);
    for (size_t i = 0; i < from->n_tables; i++) {
        out->resolved += from->tables[i]->resolved;
        out->waiting += from->tables[i]->waiting;
    }
}

/* Copies the fields of all tables. False: no memory. */
static bool signatures_from(const Replay__InfoReply *from, rp_table_info *tables, rp_signature_field **out)
{
    size_t n = 0;
    for (size_t i = 0; i < from->n_tables; i++)
        n += from->tables[i]->n_signature;
    rp_signature_field *fields = *out = calloc(n + 1, sizeof *fields);
    for (size_t i = 0; fields && i < from->n_tables; i++) {
        tables[i].signature = fields;
        tables[i].n_signature = (uint32_t)from->tables[i]->n_signature;
        for (size_t f = 0; f < from->tables[i]->n_signature; f++)
            field_from(from->tables[i]->signature[f], fields++);
    }
    return *out != NULL;
}

/* Copies what each shard says. False: no memory. */
static bool shards_from(const Replay__Shards *from, rp_info *out, rp_table_info **parts)
{
    size_t n = 0;
    for (size_t i = 0; i < from->n_shard; i++)
        n += from->shard[i]->n_tables;
    rp_shard_info *shards = calloc(from->n_shard + 1, sizeof *shards);
    rp_table_info *tables = *parts = calloc(n + 1, sizeof *tables);
    out->shards = shards;
    for (size_t i = 0; shards && tables && i < from->n_shard; i++) {
        const Replay__ShardInfo *row = from->shard[i];
        rp_shard_info *shard = &shards[out->n_shards++];
        *shard =
            (rp_shard_info){.service = row->service, .problem = row->problem, .tables = tables, .shard = row->shard};
        if (row->server)
            server_from(row->server, &shard->server);
        for (size_t k = 0; k < row->n_tables; k++, shard->n_tables++)
            table_from(row->tables[k], tables++);
    }
    return shards && *parts;
}

static bool info_from(const Replay__InfoReply *from, rp_info *out, struct info_box *box)
{
    rp_table_info *tables = calloc(from->n_tables + 1, sizeof *tables);
    rp_slot_info *slots = calloc(from->n_slots + 1, sizeof *slots);
    rp_counter_info *counters = calloc(from->n_counters + 1, sizeof *counters);
    rp_session_info *sessions = calloc(from->n_sessions + 1, sizeof *sessions);
    out->tables = tables;
    out->slots = slots;
    out->counters = counters;
    out->sessions = sessions;
    if (!tables || !slots || !counters || !sessions)
        return false;
    server_from(from->server, &out->server);
    for (size_t i = 0; i < from->n_tables; i++)
        table_from(from->tables[i], &tables[out->n_tables++]);
    for (size_t i = 0; i < from->n_slots; i++)
        slots[out->n_slots++] = (rp_slot_info){from->slots[i]->name, from->slots[i]->version, from->slots[i]->bytes,
                                               from->slots[i]->age_ns};
    for (size_t i = 0; i < from->n_counters; i++)
        counters[out->n_counters++] = (rp_counter_info){from->counters[i]->name, from->counters[i]->value};
    for (size_t i = 0; i < from->n_sessions; i++)
        session_from(from->sessions[i], &sessions[out->n_sessions++]);
    return signatures_from(from, tables, &box->fields) &&
           (!from->shards || shards_from(from->shards, out, &box->parts));
}

void rp_info_free(rp_info **info)
{
    if (!info || !*info)
        return;
    struct info_box *box = (struct info_box *)*info;
    *info = NULL;
    free((void *)(uintptr_t)box->info.tables);
    free((void *)(uintptr_t)box->info.slots);
    free((void *)(uintptr_t)box->info.counters);
    free((void *)(uintptr_t)box->info.sessions);
    free((void *)(uintptr_t)box->info.shards);
    free(box->fields);
    free(box->parts);
    if (box->wire)
        conn_reply_unpacked_free(box->wire);
    free(box);
}

rp_info *admin_take_info(Replay__Reply *reply)
{
    struct info_box *box = calloc(1, sizeof *box);
    if (!box) {
        conn_reply_unpacked_free(reply);
        return NULL;
    }
    box->wire = reply;
    rp_info *out = &box->info;
    if (!info_from(reply->info, &box->info, box))
        rp_info_free(&out);
    return out;
}

rp_status rp_admin_info(rp_client *client, const char *table, uint32_t sessions, int64_t timeout_ms, rp_info **out,
                        rp_error *err)
{
    Replay__Reply *wire = NULL;
    *out = NULL;
    RP_TRY(admin_info(client, table, sessions != 0, timeout_ms, &wire, err));
    *out = admin_take_info(wire);
    return *out ? RP_OK : err_set(err, RP_NO_MEMORY, "no memory for the broker's information");
}

/* ---- why ---- */

struct waits_box {
    rp_waits pub;
    Replay__Reply *wire;
    rp_wait waits[];
};

rp_waits *admin_take_waits(Replay__Reply *reply)
{
    struct waits_box *box = calloc(1, sizeof *box + reply->why->n_waits * sizeof *box->waits);
    if (!box) {
        conn_reply_unpacked_free(reply);
        return NULL;
    }
    box->wire = reply;
    box->pub = (rp_waits){box->waits, (uint32_t)reply->why->n_waits};
    for (uint32_t i = 0; i < box->pub.n; i++) {
        const Replay__Wait *wait = reply->why->waits[i];
        box->waits[i] = (rp_wait){.who = wait->who,
                                  .kind = wait->kind,
                                  .table = wait->table,
                                  .text = wait->text,
                                  .count = wait->count,
                                  .got = wait->got,
                                  .waited_ns = wait->waited_ns,
                                  .rate = wait->rate};
    }
    return &box->pub;
}

rp_status rp_admin_why(rp_client *client, int64_t timeout_ms, rp_waits **out, rp_error *err)
{
    Replay__Reply *wire = NULL;
    *out = NULL;
    RP_TRY(admin_why(client, timeout_ms, &wire, err));
    *out = admin_take_waits(wire);
    return *out ? RP_OK : err_set(err, RP_NO_MEMORY, "no memory for the list of waiters");
}

void rp_waits_free(rp_waits **waits)
{
    if (!waits || !*waits)
        return;
    struct waits_box *box = (struct waits_box *)*waits;
    *waits = NULL;
    conn_reply_unpacked_free(box->wire);
    free(box);
}
