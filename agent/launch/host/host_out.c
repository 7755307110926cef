/* What the node agent is told: lines and files, in order. */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "agent/launch/host/host_impl.h"
#include "proto/base/error.h"

/* Fillings of the writer's queue in one call: the launcher has more to do. */
#define ROUNDS_MOST 8

static void parcel_free(struct host_parcel *parcel)
{
    if (parcel->fd >= 0)
        close(parcel->fd);
    json_object_put(parcel->line);
    free(parcel);
}

static void append(struct host *self, struct host_parcel *parcel)
{
    *self->last = parcel;
    self->last = &parcel->next;
}

bool host_out_line(struct host *self, struct json_object *line)
{
    size_t size = 0;
    const char *text = line ? json_object_to_json_string_length(line, JSON_C_TO_STRING_PLAIN, &size) : NULL;
    struct host_parcel *parcel = text && size + 16 < HOST_LINE_MOST ? calloc(1, sizeof *parcel) : NULL;
    if (!parcel) {
        json_object_put(line);
        return false;
    }
    *parcel = (struct host_parcel){.line = line, .fd = -1};
    append(self, parcel);
    return true;
}

rp_status host_out_file(struct host *self, const char *path, const char *name, rp_error *err)
{
    struct stat info;
    if (!host_folder_allows(name))
        return err_set(err, RP_INVALID_ARGUMENT, "'%.200s' is no relative path of a file", name);
    int fd = open(path, O_RDONLY | O_NONBLOCK | O_CLOEXEC);
    if (fd < 0)
        return err_set(err, errno == ENOENT ? RP_NOT_FOUND : RP_IO, "%.300s cannot be read: %s", path, strerror(errno));
    struct host_parcel *parcel = fstat(fd, &info) == 0 && S_ISREG(info.st_mode) ? calloc(1, sizeof *parcel) : NULL;
    if (!parcel) {
        close(fd);
        return err_set(err, RP_INVALID_ARGUMENT, "%.300s is no regular file", path);
    }
    *parcel = (struct host_parcel){.fd = fd, .mode = info.st_mode & 0777, .size = info.st_size};
    snprintf(parcel->name, sizeof parcel->name, "%s", name);
    append(self, parcel);
    return RP_OK;
}

/* Sends the next piece of a file. True: it was the last one. */
static bool feed_file(struct host *self, struct host_parcel *parcel)
{
    uint8_t bytes[HOST_DATA_MOST];
    int64_t left = parcel->size - parcel->offset;
    ssize_t n = pread(parcel->fd, bytes, left < (int64_t)sizeof bytes ? (size_t)left : sizeof bytes, parcel->offset);
    bool first = parcel->offset == 0;
    parcel->offset += n > 0 ? n : 0;
    bool last = n <= 0 || parcel->offset >= parcel->size;
    struct json_object *line = host_line_new("file");
    host_line_add_text(line, "name", parcel->name);
    host_line_add_number(line, "mode", parcel->mode);
    host_line_add_flag(line, "first", first);
    host_line_add_flag(line, "last", last);
    host_line_add_data(line, bytes, n > 0 ? (size_t)n : 0);
    host_writer_put(&self->writer, line);
    return last;
}

/* Moves the first parcel, or the next piece of it, to the writer. */
static void feed_first(struct host *self)
{
    struct host_parcel *parcel = self->first;
    if (parcel->line) {
        host_writer_put(&self->writer, parcel->line);
        parcel->line = NULL;
    } else if (!feed_file(self, parcel)) {
        return;
    }
    self->first = parcel->next;
    if (!self->first)
        self->last = &self->first;
    parcel_free(parcel);
}

void host_out_feed(struct host *self)
{
    for (int round = 0; round < ROUNDS_MOST; round++) {
        while (self->first && host_writer_room(&self->writer))
            feed_first(self);
        host_writer_flush(&self->writer);
        if (!self->first || !host_writer_empty(&self->writer))
            return;
    }
}

void host_out_fini(struct host *self)
{
    while (self->first) {
        struct host_parcel *parcel = self->first;
        self->first = parcel->next;
        parcel_free(parcel);
    }
    self->last = &self->first;
}
