#include "agent/client/admin/merge.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "proto/wire/figures.h"

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

/* Replaces a string of a message. False: no memory. */
static bool set_text(char **text, const char *format, ...) RP_PRINTF(2, 3);

static bool set_text(char **text, const char *format, ...)
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

/* Appends n pointers to an array of a message. False: no memory. */
static bool append(void ***array, size_t *n, void *const *more, size_t n_more)
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

/* Appends a copy of a message. False: no memory. */
static bool append_copy(void ***array, size_t *n, const ProtobufCMessage *from)
{
    void *copy = merge_clone(from);
    bool ok = copy && append(array, n, &copy, 1);
    if (!ok && copy)
        protobuf_c_message_free_unpacked(copy, NULL);
    return ok;
}

/* Moves all pointers of an array to the end of another. */
static bool move(void ***into, size_t *n, void ***from, size_t *n_from)
{
    if (!append(into, n, *from, *n_from))
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
        ok = set_text(&row->service, "%s", answers->of[i].service) &&
             set_text(&row->problem, "%s", answers->of[i].problem) &&
             append((void ***)&self->shard, &self->n_shard, &place, 1);
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

/* ---- numbers ---- */

static const char *name_of(const ProtobufCMessage *message)
{
    return *(const char *const *)(const void *)((const char *)message + message->descriptor->fields[0].offset);
}

/* Adds a histogram place by place. False: no memory. */
static bool add_counts(uint64_t **into, size_t *n, const uint64_t *from, size_t n_from)
{
    if (n_from > *n) {
        uint64_t *grown = realloc(*into, n_from * sizeof *grown);
        if (!grown)
            return false;
        memset(grown + *n, 0, (n_from - *n) * sizeof *grown);
        *into = grown;
        *n = n_from;
    }
    for (size_t i = 0; i < n_from; i++)
        (*into)[i] += from[i];
    return true;
}

/* Adds messages that have a name: those of one name become one; a name that the shards before did not have is new in the list. */
static bool add_list(void ***into, size_t *n, ProtobufCMessage *const *from, size_t n_from)
{
    bool ok = true;
    for (size_t k = 0; k < n_from && ok; k++) {
        size_t i = 0;
        while (i < *n && strcmp(name_of((*into)[i]), name_of(from[k])) != 0)
            i++;
        ok = i < *n ? merge_add((*into)[i], from[k]) : append_copy(into, n, from[k]);
    }
    return ok;
}

/* Sessions and shards are no sums: merge_info has them. Items of a shard may have come before those of another: the first that knows
 * a signature tells it. False: no memory. */
static bool add_repeated(const ProtobufCFieldDescriptor *field, char *into, const char *from)
{
    size_t *n = (size_t *)(void *)(into + field->quantifier_offset);
    size_t n_from = *(const size_t *)(const void *)(from + field->quantifier_offset);
    void *at = into + field->offset;
    void *const *list = *(void *const *const *)(const void *)(from + field->offset);
    if (field->descriptor == &replay__session_info__descriptor)
        return true;
    if (field->descriptor == &replay__column__descriptor)
        return *n || add_list(at, n, (ProtobufCMessage *const *)list, n_from);
    if (field->type == PROTOBUF_C_TYPE_MESSAGE)
        return add_list(at, n, (ProtobufCMessage *const *)list, n_from);
    return field->type != PROTOBUF_C_TYPE_UINT64 || add_counts(at, n, (const uint64_t *)list, n_from);
}

static double fold(enum figure_fold how, double into, double from)
{
    switch (how) {
    case FOLD_SUM:
        return into + from;
    case FOLD_MOST:
        return into > from ? into : from;
    case FOLD_LEAST:
        return into < from ? into : from;
    case FOLD_BOUND:
        return fabs(into) > FIGURE_NO_BOUND || fabs(from) > FIGURE_NO_BOUND ? into : into + from;
    default:
        return into;
    }
}

/* Counts are whole numbers that a double may be too small for. */
static uint64_t fold_count(enum figure_fold how, uint64_t into, uint64_t from)
{
    return how == FOLD_SUM                    ? into + from
           : how == FOLD_MOST && from > into  ? from
           : how == FOLD_LEAST && from < into ? from
                                              : into;
}

static void add_number(const ProtobufCFieldDescriptor *field, enum figure_fold how, void *into, const void *from)
{
    if (field->type == PROTOBUF_C_TYPE_FIXED64)
        *(uint64_t *)into = fold_count(how, *(uint64_t *)into, *(const uint64_t *)from);
    else if (field->type == PROTOBUF_C_TYPE_DOUBLE)
        *(double *)into = fold(how, *(double *)into, *(const double *)from);
    else if (field->type == PROTOBUF_C_TYPE_BOOL && how == FOLD_MOST)
        *(protobuf_c_boolean *)into |= *(const protobuf_c_boolean *)from;
}

/* A message that only one side has is not added: `into` stays as the first shard has it, and gets a copy of what it lacks. */
static bool add_message(ProtobufCMessage **into, const ProtobufCMessage *from)
{
    if (*into && from)
        return merge_add(*into, from);
    return *into || !from || (*into = merge_clone(from)) != NULL;
}

static bool add_fields(ProtobufCMessage *into, const ProtobufCMessage *from)
{
    bool ok = true;
    for (unsigned i = 0; i < into->descriptor->n_fields && ok; i++) {
        const ProtobufCFieldDescriptor *field = &into->descriptor->fields[i];
        const struct figure *row = figure_find(into->descriptor, field->name);
        char *at = (char *)into + field->offset;
        const char *there = (const char *)from + field->offset;
        if (field->label == PROTOBUF_C_LABEL_REPEATED)
            ok = add_repeated(field, (char *)into, (const char *)from);
        else if (field->type == PROTOBUF_C_TYPE_MESSAGE)
            ok = add_message((ProtobufCMessage **)(void *)at, *(ProtobufCMessage *const *)(const void *)there);
        else if (row)
            add_number(field, row->fold, at, there);
    }
    return ok;
}

/* ---- what is no sum of numbers ---- */

/* Ages and staleness are of the samples of late. The limiter does not count them: over shards they are charged where there is
 * room. So the rates are the weights or, when nothing is sampled any more, the samples that were. */
static void add_means(Replay__TableInfo *into, const Replay__TableInfo *from)
{
    bool lately = into->sample_rate + from->sample_rate > 0;
    double here = lately ? into->sample_rate : (double)into->total_samples;
    double there = lately ? from->sample_rate : (double)from->total_samples;
    double all = here + there;
    if (all <= 0)
        return;
    into->mean_age_s = (into->mean_age_s * here + from->mean_age_s * there) / all;
    into->mean_staleness = (into->mean_staleness * here + from->mean_staleness * there) / all;
}

/* Readers of the slowest shard get its version. */
static void take_older(Replay__SlotInfo *into, const Replay__SlotInfo *from)
{
    if (from->version >= into->version)
        return;
    into->bytes = from->bytes;
    into->age_ns = from->age_ns;
}

/* Of checkpoints that are being made, the slowest one counts. */
static void add_progress(Replay__DiskInfo *into, const Replay__DiskInfo *from)
{
    if (from->checkpoint_running &&
        (!into->checkpoint_running || from->checkpoint_progress < into->checkpoint_progress))
        into->checkpoint_progress = from->checkpoint_progress;
}

/* A sum waits only if all shards do. */
static bool clear_waits(Replay__LimiterInfo *into, const Replay__LimiterInfo *from)
{
    bool ok = from->inserts_wait[0] || set_text(&into->inserts_wait, "%s", "");
    return (from->samples_wait[0] || set_text(&into->samples_wait, "%s", "")) && ok;
}

bool merge_add(ProtobufCMessage *into, const ProtobufCMessage *from)
{
    bool ok = true;
    const ProtobufCMessageDescriptor *of = into->descriptor;
    if (of == &replay__table_info__descriptor)
        add_means((Replay__TableInfo *)into, (const Replay__TableInfo *)from);
    else if (of == &replay__slot_info__descriptor)
        take_older((Replay__SlotInfo *)into, (const Replay__SlotInfo *)from);
    else if (of == &replay__disk_info__descriptor)
        add_progress((Replay__DiskInfo *)into, (const Replay__DiskInfo *)from);
    else if (of == &replay__limiter_info__descriptor)
        ok = clear_waits((Replay__LimiterInfo *)into, (const Replay__LimiterInfo *)from);
    return add_fields(into, from) && ok;
}

static bool end_wait(char **text, uint32_t first, uint32_t n)
{
    char was[512];
    if (!(*text)[0])
        return true;
    snprintf(was, sizeof was, "%s", *text);
    return set_text(text, "shard %u: %s%s", first, was, n > 1 ? "; all other shards wait, too" : "");
}

bool merge_end_limiter(Replay__LimiterInfo *into, uint32_t first, uint32_t n)
{
    into->min_size = fmax(1.0, into->min_size); /* parts of a limiter without one are 0 */
    return end_wait(&into->inserts_wait, first, n) && end_wait(&into->samples_wait, first, n);
}

/* ---- info ---- */

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
        ok = append_copy((void ***)&row->tables, &row->n_tables, &info->tables[i]->base);
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
    bool ok = true;
    if (into->disk && from->disk && from->disk->trouble[0] && !into->disk->trouble[0])
        ok = set_text(&into->disk->trouble, "shard %u: %s", row->shard, from->disk->trouble);
    return ok && add_fields(&into->base, &from->base) &&
           move((void ***)&into->sessions, &into->n_sessions, (void ***)&from->sessions, &from->n_sessions) &&
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
        ok = set_text(&why->waits[i]->text, "shard %u: %s", shard, was);
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
    if (set_text(&wait->who, "shard %u", shard) && set_text(&wait->kind, "shard") &&
        set_text(&wait->text, "%s", answer->problem) && append((void ***)&why->waits, &why->n_waits, &place, 1))
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
            ok = merge_add(&sum->limiter->base, &answers->of[i].wire->limiter->base);
    return end(sum, ok && (answers->n == 1 || merge_end_limiter(sum->limiter, first, answers->good)));
}
