/* Networks against a second implementation in double precision, one number at a time, whose derivatives are finite
 * differences. */
#include <inttypes.h>

#include "agent/learn/net.h"
#include "tests/support/naive.h"

enum { MAX_BATCH = 7 };

/* Fixed unless given: a relu's edge within the finite difference would be a false alarm. */
static uint64_t test_seed(void)
{
    const char *text = getenv("RP_TEST_SEED");
    uint64_t seed = text ? strtoull(text, NULL, 0) : 1;
    printf("RP_TEST_SEED=%" PRIu64 "\n", seed);
    return seed;
}

/* ---- the reference */

static double squash(int32_t activation, double x)
{
    return activation == NET_RELU ? (x > 0 ? x : 0) : activation == NET_TANH ? tanh(x) : x;
}

static double *dense(const struct net_layer *layer, const double *params, const double *x)
{
    double *y = calloc(layer->outputs, sizeof *y);
    for (uint32_t j = 0; j < layer->outputs; j++) {
        double sum = params[layer->bias + j];
        for (uint32_t i = 0; i < layer->inputs; i++)
            sum += x[i] * params[layer->weight + i * layer->outputs + j];
        y[j] = squash(layer->activation, sum);
    }
    return y;
}

static double *convolve(const struct net *net, const double *params, const double *x)
{
    const struct net_spec *s = &net->spec;
    uint32_t rows = s->height - s->kernel + 1, columns = s->width - s->kernel + 1;
    double *y = calloc((size_t)rows * columns * s->filters, sizeof *y);
    for (uint32_t r = 0; r < rows; r++)
        for (uint32_t c = 0; c < columns; c++)
            for (uint32_t f = 0; f < s->filters; f++) {
                double sum = params[net->layers[0].bias + f];
                for (uint32_t a = 0; a < s->kernel; a++)
                    for (uint32_t b = 0; b < s->kernel; b++)
                        for (uint32_t p = 0; p < s->planes; p++)
                            sum += x[((r + a) * s->width + c + b) * s->planes + p] *
                                   params[((a * s->kernel + b) * s->planes + p) * s->filters + f];
                y[(r * columns + c) * s->filters + f] = sum > 0 ? sum : 0;
            }
    return y;
}

static void reference_row(const struct net *net, const double *params, const double *input, double *out)
{
    const struct net_spec *s = &net->spec;
    uint32_t l = 0;
    double *x = calloc(s->inputs, sizeof *x), *next;
    memcpy(x, input, s->inputs * sizeof *x);
    for (; l < net->n_layers - (s->dueling ? 2 : 1); l++) {
        next = l == 0 && s->filters ? convolve(net, params, x) : dense(&net->layers[l], params, x);
        free(x);
        x = next;
    }
    double *value = s->dueling ? dense(&net->layers[l++], params, x) : NULL;
    double *last = dense(&net->layers[l], params, x), mean = 0;
    for (uint32_t j = 0; j < s->outputs; j++)
        mean += last[j] / s->outputs;
    for (uint32_t j = 0; j < s->outputs; j++)
        out[j] = value ? value[0] + last[j] - mean : last[j];
    free(value);
    free(last);
    free(x);
}

struct problem {
    struct net net;
    struct net_pass pass;
    struct arena memory;
    uint32_t batch;
    float *params, *input, *d_output;
    double *wide_params, *wide_input, *out;
};

/* The sum of outputs, each times its entry of d_output. */
static double loss(struct problem *p)
{
    double sum = 0;
    uint32_t n_in = p->net.spec.inputs, n_out = p->net.spec.outputs;
    for (uint32_t b = 0; b < p->batch; b++) {
        reference_row(&p->net, p->wide_params, p->wide_input + (size_t)b * n_in, p->out);
        for (uint32_t j = 0; j < n_out; j++)
            sum += p->out[j] * (double)p->d_output[b * n_out + j];
    }
    return sum;
}

