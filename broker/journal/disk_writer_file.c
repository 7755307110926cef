#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "broker/journal/disk_writer_impl.h"
#include "proto/base/error.h"
#include "proto/base/log.h"

static bool is_space(int error)
{
    return error == ENOSPC || error == EDQUOT || error == EFBIG;
}

static bool write_at(int descriptor, const uint8_t *data, size_t size, uint64_t offset)
{
    while (size) {
        ssize_t n = pwrite(descriptor, data, size, (off_t)offset);
        if (n < 0 && errno == EINTR)
            continue;
        if (n <= 0) {
            if (n == 0)
                errno = ENOSPC;
            return false;
        }
        data += n;
        size -= (size_t)n;
        offset += (uint64_t)n;
    }
    return true;
}

/* Closes a segment before the next one begins. The next one relies on it, so it is synced first, or given to the
 * syncing thread, or remembered as not synced. False: not possible now. */
static bool leave_segment(struct disk_writer *self)
{
    struct written_file *file = &self->segment;
    if (self->mode == FSYNC_ALWAYS) /* also those that a process before has left */
        disk_writer_sync_here(self);
    if (file->descriptor < 0)
        return true;
    if (file->dirty && self->mode == FSYNC_NEVER && !disk_writer_is_bad(self, file->number)) {
        if (!disk_writer_unsynced(self, file->number))
            return false;
    } else if (file->dirty && self->mode == FSYNC_INTERVAL) {
        disk_writer_sync_segment(self, false);
        if (file->dirty)
            return false;
    }
    close(file->descriptor);
    file->descriptor = -1;
    return true;
}

/* Syncs the name of a new segment. False: the file is removed again; errno and err are set. */
static bool name_segment(const struct disk_writer *self, struct written_file *file, rp_error *err)
{
    if (fsync(self->folder->descriptor) == 0 || errno == EINVAL)
        return true; /* EINVAL: this file system cannot sync folders */
    int error = errno;
    err_set(err, RP_IO, "%s cannot be synced: %s; the broker retries every second", self->folder->path,
            strerror(error));
    close(file->descriptor);
    file->descriptor = -1;
    (void)folder_remove(self->folder, DISK_SEGMENT, file->number, false, NULL);
    errno = error;
    return false;
}

/* Creates the record's file if it is not the open one. False: errno and err are set. */
static bool open_file(struct disk_writer *self, struct written_file *file, const struct disk_job *job, rp_error *err)
{
    if (file->descriptor >= 0 && file->number == job->file)
        return true;
    if (file == &self->segment && !leave_segment(self)) {
        err_set(err, RP_IO, "segment %llu cannot be closed: %s", (unsigned long long)file->number, strerror(errno));
        return false;
    }
    if (file->descriptor >= 0)
        close(file->descriptor);
    errno = 0;
    *file = (struct written_file){.number = job->file, .descriptor = -1};
    file->descriptor = folder_create(self->folder, job->kind, job->file, err);
    /* A segment's records are durable only if its name is. A checkpoint gets its name at its end. */
    if (file->descriptor >= 0 && job->kind == DISK_SEGMENT) {
        if (self->mode == FSYNC_ALWAYS)
            return name_segment(self, file, err);
        disk_writer_sync_give(self, (struct sync_job){.what = SYNC_FOLDER, .number = job->file, .descriptor = -1});
    }
    return file->descriptor >= 0;
}

/* Copies a large chunk's data behind the start of its record. False: no memory. */
static bool complete(struct disk_job *job)
{
    if (!job->tail_at)
        return true;
    uint8_t *whole = malloc(job->size);
    if (!whole)
        return false;
    size_t bytes = zmq_msg_size(&job->tail);
    memcpy(whole, job->data, job->tail_at);
    memcpy(whole + job->tail_at, zmq_msg_data(&job->tail), bytes);
    memset(whole + job->tail_at + bytes, 0, job->size - job->tail_at - bytes);
    zmq_msg_close(&job->tail);
    if (job->data != job->buffer)
        free(job->data);
    job->data = whole;
    job->tail_at = 0;
    return true;
}

