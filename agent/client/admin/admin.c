/* The administrative calls: questions to all shards at once, one answer made from theirs, and how an answer is read by name. */
#include "agent/client/admin/admin.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "agent/client/admin/gather.h"
#include "proto/base/error.h"
#include "proto/wire/pb.h"

#define GRACE_MS 2000
/* Longest wait for one shard of several that is asked alone. */
#define SHARD_MS 1000

/* A cursor stays below 2^53, so that readers of JSON whose numbers are doubles keep it whole. */
#define CURSOR_BITS RP_CURSOR_BITS

/* ---- answers by name: an rp_info is a message ---- */

/* A field of a message, and where its value is. */
struct found {
    const ProtobufCFieldDescriptor *field; /* NULL: there is none */
    const char *at;
    size_t n; /* elements of a list; 1: no list */
};

static struct found field_of(const ProtobufCMessage *message, const char *name)
{
    const ProtobufCFieldDescriptor *field =
        message ? protobuf_c_message_descriptor_get_field_by_name(message->descriptor, name) : NULL;
    if (!field)
        return (struct found){0};
    const char *base = (const char *)message, *quantity = base + field->quantifier_offset;
    struct found found = {field, base + field->offset, 1};
    if (field->label == PROTOBUF_C_LABEL_REPEATED) {
        found.at = *(const char *const *)(const void *)found.at;
        found.n = *(const size_t *)(const void *)quantity;
    } else if (field->flags & PROTOBUF_C_FIELD_FLAG_ONEOF && *(const uint32_t *)(const void *)quantity != field->id) {
        return (struct found){0};
    }
    return found;
}

/* Element i of what was found, if it is an object. */
static const ProtobufCMessage *object_at(const struct found *found, size_t i)
{
    bool is = found->field && found->field->type == PROTOBUF_C_TYPE_MESSAGE && i < found->n;
    return is ? ((const ProtobufCMessage *const *)(const void *)found->at)[i] : NULL;
}

/* Follows a path. A number after the name of a list is the place of an element. */
static struct found find(const rp_info *info, const char *path)
{
    const ProtobufCMessage *message = (const ProtobufCMessage *)info;
    while (path) {
        char name[64];
        size_t size = strcspn(path, ".");
        if (size >= sizeof name)
            return (struct found){0};
        memcpy(name, path, size);
        name[size] = '\0';
        struct found found = field_of(message, name);
        if (!path[size] || !found.field)
            return found;
        path += size + 1;
        char *end = (char *)(uintptr_t)path;
        size_t i = found.field->label == PROTOBUF_C_LABEL_REPEATED ? strtoull(path, &end, 10) : 0;
        message = object_at(&found, i);
        path = end != path && *end == '.' ? end + 1 : path;
    }
    return (struct found){0};
}

uint64_t rp_info_u64(const rp_info *info, const char *path)
{
    struct found found = find(info, path);
    switch (found.field && found.n ? found.field->type : PROTOBUF_C_TYPE_MESSAGE) {
    case PROTOBUF_C_TYPE_FIXED64:
    case PROTOBUF_C_TYPE_UINT64:
    case PROTOBUF_C_TYPE_SINT64:
        return *(const uint64_t *)(const void *)found.at;
    case PROTOBUF_C_TYPE_UINT32:
        return *(const uint32_t *)(const void *)found.at;
    case PROTOBUF_C_TYPE_BOOL:
        return *(const protobuf_c_boolean *)(const void *)found.at != 0;
    case PROTOBUF_C_TYPE_DOUBLE: {
        double value = *(const double *)(const void *)found.at;
        return value > 0 && value < 0x1p64 ? (uint64_t)value : 0;
    }
    default:
        return 0;
    }
}

int64_t rp_info_i64(const rp_info *info, const char *path)
{
    return (int64_t)rp_info_u64(info, path);
}

