#include "agent/learn/net.h"

#include <assert.h>
#include <cblas.h>
#include <limits.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "agent/learn/kernel.h"
#include "proto/base/error.h"

#define NET_MAX_WIDTH (1u << 20)
#define NET_MAX_PARAMS (UINT64_C(1) << 28)

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
    assert(spec->n_hidden <= NET_MAX_HIDDEN && spec->kernel <= spec->height && spec->kernel <= spec->width);
    if (spec->inputs == 0 || spec->inputs > NET_MAX_WIDTH || spec->outputs == 0 || spec->outputs > NET_MAX_WIDTH)
        return err_set(err, RP_INVALID_ARGUMENT,
                       "the network has %u inputs and %u outputs; it may have 1 to %u of each", spec->inputs,
                       spec->outputs, NET_MAX_WIDTH);
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

/* ---- forward and backward ----
 *
 * Rows of one layer's values are the rows of the next one's input; a convolution is a layer with
 * a row for each position of each image. */

enum { PASS_ALIGN = 64 };

static uint32_t positions_of(const struct net *net)
{
    const struct net_spec *spec = &net->spec;
    return net->convolution ? (spec->height - spec->kernel + 1) * (spec->width - spec->kernel + 1) : 1;
}

/* Values of layer l for one item. */
static uint32_t width_of(const struct net *net, uint32_t l)
{
    return net->layers[l].outputs * (l == 0 ? positions_of(net) : 1);
}

/* Returns zeros for a batch; they begin on a cache line. */
static void *take(struct arena *memory, uint64_t batch, uint64_t values)
{
    size_t size = (size_t)(batch * values) * sizeof(float);
    uintptr_t at = (uintptr_t)arena_take(memory, 1, size + PASS_ALIGN - 1);
    return (void *)((at + PASS_ALIGN - 1) / PASS_ALIGN * PASS_ALIGN);
}

rp_status net_pass_init(struct net_pass *self, const struct net *net, uint32_t max_batch, struct arena *memory,
                        rp_error *err)
{
    uint32_t widest = net->spec.outputs + 1, longest = 0;
    uint64_t patch = net->convolution ? (uint64_t)positions_of(net) * net->layers[0].inputs : 0;
    for (uint32_t l = 0; l < net->n_layers; l++) {
        widest = width_of(net, l) > widest ? width_of(net, l) : widest;
        longest = net->layers[l].inputs > longest ? net->layers[l].inputs : longest;
    }
    /* CBLAS takes int. Widths are below 2^21 up to here, so nothing overflows. */
    if (max_batch == 0 || max_batch > INT_MAX / widest || patch > (uint64_t)INT_MAX / max_batch)
        return err_set(err, RP_INVALID_ARGUMENT,
                       "a batch of %u rows is too large for layers of %u values: lower agent.batch, adder.length or "
                       "agent.hidden",
                       max_batch, widest);
    *self = (struct net_pass){.max_batch = max_batch};
    for (uint32_t l = 0; l < net->n_layers; l++)
        self->value[l] = take(memory, max_batch, width_of(net, l));
    self->output = net->spec.dueling ? take(memory, max_batch, net->spec.outputs) : self->value[net->n_layers - 1];
    self->delta[0] = take(memory, max_batch, widest);
    self->delta[1] = take(memory, max_batch, widest);
    self->patches = take(memory, max_batch, patch);
    self->index = take(memory, 1, longest);
    return RP_OK;
}

/* Writes one row of patches for each position. The pixels of a kernel's row are adjacent in the image. */
static void gather_patches(const struct net *net, struct net_pass *pass)
{
    const struct net_spec *spec = &net->spec;
    uint32_t rows = spec->height - spec->kernel + 1, columns = spec->width - spec->kernel + 1;
    size_t run = (size_t)spec->kernel * spec->planes, line = (size_t)spec->width * spec->planes;
    float *out = pass->patches;
    for (uint32_t item = 0; item < pass->batch; item++) {
        const float *image = pass->input + (size_t)item * spec->inputs;
        for (uint32_t y = 0; y < rows; y++)
            for (uint32_t x = 0; x < columns; x++)
                for (uint32_t k = 0; k < spec->kernel; k++, out += run)
                    memcpy(out, image + (y + k) * line + (size_t)x * spec->planes, run * sizeof *out);
    }
}

