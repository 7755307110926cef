/* Each kernel against the plain loop that it stands for, at all sizes around those of the registers, and bit for bit
 * independent of how many rows there are and where a value stands. */

#include "agent/learn/kernel.h"
#include "agent/learn/net.h"
#include "tests/support/naive.h"

#define MAX_N 75u
#define MAX_ROWS 5u
#define MAX_VALUES (MAX_N * MAX_ROWS)

static const int32_t activations[] = {NET_LINEAR, NET_RELU, NET_TANH};

/* Behind the values of a case: nothing may be written there. */
#define GUARD 12345.0f

struct values {
    float at[1 + MAX_VALUES + 16]; /* the first one puts the others where no register is aligned */
};

static void fill_floats(float *out, size_t n, struct rng *rng, double scale)
{
    for (size_t i = 0; i < n; i++)
        out[i] = (float)(scale * (2.0 * rng_unit(rng) - 1.0));
}

static void fill(struct values *self, struct rng *rng, double scale)
{
    fill_floats(self->at, sizeof self->at / sizeof self->at[0], rng, scale);
}

static void guard(struct values *self, size_t n)
{
    self->at[0] = GUARD;
    for (uint32_t i = 0; i < 16; i++)
        self->at[1 + n + i] = GUARD;
}

static void check_guard(const struct values *self, size_t n)
{
    assert_true(self->at[0] == GUARD);
    for (uint32_t i = 0; i < 16; i++)
        assert_true(self->at[1 + n + i] == GUARD);
}

static double activation_of(double x, int32_t activation)
{
    return activation == NET_RELU ? (x > 0.0 ? x : 0.0) : activation == NET_TANH ? tanh(x) : x;
}

static void check_same(const float *a, const float *b, size_t n, const char *what, uint32_t width)
{
    if (memcmp(a, b, n * sizeof *a) != 0)
        fail_msg("%s of %u: other bits", what, width);
}

TEST(bias)
{
    struct rng rng = rng_of(1);
    for (uint32_t a = 0; a < 3; a++)
        for (uint32_t n = 1; n <= MAX_N; n++) {
            struct values in, y, b;
            fill(&in, &rng, 5.0);
            fill(&b, &rng, 1.0);
            guard(&in, n * MAX_ROWS);
            y = in;
            kernel_bias(y.at + 1, MAX_ROWS, n, b.at + 1, activations[a]);
            check_guard(&y, n * MAX_ROWS);
            for (size_t i = 0; i < n * MAX_ROWS; i++)
                assert_near(y.at[1 + i], activation_of((double)(in.at[1 + i] + b.at[1 + i % n]), activations[a]), 4e-7);
            for (uint32_t row = 0; row < MAX_ROWS; row++) { /* alone, at another address */
                float one[MAX_N];
                memcpy(one, in.at + 1 + (size_t)row * n, n * sizeof one[0]);
                kernel_bias(one, 1, n, b.at + 1, activations[a]);
                check_same(one, y.at + 1 + (size_t)row * n, n, "bias", n);
            }
        }
}

static double slope_of(double y, int32_t activation)
{
    return activation == NET_RELU ? (y > 0.0) : activation == NET_TANH ? 1.0 - y * y : 1.0;
}

/* Values, and derivatives by them: each alone, in the middle and at the end of a register has the same bits. */
TEST(activate_and_derive)
{
    struct rng rng = rng_of(2);
    for (uint32_t a = 0; a < 3; a++)
        for (uint32_t n = 1; n <= MAX_N; n++) {
            struct values in, y, d, out;
            fill(&in, &rng, n % 3 == 0 ? 1e-3 : n % 3 == 1 ? 1.0 : 10.0);
            fill(&d, &rng, 3.0);
            guard(&in, n);
            guard(&d, n);
            y = in;
            out = d;
            kernel_bias(y.at + 1, 1, n, NULL, activations[a]);
            kernel_derive(out.at + 1, y.at + 1, n, activations[a]);
            check_guard(&y, n);
            check_guard(&out, n);
            for (size_t i = 0; i < n; i++) {
                float one = in.at[1 + i], change = d.at[1 + i];
                double right = activation_of((double)one, activations[a]), value = (double)y.at[1 + i];
                assert_true(fabs(value - right) <= 4e-7 * fabs(right));
                assert_near(out.at[1 + i], (double)change * slope_of(value, activations[a]), 4e-7);
                kernel_bias(&one, 1, 1, NULL, activations[a]);
                check_same(&one, y.at + 1 + i, 1, "activate", n);
                kernel_derive(&change, &one, 1, activations[a]);
                check_same(&change, out.at + 1 + i, 1, "derive", n);
            }
        }
}

