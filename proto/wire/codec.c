/* Encodes, checks and decodes column blocks: the stages before lz4, the check of lz4, and the codecs made of them. */
#include "proto/wire/codec.h"

#include <inttypes.h>
#include <lz4.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "proto/base/error.h"

/* ---- The stages before lz4: delta and shuffle. Written with 16-byte vectors, which both compilers turn into the baseline
 * instructions of x86-64 and arm64, so that speed does not depend on an optimisation level. */

#define LANES 16u

typedef uint8_t vec8 __attribute__((vector_size(16)));
typedef uint16_t vec16 __attribute__((vector_size(16)));
typedef uint32_t vec32 __attribute__((vector_size(16)));
typedef uint64_t vec64 __attribute__((vector_size(16)));

#define ALWAYS_INLINE inline __attribute__((always_inline))

/* ---- shuffle */

static ALWAYS_INLINE vec8 even_bytes(vec8 a, vec8 b)
{
    return __builtin_shufflevector(a, b, 0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30);
}
static ALWAYS_INLINE vec8 odd_bytes(vec8 a, vec8 b)
{
    return __builtin_shufflevector(a, b, 1, 3, 5, 7, 9, 11, 13, 15, 17, 19, 21, 23, 25, 27, 29, 31);
}
static ALWAYS_INLINE vec8 zip_low(vec8 a, vec8 b)
{
    return __builtin_shufflevector(a, b, 0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23);
}
static ALWAYS_INLINE vec8 zip_high(vec8 a, vec8 b)
{
    return __builtin_shufflevector(a, b, 8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31);
}

/* 16 elements are a sequence of 16 * width bytes. Taking its even bytes and then its odd bytes moves the lowest bit of each
 * byte's position to the top; after log2(width) rounds the position is (byte number, element number), which is the shuffled
 * order. */
static ALWAYS_INLINE void shuffle_16(const uint8_t *in, uint8_t *out, size_t stride, const uint32_t width)
{
    vec8 a[16], b[16];
    memcpy(a, in, LANES * width);
#pragma GCC unroll 4
    for (uint32_t round = 1; round < width; round *= 2) {
#pragma GCC unroll 8
        for (uint32_t j = 0; j < width / 2; j++) {
            b[j] = even_bytes(a[2 * j], a[2 * j + 1]);
            b[width / 2 + j] = odd_bytes(a[2 * j], a[2 * j + 1]);
        }
#pragma GCC unroll 16
        for (uint32_t j = 0; j < width; j++)
            a[j] = b[j];
    }
#pragma GCC unroll 16
    for (uint32_t j = 0; j < width; j++)
        memcpy(out + j * stride, &a[j], LANES);
}

/* The same rounds in reverse. */
static ALWAYS_INLINE void unshuffle_16(const uint8_t *in, uint8_t *out, size_t stride, const uint32_t width)
{
    vec8 a[16], b[16];
#pragma GCC unroll 16
    for (uint32_t j = 0; j < width; j++)
        memcpy(&a[j], in + j * stride, LANES);
#pragma GCC unroll 4
    for (uint32_t round = 1; round < width; round *= 2) {
#pragma GCC unroll 8
        for (uint32_t j = 0; j < width / 2; j++) {
            b[2 * j] = zip_low(a[j], a[width / 2 + j]);
            b[2 * j + 1] = zip_high(a[j], a[width / 2 + j]);
        }
#pragma GCC unroll 16
        for (uint32_t j = 0; j < width; j++)
            a[j] = b[j];
    }
    memcpy(out, a, LANES * width);
}

static ALWAYS_INLINE void shuffle_width(const uint8_t *in, uint8_t *out, size_t n, const uint32_t width,
                                        const bool back)
{
    size_t i = 0;
    for (; i + LANES <= n; i += LANES)
        if (back)
            unshuffle_16(in + i, out + i * width, n, width);
        else
            shuffle_16(in + i * width, out + i, n, width);
    for (; i < n; i++)
        for (uint32_t b = 0; b < width; b++)
            out[back ? i * width + b : b * n + i] = in[back ? b * n + i : i * width + b];
}

