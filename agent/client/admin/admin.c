/* The administrative calls: plain structs made from the broker's messages. Their strings point into the message, which is kept
 * with the struct. */
#include "agent/client/admin/admin.h"

#include <stdlib.h>
#include <string.h>

#include "agent/client/batch/batch.h"
#include "agent/client/conn/client.h"
#include "proto/base/dtype.h"
#include "proto/base/error.h"

#define GRACE_MS 2000

/* ---- messages ---- */

/* Sends the message and unpacks the reply, whose body has to be `want`. */
static rp_status ask(struct conn *conn, const struct conn_message *message, Replay__Reply__BodyCase want,
                     Replay__Reply **out, rp_error *err)
{
    struct conn_reply *reply = NULL;
    *out = NULL;
    RP_TRY(conn_call(conn, message, &reply, err));
    Replay__Reply *wire;
    rp_status status = conn_reply_read(reply, &wire, err);
    conn_reply_destroy(&reply);
    RP_TRY(status);
    if (wire->body_case != want) {
        conn_reply_unpacked_free(wire);
        return err_set(err, RP_BAD_MESSAGE, "the broker's reply is not what was asked for");
    }
    *out = wire;
    return RP_OK;
}

/* Appends the sessions of the next page to those of the first. */
static bool merge_sessions(Replay__InfoReply *into, Replay__InfoReply *page)
{
    if (page->n_sessions) {
        size_t n = into->n_sessions + page->n_sessions;
        Replay__SessionInfo **sessions = realloc(into->sessions, n * sizeof *sessions);
        if (!sessions)
            return false;
        memcpy(sessions + into->n_sessions, page->sessions, page->n_sessions * sizeof *sessions);
        into->sessions = sessions;
        into->n_sessions = n;
        page->n_sessions = 0;
        free(page->sessions);
        page->sessions = NULL;
    }
    into->session_cursor = page->session_cursor;
    return true;
}

rp_status admin_info(struct conn *conn, const char *table, bool sessions, int64_t timeout_ms, Replay__Reply **out,
                     rp_error *err)
{
    Replay__Info body = REPLAY__INFO__INIT;
    body.table = (char *)(uintptr_t)(table ? table : "");
    body.sessions = sessions;
    int64_t deadline = conn_deadline(timeout_ms);
    struct conn_message message = {.field = REPLAY__REQUEST__BODY_INFO, .body = &body.base, .timeout_ms = timeout_ms};
    RP_TRY(ask(conn, &message, REPLAY__REPLY__BODY_INFO, out, err));
    Replay__InfoReply *info = (*out)->info;
    rp_status status = RP_OK;
    while (sessions && info->session_cursor && status == RP_OK) {
        Replay__Reply *page;
        body.session_cursor = info->session_cursor;
        message.timeout_ms = conn_left_ms(deadline);
        status = ask(conn, &message, REPLAY__REPLY__BODY_INFO, &page, err);
        if (status != RP_OK)
            break;
        if (page->info->n_sessions == 0)
            page->info->session_cursor = 0;
        if (!merge_sessions(info, page->info))
            status = err_set(err, RP_NO_MEMORY, "no memory for the list of sessions");
        conn_reply_unpacked_free(page);
    }
    if (status == RP_OK && !info->server)
        status = err_set(err, RP_BAD_MESSAGE, "the broker's reply does not tell about the server");
    if (status != RP_OK) {
        conn_reply_unpacked_free(*out);
        *out = NULL;
    }
    return status;
}

rp_status admin_why(struct conn *conn, int64_t timeout_ms, Replay__Reply **out, rp_error *err)
{
    Replay__Why body = REPLAY__WHY__INIT;
    struct conn_message message = {.field = REPLAY__REQUEST__BODY_WHY, .body = &body.base, .timeout_ms = timeout_ms};
    return ask(conn, &message, REPLAY__REPLY__BODY_WHY, out, err);
}

rp_status admin_list(struct conn *conn, const struct admin_page *page, int64_t timeout_ms, Replay__Reply **out,
                     rp_error *err)
{
    Replay__List body = REPLAY__LIST__INIT;
    body.table = (char *)(uintptr_t)page->table;
    body.cursor = page->cursor;
    body.limit = page->limit;
    struct conn_message message = {.field = REPLAY__REQUEST__BODY_LIST, .body = &body.base, .timeout_ms = timeout_ms};
    return ask(conn, &message, REPLAY__REPLY__BODY_LIST, out, err);
}

