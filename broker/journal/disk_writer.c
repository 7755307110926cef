/* Two sides: the core thread gives jobs and takes news under a lock that neither holds for long; the actor's pipe only
 * wakes, with at most one unread message each way. The rest of the struct is the actor's own. */
#include "broker/journal/disk_writer_impl.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include "proto/base/error.h"
#include "proto/base/log.h"

/* A disk that can not be written is tried again after so long, then half as often each time. */
#define RETRY_FIRST_NS (50 * NS_PER_MS)
#define RETRY_NS NS_PER_S
#define TROUBLE_LOG_NS (10 * NS_PER_S)
/* The free space is looked at when so much was written; where it is short, also when so long has passed. */
#define MEASURE_BYTES (64u << 10)
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

struct disk_job *disk_writer_record_large(size_t bytes)
{
    struct disk_job *job = calloc(1, sizeof *job);
    if (job && (job->data = malloc(bytes)) != NULL)
        return job;
    free(job);
    return NULL;
}

static void job_free(struct disk_job *job)
{
    if (job->tail_at)
        zmq_msg_close(&job->tail);
    if (job->data != job->buffer)
        free(job->data);
    free(job->buffer);
    free(job);
}

static struct disk_job *record_new(void)
{
    struct disk_job *job = disk_writer_record_large(RECORD_BYTES);
    if (job)
        job->buffer = job->data;
    return job;
}

struct disk_job *disk_writer_record(struct disk_writer *self)
{
    pthread_mutex_lock(&self->mutex);
    struct disk_job *job = self->n_spare ? self->spare[--self->n_spare] : NULL;
    pthread_mutex_unlock(&self->mutex);
    return job ? job : record_new();
}

struct disk_job *disk_writer_record_wait(struct disk_writer *self)
{
    struct disk_job *job = disk_writer_record(self);
    if (job)
        return job;
    pthread_mutex_lock(&self->mutex);
    while (!self->n_spare)
        pthread_cond_wait(&self->returned, &self->mutex);
    job = self->spare[--self->n_spare];
    pthread_mutex_unlock(&self->mutex);
    return job;
}

/* With the lock held. False: enough of them are kept. */
static bool keep_spare(struct disk_writer *self, struct disk_job *job)
{
    if (!job->buffer || self->n_spare == SPARE_MOST)
        return false;
    if (job->tail_at)
        zmq_msg_close(&job->tail);
    if (job->data != job->buffer)
        free(job->data);
    *job = (struct disk_job){.data = job->buffer, .buffer = job->buffer};
    self->spare[self->n_spare++] = job;
    pthread_cond_signal(&self->returned);
    return true;
}

void disk_writer_record_drop(struct disk_writer *self, struct disk_job *job)
{
    if (!job)
        return;
    pthread_mutex_lock(&self->mutex);
    bool kept = keep_spare(self, job);
    pthread_mutex_unlock(&self->mutex);
    if (!kept)
        job_free(job);
}

bool disk_writer_news(struct disk_writer *self, struct disk_news *out)
{
    if (!atomic_load_explicit(&self->told, memory_order_acquire))
        return false;
    pthread_mutex_lock(&self->mutex);
    *out = self->news;
    if (self->n_events) {
        *(self->events[0].ok ? &out->finished : &out->abandoned) = self->events[0].number;
        self->n_events--;
        memmove(self->events, self->events + 1, self->n_events * sizeof self->events[0]);
    }
    if (!self->n_events) {
        char token;
        while (zmq_recv(self->socket, &token, sizeof token, ZMQ_DONTWAIT) >= 0) {
        }
        atomic_store_explicit(&self->told, false, memory_order_relaxed);
    }
    pthread_mutex_unlock(&self->mutex);
    return true;
}

static uint64_t free_bytes(const struct folder *folder)
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

void disk_writer_measure(struct disk_writer *self)
{
    uint64_t bytes = free_bytes(self->folder);
    pthread_mutex_lock(&self->mutex);
    bool changed = bytes != self->news.free;
    self->news.free = bytes;
    self->measured = self->news.written;
    if (changed)
        tell(self);
    pthread_mutex_unlock(&self->mutex);
    self->measured_ns = clock_now(&self->clock);
}