/* The width is a constant in each of these calls. */
static ALWAYS_INLINE void shuffle(const struct codec_shape *shape, const uint8_t *in, uint8_t *out, const bool back)
{
    size_t bytes = (size_t)shape->rows * shape->row_bytes;
    if (shape->elem_bytes == 2)
        shuffle_width(in, out, bytes / 2, 2, back);
    else if (shape->elem_bytes == 4)
        shuffle_width(in, out, bytes / 4, 4, back);
    else if (shape->elem_bytes == 8)
        shuffle_width(in, out, bytes / 8, 8, back);
    else if (shape->elem_bytes == 16)
        shuffle_width(in, out, bytes / 16, 16, back);
    else
        memcpy(out, in, bytes);
}

void codec_shuffle(const struct codec_shape *shape, const uint8_t *in, uint8_t *out, bool back)
{
    if (back)
        shuffle(shape, in, out, true);
    else
        shuffle(shape, in, out, false);
}

/* ---- delta */

/* out[i] = a[i] op b[i] over `bytes` bytes of elements of one type; out may be a. */
#define COMBINE(name, vector, scalar, op)                                                                              \
    static void name(const uint8_t *a, const uint8_t *b, uint8_t *out, size_t bytes)                                   \
    {                                                                                                                  \
        size_t i = 0;                                                                                                  \
        for (; i + LANES <= bytes; i += LANES) {                                                                       \
            vector x, y;                                                                                               \
            memcpy(&x, a + i, LANES);                                                                                  \
            memcpy(&y, b + i, LANES);                                                                                  \
            x = x op y;                                                                                                \
            memcpy(out + i, &x, LANES);                                                                                \
        }                                                                                                              \
        for (; i + sizeof(scalar) <= bytes; i += sizeof(scalar)) {                                                     \
            scalar x, y;                                                                                               \
            memcpy(&x, a + i, sizeof x);                                                                               \
            memcpy(&y, b + i, sizeof y);                                                                               \
            x = (scalar)(x op y);                                                                                      \
            memcpy(out + i, &x, sizeof x);                                                                             \
        }                                                                                                              \
    }

COMBINE(sub_8, vec8, uint8_t, -)
COMBINE(sub_16, vec16, uint16_t, -)
COMBINE(sub_32, vec32, uint32_t, -)
COMBINE(sub_64, vec64, uint64_t, -)
COMBINE(add_8, vec8, uint8_t, +)
COMBINE(add_16, vec16, uint16_t, +)
COMBINE(add_32, vec32, uint32_t, +)
COMBINE(add_64, vec64, uint64_t, +)
COMBINE(xor_8, vec8, uint8_t, ^)

typedef void combine_fn(const uint8_t *a, const uint8_t *b, uint8_t *out, size_t bytes);

static combine_fn *delta_combine(const struct codec_shape *shape, bool undo)
{
    if (!shape->is_integer)
        return xor_8;
    switch (shape->elem_bytes) {
    case 1:
        return undo ? add_8 : sub_8;
    case 2:
        return undo ? add_16 : sub_16;
    case 4:
        return undo ? add_32 : sub_32;
    case 8:
        return undo ? add_64 : sub_64;
    default:
        return xor_8;
    }
}

void codec_delta(const struct codec_shape *shape, const uint8_t *in, uint8_t *out)
{
    size_t row = (size_t)shape->row_bytes;
    if (shape->rows == 0)
        return;
    memcpy(out, in, row);
    delta_combine(shape, false)(in + row, in, out + row, row * (shape->rows - 1));
}

void codec_undelta(const struct codec_shape *shape, uint8_t *rows)
{
    combine_fn *combine = delta_combine(shape, true);
    size_t row = (size_t)shape->row_bytes;
    for (uint32_t i = 1; i < shape->rows; i++)
        combine(rows + i * row, rows + (i - 1) * row, rows + i * row, row);
}

/* ---- Checks an LZ4 block without decompressing it. A block is a list of sequences: a token (literal length in the high four bits,
 * match length - 4 in the low four), more length bytes if the literal length is 15, the literals, a 2-byte offset, more length
 * bytes if the match length is 15. The last sequence ends after its literals. */

