/* A file that grows by whole records. The rest of a record that a full disk or a killed process left behind is cut
 * off before the next one is written, so a reader never sees half a record. Functions return false with errno set;
 * nothing here ends the program. */
#ifndef AGENT_LOG_LOG_FILE_H
#define AGENT_LOG_LOG_FILE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "agent/log/thin.h"

struct log_file {
    int fd;       /* -1: not open */
    int64_t size; /* bytes of the whole records */
    struct thin thin;
};

void log_file_init(struct log_file *self);
void log_file_fini(struct log_file *self);
/* Makes missing folders. Continues an existing file after its last whole line; with `fresh`, an existing file is an
 * error (EEXIST). */
bool log_file_open(struct log_file *self, const char *path, bool fresh);
/* Makes missing folders above a file. */
void log_file_make_folders(const char *path);
/* Appends all of it or nothing. A file in which the end of the last record cannot be restored is closed: open it
 * again. */
bool log_file_append(struct log_file *self, const void *data, size_t size);
/* Appends a line, and thins the file (thin_file) when it has grown enough. */
bool log_file_append_line(struct log_file *self, const char *path, const char *key, const char *line, size_t size);

#endif
