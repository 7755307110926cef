#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "broker/journal/disk_writer_impl.h"
#include "proto/base/log.h"

/* Bytes after which the kernel is asked to start writing out. Without that, a sync, or the kernel's limit on dirty
 * pages, would meet all of them at once. */
#define START_BYTES (16u << 20)

bool disk_writer_sync_give(struct disk_writer *self, struct sync_job job)
{
    struct sync_job *copy = malloc(sizeof *copy);
    if (copy)
        *copy = job;
    if (copy && zmq_send(self->sync_pipe, &copy, sizeof(struct sync_job *), ZMQ_DONTWAIT) >= 0) {
        self->syncing++;
        return true;
    }
    free(copy);
    if (job.descriptor >= 0)
        close(job.descriptor);
    return false;
}

void disk_writer_remove(struct disk_writer *self, const struct disk_job *job)
{
    struct sync_job removal = {.what = SYNC_REMOVE, .kind = job->kind, .number = job->file, .descriptor = -1};
    if (!disk_writer_sync_give(self, removal))
        log_line(LEVEL_WARN, "B0504", "a file could not be removed", "why=\"the syncing thread has too many jobs\"");
}

void disk_writer_sync_start(struct disk_writer *self, struct written_file *file)
{
    if (file->end < file->started + START_BYTES || self->syncing)
        return;
    file->started = file->end;
    int copy = dup(file->descriptor);
    if (copy >= 0)
        disk_writer_sync_give(self, (struct sync_job){.what = SYNC_START, .number = file->number, .descriptor = copy});
}

void disk_writer_sync_segment(struct disk_writer *self, bool timed)
{
    if (disk_writer_is_bad(self, self->segment.number)) {
        self->segment.dirty = false; /* Linux reports the failure once; another sync would succeed */
        return;
    }
    int copy = dup(self->segment.descriptor);
    if (copy < 0 || !disk_writer_sync_give(self, (struct sync_job){.what = SYNC_SEGMENT,
                                                                   .number = self->segment.number,
                                                                   .descriptor = copy,
                                                                   .timed = timed}))
        return;
    self->segment.dirty = false;
    self->timed_sync |= timed;
}

bool disk_writer_unsynced(struct disk_writer *self, uint64_t segment)
{
    if (self->n_unsynced == self->unsynced_capacity) {
        uint32_t capacity = self->unsynced_capacity ? self->unsynced_capacity * 2 : 16;
        uint64_t *list = realloc(self->unsynced, capacity * sizeof *list);
        if (!list)
            return false;
        self->unsynced = list;
        self->unsynced_capacity = capacity;
    }
    self->unsynced[self->n_unsynced++] = segment;
    return true;
}

bool disk_writer_sync_left(struct disk_writer *self)
{
    while (self->n_unsynced) {
        uint64_t number = self->unsynced[self->n_unsynced - 1];
        if (!disk_writer_sync_give(self, (struct sync_job){.what = SYNC_SEGMENT, .number = number, .descriptor = -1}))
            return false;
        self->n_unsynced--;
    }
    return true;
}

static void sync_failed_here(struct disk_writer *self, uint64_t segment)
{
    char text[256];
    snprintf(text, sizeof text, "segment %llu in %.140s could not be synced: %s; its chunks are written again",
             (unsigned long long)segment, self->folder->path, strerror(errno));
    atomic_fetch_add(&self->sync.failures, 1);
    disk_writer_distrust(self, segment, text);
}

/* Segments that were found at the start are among the remembered ones: the broker before may have been killed before
 * it synced them. */
void disk_writer_sync_here(struct disk_writer *self)
{
    struct written_file *file = &self->segment;
    if (file->dirty && !disk_writer_is_bad(self, file->number) && fdatasync(file->descriptor) != 0)
        sync_failed_here(self, file->number);
    file->dirty = false;
    for (; self->n_unsynced; self->n_unsynced--) {
        uint64_t number = self->unsynced[self->n_unsynced - 1];
        char name[64];
        folder_name(DISK_SEGMENT, number, false, name, sizeof name);
        int left = openat(self->folder->descriptor, name, O_RDONLY | O_CLOEXEC);
        if (left >= 0 ? fdatasync(left) != 0 : errno != ENOENT) /* ENOENT: removed meanwhile, so nobody needs it */
            sync_failed_here(self, number);
        if (left >= 0)
            close(left);
    }
}

bool disk_writer_wants_sync(const struct disk_writer *self)
{
    return self->mode == FSYNC_INTERVAL && !self->timed_sync && (self->segment.dirty || self->n_unsynced);
}

void disk_writer_sync_timed(struct disk_writer *self)
{
    int64_t now = disk_writer_wants_sync(self) ? clock_now(&self->clock) : 0;
    if (!now || now < self->next_sync_ns)
        return;
    self->next_sync_ns = now + self->interval_ns;
    disk_writer_sync_left(self);
    if (self->segment.dirty && self->segment.descriptor >= 0)
        disk_writer_sync_segment(self, true);
}

void disk_writer_sync_done(struct disk_writer *self, struct sync_job *job)
{
    self->syncing--;
    if (job->timed)
        self->timed_sync = false;
    if (job->what == SYNC_FINISH) {
        if (job->ok) {
            disk_writer_healed(self, job->failures);
            disk_writer_tell_event(self, job->number, true);
        } else
            disk_writer_give_up(self, job->number, job->err.text);
    } else if (job->what == SYNC_REMOVE) {
        if (!job->ok)
            log_line(LEVEL_WARN, "B0504", "a file could not be removed", "why=\"%s\"", job->err.text);
        disk_writer_measure(self);
    } else if (job->what == SYNC_SEGMENT && !job->ok) {
        disk_writer_distrust(self, job->number, job->err.text);
    }
    free(job);
}
