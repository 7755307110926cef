

#include "broker/store/slab.h"
#include "proto/base/rng.h"
#include "tests/support/naive.h"

TEST(every_size_is_aligned_and_its_own)
{
    struct slab_heap *heap = slab_heap_new(true);
    assert_non_null(heap);
    size_t used = 0;
    for (size_t size = 0; size <= SLAB_MAX_BYTES; size += size < 1100 ? 1 : 97) {
        uint8_t *a = slab_alloc(heap, size), *b = slab_alloc(heap, size);
        assert_int_equal((uintptr_t)a % 16, 0);
        assert_int_equal((uintptr_t)b % 16, 0);
        memset(a, 0xaa, size);
        memset(b, 0xbb, size);
        for (size_t i = 0; i < size; i++)
            assert_int_equal(a[i], 0xaa);
        assert_true(slab_bytes(heap)->used >= used + 2 * size);
        assert_true(slab_bytes(heap)->reserved >= slab_bytes(heap)->used);
        /* Never more than an eighth is lost to rounding, and a quarter to the end of a slab. */
        assert_true(slab_bytes(heap)->used - used <= 2 * (size + size / 8 + 16) * 4 / 3);
        used = slab_bytes(heap)->used;
    }
    assert_non_null(slab_alloc(heap, SLAB_MAX_BYTES));
    slab_heap_destroy(&heap);
    assert_null(heap);
}

TEST(what_is_freed_is_used_again)
{
    struct slab_heap *heap = slab_heap_new(true);
    void *objects[5000];
    for (uint32_t i = 0; i < 5000; i++)
        objects[i] = slab_alloc(heap, 400);
    size_t reserved = slab_bytes(heap)->reserved;
    assert_true(slab_bytes(heap)->used + 65536 > reserved); /* full slabs count as a whole */
    for (uint32_t round = 0; round < 20; round++) {
        for (uint32_t i = round % 3; i < 5000; i += 3)
            slab_free(heap, objects[i]);
        for (uint32_t i = round % 3; i < 5000; i += 3)
            objects[i] = slab_alloc(heap, 400);
        assert_int_equal(slab_bytes(heap)->reserved, reserved);
    }
    for (uint32_t i = 0; i < 5000; i++)
        slab_free(heap, objects[i]);
    assert_int_equal(slab_bytes(heap)->used, 0);
    assert_int_equal(slab_bytes(heap)->reserved, 0);
    slab_heap_destroy(&heap);
}

/* Random sizes in random order; each object keeps a pattern of its own until it is freed. */
TEST(random_use_damages_nothing)
{
    struct rng rng = naive_rng(__func__);
    struct slab_heap *heap = slab_heap_new(true);
    struct {
        uint8_t *data;
        size_t size;
        uint8_t mark;
    } *live = calloc(4000, sizeof *live);
    for (uint32_t step = 0; step < 60000; step++) {
        uint32_t i = (uint32_t)rng_below(&rng, step < 30000 ? 4000 : 40);
        if (live[i].data) {
            for (size_t b = 0; b < live[i].size; b += 61)
                assert_int_equal(live[i].data[b], live[i].mark);
            slab_free(heap, live[i].data);
            live[i].data = NULL;
        } else {
            live[i].size = 1 + rng_below(&rng, rng_below(&rng, 2) ? 500 : SLAB_MAX_BYTES);
            live[i].mark = (uint8_t)step;
            live[i].data = slab_alloc(heap, live[i].size);
            memset(live[i].data, live[i].mark, live[i].size);
        }
    }
    for (uint32_t i = 0; i < 4000; i++)
        if (live[i].data)
            slab_free(heap, live[i].data);
    assert_int_equal(slab_bytes(heap)->used, 0);
    assert_int_equal(slab_bytes(heap)->reserved, 0);
    free(live);
    slab_heap_destroy(&heap);
}