static bool is_small(uint32_t k, uint32_t n)
{
    return n % KERNEL_PRODUCT_WIDTH == 0 && (uint64_t)k * n <= KERNEL_PRODUCT_SIZE;
}

static void forward_layer(const struct net_layer *layer, const float *params, const float *x, uint32_t rows, float *y)
{
    const float *w = params + layer->weight;
    if (layer->outputs <= KERNEL_NARROW_OUTPUTS && layer->inputs <= KERNEL_NARROW_INPUTS)
        kernel_narrow(x, rows, layer->inputs, w, layer->outputs, y);
    else if (is_small(layer->inputs, layer->outputs))
        kernel_product(x, layer->inputs, 1, rows, layer->inputs, w, layer->outputs, false, y);
    else
        cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasNoTrans, (int)rows, (int)layer->outputs, (int)layer->inputs, 1.0f,
                    x, (int)layer->inputs, w, (int)layer->outputs, 0.0f, y, (int)layer->outputs);
    kernel_bias(y, rows, layer->outputs, params + layer->bias, layer->activation);
}

static void forward_row(const struct net_layer *layer, const float *params, const float *x, uint32_t *index, float *y)
{
    kernel_affine(x, layer->inputs, params + layer->weight, params + layer->bias, layer->outputs, index, y);
    kernel_bias(y, 1, layer->outputs, NULL, layer->activation);
}

static void forward_dueling(const struct net *net, struct net_pass *pass)
{
    uint32_t n = net->spec.outputs;
    const float *value = pass->value[net->n_layers - 2], *advantage = pass->value[net->n_layers - 1];
    float *q = pass->output;
    for (uint32_t item = 0; item < pass->batch; item++, advantage += n, q += n) {
        float sum = 0;
        for (uint32_t j = 0; j < n; j++)
            sum += advantage[j];
        float base = value[item] - sum / (float)n;
        for (uint32_t j = 0; j < n; j++)
            q[j] = base + advantage[j];
    }
}

/* The input of layer l; the patches of a convolution must be ready. */
static const float *input_of(const struct net *net, const struct net_pass *pass, uint32_t l)
{
    if (l == 0)
        return net->convolution ? pass->patches : pass->input;
    if (net->spec.dueling && l + 1 == net->n_layers)
        return l == 1 ? pass->input : pass->value[l - 2];
    return pass->value[l - 1];
}

const float *net_forward(const struct net *self, const float *params, struct net_pass *pass, const float *input,
                         uint32_t batch)
{
    assert(batch > 0 && batch <= pass->max_batch);
    pass->input = input;
    pass->batch = batch;
    for (uint32_t l = 0; l < self->n_layers; l++) {
        const struct net_layer *layer = &self->layers[l];
        bool convolution = l == 0 && self->convolution;
        if (convolution)
            gather_patches(self, pass);
        const float *x = input_of(self, pass, l);
        if (batch == 1 && !convolution)
            forward_row(layer, params, x, pass->index, pass->value[l]);
        else
            forward_layer(layer, params, x, convolution ? batch * positions_of(self) : batch, pass->value[l]);
    }
    if (self->spec.dueling)
        forward_dueling(self, pass);
    return pass->output;
}

/* d_params += derivatives by weights and bias, for delta = derivatives by the layer's sums. */
static void backward_params(const struct net_layer *layer, const float *x, const float *delta, uint32_t rows,
                            float *d_params)
{
    if (is_small(rows, layer->outputs))
        kernel_product(x, 1, layer->inputs, layer->inputs, rows, delta, layer->outputs, true, d_params + layer->weight);
    else
        cblas_sgemm(CblasRowMajor, CblasTrans, CblasNoTrans, (int)layer->inputs, (int)layer->outputs, (int)rows, 1.0f,
                    x, (int)layer->inputs, delta, (int)layer->outputs, 1.0f, d_params + layer->weight,
                    (int)layer->outputs);
    kernel_sum_rows(delta, rows, layer->outputs, d_params + layer->bias);
}

