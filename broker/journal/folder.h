/* The folder of a broker's files: names, locking, listing, creation and removal.
 *
 *   segment-00000001.replay  checkpoint-00000001.replay  *.replay.part (being written)  replay.lock
 *
 * Only files whose names have this shape, and whose header has the id of this folder, are ever removed. All other files
 * stay, whatever their names. */
#pragma once

#include "broker/journal/record.h"

struct folder_file {
    enum disk_kind kind;
    uint64_t number, bytes;
    int64_t changed_ns; /* CLOCK_REALTIME */
    bool mine;          /* the header was read, and has this folder's id */
};

struct folder {
    char *path;
    int descriptor; /* of the folder */
    int lock;       /* -1: opened for reading only */
    uint64_t id;
    struct folder_file *files; /* sorted by kind, then number; parts are not among them */
    uint32_t n_files;
    uint64_t highest[3]; /* by kind: the highest number in any name of our shape, ours or not, parts included */
};

/* Opens a folder. For writing, it is created if it is missing, and locked; the error names the broker that has the
 * lock. A folder whose files have different ids is refused; for writing, also one with files of a later version. Parts
 * that an earlier broker left (.part, with our head) are removed when it is opened for writing. RP_NOT_FOUND: it is
 * missing, for reading. Functions that take a const folder may be called from several threads. */
rp_status folder_open(struct folder *self, const char *path, bool write, rp_error *err);
void folder_close(struct folder *self);
/* Reads the list of files again. After an error the old list stays. */
rp_status folder_list(struct folder *self, rp_error *err);
/* Writes "segment-00000007.replay" (part: with ".part"). */
void folder_name(enum disk_kind kind, uint64_t number, bool part, char *out, size_t size);
/* Opens a file for reading and checks its header. -1 with err set. */
int folder_read(const struct folder *self, enum disk_kind kind, uint64_t number, rp_error *err);
/* Creates a file with its header, to be written from FILE_HEAD_BYTES on; a checkpoint as a part. Never replaces a
 * file. Its name is durable when the folder is synced. -1 with err set. */
int folder_create(const struct folder *self, enum disk_kind kind, uint64_t number, rp_error *err);
/* Gives a part its name: fsync of the file, rename, fsync of the folder. The descriptor stays open. */
rp_status folder_finish(const struct folder *self, uint64_t checkpoint, int descriptor, rp_error *err);
/* Removes a file of ours, after reading its head. A missing file is no error; a file that is not ours stays, and is
 * one. */
rp_status folder_remove(const struct folder *self, enum disk_kind kind, uint64_t number, bool part, rp_error *err);
/* Returns the first number after those of all files of this kind. */
uint64_t folder_next(const struct folder *self, enum disk_kind kind);
