/* What goes into segments: entries are appended to the record being filled, and chunks become entries. */
#include <assert.h>
#include <string.h>
#include <unistd.h>

#include "broker/journal/journal.h"
#include "broker/journal/stream.h"

/* While the disk writer has this many records, a small one is kept back and grows. */
#define OUTSTANDING_ENOUGH 2u
#define SMALL_RECORD (256u << 10)
/* The data of a chunk larger than this is copied by the disk writer, not by the core thread. */
#define LARGE_CHUNK (RECORD_BYTES / 2)
/* Most bytes before a large entry in its record, so that a record with a 1 GiB entry stays below RECORD_MOST. */
#define BEFORE_LARGE (32u << 10)
/* Pause before the next try when there is no memory for an entry of more than RECORD_BYTES. */
#define LARGE_WAIT_US 1000u

/* ---- records */

static void record_forget(struct stream *self)
{
    self->job = NULL;
    self->record = NULL;
    self->used = self->capacity = self->start_used = self->last = 0;
}

static void job_give(struct stream *self, struct disk_job *job, size_t size)
{
    job->what = DISK_JOB_RECORD;
    job->kind = DISK_SEGMENT;
    job->file = self->segment;
    job->offset = self->offset;
    job->number = self->number++;
    job->size = size;
    segments_grow(&self->segments, self->segment, size);
    self->journal_bytes += size;
    self->offset += size;
    record_forget(self);
    stream_give(self, job);
}

static void record_give(struct stream *self)
{
    job_give(self, self->job, self->used);
}

void stream_hand_over(struct stream *self)
{
    if (!self->used || (!self->journal && self->used == self->start_used))
        return; /* without a journal, no file is created before there is a chunk */
    record_give(self);
}

/* Makes a record for an entry of more than RECORD_BYTES. False: no memory. */
static bool large_reserve(struct stream *self, size_t need)
{
    if (self->large_bytes >= need)
        return true;
    disk_pool_return(&self->pool, self->large_job);
    self->large_job = disk_job_large(need);
    self->large_bytes = self->large_job ? need : 0;
    return self->large_job != NULL;
}

static void record_begin(struct stream *self, size_t entry)
{
    size_t need = sizeof(struct record_head) + entry;
    if (need > RECORD_BYTES) {
        while (!large_reserve(self, need))
            usleep(LARGE_WAIT_US); /* rare: chunks are refused instead, and other entries cannot be left out */
        self->job = self->large_job;
        self->capacity = self->large_bytes;
        self->large_job = NULL;
        self->large_bytes = 0;
    } else {
        self->job = self->next_job ? self->next_job : disk_pool_take_wait(&self->pool);
        self->capacity = RECORD_BYTES;
        self->next_job = NULL;
    }
    self->record = self->job->data;
    memset(self->record, 0, sizeof(struct record_head));
    self->used = sizeof(struct record_head);
}

void *stream_entry(struct stream *self, uint16_t type, uint32_t table, size_t size)
{
    size_t whole = sizeof(struct entry_head) + size, padded = entry_padded(whole);
    if (self->used && self->used + padded > self->capacity)
        record_give(self); /* even if it holds nothing but the segment's first entries: they come first */
    if (!self->used)
        record_begin(self, padded);
    assert(self->used + padded <= self->capacity);
    uint8_t *at = self->record + self->used;
    memset(at + padded - 8, 0, 8);
    *(struct entry_head *)(void *)at =
        (struct entry_head){.size = (uint32_t)whole, .type = type, .table = (uint16_t)table};
    self->last = self->used;
    self->used += padded;
    return at + sizeof(struct entry_head);
}

void *stream_extend(struct stream *self, size_t bytes)
{
    if (!self->last || bytes % 8 || self->used + bytes > self->capacity)
        return NULL;
    struct entry_head *head = (struct entry_head *)(void *)(self->record + self->last);
    if (head->size % 8)
        return NULL; /* its padding would be in the middle of the entry */
    uint8_t *room = self->record + self->used;
    head->size += (uint32_t)bytes;
    self->used += bytes;
    return room;
}

uint64_t stream_entry_large(struct stream *self, uint16_t type, uint32_t table, const void *body, size_t size,
                            zmq_msg_t *rest)
{
    if (self->used > BEFORE_LARGE)
        record_give(self);
    size_t before = self->used ? self->used : sizeof(struct record_head);
    size_t whole = sizeof(struct entry_head) + size + zmq_msg_size(rest);
    size_t tail_at = before + sizeof(struct entry_head) + size;
    /* What comes before the data is small, so it gets a small record of its own; without memory, the one being filled. */
    struct disk_job *job = disk_job_large(tail_at);
    if (job) {
        memset(job->data, 0, sizeof(struct record_head));
        if (self->used)
            memcpy(job->data, self->record, before);
        disk_pool_return(&self->pool, self->job);
    } else {
        if (!self->used)
            record_begin(self, sizeof(struct entry_head) + size);
        job = self->job;
    }
    *(struct entry_head *)(void *)(job->data + before) =
        (struct entry_head){.size = (uint32_t)whole, .type = type, .table = (uint16_t)table};
    memcpy(job->data + before + sizeof(struct entry_head), body, size);
    uint64_t at = disk_at(self->segment, self->offset + before);
    job->tail_at = tail_at;
    zmq_msg_init(&job->tail);
    zmq_msg_copy(&job->tail, rest);
    job_give(self, job, before + entry_padded(whole));
    return at;
}