double rp_info_real(const rp_info *info, const char *path)
{
    struct found found = find(info, path);
    if (found.field && found.n && found.field->type == PROTOBUF_C_TYPE_DOUBLE)
        return *(const double *)(const void *)found.at;
    return found.field && found.field->type == PROTOBUF_C_TYPE_SINT64 ? (double)rp_info_i64(info, path)
                                                                      : (double)rp_info_u64(info, path);
}

const char *rp_info_text(const rp_info *info, const char *path)
{
    struct found found = find(info, path);
    bool is = found.field && found.field->type == PROTOBUF_C_TYPE_STRING && found.n;
    return is ? *(const char *const *)(const void *)found.at : "";
}

uint32_t rp_info_count(const rp_info *info, const char *path)
{
    struct found found = find(info, path);
    bool absent = found.field && found.field->label != PROTOBUF_C_LABEL_REPEATED &&
                  found.field->type == PROTOBUF_C_TYPE_MESSAGE && !object_at(&found, 0);
    return absent ? 0 : (uint32_t)found.n;
}

const rp_info *rp_info_at(const rp_info *info, const char *path, uint32_t i)
{
    struct found found = find(info, path);
    return (const rp_info *)object_at(&found, i);
}

const rp_info *rp_info_find(const rp_info *info, const char *path, const char *name)
{
    struct found found = find(info, path);
    for (uint32_t i = 0; name && i < found.n; i++) {
        const rp_info *element = (const rp_info *)object_at(&found, i);
        if (element && strcmp(rp_info_text(element, "name"), name) == 0)
            return element;
    }
    return NULL;
}

rp_status rp_info_json(const rp_info *info, char **json, rp_error *err)
{
    struct json out = {0};
    json_message(&out, (const ProtobufCMessage *)info);
    *json = json_take(&out);
    return *json ? RP_OK : err_set(err, RP_NO_MEMORY, "no memory for the text");
}

void rp_info_free(rp_info **info)
{
    if (!info)
        return;
    unpack_free((ProtobufCMessage *)*info);
    *info = NULL;
}

void rp_string_free(char **text)
{
    if (!text)
        return;
    free(*text);
    *text = NULL;
}

/* ---- info, why ---- */

/* Merges the answers into *out, which may be NULL, and frees them. */
static rp_status finish(struct gather_answers *answers, rp_status status, rp_info **out, rp_error *err)
{
    if (status == RP_OK && out && !(*out = (rp_info *)gather_merge(answers)))
        status = err_set(err, RP_NO_MEMORY, "no memory for the broker's answer");
    gather_free(&answers);
    return status;
}

/* Asks all shards. `done`: what the others have done if one has not; NULL: an answer of some is an answer. */
static rp_status ask_all(rp_client *client, const struct gather_plan *plan, const char *done, rp_info **out,
                         rp_error *err)
{
    struct gather_answers *answers;
    if (out)
        *out = NULL;
    RP_TRY(gather(client, plan, &answers, err));
    return finish(answers, done ? gather_all_good(answers, done, err) : RP_OK, out, err);
}

/* Sends the message to one shard. */
static rp_status ask(struct conn *conn, const struct conn_message *message, Replay__Reply__BodyCase want,
                     ProtobufCMessage **out, rp_error *err)
{
    struct conn_reply *reply = NULL;
    *out = NULL;
    RP_TRY(conn_call(conn, message, &reply, err));
    rp_status status = conn_reply_read(reply, want, out, err);
    conn_reply_destroy(&reply);
    return status;
}

