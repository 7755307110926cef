/* The one format of journal segments and checkpoints. This header describes it; reader.h and load.h read it.
 *
 *   file    = header, record*
 *   record  = struct record_head, entry*            the unit that is whole or not there: a checksum covers all of it
 *   entry   = struct entry_head, body, padding to 8 bytes
 *
 * An entry is one effect on the broker's state; applied in order, entries make up the state (checkpoint/restore.c). A checkpoint holds
 * the state at one instant as such entries. A segment holds chunks and, with the journal on, what happened since. All
 * numbers are little-endian, and no struct has holes. docs/OPERATE.md describes the files; PROTOCOL.md does not. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "broker/loop/entries.h"
#include "replay/error.h"

/* Of the format: a folder of another version is refused. */
#define DISK_VERSION 3u
#define FILE_HEAD_BYTES 32u
/* Most bytes of a record, unless it ends with a large entry (a chunk, a slot). */
#define RECORD_BYTES (1u << 20)
#define RECORD_MOST (ENTRY_MOST + (64u << 10))

/* A place in a file: number of the segment (or checkpoint) << 36 | offset. 0 is nowhere: numbers start at 1. */
#define DISK_OFFSET_BITS 36u
static inline uint64_t disk_at(uint64_t number, uint64_t offset)
{
    return number << DISK_OFFSET_BITS | offset;
}
static inline uint64_t disk_number(uint64_t at)
{
    return at >> DISK_OFFSET_BITS;
}
static inline uint64_t disk_offset(uint64_t at)
{
    return at & ((UINT64_C(1) << DISK_OFFSET_BITS) - 1);
}

enum disk_kind { DISK_SEGMENT = 1, DISK_CHECKPOINT = 2 };

struct file_head {
    char magic[8]; /* "RPLYDISK" */
    uint16_t version;
    uint16_t kind;
    uint32_t crc; /* crc32c of the rest of this head: tells a damaged head from a foreign one */
    uint64_t number;
    uint64_t folder; /* id of the folder: a random number, chosen with the first file */
};

#define RECORD_MAGIC UINT32_C(0x524C5052) /* "RPLR" */
struct record_head {
    uint32_t magic;
    uint32_t size; /* of the entries */
    uint64_t at;   /* of this head */
    uint32_t crc;  /* crc32c of size, at and the entries */
    uint32_t zero;
};

static inline size_t entry_padded(size_t size)
{
    return (size + 7) & ~(size_t)7;
}

/* Fills in the head of a record (size bytes, at least sizeof(struct record_head)) and the crc of the chunks in it. Here
 * and below, records start at addresses that are multiples of 8. */
void record_seal(uint8_t *record, size_t size, uint64_t at);

/* Checks that `data` (room bytes) starts with the head of a record that belongs at `at`. RP_OK: *size is the size of the record with its
 * head. RP_BAD_MESSAGE: cut short, or of another place; err says which. */
rp_status record_check_head(const uint8_t *data, size_t room, uint64_t at, size_t *size, rp_error *err);
/* Checks the checksum of a whole record whose head was checked. */
rp_status record_check(const uint8_t *data, size_t size, rp_error *err);

/* A record that was checked. */
struct record_view {
    const uint8_t *data; /* with its head */
    size_t size;
    uint64_t at;
};

/* Goes over the entries of a record that was checked. entry_next returns false at the end, or (bad set) at an entry
 * that does not fit. */
struct entry_reader {
    const uint8_t *data, *end;
    uint64_t at; /* place of the entry (its head) that comes next */
    bool bad;
};
struct entry_view {
    uint16_t type, table;
    const uint8_t *body;
    size_t size; /* of the body */
    uint64_t at; /* place of its head, by which chunks are known */
};
struct entry_reader entry_reader(struct record_view record);
bool entry_next(struct entry_reader *self, struct entry_view *out);
/* Checks that the body has the size that its type and its own counts require. Before anything else is read from it. */
rp_status entry_check(const struct entry_view *entry, rp_error *err);
const char *entry_name(uint16_t type);
/* The parts of a CHUNK entry that was checked. */
struct chunk_view {
    const struct entry_chunk *head;
    const uint8_t *sizes; /* uint32_t[columns], unaligned */
    const uint8_t *codecs, *data;
};
struct chunk_view entry_chunk_view(const struct entry_view *entry);
/* Returns the value that entry_chunk.crc must have. */
uint32_t chunk_crc(const struct chunk_view *chunk);