/* What is far out, nothing or not a number, in every lane. */
TEST(activate_edges)
{
    static const float edges[] = {0.0f,   -0.0f,  1e-42f,   -1e-30f,   8.59f, -8.61f,
                                  100.0f, -3e38f, INFINITY, -INFINITY, NAN};
    enum { N = sizeof edges / sizeof edges[0] };
    for (uint32_t shift = 0; shift < 8; shift++) {
        float tanhs[N + 8] = {0}, relus[N + 8] = {0};
        memcpy(tanhs + shift, edges, sizeof edges);
        memcpy(relus + shift, edges, sizeof edges);
        kernel_bias(tanhs, 1, N + 8, NULL, NET_TANH);
        kernel_bias(relus, 1, N + 8, NULL, NET_RELU);
        for (uint32_t i = 0; i < N; i++) {
            double x = (double)edges[i], tanh_got = (double)tanhs[shift + i], relu_got = (double)relus[shift + i];
            assert_int_equal(isnan(x), isnan(tanh_got));
            assert_int_equal(isnan(x), isnan(relu_got));
            if (isnan(x))
                continue;
            assert_true(fabs(tanh_got - tanh(x)) <= 4e-7 * fabs(tanh(x)));
            assert_true(relu_got == (x > 0.0 ? x : 0.0));
        }
    }
}

/* The sum goes over the rows in their order, so that parts of a batch add up to the bits of the whole. */
TEST(sum_rows)
{
    struct rng rng = rng_of(4);
    for (uint32_t n = 1; n <= MAX_N; n++) {
        struct values d, whole, parts;
        fill(&d, &rng, 1.0);
        fill(&whole, &rng, 1.0);
        guard(&whole, n);
        parts = whole;
        float right[MAX_N];
        memcpy(right, whole.at + 1, n * sizeof right[0]);
        for (uint32_t row = 0; row < MAX_ROWS; row++)
            for (uint32_t j = 0; j < n; j++)
                right[j] += d.at[1 + row * n + j];
        kernel_sum_rows(d.at + 1, MAX_ROWS, n, whole.at + 1);
        check_guard(&whole, n);
        check_same(whole.at + 1, right, n, "sum of rows", n);
        kernel_sum_rows(d.at + 1, 2, n, parts.at + 1);
        kernel_sum_rows(d.at + 1 + 2 * n, MAX_ROWS - 2, n, parts.at + 1);
        check_same(parts.at + 1, right, n, "sum of rows in parts", n);
        kernel_sum_rows(d.at + 1, 0, n, parts.at + 1);
        check_same(parts.at + 1, right, n, "sum of no rows", n);
    }
}

TEST(affine)
{
    struct rng rng = rng_of(5);
    for (uint32_t n_in = 1; n_in <= 9; n_in++)
        for (uint32_t n_out = 1; n_out <= MAX_N; n_out++) {
            static float w[9 * MAX_N];
            struct values x, b, y, again;
            uint32_t index[9];
            fill(&x, &rng, 1.0);
            fill(&b, &rng, 1.0);
            fill_floats(w, n_in * n_out, &rng, 1.0);
            x.at[1 + n_in / 2] = 0.0f;
            guard(&y, n_out);
            kernel_affine(x.at + 1, n_in, w, b.at + 1, n_out, index, y.at + 1);
            check_guard(&y, n_out);
            for (uint32_t j = 0; j < n_out; j++) {
                double sum = (double)b.at[1 + j];
                for (uint32_t i = 0; i < n_in; i++)
                    sum += (double)x.at[1 + i] * (double)w[i * n_out + j];
                assert_near(y.at[1 + j], sum, 1e-5);
            }
            kernel_affine(x.at + 1, n_in, w, b.at + 1, n_out, index, again.at + 1);
            check_same(again.at + 1, y.at + 1, n_out, "affine", n_out);
        }
}

