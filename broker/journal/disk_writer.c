/* One struct that two threads share: the core thread gives jobs and reads news under a lock that neither side holds for long,
 * and the actor's pipe only wakes the other side, with at most one unread message each way. All else is the actor's. What takes
 * long on a busy disk is left to the syncing thread. */
#include "broker/journal/disk_writer.h"

#include <czmq.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include "proto/base/clock.h"
#include "proto/base/error.h"
#include "proto/base/io.h"
#include "proto/base/log.h"
#include "proto/base/need.h"
#include "proto/base/trace.h"

/* ---- the syncing thread
 *
 * It syncs files, gives checkpoints their names, and removes files; the disk writer writes the journal meanwhile. A czmq actor:
 * pointers to jobs go in through its pipe and come back in order when they are done. */

enum sync_what {
    SYNC_SEGMENT, /* fdatasync */
    SYNC_FOLDER,  /* names of new files */
    SYNC_START,   /* asks the kernel to start writing out, and does not wait */
    SYNC_REMOVE,  /* removes a file; freeing a large one takes long */
    SYNC_FINISH   /* syncs a checkpoint and gives it its name, unless a sync has failed since it began */
};

struct sync_job {
    enum sync_what what;
    enum disk_kind kind; /* of the file to remove */
    uint64_t number;
    int descriptor;    /* closed by the syncing thread; -1: it opens the segment by its number */
    bool timed;        /* the sync of an interval */
    uint64_t failures; /* of a checkpoint: see struct disk_job */
    bool ok;
    bool gone; /* somebody has removed the segment, and others perhaps, too */
    rp_error err;
};

/* Borrowed by the syncing thread. failures: number of failed syncs of segments, on this thread and on the disk
 * writer's. */
struct syncer {
    const struct folder *folder;
    atomic_uint_fast64_t failures;
    struct trace *_Atomic trace; /* borrowed; NULL: nobody asks for spans */
};

/* True if somebody else has removed an open segment. */
static bool is_gone(const struct syncer *self, int descriptor, const char *name)
{
    struct stat about;
    return fstat(descriptor, &about) == 0 && about.st_nlink == 0 &&
           faccessat(self->folder->descriptor, name, F_OK, 0) != 0 && errno == ENOENT;
}

static bool syncer_segment(struct syncer *self, struct sync_job *job)
{
    char name[64];
    bool given = job->descriptor >= 0;
    folder_name(DISK_SEGMENT, job->number, false, name, sizeof name);
    if (!given) {
        job->descriptor = openat(self->folder->descriptor, name, O_RDONLY | O_CLOEXEC);
        if (job->descriptor < 0 && errno == ENOENT)
            return true; /* removed meanwhile, so nobody needs it */
    }
    bool synced = job->descriptor >= 0 && fdatasync(job->descriptor) == 0;
    job->gone = synced && given && is_gone(self, job->descriptor, name);
    if (synced && !job->gone)
        return true;
    err_set(&job->err, RP_IO, "segment %llu in %.140s %s%s; its chunks are written again",
            (unsigned long long)job->number, self->folder->path,
            job->gone ? "was removed" : "could not be synced: ", job->gone ? "" : strerror(errno));
    atomic_fetch_add(&self->failures, 1);
    return false;
}

static void syncer_do(struct syncer *self, struct sync_job *job)
{
    switch (job->what) {
    case SYNC_SEGMENT:
        job->ok = syncer_segment(self, job);
        break;
    case SYNC_FOLDER:
        job->ok = fsync(self->folder->descriptor) == 0;
        break;
    case SYNC_START:
        sync_file_range(job->descriptor, 0, 0, SYNC_FILE_RANGE_WRITE);
        job->ok = true;
        break;
    case SYNC_REMOVE:
        job->ok = folder_remove(self->folder, job->kind, job->number, false, &job->err) == RP_OK;
        break;
    case SYNC_FINISH:
        if (atomic_load(&self->failures) != job->failures)
            err_set(&job->err, RP_IO, "a segment that it relies on could not be synced");
        else
            job->ok = folder_finish(self->folder, job->number, job->descriptor, &job->err) == RP_OK;
        break;
    }
    if (job->descriptor >= 0)
        close(job->descriptor);
    job->descriptor = -1;
}