static double slope(struct problem *p, double *at)
{
    const double h = 1e-6;
    double was = *at;
    *at = was + h;
    double up = loss(p);
    *at = was - h;
    double down = loss(p);
    *at = was;
    return (up - down) / (2 * h);
}

static float symmetric(struct rng *rng)
{
    return (float)(2 * rng_unit(rng) - 1);
}

static float *vector(struct rng *rng, size_t n)
{
    float *x = owned(calloc(n, sizeof *x));
    for (size_t i = 0; i < n; i++)
        x[i] = symmetric(rng);
    return x;
}

static double *widened(const float *x, size_t n)
{
    double *out = owned(calloc(n, sizeof *out));
    for (size_t i = 0; i < n; i++)
        out[i] = (double)x[i];
    return out;
}

static void problem_init(struct problem *p, const struct net_spec *spec, uint32_t batch, struct rng *rng)
{
    memset(p, 0, sizeof *p);
    p->batch = batch;
    assert_int_equal(net_init(&p->net, spec, &err), RP_OK);
    assert_int_equal(net_pass_init(&p->pass, &p->net, MAX_BATCH, &p->memory, &err), RP_OK);
    p->params = vector(rng, p->net.n_params);
    net_fill(&p->net, p->params, rng);
    for (uint32_t l = 0; l < p->net.n_layers; l++)
        for (uint32_t j = 0; j < p->net.layers[l].outputs; j++)
            p->params[p->net.layers[l].bias + j] = 0.3f * symmetric(rng);
    p->input = vector(rng, (size_t)batch * spec->inputs);
    /* Some are 0, as in planes of images. */
    for (uint32_t i = 0; i < batch * spec->inputs; i += 3)
        p->input[i] = 0;
    p->d_output = vector(rng, (size_t)batch * spec->outputs);
    p->wide_params = widened(p->params, p->net.n_params);
    p->wide_input = widened(p->input, (size_t)batch * spec->inputs);
    p->out = owned(calloc(spec->outputs, sizeof *p->out));
}

static void check_forward(struct problem *p)
{
    uint32_t n_out = p->net.spec.outputs;
    const float *y = net_forward(&p->net, p->params, &p->pass, p->input, p->batch);
    for (uint32_t b = 0; b < p->batch; b++) {
        reference_row(&p->net, p->wide_params, p->wide_input + (size_t)b * p->net.spec.inputs, p->out);
        for (uint32_t j = 0; j < n_out; j++)
            assert_near(y[b * n_out + j], p->out[j], 3e-6);
    }
}

static void check_d_input(struct problem *p, float *d_params)
{
    uint32_t n = p->batch * p->net.spec.inputs;
    float *d_input = owned(calloc(n, sizeof *d_input));
    memset(d_input, 0x7f, n * sizeof *d_input);
    net_backward(&p->net, p->params, &p->pass, p->d_output, d_params, d_input);
    for (uint32_t i = 0; i < n; i++)
        assert_near(d_input[i], slope(p, &p->wide_input[i]), 1e-5);
}

/* d_params begins with numbers that must still be in the sum. Backward several times: each after another one used all
 * scratch memory. */
static void check_backward(struct problem *p)
{
    uint32_t n = p->net.n_params;
    float *d_params = owned(calloc(n, sizeof *d_params));
    for (uint32_t i = 0; i < n; i++)
        d_params[i] = (float)(i % 5);
    if (p->net.convolution)
        net_backward(&p->net, p->params, &p->pass, p->d_output, d_params, NULL);
    else
        check_d_input(p, d_params);
    net_backward(&p->net, p->params, &p->pass, p->d_output, NULL, NULL);
    net_backward(&p->net, p->params, &p->pass, p->d_output, d_params, NULL);
    if (!p->net.convolution)
        check_d_input(p, NULL);
    for (uint32_t i = 0; i < n; i++)
        assert_near(d_params[i], i % 5 + 2 * slope(p, &p->wide_params[i]), 1e-5);
}

