/* Reads one file record by record, front to back, in large pieces. */
#ifndef BROKER_DISK_READER_H
#define BROKER_DISK_READER_H

#include "broker/disk/folder.h"

struct reader {
    enum disk_kind kind;
    uint64_t number;
    char name[64];
    int file;
    uint64_t bytes;  /* of the file, when it was opened */
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

#endif
