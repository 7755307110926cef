/* The life of the stream, what it learns from the disk writer, and when it is full. */
#include "broker/journal/stream.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "broker/config/config.h"
#include "broker/journal/journal.h"
#include "broker/loop/loop.h"
#include "broker/peer/peers.h"
#include "proto/base/error.h"

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

void stream_update_full(struct stream *self)
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
    stream_update_full(self);
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
    stream_update_full(self);
    disk_writer_watch(self->disk_writer, space_is_low(&self->space));
}

void stream_give(struct stream *self, struct disk_job *job)
{
    if (job->what == DISK_JOB_FINISH)
        stream_hand_over(self);
    if (job->what == DISK_JOB_RECORD) {
        self->given += job->size;
        self->backlog += job->size;
        stream_update_full(self);
    }
    disk_writer_give(self->disk_writer, job);
}

bool stream_file_job(struct stream *self, enum disk_job_what what, enum disk_kind kind, uint64_t number)
{
    struct disk_job *job = calloc(1, sizeof *job);
    if (!job)
        return false;
    *job = (struct disk_job){.what = what, .kind = kind, .file = number};
    stream_give(self, job);
    return true;
}

void stream_remove_segment(struct stream *self, uint64_t number)
{
    bool known = number != self->segment && segments_find(&self->segments, number);
    if (known && stream_file_job(self, DISK_JOB_REMOVE, DISK_SEGMENT, number))
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
        stream_segment_next(self);
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
        stream_update_full(self);
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
        if (file->kind == DISK_SEGMENT && file->mine && !segments_know(&self->segments, file->number, file->bytes))
            return err_set(err, RP_NO_MEMORY, "no memory for the list of segments");
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
    struct stream *self = calloc(1, sizeof *self);
    if (!self)
        return err_set(err, RP_NO_MEMORY, "no memory for the stream");
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

rp_status stream_begin(struct stream *self, rp_error *err)
{
    update_space(self);
    if (!stream_segment_begin(self, folder_next(&self->folder, DISK_SEGMENT), 0))
        return err_set(err, RP_NO_MEMORY, "no memory for the list of segments");
    stream_flush(self);
    return RP_OK;
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