/* Gets the other pages of a shard's sessions. most_ms: longest wait for one; -1: none. */
static rp_status add_pages(struct conn *conn, Replay__InfoReply *info, Replay__Info *body, int64_t deadline,
                           int64_t most_ms, rp_error *err)
{
    while (info->session_cursor) {
        ProtobufCMessage *answer;
        int64_t left = conn_left_ms(deadline);
        body->session_cursor = info->session_cursor;
        struct conn_message message = {.field = REPLAY__REQUEST__BODY_INFO,
                                       .body = &body->base,
                                       .timeout_ms = most_ms >= 0 && (left < 0 || left > most_ms) ? most_ms : left};
        RP_TRY(ask(conn, &message, REPLAY__REPLY__BODY_INFO, &answer, err));
        Replay__InfoReply *page = (Replay__InfoReply *)answer;
        if (page->n_sessions == 0)
            page->session_cursor = 0; /* an empty page is the last */
        bool ok =
            gather_move((void ***)&info->sessions, &info->n_sessions, (void ***)&page->sessions, &page->n_sessions);
        info->session_cursor = page->session_cursor;
        unpack_free(answer);
        if (!ok)
            return err_set(err, RP_NO_MEMORY, "no memory for the list of sessions");
    }
    return RP_OK;
}