rp_status admin_reset(struct conn *conn, const char *table, int64_t timeout_ms, Replay__Reply **out, rp_error *err)
{
    Replay__Reset body = REPLAY__RESET__INIT;
    body.table = (char *)(uintptr_t)table;
    struct conn_message message = {.field = REPLAY__REQUEST__BODY_RESET, .body = &body.base, .timeout_ms = timeout_ms};
    return ask(conn, &message, REPLAY__REPLY__BODY_CHANGE, out, err);
}

rp_status admin_checkpoint(struct conn *conn, int64_t timeout_ms, Replay__Reply **out, rp_error *err)
{
    Replay__Checkpoint body = REPLAY__CHECKPOINT__INIT;
    if (timeout_ms >= 0) {
        body.has_timeout_ms_case = REPLAY__CHECKPOINT__HAS_TIMEOUT_MS_TIMEOUT_MS;
        body.timeout_ms = (uint64_t)timeout_ms;
    }
    /* The broker's own answer to a time-out says how far the checkpoint is: leave it the time to arrive. */
    struct conn_message message = {.field = REPLAY__REQUEST__BODY_CHECKPOINT,
                                   .body = &body.base,
                                   .timeout_ms = conn_with_grace(timeout_ms, GRACE_MS)};
    return ask(conn, &message, REPLAY__REPLY__BODY_CHECKPOINT, out, err);
}

rp_status rp_admin_checkpoint(rp_client *client, int64_t timeout_ms, rp_checkpoint_info *out, rp_error *err)
{
    Replay__Reply *reply;
    if (out && out->struct_size < sizeof *out)
        return err_set(err, RP_INVALID_ARGUMENT, "struct_size of the result is not set");
    RP_TRY(admin_checkpoint(client_conn(client), timeout_ms, &reply, err));
    const Replay__CheckpointReply *from = reply->checkpoint;
    if (out) {
        out->number = from->number;
        out->based_on = from->based_on;
        out->items = from->items;
        out->written_bytes = from->written_bytes;
        out->took_ns = from->took_ns;
    }
    conn_reply_unpacked_free(reply);
    return RP_OK;
}

rp_status admin_set_limiter(struct conn *conn, const char *table, const rp_limiter_change *change, int64_t timeout_ms,
                            Replay__Reply **out, rp_error *err)
{
    Replay__SetLimiter body = REPLAY__SET_LIMITER__INIT;
    if (change->struct_size < sizeof *change)
        return err_set(err, RP_INVALID_ARGUMENT, "struct_size of the change is not set");
    body.table = (char *)(uintptr_t)table;
    if (change->set & RP_LIMITER_SAMPLES_PER_INSERT) {
        body.has_samples_per_insert_case = REPLAY__SET_LIMITER__HAS_SAMPLES_PER_INSERT_SAMPLES_PER_INSERT;
        body.samples_per_insert = change->samples_per_insert;
    }
    if (change->set & RP_LIMITER_MIN_SIZE) {
        body.has_min_size_case = REPLAY__SET_LIMITER__HAS_MIN_SIZE_MIN_SIZE;
        body.min_size = change->min_size;
    }
    if (change->set & RP_LIMITER_MIN_DIFF) {
        body.has_min_diff_case = REPLAY__SET_LIMITER__HAS_MIN_DIFF_MIN_DIFF;
        body.min_diff = change->min_diff;
    }
    if (change->set & RP_LIMITER_MAX_DIFF) {
        body.has_max_diff_case = REPLAY__SET_LIMITER__HAS_MAX_DIFF_MAX_DIFF;
        body.max_diff = change->max_diff;
    }
    if (change->set & RP_LIMITER_ERROR_BUFFER) {
        body.has_error_buffer_case = REPLAY__SET_LIMITER__HAS_ERROR_BUFFER_ERROR_BUFFER;
        body.error_buffer = change->error_buffer;
    }
    struct conn_message message = {
        .field = REPLAY__REQUEST__BODY_SET_LIMITER, .body = &body.base, .timeout_ms = timeout_ms};
    return ask(conn, &message, REPLAY__REPLY__BODY_LIMITER, out, err);
}

/* ---- info ---- */

struct info_box {
    rp_info info;
    Replay__Reply *wire;
    rp_signature_field *fields; /* of all tables */
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
                             .rejected = from->rejected};
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

static bool info_from(const Replay__InfoReply *from, rp_info *out, rp_signature_field **fields)
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
    return signatures_from(from, tables, fields);
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
    free(box->fields);
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
    if (!info_from(reply->info, &box->info, &box->fields))
        rp_info_free(&out);
    return out;
}

