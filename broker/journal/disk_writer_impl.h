/* The inside of the disk writer: disk_writer.c has its two sides and its loop, disk_writer_file.c writes the files,
 * disk_writer_sync.c talks to the syncing thread (syncer.h). */
#ifndef BROKER_DISK_WRITER_IMPL_H
#define BROKER_DISK_WRITER_IMPL_H

#include <czmq.h>
#include <pthread.h>
#include <stdatomic.h>

#include "broker/journal/disk_writer.h"
#include "broker/journal/syncer.h"
#include "proto/base/clock.h"

#define SPARE_MOST 8u
#define EVENTS_MOST 16u

struct written_file {
    uint64_t number;
    int descriptor; /* -1: none is open */
    uint64_t end;
    uint64_t started; /* up to here it is on its way to the disk */
    bool dirty;       /* written since it was last synced */
};

struct disk_writer {
    /* both sides', under the lock */
    pthread_mutex_t mutex;
    pthread_cond_t returned; /* there is a spare one */
    struct disk_job *first, **last;
    struct disk_job *spare[SPARE_MOST]; /* with their buffers */
    uint32_t n_spare;
    struct disk_news news;
    struct {
        uint64_t number;
        bool ok;
    } events[EVENTS_MOST]; /* checkpoints that have ended */
    uint32_t n_events;
    atomic_bool told;  /* there is news, and a message in the pipe */
    atomic_bool watch; /* look at the free space now and then */
    int64_t end_ns;    /* at the end: until when to try */
    /* the core thread's */
    zactor_t *actor;
    void *socket;
    /* the actor's */
    const struct folder *folder;
    enum fsync_mode mode;
    int64_t interval_ns;
    struct clock clock;
    void *pipe;
    struct syncer sync;
    zactor_t *syncer;
    void *sync_pipe;
    uint32_t syncing; /* jobs that the syncer has */
    bool timed_sync;  /* one of them is the interval's */
    int64_t next_sync_ns;
    struct disk_job *jobs, **jobs_last; /* taken over, not done yet */
    struct written_file segment, part;
    uint64_t measured;   /* news.written when the free space was last looked at */
    int64_t measured_ns; /* and when that was */
    uint64_t given_up;   /* checkpoints up to this number are not written any more */
    uint64_t *unsynced;  /* segments that were left without a sync, also by the broker before this one */
    uint32_t n_unsynced, unsynced_capacity;
    uint64_t passed; /* running number of the last record that is durable if no sync has failed */
    bool in_trouble, sync_trouble;
    int64_t trouble_log_ns, retry_ns;
    uint64_t failures;
    bool ending, over;
};

/* disk_writer.c */
/* A sync of this segment failed, which was counted: nothing relies on it any more. */
void disk_writer_distrust(struct disk_writer *self, uint64_t segment, const char *why);
/* A checkpoint that knew of so many failures has ended. */
void disk_writer_healed(struct disk_writer *self, uint64_t failures);
bool disk_writer_is_bad(const struct disk_writer *self, uint64_t segment);
/* Looks at the free space, and tells. */
void disk_writer_measure(struct disk_writer *self);
void disk_writer_tell_event(struct disk_writer *self, uint64_t checkpoint, bool ok);
void disk_writer_trouble(struct disk_writer *self, const char *what);
void disk_writer_all_is_well(struct disk_writer *self);
/* Before the next try. False: there is none, the time is over. */
bool disk_writer_pause(struct disk_writer *self);

/* disk_writer_file.c */
/* Until it is written, or need not be, or (over) there is no time left. */
void disk_writer_write(struct disk_writer *self, struct disk_job *job);
/* The end of a checkpoint: all that it relies on is synced first. */
void disk_writer_finish(struct disk_writer *self, const struct disk_job *job);
/* A checkpoint comes to nothing. why: told to the core thread, and logged; NULL: it knows. */
void disk_writer_give_up(struct disk_writer *self, uint64_t checkpoint, const char *why);

/* disk_writer_sync.c */
/* Takes the job's descriptor. False: it was not given. */
bool disk_writer_sync_give(struct disk_writer *self, struct sync_job job);
void disk_writer_sync_done(struct disk_writer *self, struct sync_job *job);
void disk_writer_remove(struct disk_writer *self, const struct disk_job *job);
/* What was written begins its way to the disk, now and then. */
void disk_writer_sync_start(struct disk_writer *self, struct written_file *file);
void disk_writer_sync_segment(struct disk_writer *self, bool timed);
/* Remembers a segment that was left without a sync. False: no memory. */
bool disk_writer_unsynced(struct disk_writer *self, uint64_t segment);
/* Has those synced. False: not all of them could be given to the syncer. */
bool disk_writer_sync_left(struct disk_writer *self);
/* Syncs those, and the segment that is written, on this thread. */
void disk_writer_sync_here(struct disk_writer *self);
bool disk_writer_wants_sync(const struct disk_writer *self);
void disk_writer_sync_timed(struct disk_writer *self);

#endif