static void run_spec(const struct net_spec *spec, struct rng *rng)
{
    static const uint32_t batches[] = {1, 2, MAX_BATCH};
    for (uint32_t i = 0; i < sizeof batches / sizeof *batches; i++) {
        struct problem p;
        problem_init(&p, spec, batches[i], rng);
        check_forward(&p);
        check_backward(&p);
        arena_fini(&p.memory);
    }
}

static const struct net_spec image_spec = {.inputs = 4 * 5 * 2,
                                           .height = 4,
                                           .width = 5,
                                           .planes = 2,
                                           .filters = 3,
                                           .kernel = 2,
                                           .n_hidden = 1,
                                           .hidden = {5},
                                           .activation = NET_RELU,
                                           .outputs = 2,
                                           .dueling = true};

TEST(gradients_dense)
{
    struct rng rng = rng_of(test_seed());
    for (int32_t activation = NET_LINEAR; activation <= NET_TANH; activation++)
        for (int dueling = 0; dueling < 2; dueling++)
            for (uint32_t n_hidden = 0; n_hidden < 4; n_hidden++) {
                struct net_spec spec = {.inputs = 5,
                                        .n_hidden = n_hidden,
                                        .hidden = {11, 6, 9},
                                        .activation = activation,
                                        .outputs = 3,
                                        .dueling = dueling};
                run_spec(&spec, &rng);
            }
}

TEST(gradients_image)
{
    struct rng rng = rng_of(test_seed());
    for (uint32_t kernel = 1; kernel <= 4; kernel++)
        for (uint32_t options = 0; options < 4; options++) {
            struct net_spec spec = image_spec;
            spec.kernel = kernel;
            spec.dueling = options & 1;
            spec.n_hidden = options >> 1;
            spec.activation = kernel % 2 ? NET_TANH : NET_RELU;
            run_spec(&spec, &rng);
        }
}

/* With a lower batch after forward, only the first rows count. */
TEST(backward_of_the_first_rows)
{
    struct rng rng = rng_of(test_seed());
    for (int image = 0; image < 2; image++) {
        struct net_spec spec = image_spec;
        spec.filters = image ? 3 : 0;
        struct problem p;
        problem_init(&p, &spec, MAX_BATCH, &rng);
        net_forward(&p.net, p.params, &p.pass, p.input, MAX_BATCH);
        p.pass.batch = p.batch = 3;
        check_backward(&p);
        arena_fini(&p.memory);
    }
}

/* Every width around the registers' one, so that each tail of the loops is taken. */
TEST(one_row_is_as_in_a_batch)
{
    struct rng rng = rng_of(test_seed());
    for (uint32_t width = 1; width <= 150; width += 1 + width / 20) {
        struct net_spec spec = {.inputs = 1 + width / 2,
                                .n_hidden = 2,
                                .hidden = {width, 150 - width + 1},
                                .activation = width % 2 ? NET_RELU : NET_TANH,
                                .outputs = 1 + width % 9,
                                .dueling = width % 3 == 0};
        struct problem p;
        problem_init(&p, &spec, MAX_BATCH, &rng);
        float together[MAX_BATCH * 9];
        memcpy(together, net_forward(&p.net, p.params, &p.pass, p.input, MAX_BATCH),
               (size_t)MAX_BATCH * spec.outputs * sizeof *together);
        for (uint32_t b = 0; b < MAX_BATCH; b++) {
            const float *y = net_forward(&p.net, p.params, &p.pass, p.input + (size_t)b * spec.inputs, 1);
            for (uint32_t j = 0; j < spec.outputs; j++)
                assert_near(y[j], (double)together[b * spec.outputs + j], 1e-5);
        }
        arena_fini(&p.memory);
    }
}

