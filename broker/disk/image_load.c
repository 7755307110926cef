/* Loads an image from files: a chain of checkpoints, then the journal after it (image_journal.c). */
#include <stdlib.h>
#include <string.h>

#include "broker/disk/image_impl.h"
#include "broker/disk/reader.h"
#include "proto/base/error.h"

/* Most checkpoints in a chain: more than a broker ever makes. */
#define CHAIN_MOST 4096u
/* Bytes that are read for a file's first record. */
#define PEEK_BYTES (64u << 10)

void checkpoint_about_fini(struct checkpoint_about *self)
{
    free(self->parts);
    self->parts = NULL;
}

/* Reads the next entry, which must have this type. */
static rp_status peek_entry(struct entry_reader *entries, uint16_t type, struct entry_view *entry, rp_error *err)
{
    if (!entry_next(entries, entry) || entry->type != type)
        return err_set(err, RP_BAD_MESSAGE, "it does not begin with a %s entry", entry_name(type));
    return entry_check(entry, err);
}

static rp_status peek_record(struct record_view record, struct checkpoint_about *out, rp_error *err)
{
    struct entry_reader entries = entry_reader(record);
    struct entry_view entry;
    RP_TRY(peek_entry(&entries, ENTRY_START, &entry, err));
    memcpy(&out->start, entry.body, sizeof out->start);
    RP_TRY(peek_entry(&entries, ENTRY_CHECKPOINT, &entry, err));
    memcpy(&out->head, entry.body, sizeof out->head);
    if (out->head.number != disk_number(record.at))
        return err_set(err, RP_BAD_MESSAGE, "it says that it is checkpoint %llu", (unsigned long long)out->head.number);
    size_t bytes = (size_t)out->head.n_parts * sizeof *out->parts;
    out->parts = malloc(bytes ? bytes : 1);
    if (!out->parts)
        return err_set(err, RP_NO_MEMORY, "no memory for a checkpoint's parts");
    memcpy(out->parts, entry.body + sizeof out->head, bytes);
    return RP_OK;
}

rp_status checkpoint_peek(const struct folder *folder, uint64_t number, struct checkpoint_about *out, rp_error *err)
{
    *out = (struct checkpoint_about){0};
    struct reader reader;
    RP_TRY(reader_open(&reader, folder, DISK_CHECKPOINT, number, err));
    reader.piece = PEEK_BYTES;
    struct record_view record;
    rp_status status = reader_next(&reader, &record, err);
    if (status == RP_OK) {
        status = peek_record(record, out, err);
        if (status != RP_OK)
            err_prefix(err, "%s", reader.name);
    } else if (status == RP_END_OF_STREAM) {
        status = err_set(err, RP_BAD_MESSAGE, "%s is empty", reader.name);
    }
    reader_close(&reader);
    return status;
}

rp_status image_apply_record(struct image *self, struct record_view record, uint64_t limit, struct applied *out,
                             rp_error *err)
{
    struct entry_reader reader = entry_reader(record);
    for (struct entry_view entry; entry_next(&reader, &entry) && entry.at < limit; out->entries++) {
        out->stop = entry.at;
        RP_TRY(entry_check(&entry, err));
        RP_TRY(image_apply(self, &entry, err));
    }
    out->stop = reader.at;
    if (reader.bad)
        return err_set(err, RP_BAD_MESSAGE, "the entry at offset %llu runs out of its record",
                       (unsigned long long)disk_offset(reader.at));
    return RP_OK;
}

bool image_segment_start(const struct folder *folder, uint64_t number, struct entry_start *out)
{
    struct reader reader;
    struct record_view record;
    struct entry_view entry;
    if (reader_open(&reader, folder, DISK_SEGMENT, number, NULL) != RP_OK)
        return false;
    reader.piece = PEEK_BYTES;
    bool ok = reader_next(&reader, &record, NULL) == RP_OK;
    if (ok) {
        struct entry_reader entries = entry_reader(record);
        ok = peek_entry(&entries, ENTRY_START, &entry, NULL) == RP_OK;
    }
    if (ok)
        memcpy(out, entry.body, sizeof *out);
    reader_close(&reader);
    return ok;
}

/* ---- checkpoints */

/* True if the record's last entry is an END, which is copied to out. */
static bool record_end(struct record_view record, struct entry_end *out)
{
    size_t whole = sizeof(struct entry_head) + sizeof *out;
    if (record.size < sizeof(struct record_head) + whole)
        return false;
    struct entry_head head;
    memcpy(&head, record.data + record.size - whole, sizeof head);
    memcpy(out, record.data + record.size - sizeof *out, sizeof *out);
    return head.type == ENTRY_END && head.size == whole;
}

