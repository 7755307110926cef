#include "agent/net/kernel.h"

#include <stdbool.h>
#include <string.h>

#include "agent/net/net.h"

/* At -O2 gcc leaves loops of unknown length scalar. */
#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC optimize("O3", "fp-contract=fast", "no-trapping-math")
#elif defined(__clang__)
#pragma STDC FP_CONTRACT ON
#endif

#define INLINE static inline __attribute__((always_inline))

#if defined(__x86_64__)
static bool kernel_is_wide(void)
{
    return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
}

#define KERNEL(name, parameters, arguments)                                                                            \
    __attribute__((target("avx2,fma"))) static void name##_wide parameters                                             \
    {                                                                                                                  \
        name##_body arguments;                                                                                         \
    }                                                                                                                  \
    void name parameters                                                                                               \
    {                                                                                                                  \
        if (kernel_is_wide())                                                                                          \
            name##_wide arguments;                                                                                     \
        else                                                                                                           \
            name##_body arguments;                                                                                     \
    }
#else
#define KERNEL(name, parameters, arguments)                                                                            \
    void name parameters                                                                                               \
    {                                                                                                                  \
        name##_body arguments;                                                                                         \
    }
#endif

/* Floats of one register, wherever they lie. */
#if defined(__x86_64__)
enum { LANES = 8 };
#else
enum { LANES = 4 };
#endif
typedef float vec __attribute__((vector_size(LANES * sizeof(float)), aligned(4), may_alias));

/* n_vec registers of outputs at a time: their sums stay there over all inputs. */
INLINE void affine_block(const float *restrict x, const uint32_t *restrict index, uint32_t n_index,
                         const float *restrict w, uint32_t stride, const float *restrict b, float *restrict y,
                         uint32_t n_vec)
{
    vec sum[8];
    for (uint32_t i = 0; i < n_vec; i++)
        sum[i] = *(const vec *)(b + i * LANES);
    for (uint32_t k = 0; k < n_index; k++) {
        const float *row = w + (size_t)index[k] * stride;
        float v = x[index[k]];
        for (uint32_t i = 0; i < n_vec; i++)
            sum[i] += v * *(const vec *)(row + i * LANES);
    }
    for (uint32_t i = 0; i < n_vec; i++)
        *(vec *)(y + i * LANES) = sum[i];
}

INLINE void affine_one(const float *restrict x, const uint32_t *restrict index, uint32_t n_index,
                       const float *restrict w, uint32_t stride, float b, float *restrict y)
{
    float even = b, odd = 0;
    uint32_t k = 0;
    for (; k + 1 < n_index; k += 2) {
        even += x[index[k]] * w[(size_t)index[k] * stride];
        odd += x[index[k + 1]] * w[(size_t)index[k + 1] * stride];
    }
    if (k < n_index)
        even += x[index[k]] * w[(size_t)index[k] * stride];
    *y = even + odd;
}

INLINE void kernel_affine_body(const float *x, uint32_t n_in, const float *w, const float *b, uint32_t n_out,
                               uint32_t *index, float *y)
{
    /* Without a branch: after a relu it would be guessed wrong half of the time. */
    uint32_t n = 0;
    for (uint32_t i = 0; i < n_in; i++) {
        index[n] = i;
        n += x[i] != 0.0f;
    }
    uint32_t j = 0;
    for (; j + 8 * LANES <= n_out; j += 8 * LANES)
        affine_block(x, index, n, w + j, n_out, b + j, y + j, 8);
    for (; j + 4 * LANES <= n_out; j += 4 * LANES)
        affine_block(x, index, n, w + j, n_out, b + j, y + j, 4);
    for (; j + LANES <= n_out; j += LANES)
        affine_block(x, index, n, w + j, n_out, b + j, y + j, 1);
    for (; j < n_out; j++)
        affine_one(x, index, n, w + j, n_out, b[j], y + j);
}

KERNEL(kernel_affine,
       (const float *x, uint32_t n_in, const float *w, const float *b, uint32_t n_out, uint32_t *index, float *y),
       (x, n_in, w, b, n_out, index, y))

/* tanh x = e / (e + 2) with e = exp(2x) - 1 = 2^k (exp(r) - 1) + (2^k - 1), |r| <= ln(2) / 2. Right to a few
 * units in the last place, also near 0, and loops over it vectorise. */
INLINE float tanh_of(float x)
{
    const float magic = 12582912.0f; /* 1.5 * 2^23: adding it rounds to a whole number in the low bits */
    float z = 2 * x;
    z = 19.0f < z ? 19.0f : z;
    z = -19.0f > z ? -19.0f : z;
    float shifted = z * 1.44269504f + magic;
    uint32_t bits, zero;
    memcpy(&bits, &shifted, sizeof bits);
    memcpy(&zero, &magic, sizeof zero);
    bits = (bits - zero + 127) << 23;
    float power, k = shifted - magic;
    memcpy(&power, &bits, sizeof power);
    /* ln 2 in two parts, the first with few bits. */
    float r = z - k * 0.693359375f + k * 2.12194440e-4f;
    float p = 1.0f / 5040;
    p = p * r + 1.0f / 720;
    p = p * r + 1.0f / 120;
    p = p * r + 1.0f / 24;
    p = p * r + 1.0f / 6;
    p = p * r + 0.5f;
    float e = power * (r + r * r * p) + (power - 1);
    return e / (e + 2);
}

/* Something that is not a number stays so through both, to be found in the loss. */
INLINE void kernel_activate_body(float *restrict y, size_t n, int32_t activation)
{
    if (activation == NET_RELU)
        for (size_t i = 0; i < n; i++)
            y[i] = 0.0f > y[i] ? 0.0f : y[i];
    else if (activation == NET_TANH)
        for (size_t i = 0; i < n; i++)
            y[i] = tanh_of(y[i]);
}

KERNEL(kernel_activate, (float *y, size_t n, int32_t activation), (y, n, activation))

INLINE void kernel_bias_body(float *restrict y, size_t rows, uint32_t n, const float *restrict b, int32_t activation)
{
    for (size_t i = 0; i < rows; i++, y += n) {
        if (activation == NET_RELU)
            for (uint32_t j = 0; j < n; j++) {
                float sum = y[j] + b[j];
                y[j] = 0.0f > sum ? 0.0f : sum;
            }
        else if (activation == NET_TANH)
            for (uint32_t j = 0; j < n; j++)
                y[j] = tanh_of(y[j] + b[j]);
        else
            for (uint32_t j = 0; j < n; j++)
                y[j] += b[j];
    }
}

KERNEL(kernel_bias, (float *y, size_t rows, uint32_t n, const float *b, int32_t activation),
       (y, rows, n, b, activation))

INLINE void kernel_derive_body(float *restrict d, const float *restrict y, size_t n, int32_t activation)
{
    if (activation == NET_RELU)
        for (size_t i = 0; i < n; i++)
            d[i] = y[i] > 0.0f ? d[i] : 0.0f;
    else if (activation == NET_TANH)
        for (size_t i = 0; i < n; i++)
            d[i] *= 1.0f - y[i] * y[i];
}

KERNEL(kernel_derive, (float *d, const float *y, size_t n, int32_t activation), (d, y, n, activation))

INLINE void kernel_sum_rows_body(const float *restrict d, size_t rows, uint32_t n, float *restrict sum)
{
    for (size_t i = 0; i < rows; i++, d += n)
        for (uint32_t j = 0; j < n; j++)
            sum[j] += d[j];
}

KERNEL(kernel_sum_rows, (const float *d, size_t rows, uint32_t n, float *sum), (d, rows, n, sum))