static const char *const sync_names[] = {
    [SYNC_SEGMENT] = "sync segment", [SYNC_FOLDER] = "sync folder",       [SYNC_START] = "start to write out",
    [SYNC_REMOVE] = "remove a file", [SYNC_FINISH] = "finish checkpoint",
};

static void syncer_actor(zsock_t *pipe, void *given)
{
    struct syncer *self = given;
    pthread_setname_np(pthread_self(), "syncer");
    void *socket = zsock_resolve(pipe);
    zsock_signal(pipe, 0);
    for (;;) {
        uint8_t message[16];
        int size = zmq_recv(socket, message, sizeof message, 0);
        if (size < 0 && errno == EINTR)
            continue;
        if (size != (int)sizeof(struct sync_job *))
            break; /* $TERM, or the end of the context */
        struct sync_job *job;
        memcpy(&job, message, sizeof job);
        struct trace *trace = self->trace;
        int64_t start = trace ? trace_now(trace) : 0;
        enum sync_what what = job->what;
        syncer_do(self, job);
        if (start)
            trace_add_since(trace, sync_names[what], "syncer", start, 0);
        while (zmq_send(socket, &job, sizeof job, 0) < 0 && (errno == EINTR || errno == EAGAIN))
            usleep(1000);
    }
}

/* ---- the disk writer */

struct written_file {
    uint64_t number;
    int descriptor;   /* -1: no file is open */
    uint64_t end;     /* offset after the last record */
    uint64_t started; /* the kernel was asked to write out the bytes before this offset */
    bool dirty;       /* written since the last sync */
};

struct disk_writer {
    /* shared by both threads, under the lock */
    pthread_mutex_t mutex;
    struct disk_job *first, **last; /* jobs that the actor has not taken yet */
    struct disk_news news;
    int64_t end_ns; /* after disk_writer_destroy: when retries stop */
    /* shared by both threads */
    atomic_bool told;            /* there is news, and a message in the pipe */
    atomic_bool watch;           /* the free space is measured also while nothing is written */
    struct trace *_Atomic trace; /* NULL: nobody asks for spans */
    /* the core thread's */
    zactor_t *actor;
    void *socket;
    /* the actor's */
    const struct folder *folder;
    enum fsync_mode mode;
    int64_t interval_ns;
    void *pipe;
    struct syncer sync;
    zactor_t *syncer;
    void *sync_pipe;
    uint32_t syncing; /* number of jobs that the syncer has */
    bool timed_sync;  /* one of them is the interval's sync */
    int64_t next_sync_ns;
    struct disk_job *jobs, **jobs_last; /* jobs that were taken and are not done */
    struct written_file segment, part;  /* part: the checkpoint in progress */
    uint64_t measured;                  /* news.written when the free space was last measured */
    int64_t measured_ns;                /* time of that measurement */
    uint64_t given_up;                  /* checkpoints up to this number are abandoned */
    uint64_t *unsynced;                 /* segments left without a sync, by this broker or the one before */
    uint32_t n_unsynced, unsynced_capacity;
    uint64_t passed; /* running number of the last record that is durable if no sync has failed */
    bool in_trouble, sync_trouble;
    int64_t trouble_log_ns, retry_ns;
    uint64_t failures; /* failed tries since the disk could last be written */
    bool ending;       /* disk_writer_destroy was called */
    bool over;         /* and there is no time left */
};

/* Abandons a checkpoint. why: logged, and reported to the core thread; NULL: the core thread asked for it. */
static void give_up(struct disk_writer *self, uint64_t checkpoint, const char *why);
/* Waits before the next try. False: there is no time for another one. */
static bool pause_retries(struct disk_writer *self);

