/* The disk writer: a czmq actor that writes records to segments and checkpoints, syncs, names and removes files, and reports.
 * One order: what was handed over first is written first, so a checkpoint that ends is preceded on disk by the chunks
 * that it names. A disk that is full or fails is tried again until it works: what could not be written whole is cut off
 * first, so files stay sound. A sync that failed is not tried again: Linux would answer it with success although pages
 * are lost. The core thread is told, and writes what lives in that segment anew, in another one. */
#ifndef BROKER_DISK_WRITER_H
#define BROKER_DISK_WRITER_H

#include <zmq.h>

#include "broker/disk/folder.h"

enum fsync_mode { FSYNC_NEVER, FSYNC_INTERVAL, FSYNC_ALWAYS };

struct disk_writer;

/* Jobs with buffers that exist from the start: one that the stream fills and the one after it, one that a checkpoint
 * fills, and one that is written. */
#define DISK_WRITER_RECORDS 4u

enum disk_job_what { DISK_JOB_RECORD, DISK_JOB_FINISH, DISK_JOB_ABANDON, DISK_JOB_REMOVE };

/* Given to the disk writer, which frees it, or keeps it for disk_writer_record; malloc'ed, zeroed but for what is set. */
struct disk_job {
    enum disk_job_what what;
    enum disk_kind kind;
    uint64_t file;     /* number: a record for a new one makes it */
    uint64_t offset;   /* of the record */
    uint64_t number;   /* running number of a record of the stream; 0 for those of a checkpoint */
    uint64_t failures; /* of the end of a checkpoint: the syncs that were known to have failed when it began */
    uint8_t *data;     /* sealed by the disk writer; the job's buffer, or malloc'ed; given */
    size_t size;       /* of the record, with its head */
    uint8_t
        *buffer; /* of a job from disk_writer_record: RECORD_BYTES, which come back with the job. NULL: it has none */
    /* A large chunk's data, which the disk writer copies to tail_at of the record: the core thread has no time for that.
     * data then has tail_at bytes. tail_at 0: there is none. */
    size_t tail_at;
    zmq_msg_t tail;
    /* the disk writer's own */
    struct disk_job *next;
    bool sealed, done;
};

/* Handed to the core thread. */
struct disk_news {
    uint64_t durable; /* running number of the last durable record */
    uint64_t written; /* bytes of records so far, of everything; what was dropped counts, too */
    uint64_t free;    /* bytes that the disk had left then; UINT64_MAX: not known */
    /* Syncs that have failed so far, and the segments, from the first to the last, of which nobody knows what is on the disk.
     * No record is durable any more until a checkpoint has ended that began when this was known, and so does without
     * those segments. bad_last 0: there are none. */
    uint64_t failures, bad_first, bad_last;
    uint64_t finished;  /* a checkpoint has got its name; 0: none. Told once */
    uint64_t abandoned; /* a checkpoint could not be written and was given up. Told once */
    char trouble[256];  /* empty: all is well */
};

/* folder is borrowed: its path, descriptor and id are read on the actor's thread. */
struct disk_writer *disk_writer_new(const struct folder *folder, enum fsync_mode mode, int64_t interval_ns,
                                    rp_error *err);
/* Ends when all jobs are done, or timeout_ms have passed. */
void disk_writer_destroy(struct disk_writer **self, int timeout_ms);
void disk_writer_give(struct disk_writer *self, struct disk_job *job);
/* A job for a record, with a buffer as its data: one that was written, or a new one. NULL: none is free, and there is no
 * memory. */
struct disk_job *disk_writer_record(struct disk_writer *self);
/* The same; waits until the disk writer has written one. Whoever calls it has at most one of DISK_WRITER_RECORDS that he has not given
 * yet, so one comes back as soon as the disk can be written. */
struct disk_job *disk_writer_record_wait(struct disk_writer *self);
/* A job for a record of so many bytes, without a buffer of the disk writer's. NULL: no memory. */
struct disk_job *disk_writer_record_large(size_t bytes);
/* Gives back a job that is not needed, or NULL. */
void disk_writer_record_drop(struct disk_writer *self, struct disk_job *job);
/* False: there is nothing new. */
bool disk_writer_news(struct disk_writer *self, struct disk_news *out);
/* Bytes that the disk has left; UINT64_MAX: not known. */
uint64_t disk_writer_free(struct disk_writer *self);
/* Whether it looks at the disk now and then, and tells, also while nothing is written: others may free space. */
void disk_writer_watch(struct disk_writer *self, bool on);
/* The socket to poll for news. */
void *disk_writer_socket(struct disk_writer *self);

#endif
