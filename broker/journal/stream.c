/* The stream: entries are appended to the record being filled, chunks become entries, and the disk writer's news says how far
 * the files are. */
#include "broker/journal/stream.h"

#include <assert.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "broker/config/config.h"
#include "broker/journal/journal.h"
#include "broker/loop/loop.h"
#include "broker/peer/peers.h"
#include "proto/base/error.h"
#include "proto/base/need.h"

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

/* Begins a segment; `after`: for its START entry; 0: as it is. Only when all effects are recorded, because the first entries of
 * a segment hold the state of counters. */
static void segment_begin(struct stream *self, uint64_t number, uint64_t after)
{
    segments_know(&self->segments, number, FILE_HEAD_BYTES);
    self->segment = number;
    self->offset = FILE_HEAD_BYTES;
    if (after)
        self->start.after = after;
    journal_start(self);
    self->start_used = self->first_bytes = self->used;
}

static void segment_next(struct stream *self)
{
    /* `after` shows a loader that nothing is missing between the segments */
    segment_begin(self, self->segment + 1, disk_at(self->segment, self->offset));
}

void stream_flush(struct stream *self)
{
    if (self->used < SMALL_RECORD && self->number - 1 - self->durable >= OUTSTANDING_ENOUGH)
        return;
    stream_hand_over(self);
    if (self->offset >= stream_segment_bytes(self))
        segment_next(self);
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

#define SEGMENT_BYTES (UINT64_C(256) << 20)
#define BACKLOG_MOST (UINT64_C(64) << 20)

/* ---- room on the disk */

/* Returns why inserts should wait. A reason that holds ends only well past its limit, so that it does not flicker. */
static enum stream_hold why_hold(const struct stream *self)
{
    if (self->trouble[0])
        return HOLD_TROUBLE;
    if (self->starved)
        return HOLD_MEMORY;
    uint64_t reserve = self->journal ? space_reserve(&self->space) : 0;
    if (self->space.free < (self->hold == HOLD_SPACE ? reserve / 4 * 5 : reserve))
        return HOLD_SPACE;
    enum checkpoint_activity checkpoint =
        self->journal && self->ops ? self->ops->activity(self->ops_ctx) : CHECKPOINT_NONE;
    if (checkpoint == CHECKPOINT_MAKES_ROOM)
        return HOLD_COMPACTION;
    if (checkpoint == CHECKPOINT_RUNS && self->journal_bytes + self->used > space_limit(&self->space))
        return HOLD_JOURNAL;
    return self->backlog > (self->hold == HOLD_BACKLOG ? self->backlog_most / 2 : self->backlog_most) ? HOLD_BACKLOG
                                                                                                      : HOLD_NOTHING;
}

static uint64_t below(uint64_t value, uint64_t limit)
{
    return value < limit ? limit - value : 0;
}

static void update_full(struct stream *self)
{
    uint64_t waiting = self->backlog + self->used;
    self->space.free = self->free == SPACE_UNKNOWN ? SPACE_UNKNOWN : below(waiting, self->free);
    self->hold = why_hold(self);
    bool before = self->full;
    self->full = self->hold != HOLD_NOTHING;
    if (self->full && !before)
        self->full_ns = self->state.loop->now_ns;
    /* The next check is due when so many bytes have been recorded. */
    uint64_t room = below(self->journal_bytes + self->used, space_limit(&self->space));
    uint64_t rest = below(space_reserve(&self->space), self->space.free);
    self->look_at = self->given + self->used + (rest < room ? rest : room);
}

bool stream_has_room(struct stream *self)
{
    uint64_t at = self->given + self->used;
    if (at - self->message_at > self->space.message)
        self->space.message = at - self->message_at;
    self->message_at = at;
    if (at < self->look_at)
        return true;
    update_full(self);
    return !self->full && self->journal_bytes + self->used <= space_limit(&self->space);
}

static void update_space(struct stream *self)
{
    const struct broker_config *config = self->state.config;
    self->space = (struct space){
        .journal = self->journal,
        .journal_max = (uint64_t)config->journal_max,
        .keep = (uint64_t)config->checkpoint_keep,
        .live = self->segments.live,
        .state = self->ops ? self->ops->bytes(self->ops_ctx) : 0,
        .message = self->space.message,
        .used = self->segments.total_bytes,
    };
    update_full(self);
    disk_writer_watch(self->disk_writer, space_is_low(&self->space));
}

void stream_give(struct stream *self, struct disk_job *job)
{
    if (job->what == DISK_JOB_FINISH)
        stream_hand_over(self);
    if (job->what == DISK_JOB_RECORD) {
        self->given += job->size;
        self->backlog += job->size;
        update_full(self);
    }
    disk_writer_give(self->disk_writer, job);
}

void stream_file_job(struct stream *self, enum disk_job_what what, enum disk_kind kind, uint64_t number)
{
    struct disk_job *job = need_alloc(sizeof *job);
    *job = (struct disk_job){.what = what, .kind = kind, .file = number};
    stream_give(self, job);
}

void stream_remove_segment(struct stream *self, uint64_t number)
{
    if (number == self->segment || !segments_find(&self->segments, number))
        return;
    stream_file_job(self, DISK_JOB_REMOVE, DISK_SEGMENT, number);
    segments_forget(&self->segments, number);
}

/* ---- the disk writer's news */

/* A sync has failed. Called between two turns, when all effects are recorded. */
static void distrust(struct stream *self, const struct disk_news *news)
{
    self->failures = news->failures;
    self->bad_first = news->bad_first;
    self->bad_last = news->bad_last;
    stream_hand_over(self);
    if (stream_is_bad(self, self->segment) && self->offset > FILE_HEAD_BYTES)
        segment_next(self);
    for (uint32_t i = 0; i < self->segments.n; i++) {
        struct segment_use *use = &self->segments.list[i];
        bool lost = stream_is_bad(self, use->number) && use->number != self->segment;
        self->segments.n_lost += lost && !use->lost;
        use->lost |= lost;
    }
}

bool stream_is_lost(const struct stream *self, uint64_t segment)
{
    const struct segment_use *use = segments_find(&self->segments, segment);
    return use && use->lost;
}

void stream_healed(struct stream *self, uint64_t failures)
{
    if (failures == self->failures)
        self->bad_first = self->bad_last = 0;
}

static void take_news(struct stream *self, const struct disk_news *news)
{
    if (news->failures != self->failures)
        distrust(self, news);
    self->durable = news->durable;
    self->backlog = self->given - news->written;
    self->free = news->free;
    if (strcmp(self->trouble, news->trouble) != 0) {
        if (!self->trouble[0])
            self->trouble_ns = self->state.loop->now_ns;
        memcpy(self->trouble, news->trouble, sizeof self->trouble);
    }
    if (news->finished && self->ops)
        self->ops->finished(self->ops_ctx, news->finished, true);
    if (news->abandoned && self->ops)
        self->ops->finished(self->ops_ctx, news->abandoned, false);
    update_space(self);
}

void stream_run(struct stream *self)
{
    self->message_at = self->given + self->used;
    if (!self->next_job)
        self->next_job = disk_pool_take(&self->pool);
    if (self->starved == (self->next_job != NULL)) {
        self->starved = !self->next_job;
        update_full(self);
    }
    struct disk_news news;
    while (disk_writer_news(self->disk_writer, &news)) {
        take_news(self, &news);
        if (!news.finished && !news.abandoned)
            break; /* the next turn reads what came meanwhile */
    }
}

static void hold_text(const struct stream *self, char *text, size_t size)
{
    const char *path = self->folder.path;
    switch (self->hold) {
    case HOLD_SPACE:
        snprintf(text, size, "%s: %.140s has %.1f MiB free, and a checkpoint may need %.1f MiB; free some space",
                 strerror(ENOSPC), path, (double)self->space.free / (1 << 20),
                 (double)space_reserve(&self->space) / (1 << 20));
        break;
    case HOLD_COMPACTION:
        snprintf(text, size, "%.140s has %.1f MiB free: a checkpoint comes first, which makes room", path,
                 (double)self->space.free / (1 << 20));
        break;
    case HOLD_JOURNAL:
        snprintf(text, size,
                 "the journal in %.140s has grown by %.1f MiB while a checkpoint is written: raise journal.max", path,
                 (double)self->journal_bytes / (1 << 20));
        break;
    case HOLD_MEMORY:
        snprintf(text, size, "no memory for a record of %u bytes: it waits until another is written in %.140s",
                 RECORD_BYTES, path);
        break;
    case HOLD_BACKLOG:
        snprintf(text, size, "the disk is slow: %.1f MiB wait to be written in %.140s",
                 (double)self->backlog / (1 << 20), path);
        break;
    default:
        snprintf(text, size, "%s", self->trouble);
    }
}

bool stream_is_full(const struct stream *self, char *text, size_t size)
{
    if (!self->full)
        return false;
    if (text)
        hold_text(self, text, size);
    return true;
}

/* ---- life */

static uint64_t record_needed(const void *journal)
{
    return stream_now(journal);
}

void stream_record(struct stream *self, bool on)
{
    struct commit *commit = &self->state.peers->commit;
    self->journal = on;
    commit->needed = on ? record_needed : NULL;
    commit->durable = &self->durable;
    commit->journal = self;
    self->state.loop->effects = on ? &self->effects : NULL;
}

/* Starts the disk writer. The folder is open. */
static rp_status open_writer(struct stream *self, rp_error *err)
{
    const struct broker_config *config = self->state.config;
    if (!disk_pool_init(&self->pool))
        return err_set(err, RP_NO_MEMORY, "no memory for the records of %s", self->folder.path);
    for (uint32_t i = 0; i < self->folder.n_files; i++) {
        const struct folder_file *file = &self->folder.files[i];
        if (file->kind == DISK_SEGMENT && file->mine)
            segments_know(&self->segments, file->number, file->bytes);
    }
    /* Without a journal nothing is promised to clients; a checkpoint syncs what it needs at its end. */
    enum fsync_mode mode = self->journal ? (enum fsync_mode)config->journal_fsync : FSYNC_NEVER;
    self->disk_writer = disk_writer_new(&self->folder, &self->pool, mode, config->journal_interval_ns, err);
    if (!self->disk_writer)
        return RP_NO_MEMORY;
    disk_writer_set_trace(self->disk_writer, &self->state.loop->trace);
    self->free = disk_writer_free(self->disk_writer);
    return RP_OK;
}

static void chunk_freed(void *ctx, const struct chunk *chunk)
{
    stream_chunk_dead(ctx, chunk);
}

rp_status stream_open(struct stream **out, const struct durable_state *state, rp_error *err)
{
    const struct broker_config *config = state->config;
    struct stream *self = need_alloc(sizeof *self);
    rp_status status = folder_open(&self->folder, config_folder(config), true, err);
    if (status != RP_OK) {
        free(self);
        return status;
    }
    self->state = *state;
    self->effects = journal_effects;
    stream_record(self, config->journal_dir && config->journal_dir[0]);
    self->number = 1;
    self->segment_bytes = SEGMENT_BYTES;
    uint64_t eighth = (uint64_t)config->memory_limit / 8;
    self->backlog_most = eighth < BACKLOG_MOST ? eighth : BACKLOG_MOST;
    status = open_writer(self, err);
    if (status != RP_OK) {
        stream_close(&self, 0);
        return status;
    }
    state->store->freed = chunk_freed;
    state->store->freed_ctx = self;
    *out = self;
    return RP_OK;
}

void stream_begin(struct stream *self)
{
    update_space(self);
    segment_begin(self, folder_next(&self->folder, DISK_SEGMENT), 0);
    stream_flush(self);
}

void stream_close(struct stream **at, int timeout_ms)
{
    struct stream *self = *at;
    if (!self)
        return;
    stream_record(self, false);
    if (self->disk_writer) {
        stream_hand_over(self);
        disk_pool_return(&self->pool, self->job);
        disk_pool_return(&self->pool, self->next_job);
        disk_pool_return(&self->pool, self->large_job);
    }
    disk_writer_destroy(&self->disk_writer, timeout_ms);
    disk_pool_fini(&self->pool);
    folder_close(&self->folder);
    segments_fini(&self->segments);
    free(self);
    *at = NULL;
}
