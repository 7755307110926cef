/* The folder of a broker's files: names, locking, listing, and which of them are needed.
 *
 *   segment-00000001.replay  checkpoint-00000001.replay  *.replay.part (being written)  replay.lock
 *
 * Only files whose names are of this shape, whose header says that they are of this folder, and that no checkpoint that
 * is kept needs are ever removed. Others' files stay, whatever they are called. */
#ifndef BROKER_DISK_FOLDER_H
#define BROKER_DISK_FOLDER_H

#include "broker/disk/record.h"

struct folder_file {
    enum disk_kind kind;
    uint64_t number, bytes;
    int64_t changed_ns; /* CLOCK_REALTIME */
    bool mine;          /* header read, and of this folder */
};

struct folder {
    char *path;
    int descriptor; /* of the folder */
    int lock;       /* -1: opened for reading only */
    uint64_t id;
    struct folder_file *files; /* sorted by kind, then number; parts are not among them */
    uint32_t n_files;
    uint64_t highest[3]; /* by kind: the highest number in any name of this shape, ours or not, parts included */
};

/* Opens it, made if it is not there (write), with a lock that a second broker does not get: the error names it. A folder
 * whose files are of another id than each other's is refused; for writing, one with files of a later version, too. What
 * an earlier broker left half written (.part, with our head) is removed when it is opened for writing. Not there, for
 * reading: RP_NOT_FOUND. The functions that take a const folder may be used by several threads. */
rp_status folder_open(struct folder *self, const char *path, bool write, rp_error *err);
void folder_close(struct folder *self);
/* Reads the listing anew. An error leaves the old one. */
rp_status folder_list(struct folder *self, rp_error *err);
const struct folder_file *folder_find(const struct folder *self, enum disk_kind kind, uint64_t number);
/* Writes "segment-00000007.replay" (part: with ".part"). */
void folder_name(enum disk_kind kind, uint64_t number, bool part, char *out, size_t size);
/* Opens a file for reading and checks its header. -1 with err set. */
int folder_read(const struct folder *self, enum disk_kind kind, uint64_t number, rp_error *err);
/* Makes a file with its header, to be written from FILE_HEAD_BYTES on; a checkpoint as a part. Never over one that is
 * there. Its name is durable when the folder is synced. -1 with err set. */
int folder_create(const struct folder *self, enum disk_kind kind, uint64_t number, rp_error *err);
/* A part gets its name: fsync of the file, rename, fsync of the folder. The descriptor stays open. */
rp_status folder_finish(const struct folder *self, uint64_t checkpoint, int descriptor, rp_error *err);
/* Removes a file of ours: its head is read first. Missing is fine; one that is not ours stays, with an error. */
rp_status folder_remove(const struct folder *self, enum disk_kind kind, uint64_t number, bool part, rp_error *err);
/* The first number that no file of this kind has. */
uint64_t folder_next(const struct folder *self, enum disk_kind kind);

#endif
