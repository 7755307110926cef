#include "agent/net/net.h"

#include <cblas.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "proto/base/error.h"

#define NET_MAX_WIDTH (1u << 20)
#define NET_MAX_PARAMS (UINT64_C(1) << 28)

static rp_status check_image(const struct net_spec *spec, rp_error *err)
{
    uint32_t shortest = spec->height < spec->width ? spec->height : spec->width;
    if ((uint64_t)spec->height * spec->width > NET_MAX_WIDTH ||
        (uint64_t)spec->height * spec->width * spec->planes != spec->inputs)
        return err_set(
            err, RP_INVALID_ARGUMENT,
            "a convolution needs an image: %u x %u x %u values (height, width, planes) are not the %u inputs "
            "of the network",
            spec->height, spec->width, spec->planes, spec->inputs);
    if (spec->kernel == 0 || spec->kernel > shortest)
        return err_set(err, RP_INVALID_ARGUMENT,
                       "the kernel of the convolution is %u wide; an image of %u x %u takes 1 to %u", spec->kernel,
                       spec->height, spec->width, shortest);
    if (spec->filters > NET_MAX_WIDTH)
        return err_set(err, RP_INVALID_ARGUMENT, "the convolution has %u filters; at most %u are possible",
                       spec->filters, NET_MAX_WIDTH);
    return RP_OK;
}

static rp_status check_spec(const struct net_spec *spec, rp_error *err)
{
    if (spec->inputs == 0 || spec->inputs > NET_MAX_WIDTH)
        return err_set(err, RP_INVALID_ARGUMENT, "the network has %u inputs; it may have 1 to %u", spec->inputs,
                       NET_MAX_WIDTH);
    if (spec->outputs == 0 || spec->outputs > NET_MAX_WIDTH)
        return err_set(err, RP_INVALID_ARGUMENT, "the network has %u outputs; it may have 1 to %u", spec->outputs,
                       NET_MAX_WIDTH);
    if (spec->n_hidden > NET_MAX_HIDDEN)
        return err_set(err, RP_INVALID_ARGUMENT, "the network has %u hidden layers; at most %u are possible",
                       spec->n_hidden, NET_MAX_HIDDEN);
    for (uint32_t i = 0; i < spec->n_hidden; i++)
        if (spec->hidden[i] == 0 || spec->hidden[i] > NET_MAX_WIDTH)
            return err_set(err, RP_INVALID_ARGUMENT, "hidden layer %u is %u wide; it may be 1 to %u", i,
                           spec->hidden[i], NET_MAX_WIDTH);
    if (spec->activation < NET_LINEAR || spec->activation > NET_TANH)
        return err_set(err, RP_INVALID_ARGUMENT, "there is no activation %d", (int)spec->activation);
    if (!isfinite(spec->output_scale) || spec->output_scale < 0)
        return err_set(err, RP_INVALID_ARGUMENT,
                       "the scale of the output's initial weights is %g; it may not be negative",
                       (double)spec->output_scale);
    return spec->filters > 0 ? check_image(spec, err) : RP_OK;
}

static void add_layer(struct net *self, uint64_t *n_params, uint64_t inputs, uint64_t outputs, int32_t activation)
{
    struct net_layer *layer = &self->layers[self->n_layers++];
    layer->inputs = (uint32_t)inputs;
    layer->outputs = (uint32_t)outputs;
    layer->activation = activation;
    layer->weight = (uint32_t)*n_params;
    layer->bias = (uint32_t)(*n_params + inputs * outputs);
    *n_params += inputs * outputs + outputs;
}

