#include "broker/journal/disk_job.h"

#include <stdlib.h>

struct disk_job *disk_job_large(size_t bytes)
{
    struct disk_job *job = calloc(1, sizeof *job);
    if (job && (job->data = malloc(bytes)) != NULL)
        return job;
    free(job);
    return NULL;
}

/* Frees everything but the job and its buffer. */
static void job_clear(struct disk_job *job)
{
    if (job->tail_at)
        zmq_msg_close(&job->tail);
    if (job->data != job->buffer)
        free(job->data);
}

static void disk_job_free(struct disk_job *job)
{
    job_clear(job);
    free(job->buffer);
    free(job);
}

static struct disk_job *job_new(void)
{
    struct disk_job *job = disk_job_large(RECORD_BYTES);
    if (job)
        job->buffer = job->data;
    return job;
}

struct disk_job *disk_pool_take(struct disk_pool *self)
{
    pthread_mutex_lock(&self->mutex);
    struct disk_job *job = self->n ? self->spare[--self->n] : NULL;
    pthread_mutex_unlock(&self->mutex);
    return job ? job : job_new();
}

struct disk_job *disk_pool_take_wait(struct disk_pool *self)
{
    struct disk_job *job = disk_pool_take(self);
    if (job)
        return job;
    pthread_mutex_lock(&self->mutex);
    while (!self->n)
        pthread_cond_wait(&self->returned, &self->mutex);
    job = self->spare[--self->n];
    pthread_mutex_unlock(&self->mutex);
    return job;
}

void disk_pool_return(struct disk_pool *self, struct disk_job *job)
{
    if (!job)
        return;
    if (!job->buffer) {
        disk_job_free(job);
        return;
    }
    void *buffer = job->buffer;
    job_clear(job);
    *job = (struct disk_job){0};
    job->data = job->buffer = buffer;
    pthread_mutex_lock(&self->mutex);
    bool kept = self->n < DISK_POOL_MOST;
    if (kept) {
        self->spare[self->n++] = job;
        pthread_cond_signal(&self->returned);
    }
    pthread_mutex_unlock(&self->mutex);
    if (!kept)
        disk_job_free(job);
}

bool disk_pool_init(struct disk_pool *self)
{
    *self = (struct disk_pool){0};
    pthread_mutex_init(&self->mutex, NULL);
    pthread_cond_init(&self->returned, NULL);
    while (self->n < DISK_POOL_FIRST && (self->spare[self->n] = job_new()) != NULL)
        self->n++;
    return self->n == DISK_POOL_FIRST;
}

void disk_pool_fini(struct disk_pool *self)
{
    while (self->n)
        disk_job_free(self->spare[--self->n]);
    pthread_cond_destroy(&self->returned);
    pthread_mutex_destroy(&self->mutex);
}