/* d_x = delta W', added to d_x if keep is set. */
static void backward_input(const struct net_layer *layer, const float *params, const float *delta, uint32_t rows,
                           bool keep, float *d_x)
{
    const float *w = params + layer->weight;
    uint32_t n_in = layer->inputs, n_out = layer->outputs;
    if (is_small(n_out, n_in)) {
        float transposed[KERNEL_PRODUCT_SIZE];
        for (uint32_t j = 0; j < n_out; j++)
            for (uint32_t i = 0; i < n_in; i++)
                transposed[(size_t)j * n_in + i] = w[(size_t)i * n_out + j];
        kernel_product(delta, n_out, 1, rows, n_out, transposed, n_in, keep, d_x);
        return;
    }
    cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasTrans, (int)rows, (int)n_in, (int)n_out, 1.0f, delta, (int)n_out, w,
                (int)n_out, keep ? 1.0f : 0.0f, d_x, (int)n_in);
}

/* Q_j = V + A_j - mean A, so dV is the sum of dQ, and dA_j is dQ_j - mean dQ. */
static void split_dueling(const struct net *net, const struct net_pass *pass, const float *d_output, float *d_value,
                          float *d_advantage)
{
    uint32_t n = net->spec.outputs;
    for (uint32_t item = 0; item < pass->batch; item++, d_output += n, d_advantage += n) {
        float sum = 0;
        for (uint32_t j = 0; j < n; j++)
            sum += d_output[j];
        d_value[item] = sum;
        for (uint32_t j = 0; j < n; j++)
            d_advantage[j] = d_output[j] - sum / (float)n;
    }
}

/* For both heads at once. d_x may be NULL. */
static void backward_dueling(const struct net *net, const float *params, struct net_pass *pass, const float *d_output,
                             float *d_params, float *d_x)
{
    const struct net_layer *value = &net->layers[net->n_layers - 2], *advantage = &net->layers[net->n_layers - 1];
    const float *x = input_of(net, pass, net->n_layers - 2);
    float *d_value = pass->delta[1], *d_advantage = pass->delta[1] + pass->batch;
    split_dueling(net, pass, d_output, d_value, d_advantage);
    if (d_params != NULL) {
        backward_params(value, x, d_value, pass->batch, d_params);
        backward_params(advantage, x, d_advantage, pass->batch, d_params);
    }
    if (d_x != NULL) {
        backward_input(value, params, d_value, pass->batch, false, d_x);
        backward_input(advantage, params, d_advantage, pass->batch, true, d_x);
    }
}

void net_backward(const struct net *self, const float *params, struct net_pass *pass, const float *d_output,
                  float *d_params, float *d_input)
{
    assert(!d_input || !self->convolution);
    const float *delta = d_output;
    uint32_t l = self->n_layers - 1, turn = 0;
    if (self->spec.dueling) {
        l--;
        backward_dueling(self, params, pass, d_output, d_params, l == 0 ? d_input : pass->delta[0]);
        if (l == 0)
            return;
        l--;
        kernel_derive(pass->delta[0], pass->value[l], (size_t)pass->batch * width_of(self, l),
                      self->layers[l].activation);
        delta = pass->delta[0];
        turn = 1;
    }
    for (;; l--, turn ^= 1) {
        uint32_t rows = pass->batch * (l == 0 ? positions_of(self) : 1);
        if (d_params != NULL)
            backward_params(&self->layers[l], input_of(self, pass, l), delta, rows, d_params);
        float *d_x = l == 0 ? d_input : pass->delta[turn];
        if (d_x != NULL)
            backward_input(&self->layers[l], params, delta, rows, false, d_x);
        if (l == 0)
            return;
        kernel_derive(d_x, pass->value[l - 1], (size_t)pass->batch * width_of(self, l - 1),
                      self->layers[l - 1].activation);
        delta = d_x;
    }
}
