#include "broker/disk/reader.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "proto/base/error.h"

#define PIECE_BYTES (4u << 20)

rp_status reader_open(struct reader *self, const struct folder *folder, enum disk_kind kind, uint64_t number,
                      rp_error *err)
{
    *self =
        (struct reader){.kind = kind, .number = number, .offset = FILE_HEAD_BYTES, .file = -1, .piece = PIECE_BYTES};
    folder_name(kind, number, false, self->name, sizeof self->name);
    rp_error why = {0};
    self->file = folder_read(folder, kind, number, &why);
    if (self->file < 0)
        return err_set(err, (rp_status)why.status, "%s", why.text);
    struct stat about;
    if (fstat(self->file, &about) != 0) {
        reader_close(self);
        return err_set(err, RP_IO, "%s: %s", self->name, strerror(errno));
    }
    self->bytes = (uint64_t)about.st_size;
    posix_fadvise(self->file, 0, 0, POSIX_FADV_SEQUENTIAL);
    return RP_OK;
}

void reader_close(struct reader *self)
{
    if (self->file >= 0)
        close(self->file);
    self->file = -1;
    free(self->buffer);
    self->buffer = NULL;
}

/* Fills the buffer with at least `want` bytes from the offset on, all of which are in the file. */
static rp_status reader_fill(struct reader *self, size_t want, rp_error *err)
{
    if (self->offset < self->buffer_at || self->offset > self->buffer_at + self->filled) {
        self->buffer_at = self->offset;
        self->filled = 0;
    }
    size_t used = (size_t)(self->offset - self->buffer_at);
    if (self->filled - used >= want)
        return RP_OK;
    if (used) {
        memmove(self->buffer, self->buffer + used, self->filled - used);
        self->filled -= used;
        self->buffer_at = self->offset;
    }
    if (want > self->capacity) {
        size_t capacity = want > self->piece ? want : self->piece;
        uint8_t *buffer = realloc(self->buffer, capacity);
        if (!buffer)
            return err_set(err, RP_NO_MEMORY, "no memory for a record of %zu bytes of %s", want, self->name);
        self->buffer = buffer;
        self->capacity = capacity;
    }
    while (self->filled < want) {
        ssize_t n = pread(self->file, self->buffer + self->filled, self->capacity - self->filled,
                          (off_t)(self->buffer_at + self->filled));
        if (n < 0 && errno == EINTR)
            continue;
        if (n <= 0)
            return err_set(err, n < 0 ? RP_IO : RP_BAD_MESSAGE, "%s at offset %llu: %s", self->name,
                           (unsigned long long)(self->buffer_at + self->filled),
                           n < 0 ? strerror(errno) : "the file has become shorter");
        self->filled += (size_t)n;
    }
    return RP_OK;
}

rp_status reader_next(struct reader *self, struct record_view *out, rp_error *err)
{
    if (self->offset >= self->bytes)
        return err_set(err, RP_END_OF_STREAM, "%s ends", self->name);
    uint64_t left = self->bytes - self->offset;
    size_t have = left < sizeof(struct record_head) ? (size_t)left : sizeof(struct record_head);
    RP_TRY(reader_fill(self, have, err));
    uint64_t at = disk_at(self->number, self->offset);
    const uint8_t *start = self->buffer + (self->offset - self->buffer_at);
    rp_error why = {0};
    size_t whole = 0;
    rp_status status = RP_OK;
    if (have == sizeof(struct record_head)) {
        status = record_check_head(start, at, &whole, &why);
        if (status == RP_OK) {
            have = whole < left ? whole : (size_t)left;
            /* A record that is cut short is not read, because its size may be wrong. */
            if (whole <= left)
                RP_TRY(reader_fill(self, have, err));
            start = self->buffer + (self->offset - self->buffer_at);
        }
    }
    if (status == RP_OK)
        status = record_check(start, have, at, &whole, &why);
    if (status != RP_OK)
        return err_set(err, status, "%s at offset %llu: %s", self->name, (unsigned long long)self->offset, why.text);
    *out = (struct record_view){start, whole, at};
    self->offset += whole;
    return RP_OK;
}

/* True if there is the head of a record that belongs at this place. */
static bool looks_like_record(struct reader *self)
{
    size_t size;
    return reader_fill(self, sizeof(struct record_head), NULL) == RP_OK &&
           record_check_head(self->buffer + (self->offset - self->buffer_at), disk_at(self->number, self->offset),
                             &size, NULL) == RP_OK &&
           self->offset + size <= self->bytes;
}

bool reader_resync(struct reader *self)
{
    uint64_t from = self->offset;
    struct record_view record;
    for (self->offset += 8; self->offset + sizeof(struct record_head) <= self->bytes; self->offset += 8)
        if (looks_like_record(self)) {
            uint64_t found = self->offset;
            bool sound = reader_next(self, &record, NULL) == RP_OK;
            self->offset = found;
            if (sound)
                return true;
        }
    self->offset = from;
    return false;
}
