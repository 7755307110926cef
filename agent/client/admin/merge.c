#include "agent/client/admin/merge.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- helpers ---- */

ProtobufCMessage *merge_clone(const ProtobufCMessage *from)
{
    size_t size = protobuf_c_message_get_packed_size(from);
    uint8_t *bytes = malloc(size + 1);
    ProtobufCMessage *copy = NULL;
    if (bytes && protobuf_c_message_pack(from, bytes) == size)
        copy = protobuf_c_message_unpack(from->descriptor, NULL, size, bytes);
    free(bytes);
    return copy;
}

bool merge_set_text(char **text, const char *format, ...)
{
    va_list args;
    char *made = NULL;
    va_start(args, format);
    int size = vasprintf(&made, format, args);
    va_end(args);
    if (size < 0)
        return false;
    if (*text != (const char *)protobuf_c_empty_string)
        free(*text);
    *text = made;
    return true;
}

bool merge_append(void ***array, size_t *n, void *const *more, size_t n_more)
{
    if (n_more == 0)
        return true;
    void **grown = realloc(*array, (*n + n_more) * sizeof *grown);
    if (!grown)
        return false;
    memcpy(grown + *n, more, n_more * sizeof *grown);
    *array = grown;
    *n += n_more;
    return true;
}

bool merge_append_copy(void ***array, size_t *n, const ProtobufCMessage *from)
{
    void *copy = merge_clone(from);
    bool ok = copy && merge_append(array, n, &copy, 1);
    if (!ok && copy)
        protobuf_c_message_free_unpacked(copy, NULL);
    return ok;
}

/* Moves all pointers of an array to the end of another. */
static bool move(void ***into, size_t *n, void ***from, size_t *n_from)
{
    if (!merge_append(into, n, *from, *n_from))
        return false;
    free(*from);
    *from = NULL;
    *n_from = 0;
    return true;
}

/* Makes a row for each shard that was asked. NULL: no memory. */
static Replay__Shards *shards_new(const struct gather_answers *answers)
{
    Replay__Shards *self = malloc(sizeof *self);
    bool ok = self != NULL;
    if (ok)
        replay__shards__init(self);
    for (uint32_t i = 0; i < answers->n && ok; i++) {
        Replay__ShardInfo *row = malloc(sizeof *row);
        ok = row != NULL;
        if (!ok)
            break;
        replay__shard_info__init(row);
        row->shard = i;
        void *place = row;
        ok = merge_set_text(&row->service, "%s", answers->of[i].service) &&
             merge_set_text(&row->problem, "%s", answers->of[i].problem) &&
             merge_append((void ***)&self->shard, &self->n_shard, &place, 1);
        if (!ok)
            replay__shard_info__free_unpacked(row, NULL);
    }
    if (!ok && self)
        replay__shards__free_unpacked(self, NULL);
    return ok ? self : NULL;
}

/* Begins a merge: takes the message of the first shard, and makes the rows. NULL: no memory. */
static Replay__Reply *begin(struct gather_answers *answers, Replay__Shards **rows)
{
    *rows = shards_new(answers);
    return *rows ? gather_take(answers, gather_first(answers)) : NULL;
}

static Replay__Reply *end(Replay__Reply *reply, bool ok)
{
    if (ok)
        return reply;
    conn_reply_unpacked_free(reply);
    return NULL;
}

/* ---- info ---- */

static bool add_tables(Replay__InfoReply *into, const Replay__InfoReply *from)
{
    bool ok = true;
    for (size_t i = 0; i < into->n_tables; i++)
        for (size_t k = 0; k < from->n_tables && ok; k++)
            if (strcmp(into->tables[i]->name, from->tables[k]->name) == 0)
                ok = merge_add_table(into->tables[i], from->tables[k]);
    return ok;
}

static void add_slot(Replay__SlotInfo *into, const Replay__SlotInfo *from)
{
    if (from->version >= into->version)
        return;
    into->version = from->version;
    into->bytes = from->bytes;
    into->age_ns = from->age_ns;
}

/* A publisher puts parameters to all shards: readers of the slowest one get its version. A shard that came back empty may have no
 * slot yet. False: no memory. */
static bool add_slots(Replay__InfoReply *into, const Replay__InfoReply *from)
{
    bool ok = true;
    for (size_t k = 0; k < from->n_slots && ok; k++) {
        size_t i = 0;
        while (i < into->n_slots && strcmp(into->slots[i]->name, from->slots[k]->name) != 0)
            i++;
        if (i < into->n_slots)
            add_slot(into->slots[i], from->slots[k]);
        else
            ok = merge_append_copy((void ***)&into->slots, &into->n_slots, &from->slots[k]->base);
    }
    return ok;
}

