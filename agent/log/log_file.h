/* A file that grows by whole records. What a full disk or a killed process left of a record is cut off before the next
 * one is written, so a reader never meets half of one. Functions return false with errno set; nothing here ends the
 * program. */
#ifndef AGENT_RUN_LOG_FILE_H
#define AGENT_RUN_LOG_FILE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct log_file {
    int fd;       /* -1: not open */
    int64_t size; /* of the whole records */
};

void log_file_init(struct log_file *self);
void log_file_fini(struct log_file *self);
/* Makes the folders that are missing. A file that is there is gone on with, after its last whole line; if `fresh`, it
 * is an error (EEXIST). */
bool log_file_open(struct log_file *self, const char *path, bool fresh);
/* Those above a file that are missing. */
void log_file_make_folders(const char *path);
/* All of it, or nothing. A file in which no end of a record can be restored is closed: open it again. */
bool log_file_append(struct log_file *self, const void *data, size_t size);

#endif
