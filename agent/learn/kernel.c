#include "agent/learn/kernel.h"

#include <stdbool.h>

#include "agent/learn/net.h"

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

/* Floats in one register; and how many registers go through a long chain of steps side by side. */
#if defined(__x86_64__)
enum { LANES = 8, AT_ONCE = 2 };
#else
enum { LANES = 4, AT_ONCE = 4 };
#endif
typedef float vec __attribute__((vector_size(LANES * sizeof(float)), aligned(4), may_alias));
enum { PRODUCT_VECS = KERNEL_PRODUCT_WIDTH / LANES };
typedef int32_t ivec __attribute__((vector_size(LANES * sizeof(int32_t)), aligned(4), may_alias));

/* Computes n_vec registers of outputs at a time: their sums stay in registers over all inputs. */
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
    /* No branch: after a relu it would be mispredicted half of the time. */
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

/* n_rows x KERNEL_PRODUCT_WIDTH sums stay in registers over all of k. */
INLINE void product_block(const float *restrict a, size_t row_step, size_t step, uint32_t k, const float *restrict b,
                          uint32_t n, bool keep, float *restrict y, uint32_t n_rows)
{
    vec sum[4][PRODUCT_VECS];
    for (uint32_t i = 0; i < n_rows; i++)
        for (uint32_t j = 0; j < PRODUCT_VECS; j++)
            sum[i][j] = keep ? *(const vec *)(y + (size_t)i * n + j * LANES) : (vec){0};
    for (uint32_t l = 0; l < k; l++, a += step, b += n) {
        vec row[PRODUCT_VECS];
        for (uint32_t j = 0; j < PRODUCT_VECS; j++)
            row[j] = *(const vec *)(b + j * LANES);
        for (uint32_t i = 0; i < n_rows; i++) {
            float v = a[i * row_step];
            for (uint32_t j = 0; j < PRODUCT_VECS; j++)
                sum[i][j] += v * row[j];
        }
    }
    for (uint32_t i = 0; i < n_rows; i++)
        for (uint32_t j = 0; j < PRODUCT_VECS; j++)
            *(vec *)(y + (size_t)i * n + j * LANES) = sum[i][j];
}

INLINE void kernel_product_body(const float *restrict a, size_t row_step, size_t step, uint32_t m, uint32_t k,
                                const float *restrict b, uint32_t n, bool keep, float *restrict y)
{
    for (uint32_t j = 0; j < n; j += KERNEL_PRODUCT_WIDTH) {
        uint32_t i = 0;
        for (; i + 4 <= m; i += 4)
            product_block(a + i * row_step, row_step, step, k, b + j, n, keep, y + (size_t)i * n + j, 4);
        for (; i < m; i++)
            product_block(a + i * row_step, row_step, step, k, b + j, n, keep, y + (size_t)i * n + j, 1);
    }
}

KERNEL(kernel_product,
       (const float *a, size_t row_step, size_t step, uint32_t m, uint32_t k, const float *b, uint32_t n, bool keep,
        float *y),
       (a, row_step, step, m, k, b, n, keep, y))

/* Four sums in registers, then the rest one by one. The order depends on n alone. */
INLINE float dot(const float *restrict x, const float *restrict y, uint32_t n)
{
    vec sum[4] = {{0}};
    uint32_t k = 0;
    for (; k + 4 * LANES <= n; k += 4 * LANES)
        for (uint32_t i = 0; i < 4; i++)
            sum[i] += *(const vec *)(x + k + i * LANES) * *(const vec *)(y + k + i * LANES);
    for (; k + LANES <= n; k += LANES)
        sum[0] += *(const vec *)(x + k) * *(const vec *)(y + k);
    vec all = (sum[0] + sum[1]) + (sum[2] + sum[3]);
    float total = 0;
    for (uint32_t i = 0; i < LANES; i++)
        total += all[i];
    for (; k < n; k++)
        total += x[k] * y[k];
    return total;
}

INLINE void kernel_narrow_body(const float *restrict x, size_t rows, uint32_t n_in, const float *restrict w,
                               uint32_t n_out, float *restrict y)
{
    float column[KERNEL_NARROW_INPUTS];
    for (uint32_t j = 0; j < n_out; j++) {
        for (uint32_t k = 0; k < n_in; k++)
            column[k] = w[(size_t)k * n_out + j];
        for (size_t i = 0; i < rows; i++)
            y[i * n_out + j] = dot(x + i * n_in, column, n_in);
    }
}

KERNEL(kernel_narrow, (const float *x, size_t rows, uint32_t n_in, const float *w, uint32_t n_out, float *y),
       (x, rows, n_in, w, n_out, y))

/* Bounds v from above or from below. A lane that is not a number compares false, and stays. Vectors are passed by
 * address: as arguments they need AVX. */
INLINE void at_most_vec(vec *v, float bound)
{
    vec other = bound - (vec){0};
    ivec mask = *v > other;
    *v = (vec)(((ivec)other & mask) | ((ivec)*v & ~mask));
}

