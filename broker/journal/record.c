/* Records, and the walk over their entries. Nothing here trusts more than the checksum covers. Then the rules
 * for what entries say. */
#include "broker/journal/record.h"

#include <math.h>
#include <string.h>

#include "proto/base/crc32c.h"
#include "proto/base/error.h"

_Static_assert(sizeof(struct file_head) == FILE_HEAD_BYTES, "a file's head has no holes");
_Static_assert(sizeof(struct record_head) == 24 && sizeof(struct entry_head) == 8, "heads have no holes");

static uint32_t record_crc(const uint8_t *record, size_t size)
{
    uint32_t crc = crc32c(0, record + offsetof(struct record_head, size), 12);
    return crc32c(crc, record + sizeof(struct record_head), size - sizeof(struct record_head));
}

void record_seal(uint8_t *record, size_t size, uint64_t at)
{
    struct entry_reader reader = entry_reader((struct record_view){record, size, at});
    for (struct entry_view entry; entry_next(&reader, &entry);)
        if (entry.type == ENTRY_CHUNK && entry_check(&entry, NULL) == RP_OK) {
            struct chunk_view chunk = entry_chunk_view(&entry);
            uint32_t crc = chunk_crc(&chunk);
            memcpy(record + (entry.body - record) + offsetof(struct entry_chunk, crc), &crc, sizeof crc);
        }
    struct record_head head = {.magic = RECORD_MAGIC, .size = (uint32_t)(size - sizeof(struct record_head)), .at = at};
    memcpy(record, &head, sizeof head);
    head.crc = record_crc(record, size);
    memcpy(record, &head, sizeof head);
}

rp_status record_check_head(const uint8_t *data, size_t room, uint64_t at, size_t *size, rp_error *err)
{
    struct record_head head;
    if (room < sizeof head)
        return err_set(err, RP_BAD_MESSAGE, "the record there is cut short: %zu bytes of its head", room);
    memcpy(&head, data, sizeof head);
    if (head.magic != RECORD_MAGIC || head.zero != 0)
        return err_set(err, RP_BAD_MESSAGE, "no record starts there");
    if (head.at != at)
        return err_set(err, RP_BAD_MESSAGE, "the record there belongs at offset %llu of file %llu",
                       (unsigned long long)disk_offset(head.at), (unsigned long long)disk_number(head.at));
    if (head.size == 0 || head.size % 8 != 0 || head.size > RECORD_MOST - sizeof head)
        return err_set(err, RP_BAD_MESSAGE, "the record there has an impossible size of %u bytes", head.size);
    *size = sizeof head + head.size;
    return RP_OK;
}

rp_status record_check(const uint8_t *data, size_t size, rp_error *err)
{
    struct record_head head;
    memcpy(&head, data, sizeof head);
    return head.crc == record_crc(data, size)
               ? RP_OK
               : err_set(err, RP_BAD_MESSAGE, "the checksum of the record there (%zu bytes) is wrong", size);
}

struct entry_reader entry_reader(struct record_view record)
{
    return (struct entry_reader){
        .data = record.data + sizeof(struct record_head),
        .end = record.data + record.size,
        .at = record.at + sizeof(struct record_head),
    };
}

bool entry_next(struct entry_reader *self, struct entry_view *out)
{
    size_t room = (size_t)(self->end - self->data);
    if (room == 0 || self->bad)
        return false;
    struct entry_head head;
    self->bad = room < sizeof head;
    if (self->bad)
        return false;
    memcpy(&head, self->data, sizeof head);
    size_t padded = entry_padded(head.size);
    self->bad = head.size < sizeof head || padded > room;
    if (self->bad)
        return false;
    *out = (struct entry_view){.type = head.type,
                               .table = head.table,
                               .body = self->data + sizeof head,
                               .size = head.size - sizeof head,
                               .at = self->at};
    self->data += padded;
    self->at += padded;
    return true;
}

struct chunk_view entry_chunk_view(const struct entry_view *entry)
{
    const struct entry_chunk *head = (const struct entry_chunk *)(const void *)entry->body;
    const uint8_t *sizes = entry->body + sizeof *head;
    return (struct chunk_view){.head = head,
                               .sizes = sizes,
                               .codecs = sizes + (size_t)head->columns * 4,
                               .data = sizes + (size_t)head->columns * 5};
}

uint32_t chunk_crc(const struct chunk_view *chunk)
{
    return crc32c(0, chunk->sizes, (size_t)chunk->head->columns * 5 + chunk->head->bytes);
}

