/* Optimisers against the published formulas in double precision. */
#include <inttypes.h>
#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "agent/net/optim.h"
#include "proto/base/rng.h"
#include "tests/support/naive.h"
#include "tests/support/test.h"

enum { N = 103, STEPS = 100 };

static struct rng rng;

static int seed_rng(void **state)
{
    (void)state;
    rng_seed(&rng, naive_seed("optim"));
    return 0;
}

struct reference {
    double p[N], m[N], v[N];
};

/* What the rate is at step t. */
static double rate(const struct optim_config *c, int t)
{
    if (c->anneal == 0)
        return c->learning_rate;
    return t < (int)c->anneal ? c->learning_rate * (1 - 0.9 * t / (double)c->anneal) : 0.1 * c->learning_rate;
}

static void reference_adam(struct reference *r, const struct optim_config *c, int t, const float *grads)
{
    for (int i = 0; i < N; i++) {
        double g = (double)grads[i];
        r->m[i] = c->beta1 * r->m[i] + (1 - c->beta1) * g;
        r->v[i] = c->beta2 * r->v[i] + (1 - c->beta2) * g * g;
        double m = r->m[i] / (1 - pow(c->beta1, t)), v = r->v[i] / (1 - pow(c->beta2, t));
        r->p[i] -= rate(c, t) * m / (sqrt(v) + c->epsilon);
    }
}

static void reference_rmsprop(struct reference *r, const struct optim_config *c, int t, const float *grads)
{
    for (int i = 0; i < N; i++) {
        double g = (double)grads[i];
        r->m[i] = c->beta2 * r->m[i] + (1 - c->beta2) * g;
        r->v[i] = c->beta2 * r->v[i] + (1 - c->beta2) * g * g;
        r->p[i] -= rate(c, t) * g / sqrt(r->v[i] - r->m[i] * r->m[i] + c->epsilon);
    }
}

static void compare(int32_t kind, double scale, uint64_t anneal,
                    void (*reference)(struct reference *, const struct optim_config *, int, const float *))
{
    struct optim_config config = optim_defaults(kind, 0.01);
    config.anneal = anneal;
    struct optim optim;
    struct reference r = {0};
    float params[N], grads[N];
    assert_true(optim_init(&optim, &config, N));
    for (int i = 0; i < N; i++)
        r.p[i] = (double)(params[i] = (float)(2 * rng_unit(&rng) - 1));
    for (int t = 1; t <= STEPS; t++) {
        for (int i = 0; i < N; i++)
            grads[i] = i == 0 ? 0 : (float)(scale * (2 * rng_unit(&rng) - 0.7) * (1 + i % 3));
        optim_step(&optim, params, grads);
        reference(&r, &config, t, grads);
        for (int i = 0; i < N; i++)
            if (fabs((double)params[i] - r.p[i]) > 2e-5)
                fail_msg("parameter %d is %.8g after %d steps and should be %.8g", i, (double)params[i], t, r.p[i]);
    }
    assert_int_equal(optim.steps, STEPS);
    optim_fini(&optim);
}

TEST(adam)
{
    compare(OPTIM_ADAM, 1, 0, reference_adam);
    compare(OPTIM_ADAM, 1e-6, 0, reference_adam);
    compare(OPTIM_ADAM, 1e4, 0, reference_adam);
    compare(OPTIM_ADAM, 1, STEPS / 2, reference_adam);
}

TEST(rmsprop)
{
    compare(OPTIM_RMSPROP, 1, 0, reference_rmsprop);
    compare(OPTIM_RMSPROP, 1, STEPS / 2, reference_rmsprop);
    compare(OPTIM_RMSPROP, 1e-6, 0, reference_rmsprop);
}