#define TROUBLE_LOG_NS (10 * NS_PER_S)
/* Bytes written after which the free space is measured again. */
#define MEASURE_BYTES (64u << 10)

/* ---- the core thread's side */

bool disk_writer_news(struct disk_writer *self, struct disk_news *out)
{
    if (!atomic_load_explicit(&self->told, memory_order_acquire))
        return false;
    pthread_mutex_lock(&self->mutex);
    *out = self->news;
    self->news.finished = self->news.abandoned = 0;
    char token;
    while (zmq_recv(self->socket, &token, sizeof token, ZMQ_DONTWAIT) >= 0) {
    }
    atomic_store_explicit(&self->told, false, memory_order_relaxed);
    pthread_mutex_unlock(&self->mutex);
    return true;
}

static uint64_t free_bytes_of(const struct folder *folder)
{
    struct statvfs about;
    if (fstatvfs(folder->descriptor, &about) != 0 || about.f_frsize == 0)
        return UINT64_MAX;
    return (uint64_t)about.f_bavail * about.f_frsize;
}

uint64_t disk_writer_free(struct disk_writer *self)
{
    pthread_mutex_lock(&self->mutex);
    uint64_t bytes = self->news.free;
    pthread_mutex_unlock(&self->mutex);
    return bytes;
}

void disk_writer_watch(struct disk_writer *self, bool on)
{
    if (atomic_exchange(&self->watch, on) != on && on)
        zmq_send(self->socket, "", 0, ZMQ_DONTWAIT);
}

/* ---- news */

/* With the lock held. */
static void tell(struct disk_writer *self)
{
    if (atomic_load_explicit(&self->told, memory_order_relaxed))
        return;
    atomic_store_explicit(&self->told, true, memory_order_release);
    zmq_send(self->pipe, "", 0, ZMQ_DONTWAIT);
}

static void measure(struct disk_writer *self)
{
    uint64_t bytes = free_bytes_of(self->folder);
    pthread_mutex_lock(&self->mutex);
    bool changed = bytes != self->news.free;
    self->news.free = bytes;
    self->measured = self->news.written;
    if (changed)
        tell(self);
    pthread_mutex_unlock(&self->mutex);
    self->measured_ns = clock_ns();
}

/* At most one checkpoint is in progress: of two that have ended, the core thread has given up the earlier one. */
static void tell_ended(struct disk_writer *self, uint64_t checkpoint, const char *why)
{
    pthread_mutex_lock(&self->mutex);
    *(why ? &self->news.abandoned : &self->news.finished) = checkpoint;
    snprintf(self->news.why, sizeof self->news.why, "%s", why ? why : "");
    tell(self);
    pthread_mutex_unlock(&self->mutex);
}

static void tell_trouble(struct disk_writer *self, const char *text)
{
    pthread_mutex_lock(&self->mutex);
    snprintf(self->news.trouble, sizeof self->news.trouble, "%s", text);
    tell(self);
    pthread_mutex_unlock(&self->mutex);
}

static void tell_done(struct disk_writer *self, uint64_t bytes, uint64_t durable)
{
    struct disk_news *news = &self->news;
    pthread_mutex_lock(&self->mutex);
    if (durable > self->passed)
        self->passed = durable;
    if (!news->bad_last)
        news->durable = self->passed;
    news->written += bytes;
    if (news->free != UINT64_MAX) /* an estimate until it is measured */
        news->free -= bytes < news->free ? bytes : news->free;
    bool due = news->written - self->measured >= MEASURE_BYTES;
    tell(self);
    pthread_mutex_unlock(&self->mutex);
    if (due)
        measure(self);
}

/* ---- trouble */

static void report_trouble(struct disk_writer *self, const char *what)
{
    int64_t now = clock_ns();
    self->failures++;
    if (!self->in_trouble || now - self->trouble_log_ns >= TROUBLE_LOG_NS) {
        self->trouble_log_ns = now;
        log_line(LEVEL_ERROR, "B0501", "the disk cannot be written", "why=%s failures=%llu", log_text(what),
                 (unsigned long long)self->failures);
    }
    self->in_trouble = true;
    tell_trouble(self, what);
}

