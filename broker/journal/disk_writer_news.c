/* What the disk writer tells the core thread: how far it is, free space, checkpoints that have ended, trouble, and segments
 * whose sync has failed. */
#include <assert.h>
#include <stdio.h>
#include <string.h>
#include <sys/statvfs.h>

#include "broker/journal/disk_writer_impl.h"
#include "proto/base/log.h"

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

uint64_t disk_writer_free_bytes(const struct folder *folder)
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
    uint64_t bytes = disk_writer_free_bytes(self->folder);
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
    assert(self->n_events < EVENTS_MOST); /* at most one checkpoint is in progress */
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

void disk_writer_tell_done(struct disk_writer *self, uint64_t bytes, uint64_t durable)
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
    bool measure = news->written - self->measured >= MEASURE_BYTES;
    tell(self);
    pthread_mutex_unlock(&self->mutex);
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
        log_line(LEVEL_ERROR, "B0501", "the disk cannot be written", "why=%s failures=%llu",
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

/* Only the actor writes bad_first and bad_last, so its own thread reads them without the lock. */
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
    news->failures++; /* sync.failures may be ahead: the syncing thread reports the others later */
    pthread_mutex_unlock(&self->mutex);
    self->sync_trouble = true; /* a write that succeeds does not end this trouble */
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
