#include "tests/support/dense.h"
#include "tests/support/test.h"

#define MAX_WIDTH 512

static bool belongs(const struct tensor *tensor, const char *prefix)
{
    size_t n = strlen(prefix);
    return strncmp(tensor->name, prefix, n) == 0 && tensor->name[n] == '/';
}

static void append(struct dense *self, const struct tensor *tensor)
{
    uint32_t n = 1;
    for (uint32_t i = 0; i < tensor->rank; i++)
        n *= (uint32_t)tensor->shape[i];
    self->params = realloc(self->params, (self->n_params + n) * sizeof *self->params);
    self->source = realloc(self->source, (self->n_params + n) * sizeof *self->source);
    const float *data = tensor->data;
    for (uint32_t i = 0; i < n; i++) {
        self->params[self->n_params + i] = (double)data[i];
        self->source[self->n_params + i] = data + i;
    }
    self->n_params += n;
}

void dense_init(struct dense *self, const struct agent *agent, const char *prefix)
{
    memset(self, 0, sizeof *self);
    self->use_tanh = agent->config.activation == 1;
    for (uint32_t i = 0; i < agent->n_tensors; i++) {
        const struct tensor *tensor = &agent->tensors[i];
        if (!belongs(tensor, prefix))
            continue;
        if (tensor->rank == 2) {
            assert_true(tensor->shape[1] <= MAX_WIDTH);
            struct dense_layer *layer = &self->layers[self->n_layers++];
            layer->inputs = (uint32_t)tensor->shape[0];
            layer->outputs = (uint32_t)tensor->shape[1];
            layer->weight = self->n_params;
        } else {
            assert_int_equal(tensor->rank, 1);
            self->layers[self->n_layers - 1].bias = self->n_params;
        }
        self->dueling = self->dueling || strstr(tensor->name, "/advantage/") != NULL;
        append(self, tensor);
    }
    assert_true(self->n_layers > 0);
    owned(self->params);
    owned(self->source);
}

static void affine(const struct dense *self, uint32_t l, const double *x, double *y)
{
    const struct dense_layer *layer = &self->layers[l];
    for (uint32_t j = 0; j < layer->outputs; j++) {
        y[j] = self->params[layer->bias + j];
        for (uint32_t i = 0; i < layer->inputs; i++)
            y[j] += x[i] * self->params[layer->weight + i * layer->outputs + j];
    }
}

void dense_forward(const struct dense *self, const float *x, double *out)
{
    double wide[MAX_WIDTH];
    for (uint32_t i = 0; i < self->layers[0].inputs; i++)
        wide[i] = (double)x[i];
    dense_row(self, wide, out);
}

void dense_row(const struct dense *self, const double *x, double *out)
{
    double here[MAX_WIDTH], next[MAX_WIDTH];
    memcpy(here, x, self->layers[0].inputs * sizeof *here);
    uint32_t heads = self->dueling ? 2 : 1, trunk = self->n_layers - heads;
    for (uint32_t l = 0; l < trunk; l++) {
        affine(self, l, here, next);
        for (uint32_t j = 0; j < self->layers[l].outputs; j++)
            here[j] = self->use_tanh ? tanh(next[j]) : fmax(next[j], 0.0);
    }
    affine(self, self->n_layers - 1, here, out);
    if (!self->dueling)
        return;
    double value, mean = 0.0;
    affine(self, trunk, here, &value);
    uint32_t n = self->layers[self->n_layers - 1].outputs;
    for (uint32_t j = 0; j < n; j++)
        mean += out[j] / n;
    for (uint32_t j = 0; j < n; j++)
        out[j] += value - mean;
}
