/* The administrative calls: questions to all shards at once, and one answer made from theirs. */
#include "agent/client/admin/admin.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "agent/client/admin/merge.h"
#include "proto/base/error.h"

#define GRACE_MS 2000
/* Longest wait for one shard of several that is asked alone. */
#define SHARD_MS 1000

/* A cursor stays below 2^53, so that readers of JSON whose numbers are doubles keep it whole. */
#define CURSOR_BITS RP_CURSOR_BITS

static rp_status no_memory(rp_error *err)
{
    return err_set(err, RP_NO_MEMORY, "no memory for the broker's answer");
}

/* ---- info, why ---- */

/* Sends the message to one shard and unpacks the reply, whose body has to be `want`. */
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

/* Gets the other pages of a shard's sessions. most_ms: longest wait for one; -1: none. */
static rp_status add_pages(struct conn *conn, Replay__InfoReply *info, Replay__Info *body, int64_t deadline,
                           int64_t most_ms, rp_error *err)
{
    while (info->session_cursor) {
        Replay__Reply *page;
        int64_t left = conn_left_ms(deadline);
        body->session_cursor = info->session_cursor;
        struct conn_message message = {.field = REPLAY__REQUEST__BODY_INFO,
                                       .body = &body->base,
                                       .timeout_ms = most_ms >= 0 && (left < 0 || left > most_ms) ? most_ms : left};
        RP_TRY(ask(conn, &message, REPLAY__REPLY__BODY_INFO, &page, err));
        if (page->info->n_sessions == 0)
            page->info->session_cursor = 0;
        bool ok = merge_sessions(info, page->info);
        conn_reply_unpacked_free(page);
        if (!ok)
            return err_set(err, RP_NO_MEMORY, "no memory for the list of sessions");
    }
    return RP_OK;
}

/* Completes the answer of a shard. One of several that is lost meanwhile is left out, as if it had not answered. */
static rp_status complete_info(rp_client *client, struct gather_answers *answers, uint32_t shard, Replay__Info *body,
                               int64_t deadline, rp_error *err)
{
    Replay__InfoReply *info = answers->of[shard].wire->info;
    struct conn *conn = client_shard(client, shard);
    rp_error why = {0};
    rp_status status = RP_OK;
    if (!info->server)
        status = err_set(&why, RP_BAD_MESSAGE, "the broker's reply does not tell about the server");
    else if (body->sessions)
        status = add_pages(conn, info, body, deadline, answers->n > 1 ? SHARD_MS : -1, &why);
    if ((status == RP_UNAVAILABLE || status == RP_DEADLINE_EXCEEDED) && answers->good > 1) {
        gather_drop(answers, shard, &why);
        return RP_OK;
    }
    return status == RP_OK ? RP_OK : err_set(err, status, "%s", why.text);
}

rp_status admin_info(rp_client *client, const char *table, bool sessions, int64_t timeout_ms, Replay__Reply **out,
                     rp_error *err)
{
    Replay__Info body = REPLAY__INFO__INIT;
    body.table = (char *)(uintptr_t)(table ? table : "");
    body.sessions = sessions;
    int64_t deadline = conn_deadline(timeout_ms);
    struct conn_message message = {.field = REPLAY__REQUEST__BODY_INFO, .body = &body.base, .timeout_ms = timeout_ms};
    struct gather_answers *answers;
    *out = NULL;
    struct gather_plan plan = {.message = &message, .want = REPLAY__REPLY__BODY_INFO};
    rp_status status = gather(client, &plan, &answers, err);
    gather_explain(client, table, status, err);
    RP_TRY(status);
    for (uint32_t i = 0; i < answers->n && status == RP_OK; i++)
        if (answers->of[i].wire)
            status = complete_info(client, answers, i, &body, deadline, err);
    if (status == RP_OK && !(*out = merge_info(answers)))
        status = no_memory(err);
    gather_free(&answers);
    return status;
}

