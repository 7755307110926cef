/* Files between home and a host, the same in both directions: one side sends a file in pieces, each a line with bytes, and a folder of
 * the other side takes them. Nothing is ever written outside of the folder or through a link, whatever a name says. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/stat.h>

#include "agent/launch/host/host_line.h"
#include "replay/error.h"

#define HOST_FILE_NAME 512u

/* True for a relative path of plain names: no "", ".", "..", no name with a dot at its beginning, no control characters. */
bool host_file_allows(const char *name);

/* ---- sending ---- */

/* A file on its way. */
struct host_file {
    int fd; /* -1: closed */
    char name[HOST_FILE_NAME];
    struct stat info; /* when the file was opened */
    bool replace;     /* false: bytes from `offset` on are appended to what the other side has */
    int64_t offset;   /* of the next piece; where it ends before the size of info, the file was cut meanwhile */
};
/* Opens a regular file, to be sent from its beginning. flags: O_NOFOLLOW, or 0. RP_NOT_FOUND: there is no such file. */
rp_status host_file_open(struct host_file *self, const char *path, const char *name, int flags, rp_error *err);
/* Sends the next piece. False: the file is closed, since this was the last piece or the file was cut. */
bool host_file_send(struct host_file *self, struct host_writer *writer);
void host_file_close(struct host_file *self);

/* ---- taking ---- */

struct host_folder {
    char path[512];
    char temporary[128]; /* name of the file under way, in the folder of the final one */
    /* What the other side has made so far, and may make at most. */
    int64_t bytes, bytes_most;
    uint32_t files, files_most; /* files and folders */
    /* The file that is being replaced. */
    int fd, parent; /* -1: none */
    char name[HOST_FILE_NAME];
    int64_t size; /* written so far */
};

/* tag: makes the name of temporary files unique among the writers of one folder. Nothing is bounded at first. */
void host_folder_init(struct host_folder *self, const char *path, const char *tag);
/* Drops the file under way: a file whose replacement is not finished stays as it was. */
void host_folder_drop(struct host_folder *self);
/* Takes a piece. RP_FAILED_PRECONDITION: the copy here has another size than the piece continues. RP_RESOURCE_EXHAUSTED: the other
 * side has used up files_most or bytes_most. mode: of a new file. *info: filled in after the last piece of a file that is
 * replaced; may be NULL. */
rp_status host_folder_take(struct host_folder *self, const struct host_message *piece, mode_t mode, struct stat *info,
                           rp_error *err);
