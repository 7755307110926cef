/* The inside of the disk writer: one struct that one thread, the actor's, works on in four files.
 *
 *   disk_writer.c       jobs, and the actor's loop
 *   disk_writer_news.c  what the core thread is told: progress, free space, trouble, segments that could not be synced
 *   disk_writer_file.c  writes records, begins and ends files
 *   disk_writer_sync.c  what is left to the syncing thread (syncer.h) */
#ifndef BROKER_DISK_WRITER_IMPL_H
#define BROKER_DISK_WRITER_IMPL_H

#include <czmq.h>
#include <pthread.h>
#include <stdatomic.h>

#include "broker/journal/disk_writer.h"
#include "broker/journal/syncer.h"
#include "proto/base/clock.h"

#define EVENTS_MOST 16u

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
    struct {
        uint64_t number;
        bool ok;
    } events[EVENTS_MOST]; /* checkpoints that have ended, not reported yet */
    uint32_t n_events;
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
    struct disk_pool *pool;
    enum fsync_mode mode;
    int64_t interval_ns;
    struct clock clock;
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

/* disk_writer.c */
/* Waits before the next try. False: there is no time for another one. */
bool disk_writer_pause(struct disk_writer *self);

/* disk_writer_news.c */
uint64_t disk_writer_free_bytes(const struct folder *folder);
/* Records of so many bytes are written; records of the stream up to number `durable` are durable. */
void disk_writer_tell_done(struct disk_writer *self, uint64_t bytes, uint64_t durable);
void disk_writer_tell_event(struct disk_writer *self, uint64_t checkpoint, bool ok);
/* Measures the free space and reports a change. */
void disk_writer_measure(struct disk_writer *self);
/* A write failed. */
void disk_writer_trouble(struct disk_writer *self, const char *what);
/* A write succeeded. */
void disk_writer_all_is_well(struct disk_writer *self);
/* Declares a segment bad. The failed sync was counted in sync.failures. */
void disk_writer_distrust(struct disk_writer *self, uint64_t segment, const char *why);
/* A checkpoint that knew of so many failures has ended: if there were no more, no segment is bad any longer. */
void disk_writer_healed(struct disk_writer *self, uint64_t failures);
bool disk_writer_is_bad(const struct disk_writer *self, uint64_t segment);

/* disk_writer_file.c */
/* Returns when the record is written, when its checkpoint is abandoned, or when there is no time left (over). */
void disk_writer_write(struct disk_writer *self, struct disk_job *job);
/* Ends a checkpoint; everything that it relies on is synced first. */
void disk_writer_finish(struct disk_writer *self, const struct disk_job *job);
/* Abandons a checkpoint. why: logged, and reported to the core thread; NULL: the core thread asked for it. */
void disk_writer_give_up(struct disk_writer *self, uint64_t checkpoint, const char *why);

/* disk_writer_sync.c */
/* Gives the syncing thread a job; takes the job's descriptor. False: it could not be given. */
bool disk_writer_sync_give(struct disk_writer *self, struct sync_job job);
/* Takes a job that the syncing thread has done. */
void disk_writer_sync_done(struct disk_writer *self, struct sync_job *job);
void disk_writer_remove(struct disk_writer *self, const struct disk_job *job);
/* Has the kernel start to write out what was written, every few MiB. */
void disk_writer_sync_start(struct disk_writer *self, struct written_file *file);
void disk_writer_sync_segment(struct disk_writer *self, bool timed);
/* Remembers a segment that is left without a sync. False: no memory. */
bool disk_writer_unsynced(struct disk_writer *self, uint64_t segment);
/* Has the remembered segments synced. False: not all of them could be given to the syncing thread. */
bool disk_writer_sync_left(struct disk_writer *self);
/* Syncs the remembered segments and the present one on this thread. */
void disk_writer_sync_here(struct disk_writer *self);
bool disk_writer_wants_sync(const struct disk_writer *self);
/* Syncs if journal.interval has passed. */
void disk_writer_sync_timed(struct disk_writer *self);

#endif