TEST(fill)
{
    struct net_spec spec = {.inputs = 10,
                            .n_hidden = 2,
                            .hidden = {64, 64},
                            .activation = NET_RELU,
                            .outputs = 4,
                            .dueling = true,
                            .output_scale = 0.01f};
    struct net net;
    assert_int_equal(net_init(&net, &spec, NULL), RP_OK);
    float *params = owned(calloc(net.n_params, sizeof *params)), *again = owned(calloc(net.n_params, sizeof *again));
    memset(params, 0x7f, net.n_params * sizeof *params);
    struct rng rng = rng_of(5);
    net_fill(&net, params, &rng);
    rng_seed(&rng, 5);
    net_fill(&net, again, &rng);
    assert_memory_equal(params, again, net.n_params * sizeof *params);
    const double limits[] = {sqrt(6 / 10.0), sqrt(6 / 64.0), 0.01 * sqrt(6 / 65.0), 0.01 * sqrt(6 / 68.0)};
    for (uint32_t l = 0; l < net.n_layers; l++) {
        double largest = 0;
        for (uint32_t i = net.layers[l].weight; i < net.layers[l].bias; i++)
            largest = fmax(largest, fabs((double)params[i]));
        assert_true(largest <= limits[l] * 1.000001 && largest > 0.9 * limits[l]);
        for (uint32_t j = 0; j < net.layers[l].outputs; j++)
            assert_true(params[net.layers[l].bias + j] == 0);
    }
}

TEST(tensors_cover_the_parameters)
{
    static const char *const names[] = {"layer0/weight", "layer0/bias", "layer1/weight",    "layer1/bias",
                                        "value/weight",  "value/bias",  "advantage/weight", "advantage/bias"};
    static const uint64_t shapes[][4] = {{2, 2, 2, 3}, {3}, {36, 5}, {5}, {5, 1}, {1}, {5, 2}, {2}};
    struct net net;
    assert_int_equal(net_init(&net, &image_spec, NULL), RP_OK);
    assert_int_equal(net_n_tensors(&net), 8);
    uint64_t next = 0;
    for (uint32_t i = 0; i < 8; i++) {
        struct net_tensor tensor = net_tensor(&net, i);
        uint64_t n = 1;
        assert_string_equal(tensor.name, names[i]);
        assert_int_equal(tensor.offset, next);
        for (uint32_t k = 0; k < tensor.rank; k++)
            n *= tensor.shape[k];
        assert_memory_equal(tensor.shape, shapes[i], sizeof tensor.shape);
        next += n;
    }
    assert_int_equal(next, net.n_params);
}

static void expect_refused(const struct net_spec *spec, const char *text)
{
    err = (rp_error){0};
    struct net net;
    assert_int_equal(net_init(&net, spec, &err), RP_INVALID_ARGUMENT);
    assert_has(err.text, text);
}

TEST(wrong_sizes_are_named)
{
    struct net_spec good = {.inputs = 4, .n_hidden = 1, .hidden = {8}, .outputs = 2}, spec = good;
    spec.inputs = 0;
    expect_refused(&spec, "0 inputs");
    spec = good;
    spec.outputs = 0;
    expect_refused(&spec, "0 outputs");
    spec = good;
    spec.n_hidden = 2;
    spec.hidden[0] = spec.hidden[1] = 1u << 20;
    expect_refused(&spec, "parameters");
}

TEST(pass_too_large)
{
    struct net_spec spec = {.inputs = 4, .n_hidden = 1, .hidden = {1024}, .outputs = 2};
    struct net net;
    struct net_pass pass;
    struct arena memory = {0};
    assert_int_equal(net_init(&net, &spec, NULL), RP_OK);
    assert_int_equal(net_pass_init(&pass, &net, 0, &memory, NULL), RP_INVALID_ARGUMENT);
    assert_int_equal(net_pass_init(&pass, &net, UINT32_MAX, &memory, NULL), RP_INVALID_ARGUMENT);
    arena_fini(&memory);
}

int main(void)
{
    net_single_thread();
    return test_run(NULL, NULL);
}
