/* Jobs for the disk writer, and the pool of their buffers.
 *
 * Whoever fills a record takes a job from the pool, with a buffer of RECORD_BYTES; the disk writer gives it back when it is
 * written. A few exist from the start, so that a broker without memory can still write what it has recorded. */
#ifndef BROKER_DISK_JOB_H
#define BROKER_DISK_JOB_H

#include <pthread.h>
#include <zmq.h>

#include "broker/disk/record.h"

enum disk_job_what { DISK_JOB_RECORD, DISK_JOB_FINISH, DISK_JOB_ABANDON, DISK_JOB_REMOVE };

/* Given to the disk writer, which frees it or gives it back to the pool. Malloc'ed; zero but for what is set. */
struct disk_job {
    enum disk_job_what what;
    enum disk_kind kind;
    uint64_t file;     /* number of the file, which the first record for it creates */
    uint64_t offset;   /* of the record in the file */
    uint64_t number;   /* running number of a record of the stream; 0 for those of a checkpoint */
    uint64_t failures; /* of the end of a checkpoint: number of failed syncs that were known when it began */
    uint8_t *data;     /* the job's buffer, or malloc'ed; the disk writer seals it */
    size_t size;       /* of the record, with its head */
    uint8_t *buffer;   /* RECORD_BYTES that stay with the job; NULL: it has none */
    /* A large chunk's data, which the disk writer copies to tail_at of the record: the core thread has no time for that.
     * data then has tail_at bytes. tail_at 0: there is none. */
    size_t tail_at;
    zmq_msg_t tail;
    /* the disk writer's own */
    struct disk_job *next;
    bool sealed, done;
};

/* Jobs with buffers that exist from the start: one that the stream fills and the one after it, one that a checkpoint
 * fills, and one that is written. */
#define DISK_POOL_FIRST 4u
#define DISK_POOL_MOST 8u

/* Used by both threads. */
struct disk_pool {
    pthread_mutex_t mutex;
    pthread_cond_t returned; /* signalled when a job comes back */
    struct disk_job *spare[DISK_POOL_MOST];
    uint32_t n;
};

/* False: no memory for the first jobs. disk_pool_fini is due in any case. */
bool disk_pool_init(struct disk_pool *self);
void disk_pool_fini(struct disk_pool *self);
/* Takes a job with a buffer as its data. NULL: none is free, and there is no memory. */
struct disk_job *disk_pool_take(struct disk_pool *self);
/* The same; waits until the disk writer has written a record. The caller holds at most one of DISK_POOL_FIRST jobs that it
 * has not given to the disk writer yet, so one comes back as soon as the disk can be written. */
struct disk_job *disk_pool_take_wait(struct disk_pool *self);
/* Gives back a job that was written or is not needed; NULL is fine. */
void disk_pool_return(struct disk_pool *self, struct disk_job *job);

/* Makes a job outside the pool, for a record of so many bytes. NULL: no memory. */
struct disk_job *disk_job_large(size_t bytes);

#endif
