/* The optimiser against the published formulas in double precision. */

#include "agent/learn/optim.h"
#include "tests/support/naive.h"

enum { N = 103, STEPS = 100 };
#define RATE 0.01

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
static double rate(uint64_t anneal, int t)
{
    if (anneal == 0)
        return RATE;
    return t < (int)anneal ? RATE * (1 - 0.9 * t / (double)anneal) : 0.1 * RATE;
}

static void reference_step(struct reference *r, uint64_t anneal, int t, const float *grads)
{
    for (int i = 0; i < N; i++) {
        double g = (double)grads[i];
        r->m[i] = 0.9 * r->m[i] + 0.1 * g;
        r->v[i] = 0.999 * r->v[i] + 0.001 * g * g;
        double m = r->m[i] / (1 - pow(0.9, t)), v = r->v[i] / (1 - pow(0.999, t));
        r->p[i] -= rate(anneal, t) * m / (sqrt(v) + 1e-8);
    }
}

static void compare(double scale, uint64_t anneal)
{
    struct arena memory = {0};
    struct optim optim;
    struct reference r = {0};
    float params[N], grads[N];
    optim_init(&optim, &memory, RATE, anneal, N);
    for (int i = 0; i < N; i++)
        r.p[i] = (double)(params[i] = (float)(2 * rng_unit(&rng) - 1));
    for (int t = 1; t <= STEPS; t++) {
        for (int i = 0; i < N; i++)
            grads[i] = i == 0 ? 0 : (float)(scale * (2 * rng_unit(&rng) - 0.7) * (1 + i % 3));
        optim_step(&optim, params, grads);
        reference_step(&r, anneal, t, grads);
        for (int i = 0; i < N; i++)
            if (fabs((double)params[i] - r.p[i]) > 2e-5)
                fail_msg("parameter %d is %.8g after %d steps and should be %.8g", i, (double)params[i], t, r.p[i]);
    }
    assert_int_equal(optim.steps, STEPS);
    arena_fini(&memory);
}

TEST(adam)
{
    compare(1, 0);
    compare(1e-6, 0);
    compare(1e4, 0);
    compare(1, STEPS / 2);
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

int main(void)
{
    return test_run(seed_rng, NULL);
}
