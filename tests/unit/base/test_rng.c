
#include "tests/support/naive.h"

/* First outputs of the published reference for the state {1, 2, 3, 4}. */
TEST(matches_the_reference)
{
    static const uint64_t expected[] = {UINT64_C(41943041), UINT64_C(58720359), UINT64_C(3588806011781223),
                                        UINT64_C(3591011842654386)};
    struct rng rng = {{1, 2, 3, 4}};
    for (size_t i = 0; i < 4; i++)
        assert_true(rng_next(&rng) == expected[i]);
    /* splitmix64 from 0 */
    rng_seed(&rng, 0);
    assert_true(rng.s[0] == UINT64_C(0xe220a8397b1dcdaf));
    assert_true(rng.s[1] == UINT64_C(0x6e789e6aa1b965f4));
}

TEST(below_is_uniform)
{
    struct rng rng = rng_of(1);
    for (int i = 0; i < 100; i++)
        assert_true(rng_below(&rng, 1) == 0);
    /* 2/3 of the range: taking the remainder would hit the lower half of it twice as often. */
    uint64_t n = UINT64_C(0xaaaaaaaaaaaaaaaa);
    int low = 0;
    for (int i = 0; i < 20000; i++) {
        uint64_t x = rng_below(&rng, n);
        assert_true(x < n);
        low += x < n / 2;
    }
    assert_in_range(low, 9700, 10300);
    /* Chi-square over 10 bins, 9 degrees of freedom: 27.9 is the 0.1% point; the seed is fixed. */
    double bins[10] = {0}, chi = 0;
    for (int i = 0; i < 100000; i++)
        bins[rng_below(&rng, 10)]++;
    for (int i = 0; i < 10; i++)
        chi += (bins[i] - 10000) * (bins[i] - 10000) / 10000;
    assert_true(chi < 27.9);
}

TEST(unit_is_in_range)
{
    struct rng rng = rng_of(3);
    double sum = 0;
    for (int i = 0; i < 100000; i++) {
        double x = rng_unit(&rng);
        assert_true(x >= 0 && x < 1);
        sum += x;
    }
    assert_true(sum > 49500 && sum < 50500);
    /* The largest output must not round up to 1. */
    struct rng all = {{0, 0, 0, UINT64_MAX}};
    assert_true(rng_unit(&all) < 1);
}

TEST(system_bytes_differ)
{
    unsigned char a[600] = {0}, b[600] = {0}, zero[600] = {0};
    rng_system(a, sizeof a);
    rng_system(b, sizeof b);
    assert_memory_not_equal(a, b, sizeof a);
    assert_memory_not_equal(a + 500, zero, 100);
    rng_system(zero, 0);
}

TEST(normals_have_their_moments)
{
    enum { PAIRS = 100000 };
    struct rng rng;
    double sum = 0, square = 0, fourth = 0, product = 0;
    rng_seed(&rng, 5);
    for (int i = 0; i < PAIRS; i++) {
        double x[2];
        rng_normals(&rng, x);
        for (int k = 0; k < 2; k++) {
            sum += x[k];
            square += x[k] * x[k];
            fourth += x[k] * x[k] * x[k] * x[k];
        }
        product += x[0] * x[1];
    }
    assert_true(sum / (2 * PAIRS) > -0.01 && sum / (2 * PAIRS) < 0.01);
    assert_true(square / (2 * PAIRS) > 0.98 && square / (2 * PAIRS) < 1.02);
    assert_true(fourth / (2 * PAIRS) > 2.9 && fourth / (2 * PAIRS) < 3.1);
    assert_true(product / PAIRS > -0.02 && product / PAIRS < 0.02);
}
