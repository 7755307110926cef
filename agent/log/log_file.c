/* See log_file.h. */
#include "agent/log/log_file.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

void log_file_init(struct log_file *self)
{
    *self = (struct log_file){.fd = -1};
}

void log_file_fini(struct log_file *self)
{
    if (self->fd >= 0)
        close(self->fd);
    self->fd = -1;
    self->size = 0;
}

/* Makes the folders above path. A failure shows when the file is opened. */
void log_file_make_folders(const char *path)
{
    char folder[PATH_MAX];
    if ((size_t)snprintf(folder, sizeof folder, "%s", path) >= sizeof folder)
        return;
    for (char *slash = strchr(folder + 1, '/'); slash; slash = strchr(slash + 1, '/')) {
        *slash = '\0';
        mkdir(folder, 0755);
        *slash = '/';
    }
}

/* Where the last whole line ends, 0 if there is none; -1: the file cannot be read. */
static int64_t end_of_lines(int fd, int64_t size)
{
    char block[4096];
    while (size > 0) {
        int64_t part = size < (int64_t)sizeof block ? size : (int64_t)sizeof block;
        ssize_t n = pread(fd, block, (size_t)part, size - part);
        if (n < 0 && errno == EINTR)
            continue;
        if (n != part) {
            errno = n < 0 ? errno : EIO;
            return -1;
        }
        const char *newline = memrchr(block, '\n', (size_t)part);
        if (newline)
            return size - part + (newline - block) + 1;
        size -= part;
    }
    return 0;
}

bool log_file_open(struct log_file *self, const char *path, bool fresh)
{
    log_file_fini(self);
    log_file_make_folders(path);
    /* O_NONBLOCK: a pipe must not make the caller wait for a reader; it is refused below. */
    int fd = open(path, O_RDWR | O_APPEND | O_CREAT | O_CLOEXEC | O_NONBLOCK | (fresh ? O_EXCL : 0), 0644);
    if (fd < 0)
        return false;
    struct stat status;
    int64_t size = -1;
    if (fstat(fd, &status) == 0) {
        if (S_ISREG(status.st_mode))
            size = end_of_lines(fd, status.st_size);
        else
            errno = EINVAL;
    }
    if (size < 0 || (size < status.st_size && ftruncate(fd, size) != 0)) {
        int error = errno;
        close(fd);
        errno = error;
        return false;
    }
    self->fd = fd;
    self->size = size;
    return true;
}

bool log_file_append(struct log_file *self, const void *data, size_t size)
{
    const char *p = data;
    size_t left = size;
    while (left > 0) {
        ssize_t n = write(self->fd, p, left);
        if (n < 0 && errno == EINTR)
            continue;
        if (n <= 0) {
            int error = n < 0 ? errno : EIO;
            if (left < size && ftruncate(self->fd, self->size) != 0)
                log_file_fini(self);
            errno = error;
            return false;
        }
        p += n;
        left -= (size_t)n;
    }
    self->size += (int64_t)size;
    return true;
}

bool log_file_append_line(struct log_file *self, const char *path, const char *key, const char *line, size_t size)
{
    if (!log_file_append(self, line, size))
        return false;
    if (thin_is_due(&self->thin) && thin_file(&self->thin, path, key))
        log_file_fini(self); /* it is another file now: the next line opens it */
    return true;
}
