#include "broker/journal/disk_job.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "proto/base/need.h"

struct disk_job *disk_job_new(size_t bytes)
{
    uint8_t *data = bytes > RECORD_BYTES ? malloc(bytes) : need_resize(NULL, bytes, 1);
    if (!data)
        return NULL;
    struct disk_job *job = need_alloc(sizeof *job);
    job->data = data;
    return job;
}

void disk_job_free(struct disk_job *job)
{
    if (!job)
        return;
    if (job->tail_at)
        zmq_msg_close(&job->tail);
    free(job->data);
    free(job);
}

/* ---- records ---- */

/* Most bytes before a large entry in its record, so that a record with a 1 GiB entry stays below RECORD_MOST. */
#define BEFORE_LARGE (32u << 10)
/* Pause before the next try when there is no memory for an entry of more than RECORD_BYTES. */
#define LARGE_WAIT_US 1000u

static void give(struct recorder *self, struct disk_job *job, size_t size)
{
    self->job = NULL;
    self->record = NULL;
    self->used = self->capacity = self->last = 0;
    self->give(self, job, size);
}

void recorder_flush(struct recorder *self)
{
    if (self->used)
        give(self, self->job, self->used);
}

bool recorder_reserve(struct recorder *self, size_t need)
{
    if (need <= RECORD_BYTES || self->large_bytes >= need)
        return true;
    disk_job_free(self->large_job);
    self->large_job = disk_job_new(need);
    self->large_bytes = self->large_job ? need : 0;
    return self->large_job != NULL;
}

static void record_begin(struct recorder *self, size_t need)
{
    if (need > RECORD_BYTES) {
        while (!recorder_reserve(self, need))
            usleep(LARGE_WAIT_US); /* rare: chunks are refused instead, and other entries cannot be left out */
        self->job = self->large_job;
        self->capacity = self->large_bytes;
        self->large_job = NULL;
        self->large_bytes = 0;
    } else {
        self->job = disk_job_new(RECORD_BYTES);
        self->capacity = RECORD_BYTES;
    }
    self->record = self->job->data;
    memset(self->record, 0, sizeof(struct record_head));
    self->used = sizeof(struct record_head);
}

void *recorder_entry(struct recorder *self, uint16_t type, uint32_t table, size_t size)
{
    size_t whole = sizeof(struct entry_head) + size, padded = entry_padded(whole);
    if (self->used && self->used + padded > self->capacity)
        recorder_flush(self);
    if (!self->used)
        record_begin(self, sizeof(struct record_head) + padded);
    uint8_t *at = self->record + self->used;
    memset(at + padded - 8, 0, 8);
    *(struct entry_head *)(void *)at =
        (struct entry_head){.size = (uint32_t)whole, .type = type, .table = (uint16_t)table};
    self->last = self->used;
    self->used += padded;
    self->entries++;
    return at + sizeof(struct entry_head);
}

void *recorder_extend(struct recorder *self, size_t bytes)
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

uint64_t recorder_large(struct recorder *self, uint16_t type, uint32_t table, const void *body, size_t size,
                        zmq_msg_t *rest)
{
    if (self->used > BEFORE_LARGE)
        recorder_flush(self);
    size_t before = self->used ? self->used : sizeof(struct record_head);
    size_t whole = sizeof(struct entry_head) + size + zmq_msg_size(rest);
    /* What comes before the data is small, so it gets a small record of its own. */
    struct disk_job *job = need_alloc(sizeof *job);
    job->tail_at = before + sizeof(struct entry_head) + size;
    job->data = need_alloc(job->tail_at);
    if (self->used)
        memcpy(job->data, self->record, before);
    disk_job_free(self->job);
    *(struct entry_head *)(void *)(job->data + before) =
        (struct entry_head){.size = (uint32_t)whole, .type = type, .table = (uint16_t)table};
    memcpy(job->data + before + sizeof(struct entry_head), body, size);
    zmq_msg_init(&job->tail);
    zmq_msg_copy(&job->tail, rest);
    self->entries++;
    give(self, job, before + entry_padded(whole));
    return before;
}

void recorder_fini(struct recorder *self)
{
    disk_job_free(self->job);
    disk_job_free(self->large_job);
    self->job = self->large_job = NULL;
}
