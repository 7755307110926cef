/* The optimiser of a vector of parameters. */
#pragma once

#include <stdint.h>

#include "proto/base/arena.h"

/* Adam. Its state is plain vectors, which are saved as they are. */
struct optim {
    double learning_rate;
    uint64_t anneal; /* steps over which the rate falls linearly to a tenth, where it stays; 0: it never falls */
    uint32_t n;
    uint64_t steps;
    float *first;  /* mean of gradients */
    float *second; /* mean of squares */
};

/* The constants that its authors advise. */
#define OPTIM_BETA1 0.9
#define OPTIM_BETA2 0.999
#define OPTIM_EPSILON 1e-8

/* Its vectors live as long as the arena. */
void optim_init(struct optim *self, struct arena *memory, double learning_rate, uint64_t anneal, uint32_t n);
void optim_step(struct optim *self, float *params, const float *grads);

/* Scales the vector so that its norm is at most `max` (0: no limit). Returns the norm before. A norm that is not finite
 * zeroes the vector. */
double optim_clip(float *grads, uint32_t n, double max);
/* target += tau * (params - target) */
void optim_track(float *target, const float *params, uint32_t n, double tau);