static void all_is_well(struct disk_writer *self)
{
    if (!self->in_trouble || self->sync_trouble)
        return;
    log_line(LEVEL_WARN, "B0502", "the disk can be written again", "failures=%llu", (unsigned long long)self->failures);
    self->in_trouble = false;
    self->failures = 0;
    self->retry_ns = 0;
    tell_trouble(self, "");
}

/* ---- syncs that failed */

/* Only the actor writes bad_first and bad_last, so its own thread reads them without the lock. */
static bool is_bad(const struct disk_writer *self, uint64_t segment)
{
    return self->news.bad_last && segment >= self->news.bad_first && segment <= self->news.bad_last;
}

static void distrust(struct disk_writer *self, const struct sync_job *job)
{
    uint64_t first = job->gone ? 1 : job->number;
    pthread_mutex_lock(&self->mutex);
    struct disk_news *news = &self->news;
    if (!news->bad_last || first < news->bad_first)
        news->bad_first = first;
    if (job->number > news->bad_last)
        news->bad_last = job->number;
    news->failures++; /* sync.failures may be ahead: the syncing thread reports the others later */
    pthread_mutex_unlock(&self->mutex);
    self->sync_trouble = true; /* a write that succeeds does not end this trouble */
    report_trouble(self, job->err.text);
}

static void healed(struct disk_writer *self, uint64_t failures)
{
    pthread_mutex_lock(&self->mutex);
    bool healed = self->news.bad_last && failures == atomic_load(&self->sync.failures);
    if (healed) {
        self->news.bad_first = self->news.bad_last = 0;
        self->news.durable = self->passed;
        tell(self);
    }
    pthread_mutex_unlock(&self->mutex);
    if (healed) {
        self->sync_trouble = false;
        all_is_well(self);
    }
}

/* Bytes after which the kernel is asked to start writing out. Without that, a sync, or the kernel's limit on dirty
 * pages, would meet all of them at once. */
#define START_BYTES (16u << 20)

static bool sync_give(struct disk_writer *self, struct sync_job job)
{
    struct sync_job *copy = need_alloc(sizeof *copy);
    *copy = job;
    if (zmq_send(self->sync_pipe, &copy, sizeof(struct sync_job *), ZMQ_DONTWAIT) >= 0) {
        self->syncing++;
        return true;
    }
    free(copy);
    if (job.descriptor >= 0)
        close(job.descriptor);
    return false;
}

static void file_remove(struct disk_writer *self, const struct disk_job *job)
{
    struct sync_job removal = {.what = SYNC_REMOVE, .kind = job->kind, .number = job->file, .descriptor = -1};
    if (!sync_give(self, removal))
        log_line(LEVEL_WARN, "B0504", "a file could not be removed", "why=\"the syncing thread has too many jobs\"");
}

static void sync_start(struct disk_writer *self, struct written_file *file)
{
    if (file->end < file->started + START_BYTES || self->syncing)
        return;
    file->started = file->end;
    int copy = dup(file->descriptor);
    if (copy >= 0)
        sync_give(self, (struct sync_job){.what = SYNC_START, .number = file->number, .descriptor = copy});
}

static void sync_segment(struct disk_writer *self, bool timed)
{
    if (is_bad(self, self->segment.number)) {
        self->segment.dirty = false; /* Linux reports the failure once; another sync would succeed */
        return;
    }
    int copy = dup(self->segment.descriptor);
    if (copy < 0 ||
        !sync_give(self, (struct sync_job){
                             .what = SYNC_SEGMENT, .number = self->segment.number, .descriptor = copy, .timed = timed}))
        return;
    self->segment.dirty = false;
    self->timed_sync |= timed;
}

