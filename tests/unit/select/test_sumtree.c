
#include <float.h>

#include "broker/select/slotset.h"
#include "broker/select/sumtree.h"
#include "tests/support/naive.h"

#if defined(__SANITIZE_ADDRESS__)
#define MANY 300000
#else
#define MANY 3000000
#endif

static const uint32_t capacities[] = {1, 2, 15, 16, 17, 100, 255, 256, 257, 1000, 4096, 4097, 70000};
#define N_CAPACITIES (sizeof capacities / sizeof capacities[0])

static struct sumtree make(uint32_t capacity)
{
    struct sumtree tree;
    sumtree_init(&tree, capacity);
    return tree;
}

/* A generator whose next unit number is the largest there is, 1 - 2^-53. */
static struct rng rng_at_the_end(void)
{
    return (struct rng){.s = {UINT64_MAX, 0, 0, 1}};
}

static long double leaf_sum(const struct sumtree *tree)
{
    long double sum = 0.0L;
    for (uint32_t i = 0; i < tree->capacity; i++)
        sum += (long double)tree->leaves[i];
    return sum;
}

static uint32_t leaf_count(const struct sumtree *tree)
{
    uint32_t count = 0;
    for (uint32_t i = 0; i < tree->capacity; i++)
        count += tree->leaves[i] != 0.0f;
    return count;
}

/* Each sum against those below it, in parts of the total: what a probability can be wrong by. */
static double worst_sum(struct sumtree *tree)
{
    double worst = 0.0, total = sumtree_total(tree);
    uint64_t nodes = ((uint64_t)tree->capacity + 15) / 16;
    for (uint32_t l = 0; l < tree->levels; l++) {
        for (uint64_t i = 0; i < nodes; i++) {
            double sum = 0.0;
            for (uint32_t k = 0; k < 16; k++)
                sum += l ? tree->level[l - 1][16 * i + k] : (double)tree->leaves[16 * i + k];
            worst = fmax(worst, fabs(sum - tree->level[l][i]));
        }
        nodes = (nodes + 15) / 16;
    }
    return worst / total;
}

static void assert_picks_valid(struct sumtree *tree, struct rng *rng, uint32_t n)
{
    uint32_t slots[300];
    sumtree_pick(tree, rng, n, slots);
    for (uint32_t i = 0; i < n; i++) {
        assert_true(slots[i] < tree->capacity);
        assert_true(sumtree_get(tree, slots[i]) > 0.0f);
    }
}

TEST(random_changes_keep_sums_right)
{
    struct rng rng = naive_rng("sumtree");
    for (uint32_t c = 0; c < N_CAPACITIES; c++) {
        struct sumtree tree = make(capacities[c]);
        /* Weights from 1e-30 to 1e30 in one run, narrow in the next. */
        double spread = c % 2 ? 2.0 : 69.0;
        for (uint32_t step = 1; step <= 20000; step++) {
            uint32_t slot = (uint32_t)rng_below(&rng, tree.capacity);
            double weight = rng_below(&rng, 4) ? exp(spread * (2.0 * rng_unit(&rng) - 1.0)) : 0.0;
            sumtree_set(&tree, slot, (float)weight);
            if (step % 5000 == 0 && tree.nonzero > 0) {
                assert_int_equal(tree.nonzero, leaf_count(&tree));
                long double sum = leaf_sum(&tree);
                assert_true(fabsl(sum - (long double)sumtree_total(&tree)) <= 1e-9L * sum);
                assert_true(worst_sum(&tree) < 1e-9);
                assert_picks_valid(&tree, &rng, 300);
            }
        }
        sumtree_fini(&tree);
    }
}

TEST(sums_do_not_drift)
{
    struct rng rng = rng_of(1);
    struct sumtree tree = make(5000);
    for (uint32_t step = 0; step < MANY; step++)
        sumtree_set(&tree, (uint32_t)rng_below(&rng, 5000), (float)(rng_unit(&rng) * 1e3));
    assert_true(worst_sum(&tree) < 1e-12);
    for (uint32_t slot = 0; slot < 5000; slot++)
        sumtree_set(&tree, slot, 0.0f);
    assert_int_equal(tree.nonzero, 0);
    assert_true(sumtree_total(&tree) == 0.0);
    for (uint32_t i = 0; i < (5000 + 15) / 16; i++)
        assert_true(tree.level[0][i] == 0.0);
    assert_true(tree.level[tree.levels - 1][0] == 0.0);
    sumtree_fini(&tree);
}

