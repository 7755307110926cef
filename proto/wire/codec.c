/* Encodes, checks and decodes column blocks. codec_filter.c has the stages, codec_lz4.c checks lz4. */
#include "proto/wire/codec.h"

#include <inttypes.h>
#include <lz4.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "proto/base/error.h"

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
        codec_shuffle(self->shape, *out, scratch->b);
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
        codec_unshuffle(shape, target, out);
    if (codec_has_delta(codec))
        codec_undelta(shape, out);
    return RP_OK;
}
