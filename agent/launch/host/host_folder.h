/* A folder that takes files from the other side of a connection: the run's folder at home, and the work folder of a node agent.
 * Nothing is ever written outside of the folder or through a link, whatever a name says. */
#ifndef AGENT_LAUNCH_HOST_FOLDER_H
#define AGENT_LAUNCH_HOST_FOLDER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/stat.h>

#include "replay/error.h"

#define HOST_FILE_NAME 512u

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
/* Drops the file under way. */
void host_folder_fini(struct host_folder *self);

/* True for a relative path of plain names: no "", ".", "..", no name with a dot at its beginning, no control characters. */
bool host_folder_allows(const char *name);
/* Replaces a file: begin, write in order, finish. A file whose replacement is not finished stays as it was. RP_RESOURCE_EXHAUSTED,
 * here and below: the other side has used up files_most or bytes_most. */
rp_status host_folder_begin(struct host_folder *self, const char *name, mode_t mode, rp_error *err);
rp_status host_folder_write(struct host_folder *self, const char *name, const void *bytes, size_t size, rp_error *err);
/* *info may be NULL. */
rp_status host_folder_finish(struct host_folder *self, struct stat *info, rp_error *err);
void host_folder_drop(struct host_folder *self);
/* Appends to a file whose size is `offset`; RP_FAILED_PRECONDITION: it has another size. */
rp_status host_folder_append(struct host_folder *self, const char *name, const void *bytes, size_t size, int64_t offset,
                             rp_error *err);

#endif
