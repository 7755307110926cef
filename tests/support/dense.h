/* A dense network in double precision, one row at a time, over a copy of an agent's named tensors: what losses and
 * gradients of algorithms are checked against. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "agent/learn/agent.h"

struct dense_layer {
    uint32_t inputs, outputs;
    uint32_t weight, bias; /* in params */
};

struct dense {
    uint32_t n_layers, n_params;
    struct dense_layer layers[NET_MAX_LAYERS];
    bool dueling, use_tanh;
    double *params;
    const float **source; /* [n_params]: where each came from */
};

/* Copies the tensors "<prefix>/...", until the program ends. Convolutions are not offered. */
void dense_init(struct dense *self, const struct agent *agent, const char *prefix);
/* x: one row. out: the last layer's outputs. */
void dense_row(const struct dense *self, const double *x, double *out);
void dense_forward(const struct dense *self, const float *x, double *out);
