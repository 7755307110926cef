/* Histograms against a plain list of values. */

#include "broker/loop/histogram.h"
#include "tests/support/naive.h"

TEST(bounds_are_where_they_are_said_to_be)
{
    for (uint32_t b = 0; b < 64; b++) {
        uint64_t bound = histogram_bound(b);
        assert_int_equal(histogram_bucket(bound), b);
        assert_int_equal(histogram_bucket(bound + 1), b + 1);
    }
    assert_int_equal(histogram_bucket(UINT64_MAX), 64);
    assert_true(histogram_bound(64) == UINT64_MAX);
}

TEST(a_clock_that_went_backwards_counts_as_no_time)
{
    struct histogram histogram = {0};
    histogram_add_ns(&histogram, -5, 3);
    assert_int_equal(histogram.counts[0], 3);
    assert_true(histogram.sum == 0);
}

static int by_value(const void *a, const void *b)
{
    uint64_t left = *(const uint64_t *)a, right = *(const uint64_t *)b;
    return left < right ? -1 : left > right;
}

TEST(counts_sums_and_quantiles_are_those_of_the_list)
{
    struct rng rng = naive_rng("histogram");
    for (uint32_t round = 0; round < 200; round++) {
        struct histogram histogram = {0};
        uint64_t list[500], sum = 0;
        uint32_t n = 0, wanted = 1 + (uint32_t)(rng_next(&rng) % 500);
        while (n < wanted) {
            uint64_t value = rng_next(&rng) >> (16 + rng_next(&rng) % 48), times = 1 + rng_next(&rng) % 3;
            times = times > wanted - n ? wanted - n : times;
            histogram_add(&histogram, value, times);
            for (uint64_t i = 0; i < times; i++, sum += value)
                list[n++] = value;
        }
        qsort(list, n, sizeof *list, by_value);
        assert_int_equal(histogram_count(&histogram), n);
        assert_int_equal(histogram_used(&histogram), histogram_bucket(list[n - 1]) + 1);
        assert_true(histogram.sum > (double)sum * (1 - 1e-12) - 1 && histogram.sum < (double)sum * (1 + 1e-12) + 1);
        uint64_t below = 0;
        for (uint32_t b = 0, at = 0; b < HISTOGRAM_BUCKETS; b++) {
            below += histogram.counts[b];
            while (at < n && list[at] <= histogram_bound(b))
                at++;
            assert_int_equal(below, at);
        }
        for (uint32_t percent = 1; percent <= 100; percent += 11) {
            uint32_t rank = (percent * n + 99) / 100;
            uint64_t exact = list[rank - 1], shown = histogram_quantile(&histogram, percent / 100.0 - 1e-12);
            assert_true(shown >= exact && shown / 2 <= exact);
        }
    }
}

TEST(an_empty_one_has_no_quantiles)
{
    struct histogram histogram = {0};
    assert_int_equal(histogram_quantile(&histogram, 0.5), 0);
    assert_int_equal(histogram_count(&histogram), 0);
    assert_int_equal(histogram_used(&histogram), 0);
}
