/* The scribe's helper: syncs files, gives checkpoints their names, and removes files. All that may take long on a busy
 * disk, and the journal is written meanwhile. A czmq actor: pointers to jobs go in through its pipe, and come back when they are done,
 * in order. */
#ifndef BROKER_SYNCER_H
#define BROKER_SYNCER_H

#include <czmq.h>

#include "broker/disk/folder.h"

enum sync_what {
    SYNC_SEGMENT, /* fdatasync */
    SYNC_FOLDER,  /* names of new files */
    SYNC_START,   /* what was written begins its way to the disk; nothing is waited for */
    SYNC_REMOVE,  /* a file that nobody needs: to free a large one takes long */
    SYNC_FINISH   /* fsync of a checkpoint, and its name; not if a segment could not be synced since the last one */
};

struct sync_job {
    enum sync_what what;
    enum disk_kind kind; /* of a file to be removed */
    uint64_t number;
    int descriptor; /* given; -1: a segment that is opened by its number */
    bool timed;     /* by the interval */
    bool ok;
    rp_error err;
};

/* NULL: no thread. folder is borrowed. */
zactor_t *syncer_new(const struct folder *folder);

#endif
