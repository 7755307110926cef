/* Small dense networks on CBLAS: optional convolution, hidden layers, linear output, optional dueling head. They know
 * nothing of algorithms.
 *
 * A network is a layout; its parameters are one contiguous vector of floats that the caller owns. So an optimiser,
 * the sum over parallel learners, a soft target update and a published policy are all operations on plain vectors.
 * Rows of inputs and outputs are the items of a batch.
 *
 * Weight matrices are stored as [inputs][outputs], row-major: y = x W + b. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "proto/base/arena.h"
#include "proto/base/rng.h"
#include "replay/error.h"

#define NET_MAX_HIDDEN 8u
#define NET_MAX_LAYERS (NET_MAX_HIDDEN + 4u)

enum net_activation { NET_LINEAR, NET_RELU, NET_TANH };

struct net_spec {
    uint32_t inputs; /* height * width * planes for images */
    /* A convolution before the hidden layers: kernel x kernel, stride 1, no padding, relu. 0 filters: none. */
    uint32_t height, width, planes, filters, kernel;
    uint32_t n_hidden;
    uint32_t hidden[NET_MAX_HIDDEN];
    int32_t activation; /* of the hidden layers; a net_activation */
    uint32_t outputs;
    /* The last hidden layer feeds a value and an advantage per output: Q = V + A - mean A. */
    bool dueling;
    float output_scale; /* scale of the initial weights of the last layer, for policies that begin near zero; 0: 1 */
};

struct net_layer {
    uint32_t inputs, outputs;
    uint32_t weight, bias; /* offsets in the parameter vector */
    int32_t activation;
};

struct net {
    struct net_spec spec;
    uint32_t n_params;
    uint32_t n_layers;
    struct net_layer layers[NET_MAX_LAYERS]; /* convolution, hidden ..., output (or value and advantage) */
    bool convolution;                        /* the first layer is a convolution */
};

/* One pass over a batch: the values that forward keeps for backward. Several passes of one network may be open at a
 * time. */
struct net_pass {
    uint32_t max_batch;
    uint32_t batch;
    const float *input;           /* borrowed from the last forward until its backward */
    float *value[NET_MAX_LAYERS]; /* outputs of each layer, after its activation */
    float *output;                /* [batch][outputs]: what forward returns */
    float *delta[2];              /* scratch of backward */
    float *patches;               /* of the convolution: its inputs, a row for each position */
    uint32_t *index;              /* scratch of a forward of one row */
};

/* Checks how large the network becomes: the agent has checked what a user may choose, hidden layers and convolution. */
rp_status net_init(struct net *self, const struct net_spec *spec, rp_error *err);
/* Initial weights: uniform He for relu, Glorot for tanh and linear; biases 0. */
void net_fill(const struct net *self, float *params, struct rng *rng);
/* A tensor of the parameters, as files name it: "layer0/weight", "layer0/bias" ...; the dueling head is "value/..." and
 * "advantage/...". */
struct net_tensor {
    char name[32];
    uint32_t rank;
    uint64_t shape[4];
    uint32_t offset; /* in the parameters */
};
uint32_t net_n_tensors(const struct net *self);
/* Tensor i, from 0. */
struct net_tensor net_tensor(const struct net *self, uint32_t i);

/* Its arrays live as long as the arena. RP_INVALID_ARGUMENT: more rows than a matrix product can have. */
rp_status net_pass_init(struct net_pass *self, const struct net *net, uint32_t max_batch, struct arena *memory,
                        rp_error *err);

/* input: [batch][inputs]. Gives [batch][outputs], valid until the next forward of this pass. batch 1 takes a path
 * without matrix products after the convolution. */
const float *net_forward(const struct net *self, const float *params, struct net_pass *pass, const float *input,
                         uint32_t batch);
/* d_output: [batch][outputs], derivatives by the output of the last forward of this pass. Adds to d_params (may be
 * NULL) and writes d_input ([batch][inputs], may be NULL, and must be for a network with a convolution). May be called
 * several times after one forward. A caller may lower pass->batch before: then only the first rows count. */
void net_backward(const struct net *self, const float *params, struct net_pass *pass, const float *d_output,
                  float *d_params, float *d_input);

/* Limits BLAS to one thread in this process. Called once by each program that uses networks. */
void net_single_thread(void);
