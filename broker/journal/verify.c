/* Checks everything in one file. After a damage it continues with the next whole record. */
#include <stdio.h>
#include <string.h>

#include "broker/journal/load.h"
#include "broker/journal/reader.h"
#include "proto/base/error.h"

static void verify_damage(struct verify_result *out, uint64_t offset, const char *text)
{
    if (!out->damaged) {
        out->damaged_at = offset;
        snprintf(out->text, sizeof out->text, "%s", text);
    }
    out->damaged = true;
}

/* A broker writes the record, or ended while it did: it was confirmed to nobody. */
static void verify_torn(struct verify_result *out, const struct reader *reader, const char *why)
{
    out->torn = true;
    snprintf(out->text, sizeof out->text, "torn end of %llu bytes (%s)",
             (unsigned long long)(reader->bytes - reader->offset), why);
}

/* Checks the types of the file's first entries. */
static void verify_first(struct verify_result *out, const struct entry_view *entry, enum disk_kind kind)
{
    if (out->entries == 0 && entry->type != ENTRY_START)
        verify_damage(out, disk_offset(entry->at), "the file does not begin with a START entry");
    if (out->entries == 1 && kind == DISK_CHECKPOINT && entry->type != ENTRY_CHECKPOINT)
        verify_damage(out, disk_offset(entry->at), "the second entry of a checkpoint is not a CHECKPOINT entry");
    if (entry->type == ENTRY_START)
        memcpy(&out->start, entry->body, sizeof out->start);
    if (entry->type == ENTRY_CHECKPOINT)
        memcpy(&out->checkpoint, entry->body, sizeof out->checkpoint);
    if (entry->type == ENTRY_END)
        memcpy(&out->end, entry->body, sizeof out->end);
}

static void verify_record(struct verify_result *out, struct record_view record, enum disk_kind kind)
{
    struct entry_reader reader = entry_reader(record);
    rp_error why;
    for (struct entry_view entry; entry_next(&reader, &entry); out->entries++) {
        if (entry_check(&entry, &why) != RP_OK) {
            verify_damage(out, disk_offset(entry.at), why.text);
            continue;
        }
        verify_first(out, &entry, kind);
        out->types[entry.type]++;
        if (entry.type != ENTRY_CHUNK)
            continue;
        struct chunk_view chunk = entry_chunk_view(&entry);
        out->chunks++;
        out->chunk_bytes += chunk.head->bytes;
        if (chunk_crc(&chunk) != chunk.head->crc)
            verify_damage(out, disk_offset(entry.at), "the checksum of a chunk is wrong");
    }
    if (reader.bad)
        verify_damage(out, disk_offset(reader.at), "an entry runs out of its record");
    out->records++;
}

rp_status disk_verify_file(const struct folder *folder, enum disk_kind kind, uint64_t number, struct verify_result *out,
                           rp_error *err)
{
    *out = (struct verify_result){0};
    struct reader reader;
    RP_TRY(reader_open(&reader, folder, kind, number, err));
    out->bytes = reader.bytes;
    struct record_view record;
    rp_status status;
    rp_error why = {0};
    while ((status = reader_next(&reader, &record, &why)) != RP_END_OF_STREAM) {
        if (status == RP_OK) {
            verify_record(out, record, kind);
            continue;
        }
        uint64_t bad = reader.offset;
        bool more = status == RP_BAD_MESSAGE && reader_resync(&reader);
        if (status == RP_BAD_MESSAGE && kind == DISK_SEGMENT && !more && !out->damaged)
            verify_torn(out, &reader, why.text);
        else
            verify_damage(out, bad, why.text);
        if (!more)
            break;
    }
    reader_close(&reader);
    if (status == RP_NO_MEMORY || status == RP_IO)
        return err_set(err, status, "%s", why.text);
    char text[120];
    snprintf(text, sizeof text, "the checkpoint has %llu entries and %s", (unsigned long long)out->entries,
             out->types[ENTRY_END] ? "should have others" : "no END");
    if (kind == DISK_CHECKPOINT && (out->types[ENTRY_END] != 1 || out->end.entries != out->entries))
        verify_damage(out, out->bytes, text);
    if (kind == DISK_CHECKPOINT && out->types[ENTRY_CHECKPOINT] && out->checkpoint.number != number)
        verify_damage(out, FILE_HEAD_BYTES, "the CHECKPOINT entry has another number than the file");
    return RP_OK;
}
