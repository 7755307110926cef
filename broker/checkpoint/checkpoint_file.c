#include "broker/checkpoint/checkpoint_file.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "proto/base/need.h"

/* Pause before the next try when there is no memory for an entry of more than RECORD_BYTES. */
#define LARGE_WAIT_US 1000u

void checkpoint_file_init(struct checkpoint_file *self, struct stream *stream, uint64_t number)
{
    *self = (struct checkpoint_file){.stream = stream, .number = number, .offset = FILE_HEAD_BYTES};
}

void checkpoint_file_fini(struct checkpoint_file *self)
{
    disk_pool_return(&self->stream->pool, self->job);
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

/* Takes the job. */
static void give_record(struct checkpoint_file *self, struct disk_job *job, size_t size)
{
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

void checkpoint_file_flush(struct checkpoint_file *self)
{
    if (self->used <= sizeof(struct record_head))
        return;
    give_record(self, self->job, self->used);
    self->job = NULL;
    self->record = NULL;
    self->used = self->capacity = 0;
}

/* Begins a record with room for so many bytes. */
static void record_new(struct checkpoint_file *self, size_t need)
{
    struct disk_pool *pool = &self->stream->pool;
    disk_pool_return(pool, self->job);
    self->capacity = need > RECORD_BYTES ? need : RECORD_BYTES;
    if (need <= RECORD_BYTES)
        self->job = disk_pool_take_wait(pool);
    else
        while ((self->job = disk_job_large(need)) == NULL)
            usleep(LARGE_WAIT_US); /* rare: an entry of more than 1 MiB */
    self->record = self->job->data;
}

void *checkpoint_file_entry(struct checkpoint_file *self, uint16_t type, uint32_t table, size_t size)
{
    size_t padded = entry_padded(sizeof(struct entry_head) + size);
    if (self->used + padded > self->capacity) {
        checkpoint_file_flush(self);
        record_new(self, sizeof(struct record_head) + padded);
        self->used = sizeof(struct record_head);
    }
    uint8_t *at = self->record + self->used;
    struct entry_head head = {.size = (uint32_t)(sizeof head + size), .type = type, .table = (uint16_t)table};
    memset(at + padded - 8, 0, 8);
    memcpy(at, &head, sizeof head);
    self->used += padded;
    self->entries++;
    return at + sizeof head;
}

static void *sink_room(void *ctx, uint16_t type, uint32_t table, size_t size)
{
    return checkpoint_file_entry(ctx, type, table, size);
}

struct entry_sink checkpoint_file_sink(struct checkpoint_file *self)
{
    return (struct entry_sink){sink_room, self};
}

void checkpoint_file_large(struct checkpoint_file *self, uint16_t type, const void *front, size_t size,
                           zmq_msg_t *value)
{
    checkpoint_file_flush(self);
    size_t body = size + zmq_msg_size(value), before = sizeof(struct record_head) + sizeof(struct entry_head) + size;
    struct disk_job *job = disk_job_large(before);
    if (!job) {
        checkpoint_file_fail(self, "no memory for a value of %zu bytes", body);
        return;
    }
    struct entry_head head = {.size = (uint32_t)(sizeof head + body), .type = type};
    memcpy(job->data + sizeof(struct record_head), &head, sizeof head);
    memcpy(job->data + before - size, front, size);
    self->entries++;
    job->tail_at = before;
    zmq_msg_init(&job->tail);
    zmq_msg_move(&job->tail, value);
    give_record(self, job, sizeof(struct record_head) + entry_padded(head.size));
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
