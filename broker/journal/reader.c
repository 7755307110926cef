#include "broker/journal/reader.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "proto/base/error.h"

#define PIECE_BYTES (4u << 20)
#define HEADS_BYTES 4096u /* that are read for one head */
/* Read for chunks, whose places are known and whose sizes are not: little is read in vain where few chunks are wanted, and the
 * kernel reads ahead where many are. */
#define CHUNK_PIECE_BYTES (256u << 10)

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
    rp_status status = reader_restart(self, err);
    if (status != RP_OK)
        reader_close(self);
    else
        posix_fadvise(self->file, 0, 0, POSIX_FADV_SEQUENTIAL);
    return status;
}

rp_status reader_restart(struct reader *self, rp_error *err)
{
    struct stat about;
    if (fstat(self->file, &about) != 0)
        return err_set(err, RP_IO, "%s: %s", self->name, strerror(errno));
    self->bytes = (uint64_t)about.st_size;
    self->filled = 0;
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
    size_t most = want > self->piece ? want : self->piece;
    if (most > self->capacity) {
        uint8_t *buffer = realloc(self->buffer, most);
        if (!buffer)
            return err_set(err, RP_NO_MEMORY, "no memory for a record of %zu bytes of %s", want, self->name);
        self->buffer = buffer;
        self->capacity = most;
    }
    while (self->filled < want) {
        ssize_t n = pread(self->file, self->buffer + self->filled, most - self->filled,
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

/* Returns what the buffer holds from the offset on. */
static const uint8_t *here(const struct reader *self)
{
    return self->buffer + (self->offset - self->buffer_at);
}

rp_status reader_next(struct reader *self, struct record_view *out, rp_error *err)
{
    if (self->offset >= self->bytes)
        return err_set(err, RP_END_OF_STREAM, "%s ends", self->name);
    uint64_t left = self->bytes - self->offset, at = disk_at(self->number, self->offset + self->moved);
    size_t have = left < sizeof(struct record_head) ? (size_t)left : sizeof(struct record_head), whole = 0;
    rp_error why = {0};
    RP_TRY(reader_fill(self, have, err));
    rp_status status = record_check_head(here(self), have, at, &whole, &why);
    if (status == RP_OK && whole > left) /* it is not read, because its size may be wrong */
        status = err_set(&why, RP_BAD_MESSAGE, "the record there is cut short: %zu of %zu bytes", (size_t)left, whole);
    if (status == RP_OK) {
        RP_TRY(reader_fill(self, whole, err));
        status = record_check(here(self), whole, &why);
    }
    if (status != RP_OK)
        return err_set(err, status, "%s at offset %llu: %s", self->name, (unsigned long long)self->offset, why.text);
    *out = (struct record_view){here(self), whole, at};
    self->offset += whole;
    return RP_OK;
}

rp_status reader_last(struct reader *self, struct record_view *out, rp_error *err)
{
    self->piece = HEADS_BYTES;
    for (uint64_t next = self->offset; next < self->bytes;) {
        self->offset = next;
        size_t have = sizeof(struct record_head), whole = 0;
        if (self->bytes - next < have)
            return err_set(err, RP_BAD_MESSAGE, "%s is cut short", self->name);
        RP_TRY(reader_fill(self, have, err));
        RP_TRY(record_check_head(here(self), have, disk_at(self->number, next), &whole, err));
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
    memcpy(&head, here(self), sizeof head);
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
        const uint8_t *start = here(self);
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

/* ---- chunks ---- */

static rp_status chunk_here(struct reader *self, struct chunk_view *out, rp_error *err)
{
    struct entry_head head;
    if (self->bytes < sizeof head || self->offset > self->bytes - sizeof head)
        return err_set(err, RP_DATA_LOSS, "the file ends before it");
    RP_TRY(reader_fill(self, sizeof head, err));
    memcpy(&head, here(self), sizeof head);
    if (head.type != ENTRY_CHUNK || head.size < sizeof head || head.size > RECORD_MOST)
        return err_set(err, RP_DATA_LOSS, "there is no chunk");
    if (head.size > self->bytes - self->offset)
        return err_set(err, RP_DATA_LOSS, "the file ends in it");
    RP_TRY(reader_fill(self, head.size, err));
    const uint8_t *body = here(self) + sizeof head;
    struct entry_view entry = {head.type, head.table, body, head.size - sizeof head,
                               disk_at(self->number, self->offset)};
    RP_TRY(entry_check(&entry, err));
    *out = entry_chunk_view(&entry);
    return chunk_crc(out) == out->head->crc ? RP_OK : err_set(err, RP_DATA_LOSS, "the checksum of the chunk is wrong");
}

rp_status reader_chunk(struct reader *self, uint64_t offset, struct chunk_view *out, rp_error *err)
{
    rp_error why = {0};
    reader_seek(self, offset);
    rp_status status = chunk_here(self, out, &why);
    if (status == RP_OK)
        return RP_OK;
    return err_set(err, status == RP_NO_MEMORY || status == RP_IO ? status : RP_DATA_LOSS,
                   "segment %llu at offset %llu: %s", (unsigned long long)self->number, (unsigned long long)offset,
                   why.text);
}

/* Opens another segment, unless it is this one. */
static rp_status segment_open(struct reader *self, const struct folder *folder, uint64_t number, rp_error *err)
{
    if (self->number == number)
        return RP_OK;
    reader_close(self);
    rp_error why = {0};
    rp_status status = reader_open(self, folder, DISK_SEGMENT, number, &why);
    self->piece = CHUNK_PIECE_BYTES;
    if (status == RP_OK)
        return RP_OK;
    self->number = 0;
    return err_set(err, status == RP_NO_MEMORY || status == RP_IO ? status : RP_DATA_LOSS,
                   "chunks cannot be read: segment %llu: %s", (unsigned long long)number, why.text);
}

rp_status chunks_read(const struct folder *folder, const uint64_t *at, uint64_t n, chunk_fn *fn, void *ctx,
                      rp_error *err)
{
    struct reader reader = {.file = -1};
    rp_status status = RP_OK;
    for (uint64_t i = 0; status == RP_OK && i < n; i++) {
        struct chunk_view chunk;
        if (i > 0 && at[i] == at[i - 1])
            continue;
        if (disk_number(at[i]) == 0 || disk_offset(at[i]) < FILE_HEAD_BYTES || at[i] % 8 != 0 ||
            (i > 0 && at[i] < at[i - 1]))
            status = err_set(err, RP_INVALID_ARGUMENT, "chunks are read by rising places in segments");
        else
            status = segment_open(&reader, folder, disk_number(at[i]), err);
        bool lost = status == RP_DATA_LOSS;
        if (status == RP_OK) {
            status = reader_chunk(&reader, disk_offset(at[i]), &chunk, err);
            lost = status == RP_DATA_LOSS || status == RP_IO;
        }
        if (status == RP_OK && fn)
            status = fn(ctx, at[i], &chunk, err);
        else if (lost && fn && fn(ctx, at[i], NULL, err) == RP_OK)
            status = RP_OK;
    }
    reader_close(&reader);
    return status;
}