#define MIN_MATCH 4u
#define LAST_LITERALS 5u /* no match ends within these last bytes of the output */
#define MATCH_LIMIT 12u  /* no match begins within these last bytes of the output */

/* Adds the length bytes at *at to a nibble of 15. The caller finds a length above the number of remaining bytes; the sum cannot
 * overflow, because each byte of input adds at most 255. */
static inline bool read_length(const uint8_t **at, const uint8_t *end, uint64_t *length)
{
    uint8_t byte;
    do {
        if (*at == end)
            return false;
        byte = *(*at)++;
        *length += byte;
    } while (byte == 255);
    return true;
}

/* Returns NULL if the lz4 block decompresses to exactly raw_size bytes; otherwise what is wrong with it. */
static const char *codec_lz4_problem(const uint8_t *data, size_t size, uint64_t raw_size)
{
    const uint8_t *at = data, *end = data + size;
    uint64_t done = 0; /* never more than raw_size */
    while (at != end) {
        uint32_t token = *at++;
        uint64_t literals = token >> 4, match = (token & 15) + MIN_MATCH;
        if (literals == 15 && !read_length(&at, end, &literals))
            return "it ends within a length";
        if (literals > (uint64_t)(end - at))
            return "it ends within literals";
        if (literals > raw_size - done)
            return "it is longer than the rows";
        at += literals;
        done += literals;
        if (at == end)
            return done == raw_size ? NULL : "it is shorter than the rows";

        if (end - at < 2)
            return "it ends within an offset";
        uint32_t offset = (uint32_t)at[0] | (uint32_t)at[1] << 8;
        at += 2;
        if (match == 15 + MIN_MATCH && !read_length(&at, end, &match))
            return "it ends within a length";
        if (offset == 0 || offset > done)
            return "a match begins before the first row";
        if (match > raw_size - done)
            return "it is longer than the rows";
        if (raw_size - done < MATCH_LIMIT || raw_size - done - match < LAST_LITERALS)
            return "a match stands at its end, where only literals may";
        done += match;
    }
    return "it ends without literals";
}

#define AUTO_MIN_BYTES 64u
#define AUTO_MAX_BACKOFF 64u

static inline bool codec_has_shuffle(int32_t codec)
{
    return codec == RP_CODEC_SHUFFLE_LZ4 || codec == RP_CODEC_DELTA_SHUFFLE_LZ4;
}

static inline bool codec_has_delta(int32_t codec)
{
    return codec == RP_CODEC_DELTA_LZ4 || codec == RP_CODEC_DELTA_SHUFFLE_LZ4;
}

static inline bool codec_is_lz4(int32_t codec)
{
    return codec >= RP_CODEC_LZ4 && codec <= RP_CODEC_DELTA_SHUFFLE_LZ4;
}

/* Returns the raw size, or UINT64_MAX if it overflows. */
static inline uint64_t codec_raw_size(const struct codec_shape *shape)
{
    uint64_t size;
    return __builtin_mul_overflow(shape->rows, shape->row_bytes, &size) ? UINT64_MAX : size;
}

void codec_scratch_fini(struct codec_scratch *self)
{
    free(self->a);
    free(self->b);
    *self = (struct codec_scratch){0};
}

static rp_status codec_room(uint8_t **data, size_t *capacity, size_t size, rp_error *err)
{
    if (size <= *capacity)
        return RP_OK;
    uint8_t *grown = malloc(size);
    if (grown == NULL)
        return err_set(err, RP_NO_MEMORY, "no memory for a block of %zu bytes", size);
    free(*data);
    *data = grown;
    *capacity = size;
    return RP_OK;
}

size_t codec_bound(const struct codec_shape *shape)
{
    return (size_t)codec_raw_size(shape);
}

/* ---- encode */

/* A block being encoded. */
struct encoder {
    struct codec_scratch *scratch;
    const struct codec_shape *shape;
    const uint8_t *rows;
    size_t raw; /* bytes of the rows */
    uint8_t *out;
    size_t size; /* bytes of the best block so far, which is in out; 0: none yet */
    uint8_t codec;
};

/* Gives the rows after the filters of `codec`: the rows themselves, or a copy in scratch. b has twice the room, so that the
 * output of a trial fits behind the second filter's. */