/* One weight of 1e38 makes all others vanish in the sums above it; they must come back when it goes. */
TEST(a_spike_leaves_nothing_behind)
{
    struct rng rng = rng_of(2);
    struct sumtree tree = make(5000);
    for (uint32_t slot = 0; slot < 5000; slot++)
        sumtree_set(&tree, slot, 1.0f);
    sumtree_set(&tree, 77, 1e38f);
    for (uint32_t slot = 0; slot < 5000; slot++) {
        if (slot != 77)
            sumtree_set(&tree, slot, 2.0f);
    }
    sumtree_set(&tree, 77, 1.0f);
    assert_true(fabs(sumtree_total(&tree) - 9999.0) < 1e-6);
    assert_true(worst_sum(&tree) < 1e-9);

    /* Going down by little steps hides the loss from a look at one step. */
    float weight = 1e38f;
    while (weight > 1.0f) {
        weight *= 0.93f;
        sumtree_set(&tree, 77, weight);
        for (uint32_t i = 0; i < 8; i++)
            sumtree_set(&tree, 100 + (uint32_t)rng_below(&rng, 4900), 3.0f);
    }
    for (uint32_t i = 0; i < 200; i++)
        sumtree_set(&tree, 100 + i, 3.0f);
    assert_true(fabs(sumtree_total(&tree) / (double)leaf_sum(&tree) - 1.0) < 1e-9);
    assert_true(worst_sum(&tree) < 1e-6);
    sumtree_fini(&tree);
}

TEST(the_largest_draw_stays_inside)
{
    struct rng random;
    rng_seed(&random, 3);
    for (uint32_t c = 0; c < N_CAPACITIES; c++) {
        for (uint32_t run = 0; run < 60; run++) {
            struct sumtree tree = make(capacities[c]);
            uint32_t leaves = 1 + (uint32_t)rng_below(&random, run % 2 ? 3 : tree.capacity);
            for (uint32_t i = 0; i < leaves; i++)
                sumtree_set(&tree, (uint32_t)rng_below(&random, tree.capacity), 0.1f + (float)rng_unit(&random));
            struct rng rng = rng_at_the_end();
            assert_true(rng_unit(&rng) == 1.0 - 0x1p-53);
            rng = rng_at_the_end();
            assert_picks_valid(&tree, &rng, 1);
            sumtree_fini(&tree);
        }
    }
}

TEST(damaged_sums_never_give_an_empty_leaf)
{
    struct rng rng = naive_rng("sumtree, damaged sums");
    for (uint32_t run = 0; run < 50; run++) {
        struct sumtree tree = make(4097);
        for (uint32_t i = 0; i < 40; i++)
            sumtree_set(&tree, (uint32_t)rng_below(&rng, 4097), 1.0f);
        sumtree_total(&tree); /* makes all levels, which are damaged next */
        for (uint32_t i = 0; i < 100; i++)
            tree.level[0][rng_below(&rng, 257)] = rng_below(&rng, 2) ? 1e6 : -1e-3;
        tree.level[1][16] = 1e9;
        tree.level[tree.levels - 1][0] = run % 2 ? 1e12 : 1e-12;
        for (uint32_t i = 0; i < 5; i++)
            assert_picks_valid(&tree, &rng, 256);
        sumtree_rebuild(&tree);
        assert_true(sumtree_total(&tree) == (double)tree.nonzero);
        sumtree_fini(&tree);
    }
}

TEST(extreme_weights_work)
{
    struct rng rng = rng_of(4);
    struct sumtree tree = make(1000);
    uint32_t slots[4];
    sumtree_set(&tree, 999, FLT_MIN);
    assert_picks_valid(&tree, &rng, 300);
    for (uint32_t slot = 0; slot < 999; slot++)
        sumtree_set(&tree, slot, FLT_MAX);
    assert_true(isfinite(sumtree_total(&tree)));
    assert_picks_valid(&tree, &rng, 300);
    for (uint32_t slot = 0; slot < 999; slot++)
        sumtree_set(&tree, slot, 0.0f);
    assert_int_equal(tree.nonzero, 1);
    assert_true(sumtree_total(&tree) == (double)FLT_MIN);
    sumtree_pick(&tree, &rng, 4, slots);
    assert_int_equal(slots[3], 999);
    sumtree_fini(&tree);
}

