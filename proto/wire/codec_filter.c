/* The stages before lz4: delta and shuffle. Written with 16-byte vectors, which both compilers turn into the baseline
 * instructions of x86-64 and arm64, so that speed does not depend on an optimisation level. */
#include <stdbool.h>
#include <string.h>

#include "proto/wire/codec.h"

#define LANES 16u

typedef uint8_t vec8 __attribute__((vector_size(16)));
typedef uint16_t vec16 __attribute__((vector_size(16)));
typedef uint32_t vec32 __attribute__((vector_size(16)));
typedef uint64_t vec64 __attribute__((vector_size(16)));

#define ALWAYS_INLINE inline __attribute__((always_inline))

/* ---- shuffle */

#if defined(__has_builtin)
#if __has_builtin(__builtin_shufflevector)
#define HAVE_SHUFFLEVECTOR 1
#endif
#endif

#ifdef HAVE_SHUFFLEVECTOR

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

#else

static ALWAYS_INLINE void shuffle_16(const uint8_t *in, uint8_t *out, size_t stride, const uint32_t width)
{
    for (uint32_t b = 0; b < width; b++) {
        for (uint32_t i = 0; i < LANES; i++)
            out[b * stride + i] = in[i * width + b];
    }
}

static ALWAYS_INLINE void unshuffle_16(const uint8_t *in, uint8_t *out, size_t stride, const uint32_t width)
{
    for (uint32_t i = 0; i < LANES; i++) {
        for (uint32_t b = 0; b < width; b++)
            out[i * width + b] = in[b * stride + i];
    }
}

#endif

static ALWAYS_INLINE void shuffle_width(const uint8_t *in, uint8_t *out, size_t n, const uint32_t width)
{
    size_t i = 0;
    for (; i + LANES <= n; i += LANES)
        shuffle_16(in + i * width, out + i, n, width);
    for (; i < n; i++) {
        for (uint32_t b = 0; b < width; b++)
            out[b * n + i] = in[i * width + b];
    }
}

static ALWAYS_INLINE void unshuffle_width(const uint8_t *in, uint8_t *out, size_t n, const uint32_t width)
{
    size_t i = 0;
    for (; i + LANES <= n; i += LANES)
        unshuffle_16(in + i, out + i * width, n, width);
    for (; i < n; i++) {
        for (uint32_t b = 0; b < width; b++)
            out[i * width + b] = in[b * n + i];
    }
}

void codec_shuffle(const struct codec_shape *shape, const uint8_t *in, uint8_t *out)
{
    size_t bytes = (size_t)shape->rows * shape->row_bytes;
    switch (shape->elem_bytes) {
    case 2:
        shuffle_width(in, out, bytes / 2, 2);
        break;
    case 4:
        shuffle_width(in, out, bytes / 4, 4);
        break;
    case 8:
        shuffle_width(in, out, bytes / 8, 8);
        break;
    case 16:
        shuffle_width(in, out, bytes / 16, 16);
        break;
    default:
        memcpy(out, in, bytes);
    }
}

void codec_unshuffle(const struct codec_shape *shape, const uint8_t *in, uint8_t *out)
{
    size_t bytes = (size_t)shape->rows * shape->row_bytes;
    switch (shape->elem_bytes) {
    case 2:
        unshuffle_width(in, out, bytes / 2, 2);
        break;
    case 4:
        unshuffle_width(in, out, bytes / 4, 4);
        break;
    case 8:
        unshuffle_width(in, out, bytes / 8, 8);
        break;
    case 16:
        unshuffle_width(in, out, bytes / 16, 16);
        break;
    default:
        memcpy(out, in, bytes);
    }
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
