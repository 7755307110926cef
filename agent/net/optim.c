/* Parallel learners apply the same gradients on different machines and must keep the same bits. So everything here is
 * element by element or in a fixed order of sums, nothing is fused (-ffp-contract=off), and powers are products. */
#include "agent/net/optim.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* At -O2 gcc leaves loops of unknown length scalar. */
#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC optimize("O3")
#endif

struct optim_config optim_defaults(int32_t kind, double learning_rate)
{
    if (kind == OPTIM_RMSPROP)
        return (struct optim_config){.kind = kind, .learning_rate = learning_rate, .beta2 = 0.95, .epsilon = 1.5e-7};
    return (struct optim_config){
        .kind = kind, .learning_rate = learning_rate, .beta1 = 0.9, .beta2 = 0.999, .epsilon = 1e-8};
}

bool optim_init(struct optim *self, const struct optim_config *config, uint32_t n)
{
    memset(self, 0, sizeof *self);
    self->config = *config;
    self->n = n;
    self->first = calloc(n > 0 ? n : 1, sizeof *self->first);
    self->second = calloc(n > 0 ? n : 1, sizeof *self->second);
    if (self->first != NULL && self->second != NULL)
        return true;
    optim_fini(self);
    return false;
}

void optim_fini(struct optim *self)
{
    free(self->first);
    free(self->second);
    self->first = self->second = NULL;
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
    uint64_t anneal = self->config.anneal;
    if (anneal == 0)
        return self->config.learning_rate;
    double part = self->steps < anneal ? (double)self->steps / (double)anneal : 1.0;
    return self->config.learning_rate * (1.0 - 0.9 * part);
}

/* p -= rate * (m / c1) / (sqrt(v / c2) + epsilon), with the corrections c1 and c2 moved out of the loop. */
static void step_adam(struct optim *self, float *restrict params, const float *restrict grads)
{
    const struct optim_config *config = &self->config;
    double root = sqrt(1 - power(config->beta2, self->steps));
    float rate = (float)(present_rate(self) * root / (1 - power(config->beta1, self->steps)));
    float epsilon = (float)(config->epsilon * root);
    float b1 = (float)config->beta1, b2 = (float)config->beta2;
    float c1 = (float)(1 - config->beta1), c2 = (float)(1 - config->beta2);
    float *restrict m = self->first, *restrict v = self->second;
    for (uint32_t i = 0, n = self->n; i < n; i++) {
        float g = grads[i];
        m[i] = b1 * m[i] + c1 * g;
        v[i] = b2 * v[i] + c2 * (g * g);
        params[i] -= rate * m[i] / (sqrtf(v[i]) + epsilon);
    }
}

/* p -= rate * g / sqrt(v - m^2 + epsilon): epsilon is inside the root, as published with DQN. */
static void step_rmsprop(struct optim *self, float *restrict params, const float *restrict grads)
{
    const struct optim_config *config = &self->config;
    float rate = (float)present_rate(self), epsilon = (float)config->epsilon;
    float decay = (float)config->beta2, rest = (float)(1 - config->beta2);
    float *restrict m = self->first, *restrict v = self->second;
    for (uint32_t i = 0, n = self->n; i < n; i++) {
        float g = grads[i];
        m[i] = decay * m[i] + rest * g;
        v[i] = decay * v[i] + rest * (g * g);
        float variance = v[i] - m[i] * m[i];
        /* Rounding can leave the difference a little below 0. */
        variance = variance > 0.0f ? variance : 0.0f;
        params[i] -= rate * g / sqrtf(variance + epsilon);
    }
}

void optim_step(struct optim *self, float *params, const float *grads)
{
    self->steps++;
    if (self->config.kind == OPTIM_RMSPROP)
        step_rmsprop(self, params, grads);
    else
        step_adam(self, params, grads);
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
    if (tau >= 1) {
        memcpy(target, params, n * sizeof *target);
        return;
    }
    for (uint32_t i = 0; i < n; i++)
        target[i] += part * (params[i] - target[i]);
}