/* Tries once to write a record. False: nothing of it is in the file; err says why, and *error is errno. */
static bool record_try(struct disk_writer *self, struct disk_job *job, int *error, rp_error *err)
{
    struct written_file *file = job->kind == DISK_SEGMENT ? &self->segment : &self->part;
    char name[64];
    folder_name(job->kind, job->file, job->kind == DISK_CHECKPOINT, name, sizeof name);
    if (!complete(job)) {
        *error = ENOMEM;
        err_set(err, RP_NO_MEMORY, "no memory to write a chunk of %zu bytes to %s", job->size, name);
        return false;
    }
    if (!job->sealed)
        record_seal(job->data, job->size, disk_at(job->file, job->offset));
    job->sealed = true;
    if (!open_file(self, file, job, err)) {
        *error = errno;
        return false;
    }
    if (write_at(file->descriptor, job->data, job->size, job->offset)) {
        file->dirty = true;
        file->end = job->offset + job->size;
        disk_writer_sync_start(self, file);
        return true;
    }
    *error = errno;
    int cut = ftruncate(file->descriptor, (off_t)job->offset);
    err_set(err, RP_IO, "%s/%s cannot be written: %s%s%s", self->folder->path, name, strerror(*error),
            is_space(*error) ? "; free some space: the broker retries every second"
                             : "; the broker retries every second",
            cut == 0 ? "" : "; what was written of the last record could not be cut off");
    return false;
}

void disk_writer_write(struct disk_writer *self, struct disk_job *job)
{
    for (;;) {
        rp_error err = {0};
        int error = 0;
        if (job->kind == DISK_CHECKPOINT && job->file <= self->given_up)
            return;
        if (record_try(self, job, &error, &err)) {
            disk_writer_all_is_well(self);
            return;
        }
        if (job->kind == DISK_CHECKPOINT) {
            disk_writer_give_up(self, job->file, err.text);
            return;
        }
        /* A checkpoint can be made again; the journal cannot. */
        if (is_space(error) && self->part.descriptor >= 0) {
            disk_writer_give_up(self, self->part.number, "the disk is full, and the journal comes first");
            continue;
        }
        disk_writer_trouble(self, err.text);
        if (!disk_writer_pause(self))
            return;
    }
}

void disk_writer_give_up(struct disk_writer *self, uint64_t checkpoint, const char *why)
{
    rp_error err = {0};
    if (self->part.descriptor >= 0 && self->part.number == checkpoint) {
        close(self->part.descriptor);
        self->part.descriptor = -1;
    }
    if (checkpoint > self->given_up)
        self->given_up = checkpoint;
    if (folder_remove(self->folder, DISK_CHECKPOINT, checkpoint, true, &err) != RP_OK)
        log_line(LEVEL_WARN, "B0504", "a file could not be removed", "why=\"%s\"", err.text);
    if (!why)
        return;
    char quoted[320];
    log_line(LEVEL_ERROR, "B0503", "checkpoint abandoned", "checkpoint=%llu why=%s", (unsigned long long)checkpoint,
             log_quote(quoted, sizeof quoted, why));
    disk_writer_tell_event(self, checkpoint, false);
}

void disk_writer_finish(struct disk_writer *self, const struct disk_job *job)
{
    uint64_t checkpoint = job->file;
    if (checkpoint <= self->given_up)
        return;
    if (self->part.descriptor < 0 || self->part.number != checkpoint) {
        disk_writer_give_up(self, checkpoint, "nothing of it was written");
        return;
    }
    bool ok = disk_writer_sync_left(self);
    if (ok && self->segment.descriptor >= 0 && self->segment.dirty) {
        disk_writer_sync_segment(self, false);
        ok = !self->segment.dirty;
    }
    int part = self->part.descriptor;
    self->part.descriptor = -1;
    if (!ok) {
        close(part);
        disk_writer_give_up(self, checkpoint, "its segments could not be synced");
    } else if (!disk_writer_sync_give(self, (struct sync_job){.what = SYNC_FINISH,
                                                              .number = checkpoint,
                                                              .descriptor = part,
                                                              .failures = job->failures})) {
        disk_writer_give_up(self, checkpoint, "no memory to sync it");
    }
}
