/* Whole files: all bytes are read or written, whatever signals interrupt. A function that fails says why in errno. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

/* Writes all of it at an offset; offset IO_HERE: where the descriptor stands. */
#define IO_HERE (-1)
bool io_write(int fd, const void *data, size_t size, int64_t offset);
/* Reads until there are `size` bytes or the file ends. Returns how many there are; -1: it cannot be read. */
ssize_t io_read(int fd, void *data, size_t size, int64_t offset);
/* Reads a short text, such as a file of /proc, and ends it with a zero; what does not fit is left out. False: there is none. */
bool io_text(const char *path, char *out, size_t size);
/* Puts a file in the place of another, so that readers see the one or the other, whole. durable: it outlives a power failure. On
 * failure the old file stays. */
bool io_replace(const char *path, const void *data, size_t size, mode_t mode, bool durable);

/* Makes missing folders above a file. A failure shows when the file is opened. */
void io_make_parents(const char *path, mode_t mode);
/* Makes the names of files in a folder durable. */
bool io_sync_folder(const char *path);
