/* Jobs and the actor's loop. The core thread gives jobs and reads news under a lock that neither side holds for long; the
 * actor's pipe only wakes the other side, with at most one unread message each way. */
#include "broker/journal/disk_writer_impl.h"

#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "proto/base/error.h"
#include "proto/base/trace.h"

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
        disk_writer_sync_done(self, job);
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

/* Removals need not wait for their turn: no job before them needs those files, and they may free the space that a write
 * waits for. */
static void make_room(struct disk_writer *self)
{
    take_jobs(self);
    for (struct disk_job *job = self->jobs; job; job = job->next) {
        if (job->done || (job->what != DISK_JOB_REMOVE && job->what != DISK_JOB_ABANDON))
            continue;
        job->done = true;
        if (job->what == DISK_JOB_REMOVE)
            disk_writer_remove(self, job);
        else
            disk_writer_give_up(self, job->file, NULL);
    }
}

bool disk_writer_pause(struct disk_writer *self)
{
    self->retry_ns = self->retry_ns && !self->ending ? 2 * self->retry_ns : RETRY_FIRST_NS;
    if (self->retry_ns > RETRY_NS)
        self->retry_ns = RETRY_NS;
    int64_t now = clock_now(&self->clock), end = now + self->retry_ns;
    bool was_ending = self->ending;
    for (; now < end && self->ending == was_ending; now = clock_now(&self->clock)) {
        await(self, end - now);
        make_room(self);
    }
    disk_writer_measure(self);
    pthread_mutex_lock(&self->mutex);
    if (self->ending && now >= self->end_ns)
        self->over = true;
    pthread_mutex_unlock(&self->mutex);
    return !self->over;
}

static void job_do(struct disk_writer *self, struct disk_job *job)
{
    if (job->done)
        return;
    switch (job->what) {
    case DISK_JOB_RECORD:
        disk_writer_write(self, job);
        break;
    case DISK_JOB_FINISH:
        disk_writer_finish(self, job);
        break;
    case DISK_JOB_ABANDON:
        disk_writer_give_up(self, job->file, NULL);
        break;
    case DISK_JOB_REMOVE:
        disk_writer_remove(self, job);
        break;
    }
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

/* Gives these jobs back to the pool. Returns the bytes of their records. */
static uint64_t jobs_return(struct disk_writer *self, struct disk_job *job)
{
    uint64_t bytes = 0;
    for (struct disk_job *next; job; job = next) {
        next = job->next;
        bytes += job->what == DISK_JOB_RECORD ? job->size : 0;
        disk_pool_return(self->pool, job);
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
        disk_writer_sync_here(self);
    /* Before it is told: a core thread that waits for a record finds one when it wakes. */
    uint64_t bytes = jobs_return(self, batch);
    if (start)
        trace_add_since(trace, "write", "disk writer", start, bytes < UINT32_MAX ? (uint32_t)bytes : UINT32_MAX);
    disk_writer_tell_done(self, bytes, self->over ? 0 : last);
}

/* ---- life */

static void last_syncs(struct disk_writer *self)
{
    if (self->mode == FSYNC_INTERVAL && self->segment.dirty && self->segment.descriptor >= 0 && !self->over)
        disk_writer_sync_segment(self, false);
    while (self->syncing)
        await(self, -1);
    if (self->part.descriptor >= 0)
        disk_writer_give_up(self, self->part.number, NULL);
    if (self->segment.descriptor >= 0)
        close(self->segment.descriptor);
}

/* Returns how long there is nothing to do; -1: without end. */
static int64_t idle_ns(struct disk_writer *self)
{
    int64_t end = INT64_MAX;
    if (disk_writer_wants_sync(self))
        end = self->next_sync_ns;
    if (atomic_load(&self->watch) && self->measured_ns + MEASURE_NS < end)
        end = self->measured_ns + MEASURE_NS;
    if (end == INT64_MAX)
        return -1;
    int64_t left = end - clock_now(&self->clock);
    return left > 0 ? left : 0;
}

static void disk_writer_actor(zsock_t *pipe, void *given)
{
    struct disk_writer *self = given;
    pthread_setname_np(pthread_self(), "disk-writer");
    self->pipe = zsock_resolve(pipe);
    self->syncer = syncer_new(&self->sync);
    self->sync_pipe = self->syncer ? zsock_resolve(self->syncer) : NULL;
    zsock_signal(pipe, self->syncer ? 0 : 1);
    if (!self->syncer)
        return;
    self->next_sync_ns = clock_now(&self->clock) + self->interval_ns;
    while (!self->over) {
        take_jobs(self);
        disk_writer_sync_timed(self);
        if (self->jobs)
            do_batch(self);
        else if (self->ending)
            break;
        else
            await(self, idle_ns(self));
        if (atomic_load(&self->watch) && clock_now(&self->clock) >= self->measured_ns + MEASURE_NS)
            disk_writer_measure(self);
    }
    last_syncs(self);
    zactor_destroy(&self->syncer);
}

struct disk_writer *disk_writer_new(const struct folder *folder, struct disk_pool *pool, enum fsync_mode mode,
                                    int64_t interval_ns, rp_error *err)
{
    struct disk_writer *self = calloc(1, sizeof *self);
    if (!self) {
        err_set(err, RP_NO_MEMORY, "no memory for the disk writer");
        return NULL;
    }
    pthread_mutex_init(&self->mutex, NULL);
    self->last = &self->first;
    self->jobs_last = &self->jobs;
    self->folder = self->sync.folder = folder;
    self->pool = pool;
    self->mode = mode;
    self->interval_ns = interval_ns;
    self->clock = clock_system();
    self->segment.descriptor = self->part.descriptor = -1;
    self->news.free = disk_writer_free_bytes(folder);
    bool ok = true;
    for (uint32_t i = 0; i < folder->n_files && ok; i++)
        if (folder->files[i].kind == DISK_SEGMENT && folder->files[i].mine)
            ok = disk_writer_unsynced(self, folder->files[i].number);
    self->actor = !ok ? NULL : zactor_new(disk_writer_actor, self);
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
    self->end_ns = clock_now(&self->clock) + timeout_ms * NS_PER_MS;
    pthread_mutex_unlock(&self->mutex);
    zactor_destroy(&self->actor);
    jobs_return(self, self->jobs);
    jobs_return(self, self->first);
    free(self->unsynced);
    pthread_mutex_destroy(&self->mutex);
    free(self);
    *at = NULL;
}
