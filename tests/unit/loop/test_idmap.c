
#include "broker/loop/idmap.h"
#include "tests/support/naive.h"

#define N 3000u

TEST(empty_knows_nothing)
{
    struct idmap map = {0};
    assert_null(idmap_get(&map, 0));
    idmap_remove(&map, 7);
    int a, b;
    idmap_put(&map, 0, &a);
    assert_ptr_equal(idmap_get(&map, 0), &a);
    idmap_put(&map, 0, &b); /* replaces */
    assert_ptr_equal(idmap_get(&map, 0), &b);
    assert_int_equal(map.count, 1);
    idmap_fini(&map);
    assert_null(idmap_get(&map, 0));
}

/* Ids that crowd together, so that removals have to close holes. */
TEST(random_use_matches_an_array)
{
    struct rng rng = naive_rng(__func__);
    struct idmap map = {0};
    static char values[N];
    static bool present[N];
    for (uint32_t step = 0; step < 60000; step++) {
        uint32_t i = (uint32_t)rng_below(&rng, step % 20000 < 10000 ? N : 100);
        uint64_t id = i % 3 == 0 ? i : i % 3 == 1 ? (uint64_t)i << 32 : i * UINT64_C(0x9E3779B97F4A7C15);
        if (rng_below(&rng, 2)) {
            idmap_put(&map, id, &values[i]);
            present[i] = true;
        } else {
            idmap_remove(&map, id);
            present[i] = false;
        }
        uint32_t j = (uint32_t)rng_below(&rng, N);
        uint64_t other = j % 3 == 0 ? j : j % 3 == 1 ? (uint64_t)j << 32 : j * UINT64_C(0x9E3779B97F4A7C15);
        assert_ptr_equal(idmap_get(&map, other), present[j] ? &values[j] : NULL);
    }
    uint32_t count = 0;
    for (uint32_t i = 0; i < N; i++)
        count += present[i];
    assert_int_equal(map.count, count);
    idmap_fini(&map);
}
