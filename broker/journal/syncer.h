/* The syncing thread: syncs files, gives checkpoints their names, and removes files. All of this may take long on a
 * busy disk; the disk writer writes the journal meanwhile. A czmq actor: pointers to jobs go in through its pipe and
 * come back in order when they are done. */
#ifndef BROKER_SYNCER_H
#define BROKER_SYNCER_H

#include <czmq.h>
#include <stdatomic.h>

#include "broker/disk/folder.h"

struct trace;

enum sync_what {
    SYNC_SEGMENT, /* fdatasync */
    SYNC_FOLDER,  /* names of new files */
    SYNC_START,   /* asks the kernel to start writing out, and does not wait */
    SYNC_REMOVE,  /* removes a file; freeing a large one takes long */
    SYNC_FINISH   /* syncs a checkpoint and gives it its name, unless a sync has failed since it began */
};

struct sync_job {
    enum sync_what what;
    enum disk_kind kind; /* of the file to remove */
    uint64_t number;
    int descriptor;    /* closed by the syncing thread; -1: it opens the segment by its number */
    bool timed;        /* the sync of journal.interval */
    uint64_t failures; /* of a checkpoint: see struct disk_job */
    bool ok;
    rp_error err;
};

/* Borrowed by the syncing thread. failures: number of failed syncs of segments, on this thread and on the disk
 * writer's. */
struct syncer {
    const struct folder *folder;
    atomic_uint_fast64_t failures;
    struct trace *_Atomic trace; /* borrowed; NULL: nobody asks for spans */
};

/* NULL: no thread could be started. */
zactor_t *syncer_new(struct syncer *self);

#endif
