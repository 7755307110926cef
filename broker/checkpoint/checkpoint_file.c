#include "broker/checkpoint/checkpoint_file.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "proto/base/need.h"

/* Takes a record. */
static void give_record(struct recorder *out, struct disk_job *job, size_t size)
{
    struct checkpoint_file *self = (struct checkpoint_file *)(void *)out; /* its first member */
    struct stream *stream = self->stream;
    if (self->failed) {
        disk_pool_return(&stream->pool, job);
        return;
    }
    job->what = DISK_JOB_RECORD;
    job->kind = DISK_CHECKPOINT;
    job->file = self->number;
    job->offset = self->offset;
    job->size = size;
    self->offset += size;
    stream_give(stream, job);
}

void checkpoint_file_init(struct checkpoint_file *self, struct stream *stream, uint64_t number)
{
    *self = (struct checkpoint_file){.out = {.pool = &stream->pool, .give = give_record},
                                     .stream = stream,
                                     .number = number,
                                     .offset = FILE_HEAD_BYTES};
}

void checkpoint_file_fini(struct checkpoint_file *self)
{
    recorder_fini(&self->out);
    free(self->segments);
}

void checkpoint_file_fail(struct checkpoint_file *self, const char *format, ...)
{
    if (self->failed)
        return;
    va_list args;
    va_start(args, format);
    vsnprintf(self->error, sizeof self->error, format, args);
    va_end(args);
    self->failed = true;
}

struct named_segment *checkpoint_file_segment(struct checkpoint_file *self, uint64_t number)
{
    if (self->last_segment < self->n_segments && self->segments[self->last_segment].number == number)
        return &self->segments[self->last_segment];
    uint32_t from = 0, to = self->n_segments;
    while (from < to) {
        uint32_t middle = from + (to - from) / 2;
        if (self->segments[middle].number < number)
            from = middle + 1;
        else
            to = middle;
    }
    if (from == self->n_segments || self->segments[from].number != number) {
        if (self->n_segments == self->segments_capacity) {
            self->segments_capacity = self->segments_capacity ? 2 * self->segments_capacity : 64;
            self->segments = need_resize(self->segments, self->segments_capacity, sizeof *self->segments);
        }
        memmove(&self->segments[from + 1], &self->segments[from], (self->n_segments - from) * sizeof *self->segments);
        self->segments[from] = (struct named_segment){.number = number};
        self->n_segments++;
    }
    self->last_segment = from;
    return &self->segments[from];
}

uint64_t checkpoint_file_place(struct checkpoint_file *self, struct chunk *chunk)
{
    struct stream *stream = self->stream;
    struct named_segment *segment = chunk->at ? checkpoint_file_segment(self, disk_number(chunk->at)) : NULL;
    if (stream_lacks(stream, chunk) || (segment && segment->moving && chunk_is_here(chunk))) {
        if (!stream_chunk_again(stream, chunk))
            checkpoint_file_fail(self, "no memory for a chunk of %u bytes", chunk->bytes);
        self->chunk_bytes += sizeof(struct entry_chunk) + chunk->bytes;
    }
    segment = checkpoint_file_segment(self, disk_number(chunk->at));
    segment->chunks++;
    segment->bytes += chunk->bytes;
    return chunk->at;
}
