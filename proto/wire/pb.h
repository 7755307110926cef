/* The parts of the protobuf wire format that hot headers need: a bounds-checked reader over one frame and a writer into a growing
 * buffer. All other messages use protobuf-c (unpack). */
#pragma once

#include <protobuf-c/protobuf-c.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "proto/base/arena.h"
#include "proto/base/text.h"
#include "replay/error.h"

/* Packed arrays are read and written without conversion. */
_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "only little-endian machines are supported");

enum pb_wire { PB_VARINT = 0, PB_FIXED64 = 1, PB_BYTES = 2, PB_FIXED32 = 5 };

#define PB_MAX_VARINT 10u

struct pb_reader {
    const uint8_t *at, *end;
};

/* One field: for PB_BYTES data and size; otherwise value. */
struct pb_field {
    uint32_t number;
    enum pb_wire wire;
    uint64_t value;
    const uint8_t *data;
    size_t size;
};

static inline struct pb_reader pb_reader(const void *data, size_t size)
{
    const uint8_t *at = data;
    return (struct pb_reader){at, size > 0 ? at + size : at};
}
/* Returns 1: a field was read; 0: the end; -1: damaged. The caller skips fields that it does not know. Groups, field number 0 and
 * varints of more than 64 bits count as damage. */
int pb_next(struct pb_reader *self, struct pb_field *field);

/* A varint and the byte after it; at is NULL if the varint is damaged. Returned by value, so that a hot loop keeps both in
 * registers. */
struct pb_number {
    const uint8_t *at;
    uint64_t value;
};
struct pb_number pb_read_varint_slow(const uint8_t *at, const uint8_t *end);
/* Reads the one- and two-byte forms inline: a header has nearly no others. */
static inline struct pb_number pb_read_varint(const uint8_t *at, const uint8_t *end)
{
    if (end - at >= 2) {
        if (at[0] < 0x80)
            return (struct pb_number){at + 1, at[0]};
        if (at[1] < 0x80)
            return (struct pb_number){at + 2, (uint64_t)(at[0] & 0x7f) | (uint64_t)at[1] << 7};
    }
    return pb_read_varint_slow(at, end);
}

/* A packed array of fixed-width elements inside a frame: unaligned, little-endian. With n == 1 every index reads that
 * element (the "or 1" arrays of replay.proto). */
struct pb_array {
    const uint8_t *data;
    uint32_t n;
};

static inline uint64_t pb_u64(const struct pb_array *a, uint32_t i)
{
    uint64_t v;
    memcpy(&v, a->data + (a->n == 1 ? 0 : (size_t)i * 8), 8);
    return v;
}
static inline uint32_t pb_u32(const struct pb_array *a, uint32_t i)
{
    uint32_t v;
    memcpy(&v, a->data + (a->n == 1 ? 0 : (size_t)i * 4), 4);
    return v;
}
static inline double pb_f64(const struct pb_array *a, uint32_t i)
{
    double v;
    memcpy(&v, a->data + (a->n == 1 ? 0 : (size_t)i * 8), 8);
    return v;
}
static inline uint8_t pb_u8(const struct pb_array *a, uint32_t i)
{
    return a->data[a->n == 1 ? 0 : i];
}

void pb_varint(struct text *self, uint64_t value);
void pb_tag(struct text *self, uint32_t number, enum pb_wire wire);
/* These three leave out fields with the protobuf default (0, empty). */
void pb_put_varint(struct text *self, uint32_t number, uint64_t value);
void pb_put_fixed64(struct text *self, uint32_t number, uint64_t value);
void pb_put_bytes(struct text *self, uint32_t number, const void *data, size_t size);
/* Writes tag and length of a packed array of n elements of `width` bytes; returns where they go (NULL if n is 0). */
uint8_t *pb_put_packed(struct text *self, uint32_t number, uint32_t n, uint32_t width);

/* Returns true if n elements of `width` bytes are equal, bit by bit: then the array equals itself shifted by one element. */
static inline bool pb_all_equal(const void *values, uint32_t n, uint32_t width)
{
    const uint8_t *v = values;
    return n < 2 || memcmp(v, v + width, ((size_t)n - 1) * width) == 0;
}
/* Returns the bytes that a varint takes. */
static inline uint32_t pb_varint_size(uint64_t value)
{
    uint32_t bits = 64 - (uint32_t)__builtin_clzll(value | 1);
    return (bits * 9 + 64) / 64;
}
/* Writes a varint to `at`, which has room for it; returns the byte after it. */
static inline uint8_t *pb_store_varint(uint8_t *at, uint64_t value)
{
    for (; value >= 0x80; value >>= 7)
        *at++ = (uint8_t)(value | 0x80);
    *at++ = (uint8_t)value;
    return at;
}

/* Unpacks with protobuf-c and tells damage from a lack of memory; protobuf-c returns NULL for both.
 * RP_BAD_MESSAGE: the bytes are damaged. RP_NO_MEMORY: there is no memory. *out is NULL unless RP_OK is returned. */
rp_status unpack(const ProtobufCMessageDescriptor *descriptor, const void *data, size_t size, ProtobufCMessage **out);
/* Makes n messages, and in *list (NULL: none) the array of pointers to them that a repeated field has. Returns the first. */
void *pb_messages(struct arena *arena, const ProtobufCMessageDescriptor *of, size_t n, void *list);
/* Returns a copy, as unpack makes it; NULL: no memory. */
ProtobufCMessage *unpack_clone(const ProtobufCMessage *from);
/* Frees a message from unpack; NULL is allowed. */
void unpack_free(ProtobufCMessage *message);