/* Completes the answer of a shard. One of several that is lost meanwhile is left out, as if it had not answered. */
static rp_status complete_info(rp_client *client, struct gather_answers *answers, uint32_t shard, Replay__Info *body,
                               int64_t deadline, rp_error *err)
{
    Replay__InfoReply *info = answers->of[shard].info;
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

rp_status rp_admin_info(rp_client *client, const char *table, uint32_t sessions, int64_t timeout_ms, rp_info **out,
                        rp_error *err)
{
    Replay__Info body = REPLAY__INFO__INIT;
    body.table = (char *)(uintptr_t)(table ? table : "");
    body.sessions = sessions != 0;
    int64_t deadline = conn_deadline(timeout_ms);
    struct conn_message message = {.field = REPLAY__REQUEST__BODY_INFO, .body = &body.base, .timeout_ms = timeout_ms};
    struct gather_answers *answers;
    *out = NULL;
    struct gather_plan plan = {.message = &message, .want = REPLAY__REPLY__BODY_INFO};
    rp_status status = gather(client, &plan, &answers, err);
    gather_explain(client, table, status, err);
    RP_TRY(status);
    for (uint32_t i = 0; i < answers->n && status == RP_OK; i++)
        if (answers->of[i].info)
            status = complete_info(client, answers, i, &body, deadline, err);
    return finish(answers, status, out, err);
}

rp_status rp_admin_why(rp_client *client, int64_t timeout_ms, rp_info **out, rp_error *err)
{
    Replay__Why body = REPLAY__WHY__INIT;
    struct conn_message message = {.field = REPLAY__REQUEST__BODY_WHY, .body = &body.base, .timeout_ms = timeout_ms};
    return ask_all(client, &(struct gather_plan){.message = &message, .want = REPLAY__REPLY__BODY_WHY}, NULL, out, err);
}

/* ---- list ---- */

/* A page that only names the shard whose items are missing. */
static rp_status missing_page(struct conn *conn, uint32_t shard, const rp_error *why, Replay__ListReply **out,
                              rp_error *err)
{
    Replay__ListReply list = REPLAY__LIST_REPLY__INIT;
    Replay__Shards rows = REPLAY__SHARDS__INIT;
    Replay__ShardInfo row = REPLAY__SHARD_INFO__INIT, *place = &row;
    char away[300];
    conn_describe(conn, away, sizeof away);
    row.shard = shard;
    row.service = (char *)(uintptr_t)conn_endpoint(conn);
    row.problem = (char *)(uintptr_t)(away[0] ? away : why->text);
    rows.shard = &place;
    rows.n_shard = 1;
    list.shards = &rows;
    *out = (Replay__ListReply *)unpack_clone(&list.base);
    return *out ? RP_OK : err_set(err, RP_NO_MEMORY, "no memory for the broker's answer");
}

/* A page has items of one shard, or names one that does not answer. */
static rp_status list_shard(rp_client *client, uint32_t shard, Replay__List *body, int64_t timeout_ms,
                            Replay__ListReply **out, rp_error *err)
{
    struct conn *conn = client_shard(client, shard);
    int64_t away = conn_away_ns(conn), most = away > SHARD_MS * INT64_C(1000000) ? 1 : SHARD_MS;
    struct conn_message message = {.field = REPLAY__REQUEST__BODY_LIST,
                                   .body = &body->base,
                                   .timeout_ms = timeout_ms >= 0 && timeout_ms < most ? timeout_ms : most};
    rp_error why = {0};
    rp_status status = ask(conn, &message, REPLAY__REPLY__BODY_LIST, (ProtobufCMessage **)out, &why);
    if (status == RP_UNAVAILABLE || status == RP_DEADLINE_EXCEEDED)
        return missing_page(conn, shard, &why, out, err);
    if (status != RP_OK)
        return err_set(err, status, "%s", why.text);
    for (size_t i = 0; i < (*out)->n_items; i++) {
        (*out)->items[i]->has_shard_case = REPLAY__ITEM_INFO__HAS_SHARD_SHARD;
        (*out)->items[i]->shard = shard;
    }
    return RP_OK;
}

/* Lists a page of several shards: the rest of one, or the beginning of the next that has items. */
static rp_status list_shards(rp_client *client, Replay__List *body, int64_t timeout_ms, Replay__ListReply **out,
                             rp_error *err)
{
    uint32_t n = client_shards(client), shard = (uint32_t)(body->cursor >> CURSOR_BITS);
    if (shard >= n)
        return err_set(err, RP_INVALID_ARGUMENT, "the cursor is of shard %u, and there are %u", shard, n);
    int64_t deadline = conn_deadline(timeout_ms);
    body->cursor &= (UINT64_C(1) << CURSOR_BITS) - 1;
    for (;; shard++, body->cursor = 0) {
        RP_TRY(list_shard(client, shard, body, conn_left_ms(deadline), out, err));
        Replay__ListReply *list = *out;
        bool lost = list->cursor >> CURSOR_BITS;
        if (list->cursor)
            list->cursor |= (uint64_t)shard << CURSOR_BITS;
        else if (shard + 1 < n)
            list->cursor = (uint64_t)(shard + 1) << CURSOR_BITS;
        if (!lost && (list->n_items || list->shards || shard + 1 == n || list->cursor >> CURSOR_BITS == shard))
            return RP_OK;
        unpack_free(&list->base);
        *out = NULL;
        if (lost)
            return err_set(err, RP_BAD_MESSAGE, "shard %u continues its list at no place of a table", shard);
    }
}

rp_status rp_admin_list(rp_client *client, const char *table, uint64_t cursor, uint32_t limit, int64_t timeout_ms,
                        rp_info **out, rp_error *err)
{
    Replay__List body = REPLAY__LIST__INIT;
    *out = NULL;
    if (!table)
        return err_set(err, RP_INVALID_ARGUMENT, "a table is needed");
    body.table = (char *)(uintptr_t)table;
    body.cursor = cursor;
    body.limit = limit;
    struct conn_message message = {.field = REPLAY__REQUEST__BODY_LIST, .body = &body.base, .timeout_ms = timeout_ms};
    rp_status status = client_shards(client) == 1
                           ? ask(client_conn(client), &message, REPLAY__REPLY__BODY_LIST, (ProtobufCMessage **)out, err)
                           : list_shards(client, &body, timeout_ms, (Replay__ListReply **)out, err);
    gather_explain(client, table, status, err);
    return status;
}

/* ---- changes ---- */

rp_status rp_admin_reset(rp_client *client, const char *table, int64_t timeout_ms, rp_info **out, rp_error *err)
{
    Replay__Reset body = REPLAY__RESET__INIT;
    if (!table)
        return err_set(err, RP_INVALID_ARGUMENT, "a table is needed");
    body.table = (char *)(uintptr_t)table;
    struct conn_message message = {.field = REPLAY__REQUEST__BODY_RESET, .body = &body.base, .timeout_ms = timeout_ms};
    struct gather_plan plan = {.message = &message, .want = REPLAY__REPLY__BODY_CHANGE, .patient = true};
    rp_status status = ask_all(client, &plan, "are reset", out, err);
    gather_explain(client, table, status, err);
    return status;
}

rp_status rp_admin_checkpoint(rp_client *client, int64_t timeout_ms, rp_info **out, rp_error *err)
{
    Replay__Checkpoint body = REPLAY__CHECKPOINT__INIT;
    if (timeout_ms >= 0) {
        body.has_timeout_ms_case = REPLAY__CHECKPOINT__HAS_TIMEOUT_MS_TIMEOUT_MS;
        body.timeout_ms = (uint64_t)timeout_ms;
    }
    /* The broker's own answer to a time-out says how far the checkpoint is: leave it the time to arrive. */
    struct conn_message message = {
        .field = REPLAY__REQUEST__BODY_CHECKPOINT, .body = &body.base, .timeout_ms = timeout_ms, .grace_ms = GRACE_MS};
    struct gather_plan plan = {.message = &message, .want = REPLAY__REPLY__BODY_CHECKPOINT, .patient = true};
    return ask_all(client, &plan, "have made a checkpoint", out, err);
}

#define CHANGE(NAME, field, value)                                                                                     \
    if (change->set & RP_LIMITER_##NAME) {                                                                             \
        body.has_##field##_case = REPLAY__SET_LIMITER__HAS_##NAME##_##NAME;                                            \
        body.field = (value);                                                                                          \
    }

/* Each shard has its part of the limiter, as in the configuration: parts of min_size add up to the whole. */
static Replay__SetLimiter limiter_part(const char *table, const rp_limiter_change *change, uint32_t n, uint32_t shard)
{
    double size = change->min_size;
    Replay__SetLimiter body = REPLAY__SET_LIMITER__INIT;
    body.table = (char *)(uintptr_t)table;
    CHANGE(SAMPLES_PER_INSERT, samples_per_insert, change->samples_per_insert)
    CHANGE(MIN_SIZE, min_size, n == 1 ? size : floor(size / n) + (shard < fmod(size, n) ? 1 : 0))
    CHANGE(MIN_DIFF, min_diff, change->min_diff / n)
    CHANGE(MAX_DIFF, max_diff, change->max_diff / n)
    CHANGE(ERROR_BUFFER, error_buffer, change->error_buffer / n)
    CHANGE(MAX_LAG, max_lag, change->max_lag)
    if (change->set & (RP_LIMITER_PAUSE | RP_LIMITER_GO)) {
        body.has_paused_case = REPLAY__SET_LIMITER__HAS_PAUSED_PAUSED;
        body.paused = !(change->set & RP_LIMITER_GO);
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

rp_status rp_admin_set_limiter(rp_client *client, const char *table, const rp_limiter_change *change,
                               int64_t timeout_ms, rp_info **out, rp_error *err)
{
    Replay__SetLimiter parts[WIRE_MAX_SHARDS];
    struct conn_message messages[WIRE_MAX_SHARDS];
    const struct conn_message *each[WIRE_MAX_SHARDS];
    uint32_t n = client_shards(client);
    if (!table || !change)
        return err_set(err, RP_INVALID_ARGUMENT, "a table and a change are needed");
    if (change->struct_size < sizeof *change)
        return err_set(err, RP_INVALID_ARGUMENT, "struct_size of the change is not set");
    if (change->set & RP_LIMITER_PAUSE && change->set & RP_LIMITER_GO)
        return err_set(err, RP_INVALID_ARGUMENT, "a table is paused or goes on: set one of the two");
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
    rp_status status = ask_all(client, &plan, "have the new limiter, so set it again when all answer", out, err);
    if (status == RP_INVALID_ARGUMENT && n > 1)
        return refused_part(n, err);
    gather_explain(client, table, status, err);
    return status;
}