/* Asks all shards and merges. `done`: what the others have done if one has not; NULL: an answer of some is an answer. */
static rp_status ask_all(rp_client *client, const struct gather_plan *plan, const char *done,
                         Replay__Reply *(*merge)(struct gather_answers *), Replay__Reply **out, rp_error *err)
{
    struct gather_answers *answers;
    *out = NULL;
    RP_TRY(gather(client, plan, &answers, err));
    rp_status status = done ? gather_all_good(answers, done, err) : RP_OK;
    if (status == RP_OK && !(*out = merge(answers)))
        status = no_memory(err);
    gather_free(&answers);
    return status;
}

rp_status admin_why(rp_client *client, int64_t timeout_ms, Replay__Reply **out, rp_error *err)
{
    Replay__Why body = REPLAY__WHY__INIT;
    struct conn_message message = {.field = REPLAY__REQUEST__BODY_WHY, .body = &body.base, .timeout_ms = timeout_ms};
    return ask_all(client, &(struct gather_plan){.message = &message, .want = REPLAY__REPLY__BODY_WHY}, NULL, merge_why,
                   out, err);
}

/* ---- list ---- */

/* A page that only names the shard whose items are missing. */
static rp_status missing_page(struct conn *conn, uint32_t shard, const rp_error *why, Replay__Reply **out,
                              rp_error *err)
{
    Replay__ListReply list = REPLAY__LIST_REPLY__INIT;
    Replay__Shards rows = REPLAY__SHARDS__INIT;
    Replay__ShardInfo row = REPLAY__SHARD_INFO__INIT, *place = &row;
    Replay__Reply reply = REPLAY__REPLY__INIT;
    char away[300];
    conn_describe(conn, away, sizeof away);
    row.shard = shard;
    row.service = (char *)(uintptr_t)conn_endpoint(conn);
    row.problem = (char *)(uintptr_t)(away[0] ? away : why->text);
    rows.shard = &place;
    rows.n_shard = 1;
    list.shards = &rows;
    reply.body_case = REPLAY__REPLY__BODY_LIST;
    reply.list = &list;
    *out = (Replay__Reply *)merge_clone(&reply.base);
    return *out ? RP_OK : no_memory(err);
}

/* A page has items of one shard, or names one that does not answer. */
static rp_status list_shard(rp_client *client, uint32_t shard, Replay__List *body, int64_t timeout_ms,
                            Replay__Reply **out, rp_error *err)
{
    struct conn *conn = client_shard(client, shard);
    int64_t away = conn_away_ns(conn), most = away > SHARD_MS * INT64_C(1000000) ? 1 : SHARD_MS;
    struct conn_message message = {.field = REPLAY__REQUEST__BODY_LIST,
                                   .body = &body->base,
                                   .timeout_ms = timeout_ms >= 0 && timeout_ms < most ? timeout_ms : most};
    rp_error why = {0};
    rp_status status = ask(conn, &message, REPLAY__REPLY__BODY_LIST, out, &why);
    if (status == RP_UNAVAILABLE || status == RP_DEADLINE_EXCEEDED)
        return missing_page(conn, shard, &why, out, err);
    if (status != RP_OK)
        return err_set(err, status, "%s", why.text);
    for (size_t i = 0; i < (*out)->list->n_items; i++) {
        (*out)->list->items[i]->has_shard_case = REPLAY__ITEM_INFO__HAS_SHARD_SHARD;
        (*out)->list->items[i]->shard = shard;
    }
    return RP_OK;
}