/* Times are in nanoseconds; nothing real is further away than this (146 years). */
#define TIME_MOST (INT64_C(1) << 62)
#define TEXT_MOST 4096u

/* A body: its fixed part, and the rest, of `size` bytes. */
struct body {
    const void *fixed;
    const uint8_t *rest;
    size_t size;
};
typedef rp_status check_fn(const struct body *body, rp_error *err);

struct rule {
    const char *name;
    size_t least;    /* bytes of the fixed part */
    bool exact;      /* the body has no more than that */
    check_fn *check; /* or NULL */
};

static rp_status check_rest(const struct body *body, uint64_t want, rp_error *err)
{
    if (body->size != want)
        return err_set(err, RP_BAD_MESSAGE, "it goes on for %zu bytes where its counts say %llu", body->size,
                       (unsigned long long)want);
    return RP_OK;
}

static rp_status check_time(int64_t time_ns, rp_error *err)
{
    if (time_ns > TIME_MOST || time_ns < -TIME_MOST)
        return err_set(err, RP_BAD_MESSAGE, "its time is impossible");
    return RP_OK;
}

static rp_status check_number(double value, rp_error *err)
{
    if (!isfinite(value))
        return err_set(err, RP_BAD_MESSAGE, "it has a number that is not finite");
    return RP_OK;
}

static rp_status check_start(const struct body *body, rp_error *err)
{
    const struct entry_start *start = body->fixed;
    RP_TRY(check_time(start->wall_ns, err));
    return check_time(start->clock_ns, err);
}

/* Of a LIMITER, or of a TABLE, which begins with one. */
static rp_status check_limiter(const struct body *body, rp_error *err)
{
    const struct entry_limiter *limiter = body->fixed;
    if (isnan(limiter->samples_per_insert) || isnan(limiter->min_size) || isnan(limiter->min_diff) ||
        isnan(limiter->max_diff) || isnan(limiter->offset))
        return err_set(err, RP_BAD_MESSAGE, "its limiter has a value that is not a number");
    return RP_OK;
}

static rp_status check_chunk(const struct body *body, rp_error *err)
{
    const struct entry_chunk *chunk = body->fixed;
    RP_TRY(check_rest(body, (uint64_t)chunk->columns * 5 + chunk->bytes, err));
    uint64_t sum = 0;
    for (uint32_t i = 0; i < chunk->columns; i++) {
        uint32_t block;
        memcpy(&block, body->rest + (size_t)i * 4, sizeof block);
        sum += block;
    }
    if (chunk->columns == 0 || chunk->length == 0 || sum != chunk->bytes)
        return err_set(err, RP_BAD_MESSAGE, "its %u columns have %llu bytes, not %u", chunk->columns,
                       (unsigned long long)sum, chunk->bytes);
    return RP_OK;
}

static rp_status check_places(const uint8_t *places, uint64_t n, rp_error *err)
{
    for (uint64_t i = 0; i < n; i++) {
        uint64_t at;
        memcpy(&at, places + i * 8, sizeof at);
        if (disk_number(at) == 0 || disk_offset(at) < FILE_HEAD_BYTES || at % 8 != 0)
            return err_set(err, RP_BAD_MESSAGE, "its chunk %llu has no place in a segment", (unsigned long long)i);
    }
    return RP_OK;
}

/* Of an INSERT, or of an ITEM, which begins with one. */
static rp_status check_item(const struct body *body, rp_error *err)
{
    const struct entry_insert *insert = body->fixed;
    RP_TRY(check_rest(body, (uint64_t)insert->n_chunks * 8, err));
    if (insert->n_chunks == 0 || insert->length == 0)
        return err_set(err, RP_BAD_MESSAGE, "its item has no steps");
    RP_TRY(check_number(insert->priority, err));
    RP_TRY(check_time(insert->insert_ns, err));
    return check_places(body->rest, insert->n_chunks, err);
}

static rp_status check_priority(const struct body *body, rp_error *err)
{
    return check_number(((const struct entry_priority *)body->fixed)->priority, err);
}

static rp_status check_pick(const struct body *body, rp_error *err)
{
    const struct entry_pick *pick = body->fixed;
    struct entry_picked picked;
    RP_TRY(check_rest(body, (uint64_t)pick->n * sizeof picked, err));
    for (uint32_t i = 0; i < pick->n; i++) {
        memcpy(&picked, body->rest + i * sizeof picked, sizeof picked);
        RP_TRY(check_number(picked.probability, err));
    }
    return RP_OK;
}

