/* Each part of a path is opened on its own and never through a link. */
#include "agent/launch/host/host_file.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "proto/base/error.h"
#include "proto/base/io.h"

#define DEPTH_MOST 8

bool host_file_allows(const char *name)
{
    int depth = 0;
    if (!name || !name[0] || strlen(name) >= HOST_FILE_NAME)
        return false;
    for (const char *c = name; *c; c++)
        if ((unsigned char)*c < ' ' || *c == 0x7f)
            return false;
    for (const char *part = name;; part++) {
        size_t length = strcspn(part, "/");
        if (length == 0 || length > 255 || part[0] == '.' || ++depth > DEPTH_MOST)
            return false;
        part += length;
        if (!*part)
            return true;
    }
}

/* ---- sending ---- */

rp_status host_file_open(struct host_file *self, const char *path, const char *name, int flags, rp_error *err)
{
    *self = (struct host_file){.fd = -1, .replace = true};
    if (!host_file_allows(name))
        return err_set(err, RP_INVALID_ARGUMENT, "'%.200s' is no relative path of a file", name);
    snprintf(self->name, sizeof self->name, "%s", name);
    self->fd = open(path, O_RDONLY | O_NONBLOCK | O_CLOEXEC | flags);
    if (self->fd < 0)
        return err_set(err, errno == ENOENT ? RP_NOT_FOUND : RP_IO, "%.300s cannot be read: %s", path, strerror(errno));
    if (fstat(self->fd, &self->info) == 0 && S_ISREG(self->info.st_mode))
        return RP_OK;
    host_file_close(self);
    return err_set(err, RP_INVALID_ARGUMENT, "%.300s is no regular file", path);
}

bool host_file_send(struct host_file *self, struct host_writer *writer)
{
    uint8_t bytes[HOST_DATA_MOST];
    int64_t left = self->info.st_size - self->offset;
    ssize_t n = pread(self->fd, bytes, left < (int64_t)sizeof bytes ? (size_t)left : sizeof bytes, self->offset);
    bool cut = n < 0 || (n == 0 && left > 0), last = cut || n >= left;
    if (!cut) {
        const struct host_line line = {.type = "file",
                                       .name = self->name,
                                       .mode = self->info.st_mode & 0777,
                                       .offset = self->offset,
                                       .replace = self->replace,
                                       .last = last};
        host_writer_put(writer, &line, bytes, (size_t)n);
        self->offset += n;
    }
    if (last)
        host_file_close(self);
    return !last;
}

void host_file_close(struct host_file *self)
{
    if (self->fd >= 0)
        close(self->fd);
    self->fd = -1;
}

/* ---- taking ---- */

void host_folder_init(struct host_folder *self, const char *path, const char *tag)
{
    *self = (struct host_folder){.fd = -1, .parent = -1, .bytes_most = INT64_MAX, .files_most = UINT32_MAX};
    snprintf(self->path, sizeof self->path, "%s", path);
    snprintf(self->temporary, sizeof self->temporary, ".part-%.100s", tag);
    for (char *c = self->temporary; *c; c++)
        *c = *c == '/' ? '_' : *c;
}

void host_folder_drop(struct host_folder *self)
{
    if (self->fd >= 0) {
        close(self->fd);
        unlinkat(self->parent, self->temporary, 0); /* it is gone already if the file was finished */
    }
    if (self->parent >= 0)
        close(self->parent);
    self->fd = self->parent = -1;
    self->name[0] = '\0';
}

/* True if no further file or folder may be made; errno says so. */
static bool is_full(const struct host_folder *self)
{
    errno = EDQUOT;
    return self->files >= self->files_most;
}