/* Each row alone gives the bits that it has among others. */
TEST(narrow)
{
    static const uint32_t sizes[] = {1, 2, 3, 4, 7, 8, 15, 16, 17, 31, 33, 64, 70, 75};
    static float w[MAX_N * KERNEL_NARROW_OUTPUTS];
    struct rng rng = rng_of(6);
    for (uint32_t s = 0; s < sizeof sizes / sizeof sizes[0]; s++)
        for (uint32_t n_out = 1; n_out <= KERNEL_NARROW_OUTPUTS; n_out++) {
            uint32_t n_in = sizes[s];
            struct values x, y;
            fill(&x, &rng, 1.0);
            fill_floats(w, n_in * n_out, &rng, 1.0);
            guard(&y, MAX_ROWS * n_out);
            kernel_narrow(x.at + 1, MAX_ROWS, n_in, w, n_out, y.at + 1);
            check_guard(&y, MAX_ROWS * n_out);
            for (uint32_t row = 0; row < MAX_ROWS; row++) {
                float one[KERNEL_NARROW_OUTPUTS];
                for (uint32_t j = 0; j < n_out; j++) {
                    double sum = 0;
                    for (uint32_t k = 0; k < n_in; k++)
                        sum += (double)x.at[1 + row * n_in + k] * (double)w[k * n_out + j];
                    assert_near(y.at[1 + row * n_out + j], sum, 1e-5);
                }
                kernel_narrow(x.at + 1 + (size_t)row * n_in, 1, n_in, w, n_out, one);
                check_same(one, y.at + 1 + (size_t)row * n_out, n_out, "narrow", n_in);
            }
        }
}

/* A as it is and transposed, fresh and added to what is there; each row alone gives the bits that it has among others. */
TEST(product)
{
    enum { MAX_M = 9, MAX_K = 20, MAX_COLUMNS = 48 };
    static float a[MAX_M * MAX_K], b[MAX_K * MAX_COLUMNS], y[MAX_M * MAX_COLUMNS + 1], before[MAX_M * MAX_COLUMNS + 1];
    struct rng rng = rng_of(7);
    for (uint32_t n = 16; n <= MAX_COLUMNS; n += 16)
        for (uint32_t m = 1; m <= MAX_M; m++)
            for (uint32_t k = 1; k <= MAX_K; k += 3)
                for (uint32_t mode = 0; mode < 4; mode++) {
                    bool keep = mode & 1, transposed = mode & 2;
                    size_t row_step = transposed ? 1 : k, step = transposed ? m : 1;
                    fill_floats(a, m * k, &rng, 1.0);
                    fill_floats(b, k * n, &rng, 1.0);
                    for (uint32_t i = 0; i <= m * n; i++)
                        before[i] = y[i] = (float)rng_unit(&rng);
                    kernel_product(a, row_step, step, m, k, b, n, keep, y);
                    assert_true(y[m * n] == before[m * n]);
                    for (uint32_t i = 0; i < m; i++) {
                        float one[MAX_COLUMNS];
                        memcpy(one, before + (size_t)i * n, n * sizeof one[0]);
                        kernel_product(a + i * row_step, row_step, step, 1, k, b, n, keep, one);
                        check_same(one, y + (size_t)i * n, n, "product", n);
                        for (uint32_t j = 0; j < n; j++) {
                            double sum = keep ? (double)before[i * n + j] : 0.0;
                            for (uint32_t l = 0; l < k; l++)
                                sum += (double)a[i * row_step + l * step] * (double)b[l * n + j];
                            assert_near(y[i * n + j], sum, 1e-5);
                        }
                    }
                }
}