/* Applies one file of the chain. */
static rp_status load_checkpoint(struct image *self, const struct folder *folder, uint64_t number, rp_error *err)
{
    struct reader reader;
    RP_TRY(reader_open(&reader, folder, DISK_CHECKPOINT, number, err));
    struct record_view record;
    struct applied applied = {0};
    struct entry_end end = {0};
    bool ended = false;
    rp_status status;
    while ((status = reader_next(&reader, &record, err)) == RP_OK) {
        status = image_apply_record(self, record, UINT64_MAX, &applied, err);
        if (status != RP_OK) {
            err_prefix(err, "%s", reader.name);
            break;
        }
        ended = record_end(record, &end);
    }
    if (status == RP_END_OF_STREAM)
        status = ended && end.entries == applied.entries
                     ? RP_OK
                     : err_set(err, RP_BAD_MESSAGE, "%s is cut short: it has %llu entries and %s", reader.name,
                               (unsigned long long)applied.entries, ended ? "should have more" : "no END");
    reader_close(&reader);
    return status;
}

/* Applies a checkpoint after those that it is based on. */
static rp_status load_chain(struct image *self, const struct folder *folder, uint64_t number, uint32_t depth,
                            rp_error *err)
{
    struct checkpoint_about about;
    if (depth == CHAIN_MOST)
        return err_set(err, RP_BAD_MESSAGE, "the chain of base checkpoints is too long");
    rp_status status = checkpoint_peek(folder, number, &about, err);
    checkpoint_about_fini(&about);
    RP_TRY(status);
    if (about.head.base != 0) {
        status = load_chain(self, folder, about.head.base, depth + 1, err);
        if (status != RP_OK) {
            err_prefix(err, "checkpoint %llu is based on %llu", (unsigned long long)number,
                       (unsigned long long)about.head.base);
            return status;
        }
    }
    return load_checkpoint(self, folder, number, err);
}

/* True if a later process started from an older checkpoint or from nothing, so that this checkpoint is not part of the
 * state. */
static bool is_abandoned(const struct folder *folder, uint64_t number, uint64_t journal)
{
    for (uint32_t i = 0; i < folder->n_files; i++) {
        const struct folder_file *file = &folder->files[i];
        struct entry_start start;
        if (file->kind == DISK_SEGMENT && disk_at(file->number, 0) > journal &&
            image_segment_start(folder, file->number, &start) && !(start.flags & START_CHUNKS_ONLY) &&
            start.loaded < number && number < start.next)
            return true;
    }
    return false;
}

/* Loads the newest checkpoint that can be loaded. RP_NOT_FOUND: none of the *tried ones can. */
static rp_status load_newest(struct image *self, const struct folder *folder, uint32_t *tried, rp_error *err)
{
    for (uint32_t i = folder->n_files; i-- > 0;) {
        const struct folder_file *file = &folder->files[i];
        if (file->kind != DISK_CHECKPOINT)
            continue;
        rp_error why = {0};
        struct checkpoint_about about;
        bool known = checkpoint_peek(folder, file->number, &about, &why) == RP_OK;
        checkpoint_about_fini(&about);
        if (known && is_abandoned(folder, file->number, about.head.journal)) {
            image_note(self, false, "checkpoint %llu is skipped: the broker was started from an older state after it",
                       (unsigned long long)file->number);
            continue;
        }
        rp_status status = load_chain(self, folder, file->number, 0, &why);
        if (status == RP_OK)
            return RP_OK;
        image_clear(self);
        if (status == RP_NO_MEMORY)
            return err_set(err, status, "%s", why.text);
        ++*tried;
        image_note(self, true, "checkpoint %llu cannot be used, the one before it is tried: %s",
                   (unsigned long long)file->number, why.text);
    }
    return err_set(err, RP_NOT_FOUND, "folder '%s' has no checkpoint that can be loaded", folder->path);
}

rp_status image_load(struct image *self, const struct folder *folder, uint64_t number, bool until_checkpoint, bool cut,
                     rp_error *err)
{
    if (!self->impl)
        return err_set(err, RP_NO_MEMORY, "no memory for an image");
    uint32_t tried = 0;
    rp_status status = number ? load_chain(self, folder, number, 0, err) : load_newest(self, folder, &tried, err);
    if (number && status == RP_BAD_MESSAGE) {
        status = RP_DATA_LOSS;
        if (err)
            err->status = RP_DATA_LOSS;
    }
    bool alone = status == RP_NOT_FOUND && !number && !until_checkpoint;
    if (alone || (status == RP_OK && !until_checkpoint))
        status = image_load_journal(self, folder, cut, err);
    if (status == RP_OK && alone && self->journal_entries == 0 && (self->whole || tried))
        status = err_set(err, RP_NOT_FOUND, "folder '%s' has nothing to load", folder->path);
    if (status == RP_NOT_FOUND && tried)
        status =
            err_set(err, RP_DATA_LOSS, "none of the %u checkpoints in folder '%s' can be loaded", tried, folder->path);
    if (status != RP_OK)
        image_clear(self);
    image_finish(self);
    return status;
}
