/* Jobs for the disk writer, and the records that are filled there. Who fills a record makes its job; the disk writer
 * frees it. */
#pragma once

#include <stdbool.h>
#include <zmq.h>

#include "broker/journal/record.h"

enum disk_job_what { DISK_JOB_RECORD, DISK_JOB_FINISH, DISK_JOB_ABANDON, DISK_JOB_REMOVE };

/* Given to the disk writer, which frees it. Malloc'ed; zero but for what is set. */
struct disk_job {
    enum disk_job_what what;
    enum disk_kind kind;
    uint64_t file;     /* number of the file, which the first record for it creates */
    uint64_t offset;   /* of the record in the file */
    uint64_t number;   /* running number of a record of the stream; 0 for those of a checkpoint */
    uint64_t failures; /* of the end of a checkpoint: number of failed syncs that were known when it began */
    uint8_t *data;     /* malloc'ed; the disk writer seals it */
    size_t size;       /* of the record, with its head */
    /* A large chunk's data, which the disk writer copies to tail_at of the record: the core thread has no time for that.
     * data then has tail_at bytes. tail_at 0: there is none. */
    size_t tail_at;
    zmq_msg_t tail;
    /* the disk writer's own */
    struct disk_job *next;
    bool sealed, done;
};

/* Makes a job with so many bytes for its record. NULL: no memory for more than RECORD_BYTES. */
struct disk_job *disk_job_new(size_t bytes);
/* Frees a job with its data; NULL is fine. */
void disk_job_free(struct disk_job *job);

/* Fills records with entries: of a segment, or of a checkpoint. */
struct recorder {
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