TEST(many_weights_are_set_as_one_by_one)
{
    struct rng rng = rng_of(8);
    for (uint32_t c = 0; c < N_CAPACITIES; c++) {
        struct sumtree tree = make(capacities[c]), twin = make(capacities[c]);
        for (uint32_t round = 0; round < 20; round++) {
            uint32_t slots[300], n = (uint32_t)rng_below(&rng, 301);
            float weights[300];
            for (uint32_t i = 0; i < n; i++) {
                slots[i] = (uint32_t)rng_below(&rng, capacities[c]); /* some stand there twice */
                weights[i] = rng_below(&rng, 4) ? (float)exp(40 * rng_unit(&rng) - 20) : 0.0f;
                sumtree_set(&twin, slots[i], weights[i]);
            }
            sumtree_set_many(&tree, n, slots, weights);
            assert_int_equal(memcmp(tree.leaves, twin.leaves, tree.bytes), 0);
            assert_int_equal(tree.nonzero, twin.nonzero);
            assert_int_equal(tree.until_exact, twin.until_exact);
        }
        sumtree_fini(&tree);
        sumtree_fini(&twin);
    }
}

TEST(picks_follow_the_weights)
{
    struct rng rng = rng_of(5);
    for (uint32_t c = 0; c < N_CAPACITIES; c++) {
        uint32_t capacity = capacities[c];
        struct sumtree tree = make(capacity);
        uint64_t *observed = calloc(capacity, sizeof *observed);
        double *probability = calloc(capacity, sizeof *probability);
        uint32_t slots[256];
        for (uint32_t i = 0; i < capacity; i++)
            sumtree_set(&tree, i, i % 5 ? 0.2f + (float)rng_unit(&rng) : (i == 0 ? 1.0f : 0.0f));
        double sum = (double)leaf_sum(&tree);
        for (uint32_t i = 0; i < capacity; i++)
            probability[i] = (double)tree.leaves[i] / sum;
        uint64_t batches = 100 + capacity / 4;
        for (uint64_t batch = 0; batch < batches; batch++) {
            sumtree_pick(&tree, &rng, 256, slots);
            for (uint32_t i = 0; i < 256; i++)
                observed[slots[i]]++;
        }
        double deviation = naive_chi_square(observed, probability, capacity, 256 * batches);
        if (fabs(deviation) > 4.0)
            fail_msg("capacity %u: chi-square is %.1f standard deviations off", capacity, deviation);
        free(observed);
        free(probability);
        sumtree_fini(&tree);
    }
}

/* As large as a table of the most items that may grow by a quarter. */
TEST(one_pick_from_the_largest_tree)
{
    enum { SLOT = 1u << 30 };
    struct rng rng = rng_of(6);
    struct sumtree tree;
    uint32_t slot = 0;
    sumtree_init(&tree, SLOT + SLOT / 4);
    sumtree_set(&tree, SLOT, 1.0f);
    sumtree_pick(&tree, &rng, 1, &slot);
    assert_int_equal(slot, SLOT);
    sumtree_fini(&tree);
}

TEST(slotset_finds_the_nth)
{
    enum { CAPACITY = 10000 };
    struct rng rng = naive_rng("slotset");
    struct slotset set;
    static bool there[CAPACITY];
    slotset_init(&set, CAPACITY);
    for (uint32_t step = 0; step < 30000; step++) {
        uint32_t slot = (uint32_t)rng_below(&rng, step % 10 ? CAPACITY : 70);
        assert_int_equal(slotset_has(&set, slot), there[slot]);
        if (there[slot])
            slotset_remove(&set, slot);
        else
            slotset_add(&set, slot);
        there[slot] = !there[slot];
    }
    uint32_t k = 0;
    for (uint32_t slot = 0; slot < CAPACITY; slot++) {
        if (there[slot])
            assert_int_equal(slotset_nth(&set, k++), slot);
    }
    assert_int_equal(set.count, k);
    slotset_fini(&set);
}