static rp_status check_progress(const struct body *body, rp_error *err)
{
    return check_rest(body, ((const struct entry_progress *)body->fixed)->n_flows * (uint64_t)sizeof(struct entry_flow),
                      err);
}

static rp_status check_rejection(const struct body *body, rp_error *err)
{
    return body->size <= TEXT_MOST ? RP_OK : err_set(err, RP_BAD_MESSAGE, "its text has %zu bytes", body->size);
}

/* A name and so many bytes more are the rest. */
static rp_status check_name(const struct body *body, uint32_t name, uint64_t more, rp_error *err)
{
    RP_TRY(check_rest(body, more > body->size ? UINT64_MAX : name + more, err));
    if (name == 0 || name > TEXT_MOST || memchr(body->rest, '\0', name))
        return err_set(err, RP_BAD_MESSAGE, "its name is empty, too long, or has a zero in it");
    return RP_OK;
}

static rp_status check_slot_value(const struct body *body, rp_error *err)
{
    const struct entry_value *value = body->fixed;
    RP_TRY(check_time(value->put_ns, err));
    return check_name(body, value->name_bytes, value->value_bytes, err);
}

static rp_status check_slot_part(const struct body *body, rp_error *err)
{
    const struct entry_part *part = body->fixed;
    return check_name(body, part->name_bytes, part->data_bytes, err);
}

/* A counter, or the number of a value whose parts came before. */
static rp_status check_named_value(const struct body *body, rp_error *err)
{
    const struct entry_value *value = body->fixed;
    RP_TRY(check_time(value->put_ns, err));
    return check_name(body, value->name_bytes, 0, err);
}

static rp_status check_selector(const struct body *body, rp_error *err)
{
    const struct entry_selector *selector = body->fixed;
    if (selector->which > 1)
        return err_set(err, RP_BAD_MESSAGE, "it is of neither sampler nor remover");
    return check_rest(body, selector->bytes, err);
}

static rp_status check_checkpoint(const struct body *body, rp_error *err)
{
    const struct entry_checkpoint *checkpoint = body->fixed;
    if (checkpoint->number == 0 || checkpoint->base >= checkpoint->number || checkpoint->journal % 8 != 0)
        return err_set(err, RP_BAD_MESSAGE, "checkpoint %llu cannot be based on %llu",
                       (unsigned long long)checkpoint->number, (unsigned long long)checkpoint->base);
    return RP_OK;
}

static rp_status check_parts(const struct body *body, rp_error *err)
{
    if (body->size % sizeof(uint64_t) != 0)
        return err_set(err, RP_BAD_MESSAGE, "it has %zu bytes, which are no whole numbers", body->size);
    return RP_OK;
}

static rp_status check_selection(const struct body *body, rp_error *err)
{
    const struct entry_selection *selection = body->fixed;
    struct entry_selected selected;
    uint64_t items = (uint64_t)selection->n * sizeof selected;
    uint64_t groups = selection->flags & PICK_GROUPED ? selection->n : 0;
    RP_TRY(check_rest(body, items + (selection->n_chunks + groups) * 8, err));
    uint64_t chunks = 0;
    for (uint32_t i = 0; i < selection->n; i++) {
        memcpy(&selected, body->rest + i * sizeof selected, sizeof selected);
        RP_TRY(check_number(selected.priority, err));
        RP_TRY(check_number(selected.probability, err));
        if (selected.age_ns > (uint64_t)TIME_MOST)
            return err_set(err, RP_BAD_MESSAGE, "the age of its item %u is impossible", i);
        chunks += selected.chunks;
    }
    if (chunks != selection->n_chunks)
        return err_set(err, RP_BAD_MESSAGE, "its items have %llu chunks, not %u", (unsigned long long)chunks,
                       selection->n_chunks);
    return check_places(body->rest + items, selection->n_chunks, err);
}