static rp_status list_page(rp_client *client, const struct admin_page *page, int64_t timeout_ms, Replay__Reply **out,
                           rp_error *err)
{
    Replay__List body = REPLAY__LIST__INIT;
    uint32_t n = client_shards(client);
    body.table = (char *)(uintptr_t)page->table;
    body.cursor = page->cursor;
    body.limit = page->limit;
    struct conn_message message = {.field = REPLAY__REQUEST__BODY_LIST, .body = &body.base, .timeout_ms = timeout_ms};
    if (n == 1)
        return ask(client_conn(client), &message, REPLAY__REPLY__BODY_LIST, out, err);
    uint32_t shard = (uint32_t)(page->cursor >> CURSOR_BITS);
    if (shard >= n)
        return err_set(err, RP_INVALID_ARGUMENT, "the cursor is of shard %u, and there are %u", shard, n);
    int64_t deadline = conn_deadline(timeout_ms);
    body.cursor = page->cursor & ((UINT64_C(1) << CURSOR_BITS) - 1);
    for (;; shard++, body.cursor = 0) {
        RP_TRY(list_shard(client, shard, &body, conn_left_ms(deadline), out, err));
        Replay__ListReply *list = (*out)->list;
        if (list->cursor >> CURSOR_BITS) {
            conn_reply_unpacked_free(*out);
            *out = NULL;
            return err_set(err, RP_BAD_MESSAGE, "shard %u continues its list at no place of a table", shard);
        }
        if (list->cursor)
            list->cursor |= (uint64_t)shard << CURSOR_BITS;
        else if (shard + 1 < n)
            list->cursor = (uint64_t)(shard + 1) << CURSOR_BITS;
        if (list->n_items || list->shards || shard + 1 == n || list->cursor >> CURSOR_BITS == shard)
            return RP_OK;
        conn_reply_unpacked_free(*out);
        *out = NULL;
    }
}

rp_status admin_list(rp_client *client, const struct admin_page *page, int64_t timeout_ms, Replay__Reply **out,
                     rp_error *err)
{
    rp_status status = list_page(client, page, timeout_ms, out, err);
    gather_explain(client, page->table, status, err);
    return status;
}

/* ---- changes ---- */

rp_status admin_reset(rp_client *client, const char *table, int64_t timeout_ms, Replay__Reply **out, rp_error *err)
{
    Replay__Reset body = REPLAY__RESET__INIT;
    body.table = (char *)(uintptr_t)table;
    struct conn_message message = {.field = REPLAY__REQUEST__BODY_RESET, .body = &body.base, .timeout_ms = timeout_ms};
    struct gather_plan plan = {.message = &message, .want = REPLAY__REPLY__BODY_CHANGE, .patient = true};
    rp_status status = ask_all(client, &plan, "are reset", merge_change, out, err);
    gather_explain(client, table, status, err);
    return status;
}

rp_status admin_checkpoint(rp_client *client, int64_t timeout_ms, Replay__Reply **out, rp_error *err)
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
    struct gather_plan plan = {.message = &message, .want = REPLAY__REPLY__BODY_CHECKPOINT, .patient = true};
    return ask_all(client, &plan, "have made a checkpoint", merge_checkpoint, out, err);
}

/* Each shard has its part of the limiter, as in the configuration: parts of min_size add up to the whole. */
static Replay__SetLimiter limiter_part(const char *table, const rp_limiter_change *change, uint32_t n, uint32_t shard)
{
    Replay__SetLimiter body = REPLAY__SET_LIMITER__INIT;
    body.table = (char *)(uintptr_t)table;
    if (change->set & RP_LIMITER_SAMPLES_PER_INSERT) {
        body.has_samples_per_insert_case = REPLAY__SET_LIMITER__HAS_SAMPLES_PER_INSERT_SAMPLES_PER_INSERT;
        body.samples_per_insert = change->samples_per_insert;
    }
    if (change->set & RP_LIMITER_MIN_SIZE) {
        body.has_min_size_case = REPLAY__SET_LIMITER__HAS_MIN_SIZE_MIN_SIZE;
        body.min_size =
            n == 1 ? change->min_size : floor(change->min_size / n) + (shard < fmod(change->min_size, n) ? 1 : 0);
    }
    if (change->set & RP_LIMITER_MIN_DIFF) {
        body.has_min_diff_case = REPLAY__SET_LIMITER__HAS_MIN_DIFF_MIN_DIFF;
        body.min_diff = change->min_diff / n;
    }
    if (change->set & RP_LIMITER_MAX_DIFF) {
        body.has_max_diff_case = REPLAY__SET_LIMITER__HAS_MAX_DIFF_MAX_DIFF;
        body.max_diff = change->max_diff / n;
    }
    if (change->set & RP_LIMITER_ERROR_BUFFER) {
        body.has_error_buffer_case = REPLAY__SET_LIMITER__HAS_ERROR_BUFFER_ERROR_BUFFER;
        body.error_buffer = change->error_buffer / n;
    }
    return body;
}

