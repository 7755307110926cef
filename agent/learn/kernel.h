/* The loops of networks that are not (large) matrix products. On x86-64 each is compiled twice, and the wider version
 * runs where the processor has AVX2. Sums may differ in their last bits between machines. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* y = x W + b for one row. index: room for n_in numbers; inputs that are 0 are skipped. */
void kernel_affine(const float *x, uint32_t n_in, const float *w, const float *b, uint32_t n_out, uint32_t *index,
                   float *y);
/* A small matrix product: y = A B, or with keep y += A B, where A is m x k and B is k x n. Element (i, l) of A
 * stands at a[i * row_step + l * step], so A may be given transposed. Products over k are added in their order, so a
 * row of y depends on nothing but its row of A. n is a multiple of KERNEL_PRODUCT_WIDTH. Up to k * n =
 * KERNEL_PRODUCT_SIZE it is faster than OpenBLAS on arm64, three times at 64 x 64 x 64. */
enum { KERNEL_PRODUCT_WIDTH = 16, KERNEL_PRODUCT_SIZE = 8192 };
void kernel_product(const float *a, size_t row_step, size_t step, uint32_t m, uint32_t k, const float *b, uint32_t n,
                    bool keep, float *y);
/* y = x W for a few outputs and not too many inputs: heads, for which a matrix product is mostly preparation. */
enum { KERNEL_NARROW_OUTPUTS = 4, KERNEL_NARROW_INPUTS = 512 };
void kernel_narrow(const float *x, size_t rows, uint32_t n_in, const float *w, uint32_t n_out, float *y);
/* Adds b, unless it is NULL, to each row of y and applies the activation. */
void kernel_bias(float *y, size_t rows, uint32_t n, const float *b, int32_t activation);
/* d *= derivative of the activation where its result was y. */
void kernel_derive(float *d, const float *y, size_t n, int32_t activation);
/* Returns the index of the largest number, of equal ones the first. */
static inline uint32_t kernel_argmax(const float *x, uint32_t n)
{
    uint32_t best = 0;
    for (uint32_t i = 1; i < n; i++)
        if (x[i] > x[best])
            best = i;
    return best;
}
/* Adds the sum of the rows of d to sum. */
void kernel_sum_rows(const float *d, size_t rows, uint32_t n, float *sum);