static int open_below(struct host_folder *self, int folder, const char *name)
{
    int fd = openat(folder, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    if (fd >= 0 || errno != ENOENT || is_full(self) || (mkdirat(folder, name, 0777) != 0 && errno != EEXIST))
        return fd;
    self->files++;
    return openat(folder, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
}

/* Opens the folder of the file and makes the folders that are missing. *leaf is the last part of the name. */
static int open_parent(struct host_folder *self, const char *name, const char **leaf)
{
    int fd = open(self->path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    const char *part = name;
    for (const char *slash; fd >= 0 && (slash = strchr(part, '/')); part = slash + 1) {
        char folder[256];
        snprintf(folder, sizeof folder, "%.*s", (int)(slash - part), part);
        int below = open_below(self, fd, folder);
        int error = errno;
        close(fd);
        errno = error;
        fd = below;
    }
    *leaf = part;
    return fd;
}

/* Says why a file cannot be written, and drops the one under way. */
static rp_status failed(struct host_folder *self, const char *name, rp_error *err)
{
    rp_status status =
        errno == EDQUOT ? err_set(err, RP_RESOURCE_EXHAUSTED,
                                  "there are %u files and folders of %lld bytes; %u of %lld are allowed", self->files,
                                  (long long)self->bytes, self->files_most, (long long)self->bytes_most)
                        : err_set(err, RP_IO, "%.200s/%.200s cannot be written: %s", self->path, name, strerror(errno));
    host_folder_drop(self);
    return status;
}

/* True if `more` bytes fit; else errno says so. */
static bool has_room(const struct host_folder *self, size_t more)
{
    errno = EDQUOT;
    return self->bytes_most - self->bytes - (self->fd >= 0 ? self->size : 0) >= (int64_t)more;
}

/* Begins to replace a file. */
static rp_status begin(struct host_folder *self, const char *name, mode_t mode, rp_error *err)
{
    const char *leaf;
    host_folder_drop(self);
    self->parent = open_parent(self, name, &leaf);
    if (self->parent >= 0 && (faccessat(self->parent, leaf, F_OK, AT_SYMLINK_NOFOLLOW) == 0 || !is_full(self))) {
        unlinkat(self->parent, self->temporary, 0);
        self->fd =
            openat(self->parent, self->temporary, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, mode & 0777);
    }
    if (self->fd < 0)
        return failed(self, name, err);
    snprintf(self->name, sizeof self->name, "%s", name);
    self->size = 0;
    return RP_OK;
}

static rp_status finish(struct host_folder *self, struct stat *info, rp_error *err)
{
    struct stat before, unused;
    const char *slash = strrchr(self->name, '/'), *leaf = slash ? slash + 1 : self->name;
    bool replaces = fstatat(self->parent, leaf, &before, AT_SYMLINK_NOFOLLOW) == 0;
    if (renameat(self->parent, self->temporary, self->parent, leaf) != 0 || fstat(self->fd, info ? info : &unused) != 0)
        return failed(self, self->name, err);
    int64_t freed = replaces ? before.st_size : 0; /* a file of an earlier leg was not counted */
    self->bytes += self->size - (freed < self->bytes ? freed : self->bytes);
    self->files += !replaces;
    host_folder_drop(self);
    return RP_OK;
}

static rp_status host_file_append(struct host_folder *self, const char *name, const void *bytes, size_t size,
                                  int64_t offset, rp_error *err)
{
    const char *leaf;
    struct stat info;
    int parent = open_parent(self, name, &leaf);
    int fd = parent >= 0 ? openat(parent, leaf, O_WRONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC) : -1;
    bool other = fd < 0 && errno == ENOENT;
    rp_status status = RP_OK;
    if (fd >= 0)
        other = fstat(fd, &info) != 0 || !S_ISREG(info.st_mode) || info.st_size != offset;
    if (other)
        status = err_set(err, RP_FAILED_PRECONDITION, "%.200s does not have %lld bytes", name, (long long)offset);
    else if (fd < 0 || !has_room(self, size) || !io_write(fd, bytes, size, offset))
        status = failed(self, name, err);
    else
        self->bytes += (int64_t)size;
    if (fd >= 0)
        close(fd);
    if (parent >= 0)
        close(parent);
    return status;
}

rp_status host_folder_take(struct host_folder *self, const struct host_message *piece, mode_t mode, struct stat *info,
                           rp_error *err)
{
    const char *name = piece->line->name;
    int64_t offset = piece->line->offset > 0 ? piece->line->offset : 0;
    if (!host_file_allows(name))
        return err_set(err, RP_INVALID_ARGUMENT, "'%.200s' is no name of a file that may be written here",
                       name ? name : "");
    if (!piece->line->replace)
        return host_file_append(self, name, piece->bytes, piece->size, offset, err);
    if (offset == 0)
        RP_TRY(begin(self, name, mode, err));
    if (self->fd < 0 || strcmp(name, self->name) != 0 || offset != self->size)
        return err_set(err, RP_INVALID_ARGUMENT, "this piece of %.200s continues nothing", name);
    if (!has_room(self, piece->size) || !io_write(self->fd, piece->bytes, piece->size, self->size))
        return failed(self, name, err);
    self->size += (int64_t)piece->size;
    return piece->line->last ? finish(self, info, err) : RP_OK;
}
