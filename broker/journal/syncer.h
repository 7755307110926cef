/* The disk writer's helper: syncs files, gives checkpoints their names, and removes files. All that may take long on a busy
 * disk, and the journal is written meanwhile. A czmq actor: pointers to jobs go in through its pipe, and come back when they are done,
 * in order. */
#ifndef BROKER_SYNCER_H
#define BROKER_SYNCER_H

#include <czmq.h>
#include <stdatomic.h>

#include "broker/disk/folder.h"

enum sync_what {
    SYNC_SEGMENT, /* fdatasync */
    SYNC_FOLDER,  /* names of new files */
    SYNC_START,   /* what was written begins its way to the disk; nothing is waited for */
    SYNC_REMOVE,  /* a file that nobody needs: to free a large one takes long */
    SYNC_FINISH   /* fsync of a checkpoint, and its name; not if a sync has failed that it does not know of */
};

struct sync_job {
    enum sync_what what;
    enum disk_kind kind; /* of a file to be removed */
    uint64_t number;
    int descriptor;    /* given; -1: a segment that is opened by its number */
    bool timed;        /* by the interval */
    uint64_t failures; /* of a checkpoint: see struct disk_job */
    bool ok;
    rp_error err;
};

/* What it is given, and borrows: failures counts syncs of segments that have failed, here and elsewhere. */
struct syncer {
    const struct folder *folder;
    atomic_uint_fast64_t failures;
};

/* NULL: no thread. */
zactor_t *syncer_new(struct syncer *self);

#endif