void disk_writer_tell_event(struct disk_writer *self, uint64_t checkpoint, bool ok)
{
    pthread_mutex_lock(&self->mutex);
    assert(self->n_events < EVENTS_MOST); /* one checkpoint at a time is under way */
    self->events[self->n_events].number = checkpoint;
    self->events[self->n_events++].ok = ok;
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

static void jobs_drop(struct disk_job *job)
{
    while (job) {
        struct disk_job *next = job->next;
        job_free(job);
        job = next;
    }
}

/* These jobs are done, or not needed any more; records of the stream up to this number are durable. Told in one piece. */
static void jobs_end(struct disk_writer *self, struct disk_job *batch, uint64_t durable)
{
    struct disk_news *news = &self->news;
    pthread_mutex_lock(&self->mutex);
    if (durable > self->passed)
        self->passed = durable;
    if (!news->bad_last)
        news->durable = self->passed;
    struct disk_job *left = NULL;
    for (struct disk_job *job = batch, *next; job; job = next) {
        next = job->next;
        if (job->what == DISK_JOB_RECORD) {
            news->written += job->size;
            if (news->free != UINT64_MAX) /* until it is measured */
                news->free -= job->size < news->free ? job->size : news->free;
        }
        if (!keep_spare(self, job)) {
            job->next = left;
            left = job;
        }
    }
    bool measure = news->written - self->measured >= MEASURE_BYTES;
    tell(self);
    pthread_mutex_unlock(&self->mutex);
    jobs_drop(left);
    if (measure)
        disk_writer_measure(self);
}

/* ---- trouble */

void disk_writer_trouble(struct disk_writer *self, const char *what)
{
    int64_t now = clock_now(&self->clock);
    self->failures++;
    if (!self->in_trouble || now - self->trouble_log_ns >= TROUBLE_LOG_NS) {
        char quoted[320];
        self->trouble_log_ns = now;
        log_line(LEVEL_ERROR, "B0501", "the disk can not be written", "why=%s failures=%llu",
                 log_quote(quoted, sizeof quoted, what), (unsigned long long)self->failures);
    }
    self->in_trouble = true;
    tell_trouble(self, what);
}

void disk_writer_all_is_well(struct disk_writer *self)
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

/* The actor alone writes these. */
bool disk_writer_is_bad(const struct disk_writer *self, uint64_t segment)
{
    return self->news.bad_last && segment >= self->news.bad_first && segment <= self->news.bad_last;
}

void disk_writer_distrust(struct disk_writer *self, uint64_t segment, const char *why)
{
    pthread_mutex_lock(&self->mutex);
    struct disk_news *news = &self->news;
    if (!news->bad_last || segment < news->bad_first)
        news->bad_first = segment;
    if (segment > news->bad_last)
        news->bad_last = segment;
    news->failures++; /* a failure that was counted and is not known here is told of later */
    pthread_mutex_unlock(&self->mutex);
    self->sync_trouble = true; /* that it can be written is not enough */
    disk_writer_trouble(self, why);
}

void disk_writer_healed(struct disk_writer *self, uint64_t failures)
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
        disk_writer_all_is_well(self);
    }
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

/* Until something comes, or so long; -1: without end. */
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

/* What makes room on the disk need not wait for its turn: nothing that comes before it needs those files. */
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

/* The end of a checkpoint leaves the sync to another thread: what comes before it is synced here, and then told of. */
static bool is_of(const struct disk_job *job, uint64_t segment)
{
    if (job->what == DISK_JOB_FINISH)
        return false;
    return job->what != DISK_JOB_RECORD || job->kind != DISK_SEGMENT || job->file == segment || segment == 0;
}

/* Takes what is done, and synced, together off the list: all that is there up to the end of a segment, or one job. */
static struct disk_job *take_batch(struct disk_writer *self)
{
    struct disk_job *batch = self->jobs, **at = &self->jobs;
    uint64_t segment = 0;
    do {
        if ((*at)->what == DISK_JOB_RECORD && (*at)->kind == DISK_SEGMENT)
            segment = (*at)->file;
        at = &(*at)->next;
    } while (self->mode == FSYNC_ALWAYS && *at && is_of(*at, segment));
    self->jobs = *at;
    *at = NULL;
    if (!self->jobs)
        self->jobs_last = &self->jobs;
    return batch;
}

static void do_batch(struct disk_writer *self)
{
    struct disk_job *batch = take_batch(self);
    uint64_t last = 0;
    for (struct disk_job *job = batch; job && !self->over; job = job->next) {
        job_do(self, job);
        if (!self->over && job->number > last)
            last = job->number;
    }
    if (self->mode == FSYNC_ALWAYS && last && !self->over)
        disk_writer_sync_here(self);
    jobs_end(self, batch, self->over ? 0 : last);
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

/* How long there is nothing to do; -1: without end. */
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

struct disk_writer *disk_writer_new(const struct folder *folder, enum fsync_mode mode, int64_t interval_ns,
                                    rp_error *err)
{
    struct disk_writer *self = calloc(1, sizeof *self);
    if (!self) {
        err_set(err, RP_NO_MEMORY, "no memory for the disk writer");
        return NULL;
    }
    pthread_mutex_init(&self->mutex, NULL);
    pthread_cond_init(&self->returned, NULL);
    self->last = &self->first;
    self->jobs_last = &self->jobs;
    self->folder = self->sync.folder = folder;
    self->mode = mode;
    self->interval_ns = interval_ns;
    self->clock = clock_system();
    self->segment.descriptor = self->part.descriptor = -1;
    self->news.free = free_bytes(folder);
    while (self->n_spare < DISK_WRITER_RECORDS && (self->spare[self->n_spare] = record_new()) != NULL)
        self->n_spare++;
    bool ok = self->n_spare == DISK_WRITER_RECORDS;
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

void disk_writer_destroy(struct disk_writer **at, int timeout_ms)
{
    struct disk_writer *self = *at;
    if (!self)
        return;
    pthread_mutex_lock(&self->mutex);
    self->end_ns = clock_now(&self->clock) + timeout_ms * NS_PER_MS;
    pthread_mutex_unlock(&self->mutex);
    zactor_destroy(&self->actor);
    jobs_drop(self->jobs);
    jobs_drop(self->first);
    while (self->n_spare)
        job_free(self->spare[--self->n_spare]);
    free(self->unsynced);
    pthread_cond_destroy(&self->returned);
    pthread_mutex_destroy(&self->mutex);
    free(self);
    *at = NULL;
}