static rp_status codec_filter(const struct encoder *self, int32_t codec, const uint8_t **out, rp_error *err)
{
    struct codec_scratch *scratch = self->scratch;
    *out = self->rows;
    if (codec_has_delta(codec)) {
        RP_TRY(codec_room(&scratch->a, &scratch->a_size, self->raw, err));
        codec_delta(self->shape, *out, scratch->a);
        *out = scratch->a;
    }
    if (codec_has_shuffle(codec)) {
        RP_TRY(codec_room(&scratch->b, &scratch->b_size, self->raw * 2, err));
        codec_shuffle(self->shape, *out, scratch->b, false);
        *out = scratch->b;
    }
    return RP_OK;
}

/* Returns the codec without filters that cannot change the block. */
static int32_t codec_simplify(int32_t codec, const struct codec_shape *shape)
{
    bool delta = codec_has_delta(codec) && shape->rows > 1;
    bool shuffle = codec_has_shuffle(codec) && shape->elem_bytes > 1;
    if (delta)
        return shuffle ? RP_CODEC_DELTA_SHUFFLE_LZ4 : RP_CODEC_DELTA_LZ4;
    return shuffle ? RP_CODEC_SHUFFLE_LZ4 : RP_CODEC_LZ4;
}

/* Takes the block that `codec` makes if it has at most `most` bytes (less than raw). The best block so far stays in out
 * until the new one is complete. */
static rp_status codec_try(struct encoder *self, int32_t codec, size_t most, rp_error *err)
{
    struct codec_scratch *scratch = self->scratch;
    const uint8_t *filtered;
    uint8_t *target = self->out;
    if (self->size > 0) /* before the filters, which point into b: b must not move under them */
        RP_TRY(codec_room(&scratch->b, &scratch->b_size, self->raw * 2, err));
    RP_TRY(codec_filter(self, codec, &filtered, err));
    if (self->size > 0)
        target = scratch->b + self->raw;
    int n = LZ4_compress_fast((const char *)filtered, (char *)target, (int)self->raw, (int)most, 1);
    if (n <= 0)
        return RP_OK;
    if (target != self->out)
        memcpy(self->out, target, (size_t)n);
    self->size = (size_t)n;
    self->codec = (uint8_t)codec;
    return RP_OK;
}

static rp_status codec_auto(struct encoder *self, rp_error *err)
{
    struct codec_scratch *scratch = self->scratch;
    const struct codec_shape *shape = self->shape;
    static const uint8_t plain[] = {RP_CODEC_LZ4, RP_CODEC_SHUFFLE_LZ4, RP_CODEC_DELTA_SHUFFLE_LZ4, RP_CODEC_DELTA_LZ4};
    static const uint8_t image[] = {RP_CODEC_DELTA_LZ4, RP_CODEC_DELTA_SHUFFLE_LZ4, RP_CODEC_LZ4, RP_CODEC_SHUFFLE_LZ4};
    /* A trial stops as soon as it is not smaller than the best so far, so the likeliest codec goes first. */
    const uint8_t *order = shape->is_integer && shape->rank >= 2 ? image : plain;
    size_t most = self->raw - (self->raw + 15) / 16;
    for (uint32_t i = 0; i < sizeof plain; i++) {
        if (codec_simplify(order[i], shape) != order[i])
            continue;
        RP_TRY(codec_try(self, order[i], most, err));
        if (self->size > 0)
            most = self->size - 1;
    }
    if (self->size > 0) {
        scratch->backoff = 0;
    } else {
        scratch->backoff = scratch->backoff == 0 ? 1 : scratch->backoff * 2;
        if (scratch->backoff > AUTO_MAX_BACKOFF)
            scratch->backoff = AUTO_MAX_BACKOFF;
        scratch->skip = scratch->backoff;
    }
    return RP_OK;
}

