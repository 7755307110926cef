/* Reads one file record by record, front to back, in large pieces; or single chunks by their places. */
#pragma once

#include "broker/journal/folder.h"

struct reader {
    enum disk_kind kind;
    uint64_t number;
    char name[64];
    int file;
    uint64_t bytes;  /* of the file, when it was opened or restarted */
    uint64_t offset; /* of the next record */
    uint64_t moved;  /* added to the offset: where that record belongs. Not 0: bytes before it were cut out or put in */
    uint8_t *buffer; /* holds the file from buffer_at on */
    size_t capacity, filled;
    size_t piece; /* read at a time; set after opening */
    uint64_t buffer_at;
};

rp_status reader_open(struct reader *self, const struct folder *folder, enum disk_kind kind, uint64_t number,
                      rp_error *err);
void reader_close(struct reader *self);
/* Forgets what was read of a file that has grown since. */
rp_status reader_restart(struct reader *self, rp_error *err);
/* Reads the next record, which is valid until the next call. RP_END_OF_STREAM: the file ends. RP_BAD_MESSAGE: there is
 * no whole record; the reader stays before it, and the error names the file and the place. */
rp_status reader_next(struct reader *self, struct record_view *out, rp_error *err);
/* Reads the last record: goes from head to head, and reads no others. */
rp_status reader_last(struct reader *self, struct record_view *out, rp_error *err);
static inline void reader_seek(struct reader *self, uint64_t offset)
{
    self->offset = offset;
    self->moved = 0;
}
/* Skips to the first whole record from here on that was written here or behind, wherever it is now. False: there is
 * none; the reader stays. */
bool reader_resync(struct reader *self);

/* Reads the chunk at this offset of a segment; it is valid until the next call. RP_DATA_LOSS: there is no sound one. */
rp_status reader_chunk(struct reader *self, uint64_t offset, struct chunk_view *out, rp_error *err);
/* Reads the chunks at these places (ascending, each once) and calls fn (may be NULL) for each. Many small chunks cost one
 * large read. A chunk that cannot be read ends it with an error, unless fn, which gets NULL for it, returns RP_OK. */
typedef rp_status chunk_fn(void *ctx, uint64_t at, const struct chunk_view *chunk, rp_error *err);
rp_status chunks_read(const struct folder *folder, const uint64_t *at, uint64_t n, chunk_fn *fn, void *ctx,
                      rp_error *err);