INLINE void at_least_vec(vec *v, float bound)
{
    vec other = bound - (vec){0};
    ivec mask = *v < other;
    *v = (vec)(((ivec)other & mask) | ((ivec)*v & ~mask));
}

/* tanh x = x P(x^2) / Q(x^2), fitted to a relative error of 1.4e-8 up to the bound, beyond which tanh is 1 to half a
 * unit in the last place. All coefficients are positive, so nothing cancels: the result is right to a few units in
 * the last place, near 0 as well. Each step is a long chain, so n_vec registers take it side by side. */
INLINE void tanh_vecs(vec *x, uint32_t n_vec)
{
    static const float p_of[] = {1.40818029e-8f, 2.11219348e-5f, 3.52637609e-3f, 1.34068545e-1f, 1.0f};
    static const float q_of[] = {8.07037377e-7f, 3.33622736e-4f, 2.59938049e-2f, 4.67401761e-1f, 1.0f};
    const float bound = 8.6f;
    vec t[AT_ONCE], p[AT_ONCE], q[AT_ONCE];
    for (uint32_t i = 0; i < n_vec; i++) {
        at_most_vec(&x[i], bound);
        at_least_vec(&x[i], -bound);
        t[i] = x[i] * x[i];
        p[i] = p_of[0] - (vec){0};
        q[i] = q_of[0] - (vec){0};
    }
#pragma GCC unroll 4
    for (uint32_t k = 1; k < 5; k++) {
        for (uint32_t i = 0; i < n_vec; i++)
            p[i] = p[i] * t[i] + p_of[k];
        for (uint32_t i = 0; i < n_vec; i++)
            q[i] = q[i] * t[i] + q_of[k];
    }
    for (uint32_t i = 0; i < n_vec; i++)
        x[i] = x[i] * p[i] / q[i];
}

/* Adds b, unless it is NULL, and activates n_vec registers. A value that is not a number stays so, and shows in the
 * loss. */
INLINE void activate_block(float *restrict y, const float *restrict b, uint32_t n_vec, int32_t activation)
{
    vec v[AT_ONCE];
    for (uint32_t i = 0; i < n_vec; i++) {
        v[i] = *(const vec *)(y + i * LANES);
        if (b)
            v[i] += *(const vec *)(b + i * LANES);
    }
    if (activation == NET_TANH)
        tanh_vecs(v, n_vec);
    for (uint32_t i = 0; i < n_vec; i++) {
        if (activation == NET_RELU)
            at_least_vec(&v[i], 0.0f);
        *(vec *)(y + i * LANES) = v[i];
    }
}

/* Takes whole registers of y, then the rest of the row in a padded one: a value depends neither on its place nor on
 * the number of values. */
INLINE void activate_row(float *restrict y, const float *restrict b, size_t n, int32_t activation)
{
    size_t j = 0;
    for (; j + AT_ONCE * LANES <= n; j += AT_ONCE * LANES)
        activate_block(y + j, b ? b + j : NULL, AT_ONCE, activation);
    for (; j + LANES <= n; j += LANES)
        activate_block(y + j, b ? b + j : NULL, 1, activation);
    if (j == n)
        return;
    float rest[LANES] = {0};
    for (size_t k = j; k < n; k++)
        rest[k - j] = b ? y[k] + b[k] : y[k];
    activate_block(rest, NULL, 1, activation);
    for (size_t k = j; k < n; k++)
        y[k] = rest[k - j];
}

INLINE void kernel_bias_body(float *restrict y, size_t rows, uint32_t n, const float *restrict b, int32_t activation)
{
    for (size_t i = 0; i < rows; i++, y += n) {
        if (activation == NET_RELU)
            activate_row(y, b, n, NET_RELU);
        else if (activation == NET_TANH)
            activate_row(y, b, n, NET_TANH);
        else
            for (uint32_t j = 0; b && j < n; j++) /* heads have one or two outputs */
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

/* n_vec registers of sums at a time, which stay there over all rows. */
INLINE void sum_block(const float *restrict d, size_t rows, uint32_t n, float *restrict sum, uint32_t n_vec)
{
    vec total[4];
    for (uint32_t i = 0; i < n_vec; i++)
        total[i] = *(const vec *)(sum + i * LANES);
    for (size_t row = 0; row < rows; row++, d += n)
        for (uint32_t i = 0; i < n_vec; i++)
            total[i] += *(const vec *)(d + i * LANES);
    for (uint32_t i = 0; i < n_vec; i++)
        *(vec *)(sum + i * LANES) = total[i];
}

INLINE void kernel_sum_rows_body(const float *restrict d, size_t rows, uint32_t n, float *restrict sum)
{
    uint32_t j = 0;
    for (; j + 4 * LANES <= n; j += 4 * LANES)
        sum_block(d + j, rows, n, sum + j, 4);
    for (; j + LANES <= n; j += LANES)
        sum_block(d + j, rows, n, sum + j, 1);
    for (; j < n; j++)
        for (size_t row = 0; row < rows; row++)
            sum[j] += d[row * n + j];
}

KERNEL(kernel_sum_rows, (const float *d, size_t rows, uint32_t n, float *sum), (d, rows, n, sum))
