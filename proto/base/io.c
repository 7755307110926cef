#include "proto/base/io.h"

#include <errno.h>
#include <fcntl.h>
#include <libgen.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

bool io_write(int fd, const void *data, size_t size, int64_t offset)
{
    const char *at = data;
    for (size_t done = 0; done < size;) {
        ssize_t n = offset < 0 ? write(fd, at + done, size - done)
                               : pwrite(fd, at + done, size - done, (off_t)(offset + (int64_t)done));
        if (n < 0 && errno == EINTR)
            continue;
        if (n == 0)
            errno = ENOSPC;
        if (n <= 0)
            return false;
        done += (size_t)n;
    }
    return true;
}

ssize_t io_read(int fd, void *data, size_t size, int64_t offset)
{
    size_t done = 0;
    while (done < size) {
        char *at = (char *)data + done;
        ssize_t n =
            offset < 0 ? read(fd, at, size - done) : pread(fd, at, size - done, (off_t)(offset + (int64_t)done));
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0)
            return -1;
        if (n == 0)
            break;
        done += (size_t)n;
    }
    return (ssize_t)done;
}

bool io_text(const char *path, char *out, size_t size)
{
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    ssize_t n = fd >= 0 ? io_read(fd, out, size - 1, IO_HERE) : -1;
    if (fd >= 0)
        close(fd);
    out[n > 0 ? n : 0] = '\0';
    return n > 0;
}

/* Some file systems cannot sync folders, and say so. */
bool io_sync_folder(const char *path)
{
    int fd = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    bool ok = fd >= 0 && (fsync(fd) == 0 || errno == EINVAL);
    if (fd >= 0)
        close(fd);
    return ok;
}

bool io_replace(const char *path, const void *data, size_t size, mode_t mode, bool durable)
{
    char temporary[PATH_MAX];
    errno = ENAMETOOLONG;
    if ((size_t)snprintf(temporary, sizeof temporary, "%s.tmp", path) >= sizeof temporary)
        return false;
    unlink(temporary); /* a file that is left from before keeps its mode */
    int fd = open(temporary, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, mode);
    if (fd < 0)
        return false;
    bool ok = io_write(fd, data, size, IO_HERE) && (!durable || fsync(fd) == 0);
    int error = errno;
    if (close(fd) != 0 && ok) { /* a network's file system may say only now that it is full */
        ok = false;
        error = errno;
    }
    errno = error;
    if (ok && rename(temporary, path) == 0)
        return !durable || io_sync_folder(dirname(temporary));
    error = errno;
    unlink(temporary);
    errno = error;
    return false;
}

void io_make_parents(const char *path, mode_t mode)
{
    char folder[PATH_MAX];
    if ((size_t)snprintf(folder, sizeof folder, "%s", path) >= sizeof folder)
        return;
    for (char *slash = strchr(folder + 1, '/'); slash; slash = strchr(slash + 1, '/')) {
        *slash = '\0';
        mkdir(folder, mode);
        *slash = '/';
    }
}
