#include "broker/checkpoint/checkpoint_keep.h"

#include <stdlib.h>
#include <string.h>

#include "broker/disk/load.h"
#include "broker/disk/reader.h"
#include "proto/base/error.h"
#include "proto/base/log.h"
#include "proto/base/need.h"

/* ---- what there is at the start ---- */

/* Reads the segments that a checkpoint needs, which its last record names. */
static rp_status read_end(struct reader *reader, struct kept_checkpoint *out, rp_error *err)
{
    struct record_view record;
    RP_TRY(reader_last(reader, &record, err));
    struct entry_reader entries = entry_reader(record);
    bool ended = false;
    for (struct entry_view entry; entry_next(&entries, &entry);) {
        RP_TRY(entry_check(&entry, err));
        ended = entry.type == ENTRY_END;
        if (entry.type != ENTRY_PARTS || out->segments)
            continue;
        const struct entry_part *parts = (const void *)(entry.body + sizeof(struct entry_named));
        out->n_segments = (uint32_t)((entry.size - sizeof(struct entry_named)) / sizeof *parts);
        out->segments = need_alloc((out->n_segments + 1) * sizeof *out->segments);
        for (uint32_t i = 0; i < out->n_segments; i++)
            out->segments[i] = parts[i].segment;
    }
    return ended && out->segments ? RP_OK : err_set(err, RP_BAD_MESSAGE, "it has no end");
}

static rp_status read_one(const struct folder *folder, uint64_t number, struct kept_checkpoint *out, rp_error *err)
{
    struct checkpoint_about about;
    struct reader reader;
    RP_TRY(checkpoint_peek(folder, number, &about, err));
    out->base = about.head.base;
    out->journal = about.head.journal;
    RP_TRY(reader_open(&reader, folder, DISK_CHECKPOINT, number, err));
    rp_status status = read_end(&reader, out, err);
    reader_close(&reader);
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
        kept->useless = read_one(folder, file->number, kept, &why) != RP_OK;
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