/* Remembers a segment that is left without a sync. */
static void remember_unsynced(struct disk_writer *self, uint64_t segment)
{
    self->unsynced = need_room(self->unsynced, self->n_unsynced, &self->unsynced_capacity, sizeof *self->unsynced);
    self->unsynced[self->n_unsynced++] = segment;
}

static bool sync_left(struct disk_writer *self)
{
    while (self->n_unsynced) {
        uint64_t number = self->unsynced[self->n_unsynced - 1];
        if (!sync_give(self, (struct sync_job){.what = SYNC_SEGMENT, .number = number, .descriptor = -1}))
            return false;
        self->n_unsynced--;
    }
    return true;
}

/* Syncs a segment on this thread. descriptor -1: the segment is not open. */
static void sync_one_here(struct disk_writer *self, uint64_t segment, int descriptor)
{
    struct sync_job job = {.what = SYNC_SEGMENT, .number = segment, .descriptor = descriptor};
    if (!syncer_segment(&self->sync, &job))
        distrust(self, &job);
    if (job.descriptor >= 0 && descriptor < 0)
        close(job.descriptor);
}

/* Segments that were found at the start are among the remembered ones: the broker before may have been killed before
 * it synced them. */
static void sync_here(struct disk_writer *self)
{
    struct written_file *file = &self->segment;
    if (file->dirty && !is_bad(self, file->number))
        sync_one_here(self, file->number, file->descriptor);
    file->dirty = false;
    for (; self->n_unsynced; self->n_unsynced--)
        sync_one_here(self, self->unsynced[self->n_unsynced - 1], -1);
}

static bool wants_sync(const struct disk_writer *self)
{
    return self->mode == FSYNC_INTERVAL && !self->timed_sync && (self->segment.dirty || self->n_unsynced);
}

static void sync_timed(struct disk_writer *self)
{
    int64_t now = wants_sync(self) ? clock_ns() : 0;
    if (!now || now < self->next_sync_ns)
        return;
    self->next_sync_ns = now + self->interval_ns;
    sync_left(self);
    if (self->segment.dirty && self->segment.descriptor >= 0)
        sync_segment(self, true);
}

static void sync_done(struct disk_writer *self, struct sync_job *job)
{
    self->syncing--;
    if (job->timed)
        self->timed_sync = false;
    if (job->what == SYNC_FINISH) {
        if (job->ok) {
            healed(self, job->failures);
            tell_ended(self, job->number, NULL);
        } else
            give_up(self, job->number, job->err.text);
    } else if (job->what == SYNC_REMOVE) {
        if (!job->ok)
            log_line(LEVEL_WARN, "B0504", "a file could not be removed", "why=\"%s\"", job->err.text);
        measure(self);
    } else if (job->what == SYNC_SEGMENT && !job->ok) {
        distrust(self, job);
    }
    free(job);
}

static bool is_space(int error)
{
    return error == ENOSPC || error == EDQUOT || error == EFBIG;
}

/* Closes a segment before the next one begins. The next one relies on it, so it is synced first, or given to the
 * syncing thread, or remembered as not synced. False: not possible now. */
