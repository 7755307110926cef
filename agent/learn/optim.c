/* Parallel learners apply the same gradients on different machines and must keep the same bits. So everything here is
 * element by element or in a fixed order of sums, nothing is fused (-ffp-contract=off), and powers are products. */
#include "agent/learn/optim.h"

#include <math.h>
#include <string.h>

/* At -O2 gcc leaves loops of unknown length scalar. */
#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC optimize("O3")
#endif

void optim_init(struct optim *self, struct arena *memory, double learning_rate, uint64_t anneal, uint32_t n)
{
    *self = (struct optim){.learning_rate = learning_rate,
                           .anneal = anneal,
                           .n = n,
                           .first = arena_take(memory, n, sizeof *self->first),
                           .second = arena_take(memory, n, sizeof *self->second)};
}

static double power(double base, uint64_t exponent)
{
    double result = 1;
    for (; exponent > 0; exponent >>= 1, base *= base)
        if (exponent & 1)
            result *= base;
    return result;
}

static double present_rate(const struct optim *self)
{
    if (self->anneal == 0)
        return self->learning_rate;
    double part = self->steps < self->anneal ? (double)self->steps / (double)self->anneal : 1.0;
    return self->learning_rate * (1.0 - 0.9 * part);
}

/* p -= rate * (m / c1) / (sqrt(v / c2) + epsilon), with the corrections c1 and c2 moved out of the loop. */
void optim_step(struct optim *self, float *restrict params, const float *restrict grads)
{
    self->steps++;
    double root = sqrt(1 - power(OPTIM_BETA2, self->steps));
    float rate = (float)(present_rate(self) * root / (1 - power(OPTIM_BETA1, self->steps)));
    float epsilon = (float)(OPTIM_EPSILON * root);
    float b1 = (float)OPTIM_BETA1, b2 = (float)OPTIM_BETA2, c1 = (float)(1 - OPTIM_BETA1),
          c2 = (float)(1 - OPTIM_BETA2);
    float *restrict m = self->first, *restrict v = self->second;
    for (uint32_t i = 0, n = self->n; i < n; i++) {
        float g = grads[i];
        m[i] = b1 * m[i] + c1 * g;
        v[i] = b2 * v[i] + c2 * (g * g);
        params[i] -= rate * m[i] / (sqrtf(v[i]) + epsilon);
    }
}

/* Eight sums vectorise, in an order that is always the same. */
static double norm_of(const float *restrict x, uint32_t n)
{
    double sum[8] = {0};
    uint32_t i = 0;
    for (; i + 8 <= n; i += 8)
        for (uint32_t k = 0; k < 8; k++)
            sum[k] += (double)x[i + k] * (double)x[i + k];
    for (; i < n; i++)
        sum[0] += (double)x[i] * (double)x[i];
    return sqrt(((sum[0] + sum[1]) + (sum[2] + sum[3])) + ((sum[4] + sum[5]) + (sum[6] + sum[7])));
}

double optim_clip(float *grads, uint32_t n, double max)
{
    double norm = norm_of(grads, n);
    if (!isfinite(norm)) {
        memset(grads, 0, n * sizeof *grads);
    } else if (max > 0 && norm > max) {
        float scale = (float)(max / norm);
        for (uint32_t i = 0; i < n; i++)
            grads[i] *= scale;
    }
    return norm;
}

void optim_track(float *restrict target, const float *restrict params, uint32_t n, double tau)
{
    float part = (float)tau;
    for (uint32_t i = 0; i < n; i++)
        target[i] += part * (params[i] - target[i]);
}
