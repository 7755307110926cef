#include "broker/disk/reader.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "proto/base/error.h"

#define PIECE_BYTES (4u << 20)
#define HEADS_BYTES 4096u /* that are read for one head */

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
    uint64_t at = disk_at(self->number, self->offset + self->moved);
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

rp_status reader_last(struct reader *self, struct record_view *out, rp_error *err)
{
    self->piece = HEADS_BYTES;
    for (uint64_t next = self->offset; next < self->bytes;) {
        self->offset = next;
        size_t whole = 0;
        if (self->bytes - next < sizeof(struct record_head))
            return err_set(err, RP_BAD_MESSAGE, "%s is cut short", self->name);
        RP_TRY(reader_fill(self, sizeof(struct record_head), err));
        RP_TRY(record_check_head(self->buffer + (next - self->buffer_at), disk_at(self->number, next), &whole, err));
        next += whole;
    }
    return reader_next(self, out, err);
}

/* True if a whole record is here that belongs at offset `least` or behind. A file of the network's making may have many
 * heads and no record: `budget` is the number of bytes that may still be read for such heads. */
static bool reader_is_sound(struct reader *self, uint64_t least, uint64_t *budget)
{
    struct record_head head;
    struct record_view record;
    uint64_t found = self->offset, cost;
    memcpy(&head, self->buffer + (found - self->buffer_at), sizeof head);
    cost = head.size + self->filled;
    if (disk_number(head.at) != self->number || disk_offset(head.at) < least || head.size > self->bytes - found ||
        cost > *budget)
        return false;
    *budget -= cost;
    self->moved = disk_offset(head.at) - found;
    self->filled = 0; /* records start at multiples of 8 in the buffer */
    bool sound = reader_next(self, &record, NULL) == RP_OK;
    self->offset = found;
    return sound;
}

bool reader_resync(struct reader *self)
{
    const uint32_t magic = RECORD_MAGIC;
    const size_t head = sizeof(struct record_head);
    uint64_t from = self->offset, moved = self->moved, budget = 64 * self->bytes;
    while (self->offset + head <= self->bytes && reader_fill(self, head, NULL) == RP_OK) {
        const uint8_t *start = self->buffer + (self->offset - self->buffer_at);
        size_t have = self->filled - (size_t)(self->offset - self->buffer_at);
        const uint8_t *hit = memmem(start, have - head + sizeof magic, &magic, sizeof magic);
        self->offset += hit ? (size_t)(hit - start) : have - head;
        if (hit && reader_is_sound(self, from + moved, &budget))
            return true;
        self->offset++;
    }
    self->offset = from;
    self->moved = moved;
    return false;
}