static bool leave_segment(struct disk_writer *self)
{
    struct written_file *file = &self->segment;
    if (self->mode == FSYNC_ALWAYS) /* also those that a process before has left */
        sync_here(self);
    if (file->descriptor < 0)
        return true;
    if (file->dirty && self->mode == FSYNC_NEVER && !is_bad(self, file->number)) {
        remember_unsynced(self, file->number);
    } else if (file->dirty && self->mode == FSYNC_INTERVAL) {
        sync_segment(self, false);
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
        sync_give(self, (struct sync_job){.what = SYNC_FOLDER, .number = job->file, .descriptor = -1});
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
    if (io_write(file->descriptor, job->data, job->size, job->offset)) {
        file->dirty = true;
        file->end = job->offset + job->size;
        sync_start(self, file);
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

static void record_write(struct disk_writer *self, struct disk_job *job)
{
    for (;;) {
        rp_error err = {0};
        int error = 0;
        if (job->kind == DISK_CHECKPOINT && job->file <= self->given_up)
            return;
        if (record_try(self, job, &error, &err)) {
            all_is_well(self);
            return;
        }
        if (job->kind == DISK_CHECKPOINT) {
            give_up(self, job->file, err.text);
            return;
        }
        /* A checkpoint can be made again; the journal cannot. */
        if (is_space(error) && self->part.descriptor >= 0) {
            give_up(self, self->part.number, "the disk is full, and the journal comes first");
            continue;
        }
        report_trouble(self, err.text);
        if (!pause_retries(self))
            return;
    }
}

static void give_up(struct disk_writer *self, uint64_t checkpoint, const char *why)
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
    log_line(LEVEL_ERROR, "B0503", "checkpoint abandoned", "checkpoint=%llu why=%s", (unsigned long long)checkpoint,
             log_text(why));
    tell_ended(self, checkpoint, why);
}

static void checkpoint_finish(struct disk_writer *self, const struct disk_job *job)
{
    uint64_t checkpoint = job->file;
    if (checkpoint <= self->given_up)
        return;
    if (self->part.descriptor < 0 || self->part.number != checkpoint) {
        give_up(self, checkpoint, "nothing of it was written");
        return;
    }
    bool ok = sync_left(self);
    if (ok && self->segment.descriptor >= 0 && self->segment.dirty) {
        sync_segment(self, false);
        ok = !self->segment.dirty;
    }
    int part = self->part.descriptor;
    self->part.descriptor = -1;
    if (!ok) {
        close(part);
        give_up(self, checkpoint, "its segments could not be synced");
    } else if (!sync_give(self, (struct sync_job){.what = SYNC_FINISH,
                                                  .number = checkpoint,
                                                  .descriptor = part,
                                                  .failures = job->failures})) {
        give_up(self, checkpoint, "no memory to sync it");
    }
}

/* Pause before the first retry of a failed write, and the longest: it doubles each time. */
#define RETRY_FIRST_NS (50 * NS_PER_MS)
#define RETRY_NS NS_PER_S
/* How often the free space is measured while it is short, besides after writes. */
#define MEASURE_NS (100 * NS_PER_MS)

/* ---- the core thread's side */

void *disk_writer_socket(struct disk_writer *self)
{
    return self->socket;
}

void disk_writer_give(struct disk_writer *self, struct disk_job *job)
{
    job->next = NULL;
    job->sealed = job->done = false;
    pthread_mutex_lock(&self->mutex);
    bool wake = !self->first;
    *self->last = job;
    self->last = &job->next;
    pthread_mutex_unlock(&self->mutex);
    if (wake)
        zmq_send(self->socket, "", 0, ZMQ_DONTWAIT);
}

/* ---- waiting */

static void listen_pipe(struct disk_writer *self)
{
    char message[16];
    int size;
    while ((size = zmq_recv(self->pipe, message, sizeof message, ZMQ_DONTWAIT)) >= 0)
        self->ending |= size > 0; /* $TERM */
    if (errno == ETERM) {
        self->ending = self->over = true;
        self->syncing = 0;
    }
    struct sync_job *job;
    while (self->syncing && zmq_recv(self->sync_pipe, &job, sizeof job, ZMQ_DONTWAIT) == (int)sizeof job)
        sync_done(self, job);
}

/* Waits until a message comes, or for wait_ns; -1: without end. */
static void await(struct disk_writer *self, int64_t wait_ns)
{
    zmq_pollitem_t items[] = {{self->pipe, 0, ZMQ_POLLIN, 0}, {self->sync_pipe, 0, ZMQ_POLLIN, 0}};
    zmq_poll(items, 2, wait_ns < 0 ? -1 : (long)((wait_ns + NS_PER_MS - 1) / NS_PER_MS));
    listen_pipe(self);
}

static void take_jobs(struct disk_writer *self)
{
    listen_pipe(self);
    pthread_mutex_lock(&self->mutex);
    if (self->first) {
        *self->jobs_last = self->first;
        self->jobs_last = self->last;
        self->first = NULL;
        self->last = &self->first;
    }
    pthread_mutex_unlock(&self->mutex);
}

static void job_do(struct disk_writer *self, struct disk_job *job)
{
    if (job->done)
        return;
    job->done = true;
    switch (job->what) {
    case DISK_JOB_RECORD:
        record_write(self, job);
        break;
    case DISK_JOB_FINISH:
        checkpoint_finish(self, job);
        break;
    case DISK_JOB_ABANDON:
        give_up(self, job->file, NULL);
        break;
    case DISK_JOB_REMOVE:
        file_remove(self, job);
        break;
    }
}

/* Removals need not wait for their turn: no job before them needs those files, and they may free the space that a write
 * waits for. */
static void make_room(struct disk_writer *self)
{
    take_jobs(self);
    for (struct disk_job *job = self->jobs; job; job = job->next)
        if (job->what == DISK_JOB_REMOVE || job->what == DISK_JOB_ABANDON)
            job_do(self, job);
}

static bool pause_retries(struct disk_writer *self)
{
    self->retry_ns = self->retry_ns && !self->ending ? 2 * self->retry_ns : RETRY_FIRST_NS;
    if (self->retry_ns > RETRY_NS)
        self->retry_ns = RETRY_NS;
    int64_t now = clock_ns(), end = now + self->retry_ns;
    bool was_ending = self->ending;
    for (; now < end && self->ending == was_ending; now = clock_ns()) {
        await(self, end - now);
        make_room(self);
    }
    measure(self);
    pthread_mutex_lock(&self->mutex);
    if (self->ending && now >= self->end_ns)
        self->over = true;
    pthread_mutex_unlock(&self->mutex);
    return !self->over;
}

/* True if the job can be in one batch, with one sync, with records of this segment (0: none yet). The end of a checkpoint
 * cannot: the syncing thread syncs it, after what comes before it has been synced here and reported. */
static bool fits_batch(const struct disk_job *job, uint64_t segment)
{
    if (job->what == DISK_JOB_FINISH)
        return false;
    return job->what != DISK_JOB_RECORD || job->kind != DISK_SEGMENT || job->file == segment || segment == 0;
}

/* Takes the next batch off the list: with fsync always, all jobs up to the end of a segment; otherwise one job. */
static struct disk_job *take_batch(struct disk_writer *self)
{
    struct disk_job *batch = self->jobs, **at = &self->jobs;
    uint64_t segment = 0;
    do {
        if ((*at)->what == DISK_JOB_RECORD && (*at)->kind == DISK_SEGMENT)
            segment = (*at)->file;
        at = &(*at)->next;
    } while (self->mode == FSYNC_ALWAYS && *at && fits_batch(*at, segment));
    self->jobs = *at;
    *at = NULL;
    if (!self->jobs)
        self->jobs_last = &self->jobs;
    return batch;
}

/* Frees these jobs. Returns the bytes of their records. */
static uint64_t jobs_free(struct disk_job *job)
{
    uint64_t bytes = 0;
    for (struct disk_job *next; job; job = next) {
        next = job->next;
        bytes += job->what == DISK_JOB_RECORD ? job->size : 0;
        disk_job_free(job);
    }
    return bytes;
}

static void do_batch(struct disk_writer *self)
{
    struct disk_job *batch = take_batch(self);
    struct trace *trace = self->trace;
    int64_t start = trace ? trace_now(trace) : 0;
    uint64_t last = 0;
    for (struct disk_job *job = batch; job && !self->over; job = job->next) {
        job_do(self, job);
        if (!self->over && job->number > last)
            last = job->number;
    }
    if (self->mode == FSYNC_ALWAYS && last && !self->over)
        sync_here(self);
    /* Before it is told: a core thread that waits for memory finds it when it wakes. */
    uint64_t bytes = jobs_free(batch);
    if (start)
        trace_add_since(trace, "write", "disk writer", start, bytes < UINT32_MAX ? (uint32_t)bytes : UINT32_MAX);
    tell_done(self, bytes, self->over ? 0 : last);
}

/* ---- life */

static void last_syncs(struct disk_writer *self)
{
    if (self->mode == FSYNC_INTERVAL && self->segment.dirty && self->segment.descriptor >= 0 && !self->over)
        sync_segment(self, false);
    while (self->syncing)
        await(self, -1);
    if (self->part.descriptor >= 0)
        give_up(self, self->part.number, NULL);
    if (self->segment.descriptor >= 0)
        close(self->segment.descriptor);
}

/* Returns how long there is nothing to do; -1: without end. */
static int64_t idle_ns(struct disk_writer *self)
{
    int64_t end = INT64_MAX;
    if (wants_sync(self))
        end = self->next_sync_ns;
    if (atomic_load(&self->watch) && self->measured_ns + MEASURE_NS < end)
        end = self->measured_ns + MEASURE_NS;
    if (end == INT64_MAX)
        return -1;
    int64_t left = end - clock_ns();
    return left > 0 ? left : 0;
}

static void disk_writer_actor(zsock_t *pipe, void *given)
{
    struct disk_writer *self = given;
    pthread_setname_np(pthread_self(), "disk-writer");
    self->pipe = zsock_resolve(pipe);
    self->syncer = zactor_new(syncer_actor, &self->sync);
    self->sync_pipe = self->syncer ? zsock_resolve(self->syncer) : NULL;
    zsock_signal(pipe, self->syncer ? 0 : 1);
    if (!self->syncer)
        return;
    self->next_sync_ns = clock_ns() + self->interval_ns;
    while (!self->over) {
        take_jobs(self);
        sync_timed(self);
        if (self->jobs)
            do_batch(self);
        else if (self->ending)
            break;
        else
            await(self, idle_ns(self));
        if (atomic_load(&self->watch) && clock_ns() >= self->measured_ns + MEASURE_NS)
            measure(self);
    }
    last_syncs(self);
    zactor_destroy(&self->syncer);
}

struct disk_writer *disk_writer_new(const struct folder *folder, enum fsync_mode mode, int64_t interval_ns,
                                    rp_error *err)
{
    struct disk_writer *self = need_alloc(sizeof *self);
    pthread_mutex_init(&self->mutex, NULL);
    self->last = &self->first;
    self->jobs_last = &self->jobs;
    self->folder = self->sync.folder = folder;
    self->mode = mode;
    self->interval_ns = interval_ns;
    self->segment.descriptor = self->part.descriptor = -1;
    self->news.free = free_bytes_of(folder);
    for (uint32_t i = 0; i < folder->n_files; i++)
        if (folder->files[i].kind == DISK_SEGMENT && folder->files[i].mine)
            remember_unsynced(self, folder->files[i].number);
    self->actor = zactor_new(disk_writer_actor, self);
    self->socket = self->actor ? zsock_resolve(self->actor) : NULL;
    if (!self->actor || !self->syncer) {
        err_set(err, RP_NO_MEMORY, "no thread or memory to write to %s", folder->path);
        disk_writer_destroy(&self, 0);
    }
    return self;
}

void disk_writer_set_trace(struct disk_writer *self, struct trace *trace)
{
    self->trace = trace;
    self->sync.trace = trace;
}

void disk_writer_destroy(struct disk_writer **at, int timeout_ms)
{
    struct disk_writer *self = *at;
    if (!self)
        return;
    pthread_mutex_lock(&self->mutex);
    self->end_ns = clock_ns() + timeout_ms * NS_PER_MS;
    pthread_mutex_unlock(&self->mutex);
    zactor_destroy(&self->actor);
    jobs_free(self->jobs);
    jobs_free(self->first);
    free(self->unsynced);
    pthread_mutex_destroy(&self->mutex);
    free(self);
    *at = NULL;
}