static void mark_sessions(const Replay__InfoReply *info, uint32_t shard)
{
    for (size_t i = 0; i < info->n_sessions; i++) {
        info->sessions[i]->has_shard_case = REPLAY__SESSION_INFO__HAS_SHARD_SHARD;
        info->sessions[i]->shard = shard;
    }
}

/* The row of the first shard gets copies, because the sum goes on with its message. */
static bool copy_to_row(const Replay__InfoReply *info, Replay__ShardInfo *row)
{
    bool ok = (row->server = (Replay__ServerInfo *)merge_clone(&info->server->base)) != NULL;
    if (info->disk)
        ok = (row->disk = (Replay__DiskInfo *)merge_clone(&info->disk->base)) != NULL && ok;
    for (size_t i = 0; i < info->n_tables && ok; i++)
        ok = merge_append_copy((void ***)&row->tables, &row->n_tables, &info->tables[i]->base);
    return ok;
}

static bool move_to_row(Replay__InfoReply *info, Replay__ShardInfo *row)
{
    row->server = info->server;
    row->disk = info->disk;
    info->server = NULL;
    info->disk = NULL;
    return move((void ***)&row->tables, &row->n_tables, (void ***)&info->tables, &info->n_tables);
}

static bool add_info(Replay__InfoReply *into, Replay__InfoReply *from, Replay__ShardInfo *row)
{
    mark_sessions(from, row->shard);
    bool ok = add_slots(into, from) && merge_add_server(into->server, from->server) && add_tables(into, from);
    if (into->disk && from->disk)
        ok = merge_add_disk(into->disk, from->disk, row->shard) && ok;
    return ok && move((void ***)&into->sessions, &into->n_sessions, (void ***)&from->sessions, &from->n_sessions) &&
           move_to_row(from, row);
}

static bool end_tables(const Replay__InfoReply *info, uint32_t first, uint32_t n)
{
    bool ok = true;
    for (size_t i = 0; i < info->n_tables && ok; i++)
        ok = !info->tables[i]->limiter || merge_end_limiter(info->tables[i]->limiter, first, n);
    return ok;
}

Replay__Reply *merge_info(struct gather_answers *answers)
{
    Replay__Shards *rows;
    uint32_t first = gather_first(answers);
    if (answers->n == 1)
        return gather_take(answers, 0);
    Replay__Reply *sum = begin(answers, &rows);
    if (!sum)
        return NULL;
    sum->info->shards = rows;
    mark_sessions(sum->info, first);
    bool ok = copy_to_row(sum->info, rows->shard[first]);
    for (uint32_t i = first + 1; i < answers->n && ok; i++)
        if (answers->of[i].wire)
            ok = add_info(sum->info, answers->of[i].wire->info, rows->shard[i]);
    return end(sum, ok && end_tables(sum->info, first, answers->good));
}

/* ---- why ---- */

static bool is_for_all(const Replay__Wait *wait)
{
    return wait->has_shard_case == REPLAY__WAIT__HAS_SHARD_ALL_SHARDS;
}

static bool name_shard(const Replay__WhyReply *why, uint32_t shard)
{
    bool ok = true;
    for (size_t i = 0; i < why->n_waits && ok; i++) {
        char *was = why->waits[i]->text;
        if (is_for_all(why->waits[i]))
            continue;
        why->waits[i]->has_shard_case = REPLAY__WAIT__HAS_SHARD_SHARD;
        why->waits[i]->shard = shard;
        why->waits[i]->text = (char *)(uintptr_t)protobuf_c_empty_string;
        ok = merge_set_text(&why->waits[i]->text, "shard %u: %s", shard, was);
        if (was != (const char *)protobuf_c_empty_string)
            free(was);
    }
    return ok;
}

/* Returns the same wait as another shard told it. NULL: none has. */
static Replay__Wait *told_before(const Replay__WhyReply *why, const Replay__Wait *wait)
{
    for (size_t i = 0; is_for_all(wait) && i < why->n_waits; i++) {
        Replay__Wait *other = why->waits[i];
        if (is_for_all(other) && strcmp(other->who, wait->who) == 0 && strcmp(other->kind, wait->kind) == 0 &&
            strcmp(other->table, wait->table) == 0)
            return other;
    }
    return NULL;
}

