/* The scribe's inside: scribe.c has its two sides and its loop, scribe_write.c the files, scribe_sync.c what its helper
 * (syncer.h) does for it. */
#ifndef BROKER_SCRIBE_IMPL_H
#define BROKER_SCRIBE_IMPL_H

#include <czmq.h>
#include <pthread.h>
#include <stdatomic.h>

#include "broker/journal/scribe.h"
#include "broker/journal/syncer.h"
#include "proto/base/clock.h"

#define SPARE_MOST 8u
#define EVENTS_MOST 16u

struct scribe_file {
    uint64_t number;
    int descriptor; /* -1: none is open */
    uint64_t end;
    uint64_t started; /* up to here it is on its way to the disk */
    bool dirty;       /* written since it was last synced */
};

struct scribe {
    /* both sides', under the lock */
    pthread_mutex_t mutex;
    pthread_cond_t returned; /* there is a spare one */
    struct scribe_job *first, **last;
    struct scribe_job *spare[SPARE_MOST]; /* with their buffers */
    uint32_t n_spare;
    struct scribe_news news;
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
    struct scribe_job *jobs, **jobs_last; /* taken over, not done yet */
    struct scribe_file segment, part;
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

/* scribe.c */
/* A sync of this segment failed, which was counted: nothing relies on it any more. */
void scribe_distrust(struct scribe *self, uint64_t segment, const char *why);
/* A checkpoint that knew of so many failures has ended. */
void scribe_healed(struct scribe *self, uint64_t failures);
bool scribe_is_bad(const struct scribe *self, uint64_t segment);
/* Looks at the free space, and tells. */
void scribe_measure(struct scribe *self);
void scribe_tell_event(struct scribe *self, uint64_t checkpoint, bool ok);
void scribe_trouble(struct scribe *self, const char *what);
void scribe_all_is_well(struct scribe *self);
/* Before the next try. False: there is none, the time is over. */
bool scribe_pause(struct scribe *self);

/* scribe_write.c */
/* Until it is written, or need not be, or (over) there is no time left. */
void scribe_write(struct scribe *self, struct scribe_job *job);
/* The end of a checkpoint: all that it relies on is synced first. */
void scribe_finish(struct scribe *self, const struct scribe_job *job);
/* A checkpoint comes to nothing. why: told to the core thread, and logged; NULL: it knows. */
void scribe_give_up(struct scribe *self, uint64_t checkpoint, const char *why);

/* scribe_sync.c */
/* Takes the job's descriptor. False: it was not given. */
bool scribe_sync_give(struct scribe *self, struct sync_job job);
void scribe_sync_done(struct scribe *self, struct sync_job *job);
void scribe_remove(struct scribe *self, const struct scribe_job *job);
/* What was written begins its way to the disk, now and then. */
void scribe_sync_start(struct scribe *self, struct scribe_file *file);
void scribe_sync_segment(struct scribe *self, bool timed);
/* Remembers a segment that was left without a sync. False: no memory. */
bool scribe_unsynced(struct scribe *self, uint64_t segment);
/* Has those synced. False: not all of them could be given to the syncer. */
bool scribe_sync_left(struct scribe *self);
/* Syncs those, and the segment that is written, on this thread. */
void scribe_sync_here(struct scribe *self);
bool scribe_wants_sync(const struct scribe *self);
void scribe_sync_timed(struct scribe *self);

#endif