/* A gradient that never changes has no variance: only epsilon keeps the step finite. */
TEST(rmsprop_without_variance)
{
    struct optim_config config = optim_defaults(OPTIM_RMSPROP, 1e-4);
    struct optim optim;
    float param = 0, grad = 3;
    assert_true(optim_init(&optim, &config, 1));
    for (int i = 0; i < 2000; i++) {
        float before = param;
        optim_step(&optim, &param, &grad);
        assert_true(isfinite(param) && param < before);
        assert_true(before - param <= 3e-4f / sqrtf(1.4e-7f));
    }
    optim_fini(&optim);
}

/* A learner that is resumed goes on with the same bits. */
TEST(state_is_all_there_is)
{
    struct optim_config config = optim_defaults(OPTIM_ADAM, 1e-3);
    struct optim a, b;
    float p[N] = {0}, q[N], grads[N];
    assert_true(optim_init(&a, &config, N));
    assert_true(optim_init(&b, &config, N));
    for (int t = 0; t < 20; t++) {
        for (int i = 0; i < N; i++)
            grads[i] = (float)rng_unit(&rng) - 0.5f;
        if (t == 10) {
            memcpy(q, p, sizeof q);
            memcpy(b.first, a.first, sizeof p);
            memcpy(b.second, a.second, sizeof p);
            b.steps = a.steps;
        }
        optim_step(&a, p, grads);
        if (t >= 10)
            optim_step(&b, q, grads);
    }
    assert_memory_equal(p, q, sizeof p);
    optim_fini(&a);
    optim_fini(&b);
}

static double norm_of(const float *x, uint32_t n)
{
    double sum = 0;
    for (uint32_t i = 0; i < n; i++)
        sum += (double)x[i] * (double)x[i];
    return sqrt(sum);
}

TEST(clip)
{
    float x[N], was[N];
    for (uint32_t n = 0; n <= N; n++) {
        for (uint32_t i = 0; i < n; i++)
            was[i] = x[i] = (float)rng_unit(&rng) - 0.5f;
        double norm = norm_of(x, n);
        assert_true(fabs(optim_clip(x, n, 0) - norm) < 1e-12 * (1 + norm));
        assert_memory_equal(x, was, n * sizeof *x);
        optim_clip(x, n, norm * 1.01 + 1e-9);
        assert_memory_equal(x, was, n * sizeof *x);
        if (n == 0)
            continue;
        assert_true(fabs(optim_clip(x, n, norm / 3) - norm) < 1e-12 * (1 + norm));
        for (uint32_t i = 0; i < n; i++)
            assert_true(fabsf(x[i] - was[i] / 3) < 1e-6f);
    }
}

TEST(clip_of_what_is_no_number)
{
    static const float odd[] = {NAN, INFINITY, -INFINITY};
    for (uint32_t k = 0; k < 3; k++)
        for (uint32_t at = 0; at < N; at++)
            for (int limit = 0; limit < 2; limit++) {
                float x[N];
                for (uint32_t i = 0; i < N; i++)
                    x[i] = 1;
                x[at] = odd[k];
                assert_false(isfinite(optim_clip(x, N, limit)));
                for (uint32_t i = 0; i < N; i++)
                    assert_true(x[i] == 0);
            }
    /* Squares of these fit into a double, not into a float. */
    float large[2] = {1e30f, 1e30f};
    assert_true(isfinite(optim_clip(large, 2, 1)));
    assert_true(fabsf(large[0] - sqrtf(0.5f)) < 1e-6f);
}

TEST(track)
{
    float target[N], params[N], copy[N];
    for (uint32_t i = 0; i < N; i++) {
        target[i] = copy[i] = (float)rng_unit(&rng);
        params[i] = 1e3f * (float)rng_unit(&rng);
    }
    optim_track(target, params, N, 0.005);
    for (uint32_t i = 0; i < N; i++)
        assert_true(fabsf(target[i] - (0.995f * copy[i] + 0.005f * params[i])) < 1e-5f);
    optim_track(target, params, N, 1);
    assert_memory_equal(target, params, sizeof target);
}

int main(void)
{
    return test_run(seed_rng, NULL);
}