rp_status codec_encode(struct codec_scratch *scratch, int32_t wanted, const struct codec_shape *shape, const void *rows,
                       void *out, size_t *out_size, uint8_t *used, rp_error *err)
{
    size_t raw = codec_bound(shape);
    struct encoder self = {scratch, shape, rows, raw, out, 0, RP_CODEC_RAW};
    *used = RP_CODEC_RAW;
    *out_size = 0;
    if (wanted == RP_CODEC_AUTO) {
        if (raw >= AUTO_MIN_BYTES && raw <= LZ4_MAX_INPUT_SIZE) {
            if (scratch->skip > 0)
                scratch->skip--;
            else
                RP_TRY(codec_auto(&self, err));
        }
    } else if (codec_is_lz4(wanted)) {
        if (raw > 1 && raw <= LZ4_MAX_INPUT_SIZE)
            RP_TRY(codec_try(&self, codec_simplify(wanted, shape), raw - 1, err));
    } else if (wanted != RP_CODEC_RAW) {
        return err_set(err, RP_INVALID_ARGUMENT, "codec %" PRId32 " does not exist", wanted);
    }
    if (self.size == 0 && raw > 0) {
        memcpy(out, rows, raw);
        self.size = raw;
    }
    *out_size = self.size;
    *used = self.codec;
    return RP_OK;
}

/* ---- check and decode */

/* Checks that a block of this codec and size can have this shape. */
static rp_status codec_check_size(uint8_t codec, const struct codec_shape *shape, size_t size, rp_status status,
                                  rp_error *err)
{
    uint64_t raw = codec_raw_size(shape);
    if (codec == RP_CODEC_RAW) {
        if (size == raw)
            return RP_OK;
        return err_set(err, status, "a raw block has %zu bytes: %" PRIu32 " rows of %" PRIu64 " take %" PRIu64, size,
                       shape->rows, shape->row_bytes, raw);
    }
    if (!codec_is_lz4(codec))
        return err_set(err, status, "a block has the unknown codec %u", (unsigned)codec);
    if (raw > LZ4_MAX_INPUT_SIZE || raw == 0)
        return err_set(err, status, "a block of %" PRIu64 " bytes cannot be lz4: send it raw", raw);
    if (size == 0 || size > LZ4_MAX_INPUT_SIZE)
        return err_set(err, status, "an lz4 block has %zu bytes", size);
    return RP_OK;
}

rp_status codec_check(uint8_t codec, const struct codec_shape *shape, const void *data, size_t size, rp_error *err)
{
    if (codec == RP_CODEC_ABSENT) {
        if (size == 0)
            return RP_OK;
        return err_set(err, RP_BAD_MESSAGE, "an absent block has %zu bytes: it must have 0", size);
    }
    RP_TRY(codec_check_size(codec, shape, size, RP_BAD_MESSAGE, err));
    const char *problem = codec_is_lz4(codec) ? codec_lz4_problem(data, size, codec_raw_size(shape)) : NULL;
    if (problem != NULL)
        return err_set(err, RP_BAD_MESSAGE, "an lz4 block of %zu bytes for %" PRIu64 " is damaged: %s", size,
                       codec_raw_size(shape), problem);
    return RP_OK;
}

rp_status codec_decode(struct codec_scratch *scratch, uint8_t codec, const struct codec_shape *shape, const void *data,
                       size_t size, void *out, rp_error *err)
{
    if (codec == RP_CODEC_ABSENT)
        return err_set(err, RP_NOT_FOUND, "the column has no data in this chunk");
    RP_TRY(codec_check_size(codec, shape, size, RP_DATA_LOSS, err));
    size_t raw = codec_bound(shape);
    if (codec == RP_CODEC_RAW) {
        if (raw > 0)
            memcpy(out, data, raw);
        return RP_OK;
    }
    bool shuffled = codec_has_shuffle(codec) && shape->elem_bytes > 1;
    if (shuffled)
        RP_TRY(codec_room(&scratch->a, &scratch->a_size, raw, err));
    uint8_t *target = shuffled ? scratch->a : out;
    int n = LZ4_decompress_safe(data, (char *)target, (int)size, (int)raw);
    if (n < 0 || (size_t)n != raw)
        return err_set(err, RP_DATA_LOSS, "an lz4 block of %zu bytes does not decompress to %zu bytes", size, raw);
    if (shuffled)
        codec_shuffle(shape, target, out, true);
    if (codec_has_delta(codec))
        codec_undelta(shape, out);
    return RP_OK;
}
