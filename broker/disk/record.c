/* Records, and the walk over their entries. Nothing here trusts more than the checksum covers; entry.c checks what
 * entries say. */
#include "broker/disk/record.h"

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

rp_status record_check_head(const uint8_t *data, uint64_t at, size_t *size, rp_error *err)
{
    struct record_head head;
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

rp_status record_check(const uint8_t *data, size_t room, uint64_t at, size_t *size, rp_error *err)
{
    if (room < sizeof(struct record_head))
        return err_set(err, RP_BAD_MESSAGE, "the record there is cut short: %zu bytes of its head", room);
    size_t whole = 0;
    RP_TRY(record_check_head(data, at, &whole, err));
    if (whole > room)
        return err_set(err, RP_BAD_MESSAGE, "the record there is cut short: %zu of %zu bytes", room, whole);
    struct record_head head;
    memcpy(&head, data, sizeof head);
    if (head.crc != record_crc(data, whole))
        return err_set(err, RP_BAD_MESSAGE, "the checksum of the record there (%zu bytes) is wrong", whole);
    *size = whole;
    return RP_OK;
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