static const struct rule rules[ENTRY_TYPES] = {
    [ENTRY_START] = {"START", sizeof(struct entry_start), true, check_start},
    [ENTRY_TABLE] = {"TABLE", sizeof(struct entry_table), false, check_limiter},
    [ENTRY_CHUNK] = {"CHUNK", sizeof(struct entry_chunk), false, check_chunk},
    [ENTRY_LAYOUT] = {"LAYOUT", sizeof(struct entry_named), false, NULL},
    [ENTRY_INSERT] = {"INSERT", sizeof(struct entry_insert), false, check_item},
    [ENTRY_REMOVE] = {"REMOVE", sizeof(struct entry_slot), true, NULL},
    [ENTRY_PRIORITY] = {"PRIORITY", sizeof(struct entry_priority), true, check_priority},
    [ENTRY_PICK] = {"PICK", sizeof(struct entry_pick), false, check_pick},
    [ENTRY_RESET] = {"RESET", 0, true, NULL},
    [ENTRY_LIMITER] = {"LIMITER", sizeof(struct entry_limiter), true, check_limiter},
    [ENTRY_SESSION] = {"SESSION", sizeof(struct entry_named), false, NULL},
    [ENTRY_FORM] = {"FORM", sizeof(struct entry_named), false, NULL},
    [ENTRY_PROGRESS] = {"PROGRESS", sizeof(struct entry_progress), false, check_progress},
    [ENTRY_REJECTION] = {"REJECTION", sizeof(struct entry_rejection), false, check_rejection},
    [ENTRY_SESSION_END] = {"SESSION_END", sizeof(struct entry_named), true, NULL},
    [ENTRY_SLOT] = {"SLOT", sizeof(struct entry_value), false, check_slot_value},
    [ENTRY_COUNTER] = {"COUNTER", sizeof(struct entry_value), false, check_named_value},
    [ENTRY_REPLY] = {"REPLY", sizeof(struct entry_request), false, NULL},
    [ENTRY_ANSWERED] = {"ANSWERED", sizeof(struct entry_request), true, NULL},
    [ENTRY_FORGET] = {"FORGET", sizeof(struct entry_request), true, NULL},
    [ENTRY_SELECTOR] = {"SELECTOR", sizeof(struct entry_selector), false, check_selector},
    [ENTRY_CHECKPOINT] = {"CHECKPOINT", sizeof(struct entry_checkpoint), true, check_checkpoint},
    [ENTRY_ITEM] = {"ITEM", sizeof(struct entry_item), false, check_item},
    [ENTRY_FREE] = {"FREE", sizeof(struct entry_slot), true, NULL},
    [ENTRY_SELECTION] = {"SELECTION", sizeof(struct entry_selection), false, check_selection},
    [ENTRY_ORDINAL] = {"ORDINAL", sizeof(struct entry_named), true, NULL},
    [ENTRY_END] = {"END", sizeof(struct entry_end), true, NULL},
    [ENTRY_EPISODES] = {"EPISODES", sizeof(struct entry_named), true, NULL},
    [ENTRY_CHARGE] = {"CHARGE", sizeof(struct entry_named), true, NULL},
    [ENTRY_GROUP] = {"GROUP", sizeof(struct entry_group), true, NULL},
    [ENTRY_HIDE] = {"HIDE", sizeof(struct entry_slot), true, NULL},
    [ENTRY_SHOW] = {"SHOW", sizeof(struct entry_slot), true, NULL},
    [ENTRY_SLOT_PART] = {"SLOT_PART", sizeof(struct entry_part), false, check_slot_part},
    [ENTRY_SLOT_WHOLE] = {"SLOT_WHOLE", sizeof(struct entry_value), false, check_named_value},
    [ENTRY_PARTS] = {"PARTS", sizeof(struct entry_named), false, check_parts},
};

const char *entry_name(uint16_t type)
{
    return type < ENTRY_TYPES && rules[type].name ? rules[type].name : "UNKNOWN";
}

rp_status entry_check(const struct entry_view *entry, rp_error *err)
{
    const struct rule *rule = entry->type < ENTRY_TYPES ? &rules[entry->type] : NULL;
    rp_status status = RP_OK;
    if (!rule || !rule->name)
        return err_set(err, RP_BAD_MESSAGE, "entry at offset %llu has the unknown type %u",
                       (unsigned long long)disk_offset(entry->at), entry->type);
    if (entry->size < rule->least || (rule->exact && entry->size != rule->least))
        status = err_set(err, RP_BAD_MESSAGE, "it has %zu bytes instead of %zu", entry->size, rule->least);
    else if (rule->check)
        status = rule->check(&(struct body){entry->body, entry->body + rule->least, entry->size - rule->least}, err);
    if (status != RP_OK)
        err_prefix(err, "%s entry at offset %llu", rule->name, (unsigned long long)disk_offset(entry->at));
    return status;
}