rp_status rp_admin_info(rp_client *client, const char *table, uint32_t sessions, int64_t timeout_ms, rp_info **out,
                        rp_error *err)
{
    Replay__Reply *wire = NULL;
    *out = NULL;
    RP_TRY(admin_info(client_conn(client), table, sessions != 0, timeout_ms, &wire, err));
    *out = admin_take_info(wire);
    return *out ? RP_OK : err_set(err, RP_NO_MEMORY, "no memory for the broker's information");
}

/* ---- why, list, fetch, reset, limiter ---- */

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
    RP_TRY(admin_why(client_conn(client), timeout_ms, &wire, err));
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

rp_status rp_admin_list(rp_client *client, const char *table, uint64_t *cursor, rp_item_info *items, uint32_t *n,
                        int64_t timeout_ms, rp_error *err)
{
    Replay__Reply *wire = NULL;
    uint32_t room = *n;
    *n = 0;
    if (!table || room == 0)
        return err_set(err, RP_INVALID_ARGUMENT, "a table and room for at least one item are needed");
    RP_TRY(admin_list(client_conn(client), &(struct admin_page){table, *cursor, room}, timeout_ms, &wire, err));
    for (size_t i = 0; i < wire->list->n_items && *n < room; i++) {
        const Replay__ItemInfo *item = wire->list->items[i];
        items[(*n)++] = (rp_item_info){.key = item->key,
                                       .priority = item->priority,
                                       .age_ns = item->age_ns,
                                       .policy = item->policy,
                                       .step = item->step,
                                       .bytes = item->bytes,
                                       .times_sampled = item->times_sampled,
                                       .session = item->session,
                                       .length = item->length,
                                       .chunks = item->chunks,
                                       .episode = item->episode};
    }
    *cursor = wire->list->cursor;
    conn_reply_unpacked_free(wire);
    return RP_OK;
}

rp_status rp_admin_fetch(rp_client *client, const char *table, const uint64_t *keys, uint32_t n, int64_t timeout_ms,
                         rp_batch **out, rp_error *err)
{
    *out = NULL;
    if (!table || !keys || n == 0)
        return err_set(err, RP_INVALID_ARGUMENT, "a table and at least one key are needed");
    Replay__Fetch body = REPLAY__FETCH__INIT;
    body.table = (char *)(uintptr_t)table;
    body.n_key = n;
    body.key = (uint64_t *)(uintptr_t)keys;
    struct conn_message message = {.field = REPLAY__REQUEST__BODY_FETCH, .body = &body.base, .timeout_ms = timeout_ms};
    struct conn_reply *reply = NULL;
    RP_TRY(conn_call(client_conn(client), &message, &reply, err));
    struct batch_options options = {.max_bytes = UINT64_C(4) << 30};
    struct batch_pool *pool = batch_pool_new(0);
    struct batch_decoder *decoder = pool ? batch_decoder_new(pool, &options) : NULL;
    rp_status status = decoder ? batch_decode_reply(decoder, reply, out, err)
                               : err_set(err, RP_NO_MEMORY, "no memory to decode items");
    if (status == RP_OK && (*out)->next) {
        status = err_set(err, RP_FAILED_PRECONDITION, "%s; fetch those that fit together", (*out)->text);
        batch_list_release(out);
    }
    conn_reply_destroy(&reply);
    batch_decoder_destroy(&decoder);
    batch_pool_unref(&pool);
    return status;
}

rp_status rp_admin_reset(rp_client *client, const char *table, int64_t timeout_ms, uint64_t *removed, rp_error *err)
{
    Replay__Reply *wire = NULL;
    if (!table)
        return err_set(err, RP_INVALID_ARGUMENT, "a table is needed");
    RP_TRY(admin_reset(client_conn(client), table, timeout_ms, &wire, err));
    if (removed)
        *removed = wire->change->applied;
    conn_reply_unpacked_free(wire);
    return RP_OK;
}

rp_status rp_admin_set_limiter(rp_client *client, const char *table, const rp_limiter_change *change,
                               int64_t timeout_ms, rp_error *err)
{
    Replay__Reply *wire = NULL;
    if (!table || !change)
        return err_set(err, RP_INVALID_ARGUMENT, "a table and a change are needed");
    RP_TRY(admin_set_limiter(client_conn(client), table, change, timeout_ms, &wire, err));
    conn_reply_unpacked_free(wire);
    return RP_OK;
}
