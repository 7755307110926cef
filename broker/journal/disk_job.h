/* Jobs for the disk writer, the pool of their buffers, and the records that are filled there.
 *
 * Whoever fills a record takes a job from the pool, with a buffer of RECORD_BYTES; the disk writer gives it back when it is
 * written. */
#ifndef BROKER_DISK_JOB_H
#define BROKER_DISK_JOB_H

#include <pthread.h>
#include <stdbool.h>
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

/* Jobs that are kept for their buffers. */
#define DISK_POOL_MOST 8u

/* Used by both threads. */
struct disk_pool {
    pthread_mutex_t mutex;
    struct disk_job *spare[DISK_POOL_MOST];
    uint32_t n;
};

void disk_pool_init(struct disk_pool *self);
void disk_pool_fini(struct disk_pool *self);
/* Takes a job with a buffer as its data. */
struct disk_job *disk_pool_take(struct disk_pool *self);
/* Gives back a job that was written or is not needed; NULL is fine. */
void disk_pool_return(struct disk_pool *self, struct disk_job *job);

/* Makes a job outside the pool, for a record of so many bytes. NULL: no memory. */
struct disk_job *disk_job_large(size_t bytes);

/* Fills records with entries: of a segment, or of a checkpoint. */
struct recorder {
    struct disk_pool *pool;
    void (*give)(struct recorder *self, struct disk_job *job, size_t size); /* takes a record, which is full or ends */
    struct disk_job *job;                                                   /* NULL: used is 0 */
    uint8_t *record;                                                        /* its data */
    size_t used, capacity;
    size_t last;                /* offset of the last entry's head; 0: none */
    uint64_t entries;           /* of all records */
    struct disk_job *large_job; /* for an entry larger than RECORD_BYTES; its data has large_bytes */
    size_t large_bytes;
};
/* Appends an entry. Returns its body, `size` bytes at a multiple of 8, to be filled in before the next call. Never
 * NULL. */
void *recorder_entry(struct recorder *self, uint16_t type, uint32_t table, size_t size);
/* RECORD(to, type, table, entry_slot, .slot = slot): appends an entry whose body is this struct alone. */
#define RECORD(to, type, table, body, ...)                                                                             \
    (*(struct body *)recorder_entry(to, type, table, sizeof(struct body)) = (struct body){__VA_ARGS__})
/* Enlarges the last entry by so many bytes, a multiple of 8. Returns the new bytes. NULL: the record has no room, or
 * no entry. */
void *recorder_extend(struct recorder *self, size_t bytes);
/* Appends an entry that ends with a large message, which is shared; the disk writer copies it. The entry ends the
 * record. Returns its offset there. */
uint64_t recorder_large(struct recorder *self, uint16_t type, uint32_t table, const void *body, size_t size,
                        zmq_msg_t *rest);
/* Makes a record for an entry of so many bytes with its heads. False: no memory. */
bool recorder_reserve(struct recorder *self, size_t need);
/* Hands the record over, if it has entries. */
void recorder_flush(struct recorder *self);
void recorder_fini(struct recorder *self);

#endif