/* The shards speak of the numbers that each of them got. */
static rp_status refused_part(uint32_t n, rp_error *err)
{
    const rp_error part = err ? *err : (rp_error){0};
    return err_set(err, RP_INVALID_ARGUMENT,
                   "%.380s. These are the numbers of one of %u shards: set %u times as much for the table", part.text,
                   n, n);
}

rp_status admin_set_limiter(rp_client *client, const char *table, const rp_limiter_change *change, int64_t timeout_ms,
                            Replay__Reply **out, rp_error *err)
{
    Replay__SetLimiter parts[WIRE_MAX_SHARDS];
    struct conn_message messages[WIRE_MAX_SHARDS];
    const struct conn_message *each[WIRE_MAX_SHARDS];
    uint32_t n = client_shards(client);
    if (change->struct_size < sizeof *change)
        return err_set(err, RP_INVALID_ARGUMENT, "struct_size of the change is not set");
    bool whole = change->min_size >= 1 && change->min_size == floor(change->min_size);
    if (n > 1 && change->set & RP_LIMITER_MIN_SIZE && !whole) /* a part of it could be a number that a shard takes */
        return err_set(err, RP_INVALID_ARGUMENT, "min_size is %g; write a whole number of at least 1",
                       change->min_size);
    for (uint32_t i = 0; i < n; i++) {
        parts[i] = limiter_part(table, change, n, i);
        messages[i] = (struct conn_message){
            .field = REPLAY__REQUEST__BODY_SET_LIMITER, .body = &parts[i].base, .timeout_ms = timeout_ms};
        each[i] = &messages[i];
    }
    struct gather_plan plan = {.each = each, .want = REPLAY__REPLY__BODY_LIMITER, .patient = true};
    rp_status status =
        ask_all(client, &plan, "have the new limiter, so set it again when all answer", merge_limiter, out, err);
    if (status == RP_INVALID_ARGUMENT && n > 1)
        return refused_part(n, err);
    gather_explain(client, table, status, err);
    return status;
}

/* ---- the public calls ---- */

rp_status rp_admin_checkpoint(rp_client *client, int64_t timeout_ms, rp_checkpoint_info *out, rp_error *err)
{
    Replay__Reply *reply;
    if (out && out->struct_size < sizeof *out)
        return err_set(err, RP_INVALID_ARGUMENT, "struct_size of the result is not set");
    RP_TRY(admin_checkpoint(client, timeout_ms, &reply, err));
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

rp_status rp_admin_list(rp_client *client, const char *table, uint64_t *cursor, rp_item_info *items, uint32_t *n,
                        int64_t timeout_ms, rp_error *err)
{
    Replay__Reply *wire = NULL;
    uint32_t room = *n;
    *n = 0;
    if (!table || room == 0)
        return err_set(err, RP_INVALID_ARGUMENT, "a table and room for at least one item are needed");
    RP_TRY(admin_list(client, &(struct admin_page){table, *cursor, room}, timeout_ms, &wire, err));
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
                                       .episode = item->episode,
                                       .shard = item->shard};
    }
    *cursor = wire->list->cursor;
    rp_status status = RP_OK;
    if (wire->list->shards)
        status = err_set(err, RP_UNAVAILABLE, "%s", wire->list->shards->shard[0]->problem);
    conn_reply_unpacked_free(wire);
    return status;
}

rp_status rp_admin_reset(rp_client *client, const char *table, int64_t timeout_ms, uint64_t *removed, rp_error *err)
{
    Replay__Reply *wire = NULL;
    if (!table)
        return err_set(err, RP_INVALID_ARGUMENT, "a table is needed");
    RP_TRY(admin_reset(client, table, timeout_ms, &wire, err));
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
    RP_TRY(admin_set_limiter(client, table, change, timeout_ms, &wire, err));
    conn_reply_unpacked_free(wire);
    return RP_OK;
}