rp_status net_init(struct net *self, const struct net_spec *spec, rp_error *err)
{
    memset(self, 0, sizeof *self);
    RP_TRY(check_spec(spec, err));
    self->spec = *spec;
    /* No width is above 2^20, so a layer has at most 2^40 + 2^20 parameters: the sum fits. */
    uint64_t n = 0, width = spec->inputs;
    if (spec->filters > 0) {
        uint64_t positions = (uint64_t)(spec->height - spec->kernel + 1) * (spec->width - spec->kernel + 1);
        add_layer(self, &n, (uint64_t)spec->kernel * spec->kernel * spec->planes, spec->filters, NET_RELU);
        self->convolution = true;
        width = positions * spec->filters;
        if (width > NET_MAX_WIDTH)
            return err_set(err, RP_INVALID_ARGUMENT, "the convolution gives %llu values; at most %u are possible",
                           (unsigned long long)width, NET_MAX_WIDTH);
    }
    for (uint32_t i = 0; i < spec->n_hidden; i++) {
        add_layer(self, &n, width, spec->hidden[i], spec->activation);
        width = spec->hidden[i];
    }
    if (spec->dueling)
        add_layer(self, &n, width, 1, NET_LINEAR);
    add_layer(self, &n, width, spec->outputs, NET_LINEAR);
    if (n > NET_MAX_PARAMS)
        return err_set(err, RP_INVALID_ARGUMENT, "the network has %llu parameters; at most %llu are possible",
                       (unsigned long long)n, (unsigned long long)NET_MAX_PARAMS);
    self->n_params = (uint32_t)n;
    return RP_OK;
}

void net_fill(const struct net *self, float *params, struct rng *rng)
{
    uint32_t n_heads = self->spec.dueling ? 2 : 1;
    for (uint32_t l = 0; l < self->n_layers; l++) {
        const struct net_layer *layer = &self->layers[l];
        double fan = layer->activation == NET_RELU ? layer->inputs : (double)layer->inputs + layer->outputs;
        double limit = sqrt(6 / fan);
        if (l >= self->n_layers - n_heads && self->spec.output_scale > 0)
            limit *= (double)self->spec.output_scale;
        for (uint32_t i = layer->weight; i < layer->bias; i++)
            params[i] = (float)(limit * (2 * rng_unit(rng) - 1));
        memset(params + layer->bias, 0, layer->outputs * sizeof *params);
    }
}

uint32_t net_n_tensors(const struct net *self)
{
    return 2 * self->n_layers;
}

struct net_tensor net_tensor(const struct net *self, uint32_t i)
{
    struct net_tensor out = {0};
    uint32_t l = i / 2;
    const struct net_layer *layer = &self->layers[l];
    const char *kind = i % 2 == 0 ? "weight" : "bias";
    if (self->spec.dueling && l + 2 >= self->n_layers)
        snprintf(out.name, sizeof out.name, "%s/%s", l + 2 == self->n_layers ? "value" : "advantage", kind);
    else
        snprintf(out.name, sizeof out.name, "layer%u/%s", l, kind);
    if (i % 2 != 0) {
        out.rank = 1;
        out.shape[0] = layer->outputs;
        out.offset = layer->bias;
        return out;
    }
    out.offset = layer->weight;
    if (self->convolution && l == 0) {
        out.shape[out.rank++] = self->spec.kernel;
        out.shape[out.rank++] = self->spec.kernel;
        out.shape[out.rank++] = self->spec.planes;
    } else {
        out.shape[out.rank++] = layer->inputs;
    }
    out.shape[out.rank++] = layer->outputs;
    return out;
}

/* OpenBLAS packs matrices into memory that it maps once, and its kernels prefetch beyond what is packed. On arm64
 * that is slow as long as those pages were never touched: products of 64 x 64 take 2.4 times as long until a larger
 * one has been computed in the same memory. So a larger one comes first. */
static void touch_buffers(void)
{
    enum { SIZE = 256 };
    float *zeros = calloc((size_t)SIZE * SIZE, sizeof *zeros), *out = calloc((size_t)SIZE * SIZE, sizeof *out);
    if (zeros && out)
        cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasNoTrans, SIZE, SIZE, SIZE, 1.0f, zeros, SIZE, zeros, SIZE, 0.0f,
                    out, SIZE);
    free(zeros);
    free(out);
}

void net_single_thread(void)
{
    /* First with OpenBLAS's threads, so that they exist and have memory of their own: otherwise they would take ours
     * later. */
    touch_buffers();
    openblas_set_num_threads(1);
    touch_buffers();
}
