#include "broker/checkpoint/checkpoint_keep.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "broker/disk/load.h"
#include "proto/base/error.h"
#include "proto/base/log.h"
#include "proto/base/need.h"

/* ---- what there is at the start ---- */

static bool read_all(int descriptor, void *out, size_t size, uint64_t offset)
{
    for (size_t done = 0; done < size;) {
        ssize_t got = pread(descriptor, (uint8_t *)out + done, size - done, (off_t)(offset + done));
        if (got <= 0)
            return false;
        done += (size_t)got;
    }
    return true;
}

/* Finds the last record, which names the segments that the checkpoint needs, by going from head to head. */
static rp_status find_last(int descriptor, uint64_t number, uint64_t bytes, uint64_t *offset, size_t *size,
                           rp_error *err)
{
    *offset = FILE_HEAD_BYTES;
    for (;;) {
        uint64_t head[sizeof(struct record_head) / 8];
        if (*offset + sizeof head > bytes || !read_all(descriptor, head, sizeof head, *offset))
            return err_set(err, RP_BAD_MESSAGE, "it is cut short");
        RP_TRY(record_check_head((const uint8_t *)head, disk_at(number, *offset), size, err));
        if (*offset + *size >= bytes)
            return *offset + *size == bytes ? RP_OK : err_set(err, RP_BAD_MESSAGE, "it is cut short");
        *offset += *size;
    }
}

static rp_status take_parts(const struct entry_view *entry, struct kept_checkpoint *out, rp_error *err)
{
    size_t n = (entry->size - sizeof(struct entry_named)) / sizeof(struct entry_part);
    free(out->segments);
    out->segments = malloc((n + 1) * sizeof *out->segments);
    if (!out->segments)
        return err_set(err, RP_NO_MEMORY, "no memory for its parts");
    out->n_segments = (uint32_t)n;
    for (size_t i = 0; i < n; i++) {
        struct entry_part part;
        memcpy(&part, entry->body + sizeof(struct entry_named) + i * sizeof part, sizeof part);
        out->segments[i] = part.segment;
    }
    return RP_OK;
}

static rp_status read_end(int descriptor, struct kept_checkpoint *out, uint64_t bytes, rp_error *err)
{
    uint64_t offset;
    size_t size;
    RP_TRY(find_last(descriptor, out->number, bytes, &offset, &size, err));
    uint8_t *record = malloc(size);
    if (!record)
        return err_set(err, RP_NO_MEMORY, "no memory for its last record");
    rp_status status = read_all(descriptor, record, size, offset)
                           ? record_check(record, size, disk_at(out->number, offset), &size, err)
                           : err_set(err, RP_IO, "it cannot be read");
    bool ended = false;
    struct entry_reader reader = entry_reader((struct record_view){record, size, disk_at(out->number, offset)});
    for (struct entry_view entry; status == RP_OK && entry_next(&reader, &entry);) {
        status = entry_check(&entry, err);
        if (status == RP_OK && entry.type == ENTRY_PARTS)
            status = take_parts(&entry, out, err);
        ended = entry.type == ENTRY_END;
    }
    free(record);
    if (status == RP_OK && (!ended || !out->segments))
        status = err_set(err, RP_BAD_MESSAGE, "it has no end");
    return status;
}

static rp_status read_one(const struct folder *folder, const struct folder_file *file, struct kept_checkpoint *out,
                          rp_error *err)
{
    struct checkpoint_about about;
    RP_TRY(checkpoint_peek(folder, file->number, &about, err));
    out->base = about.head.base;
    out->journal = about.head.journal;
    int descriptor = folder_read(folder, DISK_CHECKPOINT, file->number, err);
    if (descriptor < 0)
        return RP_IO;
    rp_status status = read_end(descriptor, out, file->bytes, err);
    close(descriptor);
    return status;
}

static struct kept_checkpoint *kept_add(struct kept_checkpoints *self, uint64_t number)
{
    if (self->n == self->capacity) {
        self->capacity = self->capacity ? 2 * self->capacity : 16;
        self->list = need_resize(self->list, self->capacity, sizeof *self->list);
    }
    self->list[self->n] = (struct kept_checkpoint){.number = number};
    return &self->list[self->n++];
}

void kept_checkpoints_init(struct kept_checkpoints *self, struct stream *stream, bool fresh)
{
    const struct folder *folder = &stream->folder;
    self->stream = stream;
    for (uint32_t i = 0; i < folder->n_files; i++) {
        const struct folder_file *file = &folder->files[i];
        if (file->kind != DISK_CHECKPOINT || !file->mine)
            continue;
        struct kept_checkpoint *kept = kept_add(self, file->number);
        rp_error why = {0};
        kept->useless = read_one(folder, file, kept, &why) != RP_OK;
        if (kept->useless) {
            char quoted[320];
            log_line(LEVEL_WARN, "B0527", "a checkpoint is damaged", "checkpoint=%llu why=%s",
                     (unsigned long long)file->number, log_quote(quoted, sizeof quoted, why.text));
            continue;
        }
        kept->changed_ns = file->changed_ns;
        kept->useless = !fresh && file->number > stream->origin;
    }
}

