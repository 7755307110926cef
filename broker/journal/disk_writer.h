/* The disk writer: a czmq actor that writes records to segments and checkpoints, syncs, names and removes files, and
 * reports.
 *
 * It does jobs in the order in which it was given them, so the chunks that a checkpoint names are on disk before it ends.
 * A write that fails is retried until it succeeds; what was written of the record is cut off first, so files stay sound. A
 * sync that fails is not retried: Linux would report success although pages are lost. The core thread learns of it, and
 * writes the live chunks of that segment to another one. */
#pragma once

#include "broker/journal/disk_job.h"
#include "broker/journal/folder.h"

enum fsync_mode { FSYNC_NEVER, FSYNC_INTERVAL, FSYNC_ALWAYS };

struct disk_writer;
struct trace;

/* What the core thread reads. */
struct disk_news {
    uint64_t durable; /* running number of the last durable record */
    uint64_t written; /* bytes of all records so far, those of abandoned checkpoints included */
    uint64_t free;    /* bytes that were free on the disk at that point; UINT64_MAX: unknown */
    /* Number of failed syncs so far, and the range of segments whose contents on disk are unknown (bad_last 0: none).
     * While there are any, no further record counts as durable. A checkpoint that began with this knowledge, and so does
     * not rely on those segments, ends that. */
    uint64_t failures, bad_first, bad_last;
    uint64_t finished;  /* number of a checkpoint that has got its name; 0: none. Reported once */
    uint64_t abandoned; /* number of a checkpoint that could not be written. Reported once */
    char why[200];      /* it could not */
    char trouble[256];  /* why the disk cannot be written; empty: it can */
};

/* folder is borrowed; its path, descriptor and id are read on the actor's thread. */
struct disk_writer *disk_writer_new(const struct folder *folder, enum fsync_mode mode, int64_t interval_ns,
                                    rp_error *err);
/* Returns when all jobs are done, or timeout_ms have passed. */
void disk_writer_destroy(struct disk_writer **self, int timeout_ms);
/* Takes the job. */
void disk_writer_give(struct disk_writer *self, struct disk_job *job);
/* Both threads add spans of their work to the trace, which is borrowed. */
void disk_writer_set_trace(struct disk_writer *self, struct trace *trace);
/* False: there is nothing new. */
bool disk_writer_news(struct disk_writer *self, struct disk_news *out);
/* Returns the bytes that are free on the disk; UINT64_MAX: unknown. */
uint64_t disk_writer_free(struct disk_writer *self);
/* Turns on measuring the free space while nothing is written: other programs may free some. */
void disk_writer_watch(struct disk_writer *self, bool on);
/* The socket to poll for news. */
void *disk_writer_socket(struct disk_writer *self);