uint64_t stream_segment_bytes(const struct stream *self)
{
    uint64_t bytes = space_segment(&self->space), start = 4 * (uint64_t)self->first_bytes;
    bytes = bytes > start ? bytes : start; /* with many tables, the first entries are long */
    return bytes < self->segment_bytes ? bytes : self->segment_bytes;
}

bool stream_segment_begin(struct stream *self, uint64_t number, uint64_t after)
{
    if (!segments_know(&self->segments, number, FILE_HEAD_BYTES))
        return false;
    self->segment = number;
    self->offset = FILE_HEAD_BYTES;
    if (after)
        self->start.after = after;
    journal_start(self);
    self->start_used = self->first_bytes = self->used;
    return true;
}

void stream_segment_next(struct stream *self)
{
    /* `after` shows a loader that nothing is missing between the segments */
    self->leave = !stream_segment_begin(self, self->segment + 1, disk_at(self->segment, self->offset));
}

void stream_flush(struct stream *self)
{
    if (self->used < SMALL_RECORD && self->number - 1 - self->durable >= OUTSTANDING_ENOUGH)
        return;
    stream_hand_over(self);
    if (self->offset >= stream_segment_bytes(self) || self->leave)
        stream_segment_next(self);
}

/* ---- chunks */

static size_t chunk_entry_bytes(const struct chunk *chunk)
{
    return sizeof(struct entry_chunk) + (size_t)chunk->columns * 5 + chunk->bytes;
}

/* Returns the bytes that a chunk takes in its segment. */
static uint64_t chunk_disk_bytes(const struct chunk *chunk)
{
    return entry_padded(sizeof(struct entry_head) + chunk_entry_bytes(chunk));
}

static void chunk_head(struct chunk *chunk, uint8_t *body)
{
    *(struct entry_chunk *)(void *)body = (struct entry_chunk){
        .step = chunk->step,
        .length = chunk->length,
        .bytes = chunk->bytes,
        .raw_bytes = chunk->raw_bytes,
        .session = chunk->session,
        .episode = chunk->episode,
        .columns = chunk->columns,
        .absent = chunk->absent,
    };
    memcpy(body + sizeof(struct entry_chunk), chunk_block_sizes(chunk), (size_t)chunk->columns * 5);
}

/* True if the disk writer copies the chunk's data out of its message. */
static bool chunk_is_shared(struct chunk *chunk)
{
    zmq_msg_t *message = chunk_message(chunk);
    return message && zmq_msg_size(message) == chunk->bytes && chunk_entry_bytes(chunk) > LARGE_CHUNK;
}

static bool chunk_reserve(struct stream *self, struct chunk *chunk)
{
    size_t need = sizeof(struct record_head) + chunk_disk_bytes(chunk);
    return need <= RECORD_BYTES || chunk_is_shared(chunk) || large_reserve(self, need);
}

static void chunk_put(struct stream *self, struct chunk *chunk)
{
    size_t size = chunk_entry_bytes(chunk);
    if (chunk_is_shared(chunk)) {
        uint8_t head[sizeof(struct entry_chunk) + 5 * UINT8_MAX] __attribute__((aligned(8)));
        chunk_head(chunk, head);
        if (self->used)
            record_give(self);
        chunk->at = stream_entry_large(self, ENTRY_CHUNK, 0, head, size - chunk->bytes, chunk_message(chunk));
    } else {
        uint8_t *body = stream_entry(self, ENTRY_CHUNK, 0, size);
        chunk_head(chunk, body);
        memcpy(body + size - chunk->bytes, chunk_data(chunk), chunk->bytes);
        uint64_t in_record = (uint64_t)(body - self->record) - sizeof(struct entry_head);
        chunk->at = disk_at(self->segment, self->offset + in_record);
    }
    stream_chunk_known(self, chunk);
}

bool stream_chunk(struct stream *self, struct chunk *chunk)
{
    return !stream_lacks(self, chunk) || stream_chunk_again(self, chunk);
}

bool stream_chunk_again(struct stream *self, struct chunk *chunk)
{
    if (!chunk_reserve(self, chunk))
        return false;
    if (chunk->at)
        stream_chunk_dead(self, chunk);
    chunk_put(self, chunk);
    return true;
}

bool stream_chunks_first(struct stream *self, struct chunk *const *chunks, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++)
        if (chunks[i]->bytes > LARGE_CHUNK && !stream_chunk(self, chunks[i]))
            return false;
    return true;
}

void stream_chunk_known(struct stream *self, const struct chunk *chunk)
{
    segments_chunk_known(&self->segments, disk_number(chunk->at), chunk_disk_bytes(chunk));
}

void stream_chunk_dead(struct stream *self, const struct chunk *chunk)
{
    segments_chunk_dead(&self->segments, disk_number(chunk->at), chunk_disk_bytes(chunk));
}