/* ---- what is needed ---- */

void kept_checkpoints_add(struct kept_checkpoints *self, const struct checkpoint_file *file, uint64_t base,
                          uint64_t journal)
{
    struct kept_checkpoint *kept = kept_add(self, file->number);
    kept->base = base;
    kept->journal = journal;
    kept->segments = need_alloc((file->n_segments + 1) * sizeof *kept->segments);
    for (uint32_t i = 0; i < file->n_segments; i++)
        if (named_is_needed(&file->segments[i], journal))
            kept->segments[kept->n_segments++] = file->segments[i].number;
}

void kept_checkpoints_note_dead(struct kept_checkpoints *self)
{
    const struct stream *stream = self->stream;
    self->n_dead = 0;
    self->dead = need_resize(self->dead, stream->segments.n + 1, sizeof *self->dead);
    for (uint32_t i = 0; i < stream->segments.n; i++)
        if (stream->segments.list[i].live == 0 && stream->segments.list[i].number != stream->segment)
            self->dead[self->n_dead++] = stream->segments.list[i].number;
}

/* Marks the newest `keep` usable checkpoints, and their bases, as needed. *oldest: the oldest of the newest ones.
 * Returns the first segment of their journal: 0, which keeps all segments, if there is a journal and one of them was
 * made without. */
static uint64_t mark_needed(const struct kept_checkpoints *self, uint64_t keep, bool journal, bool *needed,
                            uint64_t *oldest)
{
    uint64_t from = UINT64_MAX, count = 0;
    *oldest = 0;
    for (uint32_t i = self->n; i-- > 0;) {
        const struct kept_checkpoint *kept = &self->list[i];
        if (!kept->useless && count < keep) {
            needed[i] = true;
            count++;
            *oldest = kept->number;
            if ((kept->journal || journal) && disk_number(kept->journal) < from)
                from = disk_number(kept->journal);
        }
        for (uint32_t b = 0; needed[i] && kept->base && b < i; b++)
            needed[b] |= self->list[b].number == kept->base;
    }
    return from;
}

static bool is_named(const struct kept_checkpoints *self, uint64_t segment)
{
    for (uint32_t i = 0; i < self->n; i++)
        for (uint32_t s = 0; s < self->list[i].n_segments; s++)
            if (self->list[i].segments[s] == segment)
                return true;
    return false;
}

static uint32_t remove_checkpoints(struct kept_checkpoints *self, const bool *needed, uint64_t oldest)
{
    uint32_t left = 0, removed = 0;
    for (uint32_t i = 0; i < self->n; i++) {
        struct kept_checkpoint *kept = &self->list[i];
        if (needed[i] || kept->number > oldest) {
            self->list[left++] = *kept;
            continue;
        }
        stream_file_job(self->stream, DISK_JOB_REMOVE, DISK_CHECKPOINT, kept->number);
        free(kept->segments);
        removed++;
    }
    self->n = left;
    return removed;
}

void kept_checkpoints_clean(struct kept_checkpoints *self, uint64_t keep)
{
    struct stream *stream = self->stream;
    bool *needed = need_alloc((self->n + 1) * sizeof *needed);
    uint64_t oldest;
    uint64_t from = mark_needed(self, keep, stream->journal, needed, &oldest);
    if (!oldest) { /* no checkpoint is usable: the state is in the journal alone */
        free(needed);
        return;
    }
    uint32_t checkpoints = remove_checkpoints(self, needed, oldest), segments = 0;
    uint64_t bytes = stream->segments.total_bytes;
    for (uint32_t i = 0; i < self->n_dead; i++) {
        const struct segment_use *use = segments_find(&stream->segments, self->dead[i]);
        if (!use || use->live || use->number >= from || is_named(self, use->number))
            continue;
        stream_remove_segment(stream, self->dead[i]);
        segments++;
    }
    free(needed);
    if (checkpoints || segments)
        log_line(LEVEL_INFO, "B0524", "files that are no longer needed are removed",
                 "checkpoints=%u segments=%u segment_bytes=%llu", checkpoints, segments,
                 (unsigned long long)(bytes - stream->segments.total_bytes));
}

void kept_checkpoints_fini(struct kept_checkpoints *self)
{
    for (uint32_t i = 0; i < self->n; i++)
        free(self->list[i].segments);
    free(self->list);
    free(self->dead);
}