/* Takes out the waits for all shards that are in the sum. */
static void drop_told(const Replay__WhyReply *sum, Replay__WhyReply *from)
{
    size_t n = 0;
    for (size_t i = 0; i < from->n_waits; i++) {
        Replay__Wait *wait = from->waits[i], *before = told_before(sum, wait);
        if (!before) {
            from->waits[n++] = wait;
            continue;
        }
        before->waited_ns = before->waited_ns > wait->waited_ns ? before->waited_ns : wait->waited_ns;
        replay__wait__free_unpacked(wait, NULL);
    }
    from->n_waits = n;
}

static bool add_missing(Replay__WhyReply *why, const struct gather_answer *answer, uint32_t shard)
{
    Replay__Wait *wait = malloc(sizeof *wait);
    void *place = wait;
    if (!wait)
        return false;
    replay__wait__init(wait);
    wait->has_shard_case = REPLAY__WAIT__HAS_SHARD_SHARD;
    wait->shard = shard;
    wait->waited_ns = answer->away_ns > 0 ? (uint64_t)answer->away_ns : 0;
    if (merge_set_text(&wait->who, "shard %u", shard) && merge_set_text(&wait->kind, "shard") &&
        merge_set_text(&wait->text, "%s", answer->problem) &&
        merge_append((void ***)&why->waits, &why->n_waits, &place, 1))
        return true;
    replay__wait__free_unpacked(wait, NULL);
    return false;
}

Replay__Reply *merge_why(struct gather_answers *answers)
{
    uint32_t first = gather_first(answers);
    Replay__Reply *sum = gather_take(answers, first);
    if (answers->n == 1)
        return sum;
    bool ok = name_shard(sum->why, first);
    for (uint32_t i = 0; i < answers->n && ok; i++) {
        if (!answers->of[i].wire) {
            ok = i == first || add_missing(sum->why, &answers->of[i], i);
            continue;
        }
        Replay__WhyReply *more = answers->of[i].wire->why;
        drop_told(sum->why, more);
        ok = name_shard(more, i) &&
             move((void ***)&sum->why->waits, &sum->why->n_waits, (void ***)&more->waits, &more->n_waits);
    }
    return end(sum, ok);
}

/* ---- changes ---- */

Replay__Reply *merge_change(struct gather_answers *answers)
{
    Replay__Shards *rows;
    if (answers->n == 1)
        return gather_take(answers, 0);
    Replay__Reply *sum = begin(answers, &rows);
    if (!sum)
        return NULL;
    bool ok =
        (rows->shard[gather_first(answers)]->change = (Replay__ChangeReply *)merge_clone(&sum->change->base)) != NULL;
    for (uint32_t i = 0; i < answers->n; i++) {
        if (!answers->of[i].wire)
            continue;
        Replay__ChangeReply *from = answers->of[i].wire->change;
        sum->change->applied += from->applied;
        sum->change->missing += from->missing;
        sum->change->refused += from->refused;
        rows->shard[i]->change = from;
        answers->of[i].wire->change = NULL;
    }
    sum->change->shards = rows;
    return end(sum, ok);
}

Replay__Reply *merge_checkpoint(struct gather_answers *answers)
{
    Replay__Shards *rows;
    if (answers->n == 1)
        return gather_take(answers, 0);
    Replay__Reply *sum = begin(answers, &rows);
    if (!sum)
        return NULL;
    bool ok = (rows->shard[gather_first(answers)]->checkpoint =
                   (Replay__CheckpointReply *)merge_clone(&sum->checkpoint->base)) != NULL;
    for (uint32_t i = 0; i < answers->n; i++) {
        if (!answers->of[i].wire)
            continue;
        Replay__CheckpointReply *from = answers->of[i].wire->checkpoint;
        sum->checkpoint->items += from->items;
        sum->checkpoint->written_bytes += from->written_bytes;
        if (from->took_ns > sum->checkpoint->took_ns)
            sum->checkpoint->took_ns = from->took_ns;
        rows->shard[i]->checkpoint = from;
        answers->of[i].wire->checkpoint = NULL;
    }
    sum->checkpoint->shards = rows;
    return end(sum, ok);
}

Replay__Reply *merge_limiter(struct gather_answers *answers)
{
    uint32_t first = gather_first(answers);
    Replay__Reply *sum = gather_take(answers, first);
    bool ok = true;
    for (uint32_t i = 0; i < answers->n && ok; i++)
        if (answers->of[i].wire)
            ok = merge_add_limiter(sum->limiter, answers->of[i].wire->limiter);
    return end(sum, ok && (answers->n == 1 || merge_end_limiter(sum->limiter, first, answers->good)));
}
