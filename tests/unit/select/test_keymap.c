

#include "broker/select/keymap.h"
#include "proto/base/rng.h"
#include "tests/support/naive.h"

#if defined(__SANITIZE_ADDRESS__)
#define MILLION 125000u
#else
#define MILLION 1000000u
#endif

/* ---- against an array: the map holds keys out of a pool, and the array tells the slot of each */

enum { POOL = 6000 };

static void fill_pool(uint64_t *pool, struct rng *rng)
{
    static const uint64_t extreme[] = {0, 1, 15, 16, UINT64_MAX, UINT64_MAX - 1, UINT64_MAX - 16, UINT64_C(1) << 63};
    uint64_t base = rng_next(rng);
    for (uint32_t i = 0; i < POOL; i++) {
        if (i < 8)
            pool[i] = extreme[i];
        else if (i % 3 == 0)
            pool[i] = base + i;
        else if (i % 3 == 1)
            pool[i] = (uint64_t)i << 40 | 5;
        else
            pool[i] = rng_next(rng) | UINT64_C(1) << 62;
    }
}

static void check_all(const struct keymap *map, const uint64_t *pool, const uint32_t *slots)
{
    uint32_t found[POOL];
    for (uint32_t n = 0; n < 80; n++) { /* shorter than what is fetched ahead, and longer */
        found[n] = KEYMAP_NONE - 1;
        keymap_get_many(map, n, pool, found);
        assert_int_equal(found[n], KEYMAP_NONE - 1);
        for (uint32_t i = 0; i < n; i++)
            assert_int_equal(found[i], slots[i]);
    }
    keymap_get_many(map, POOL, pool, found);
    for (uint32_t i = 0; i < POOL; i++) {
        assert_int_equal(keymap_get(map, pool[i]), slots[i]);
        assert_int_equal(found[i], slots[i]);
    }
}

/* Grows and shrinks in turn, so that removal meets a directory that is moving. Half of the keys are neighbours of the one before
 * (every third of the pool is): the map remembers the entry that it used last. */
TEST(random_operations_match_an_array)
{
    struct rng rng = naive_rng("keymap");
    uint64_t pool[POOL];
    uint32_t slots[POOL];
    for (int run = 0; run < 10; run++) {
        struct keymap *map = keymap_new(NULL);
        fill_pool(pool, &rng);
        for (uint32_t i = 0; i < POOL; i++)
            slots[i] = KEYMAP_NONE;
        for (uint32_t step = 0, i = 0; step < 40000; step++) {
            i = rng_below(&rng, 2) ? (i + 3) % POOL : (uint32_t)rng_below(&rng, POOL);
            bool grow = rng_below(&rng, 10) < (step / 10000 % 2 ? 2u : 7u);
            if (grow) {
                uint32_t slot = i < 8 && step % 2 ? KEYMAP_NONE - 1 - i : (uint32_t)rng_below(&rng, KEYMAP_NONE);
                assert_int_equal(keymap_put(map, pool[i], slot), slots[i] == KEYMAP_NONE);
                slots[i] = slots[i] == KEYMAP_NONE ? slot : slots[i];
            } else {
                assert_int_equal(keymap_remove(map, pool[i]), slots[i]);
                slots[i] = KEYMAP_NONE;
            }
            if (step % 4000 == 0)
                check_all(map, pool, slots);
        }
        check_all(map, pool, slots);
        for (uint32_t i = 0; i < POOL; i++)
            assert_int_equal(keymap_remove(map, pool[i]), slots[i]);
        keymap_destroy(&map);
    }
}

static uint64_t key_at(uint32_t i, bool in_order)
{
    return in_order ? (UINT64_C(77) << 40) + i : (i + 1) * UINT64_C(0x9e3779b97f4a7c15);
}

/* Every map has a seed of its own, so that many small ones go through growth in many ways. */
TEST(every_key_is_found_while_moving)
{
    enum { MAPS = 300, BLOCKS = 600 };
    for (uint32_t m = 0; m < MAPS; m++) {
        struct keymap *map = keymap_new(NULL);
        for (uint32_t n = 0; n < BLOCKS; n++) {
            assert_true(keymap_put(map, (uint64_t)n * 16, n));
            if (m % 2 && n % 5 == 4) /* some go in between */
                assert_int_equal(keymap_remove(map, (uint64_t)(n - 3) * 16), n - 3);
            bool near_growth = (n > 120 && n < 150) || (n > 250 && n < 300) || n % 64 == 0;
            for (uint32_t i = 0; near_growth && i <= n; i++) {
                bool gone = m % 2 && i % 5 == 1 && i + 3 <= n;
                assert_int_equal(keymap_get(map, (uint64_t)i * 16), gone ? KEYMAP_NONE : i);
            }
        }
        keymap_destroy(&map);
    }
}

TEST(growth_is_spread_over_the_inserts)
{
    for (int in_order = 0; in_order < 2; in_order++) {
        struct keymap *map = keymap_new(NULL);
        for (uint32_t i = 0; i < MILLION + MILLION / 2; i++)
            assert_true(keymap_put(map, key_at(i, in_order), i));
        print_message("%s keys: %u entries moved at most by one insert, %zu bytes reserved\n",
                      in_order ? "consecutive" : "random", keymap_most_moved(map), keymap_bytes(map));
        assert_true(keymap_most_moved(map) > 0);
        assert_true(keymap_most_moved(map) <= 256);
        for (uint32_t i = 0; i < MILLION; i += 97)
            assert_int_equal(keymap_get(map, key_at(i, in_order)), i);
        keymap_destroy(&map);
    }
}

/* First in, first out, at a constant size: a broker that runs for days. */
TEST(memory_of_removed_keys_is_used_again)
{
    enum { HELD = 20000 };
    struct keymap *map = keymap_new(NULL);
    size_t settled = 0;
    for (uint32_t i = 0; i < 40 * HELD; i++) {
        assert_true(keymap_put(map, key_at(i, true), i % HELD));
        if (i >= HELD)
            assert_int_equal(keymap_remove(map, key_at(i - HELD, true)), i % HELD);
        if (i == 4 * HELD)
            settled = keymap_bytes(map);
    }
    assert_int_equal(keymap_bytes(map), settled);
    assert_true(settled < HELD * 20);
    keymap_destroy(&map);
}
