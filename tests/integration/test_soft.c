/* Soft capacity: the table grows past max_size, and the surplus is removed from time to time, all of it at once for
 * those who look and in slices for the loop. */

#include "tests/support/testpeer.h"

#define SOFT                                                                                                           \
    "  - {name: t, max_size: 1000, soft_capacity: true, sampler: {kind: fifo}, remover: {kind: "                       \
    "fifo}, limiter: {kind: none}}\n"

static void fill(struct testpeer *peer, uint64_t first, uint32_t n)
{
    for (uint32_t i = 0; i < n; i += 50) {
        testpeer_insert(peer, "t", first + i, n - i < 50 ? n - i : 50, 1);
        testpeer_heartbeat(peer, 0, false);
        testpeer_forget(peer);
    }
}

EMBED_TEST(the_surplus_stays_until_the_interval_is_over, SOFT, NULL)
{
    struct testpeer *peer = testpeer_opened(embed, false);
    struct table *table = embed_table(embed, "t");
    fill(peer, 1, 1200);
    assert_int_equal(table->in.size, 1200);
    assert_int_equal(table->stats.evicted, 0);
    embed_advance(embed, 900);
    assert_int_equal(table->in.size, 1200);
    testpeer_heartbeat(peer, 0, false);
    embed_advance(embed, 101);
    assert_int_equal(table->in.size, 1000);
    assert_int_equal(table->stats.evicted, 200);
    assert_int_equal(table->limiter.deletes, 200);
    assert_int_equal(table_find(table, 200), UINT32_MAX);
    assert_true(table_find(table, 201) != UINT32_MAX);
    fill(peer, 5000, 100);
    embed_advance(embed, 1001);
    assert_int_equal(table->in.size, 1000);
}

/* A writer faster than the interval: never more than a quarter above max_size. */
EMBED_TEST(growth_is_bounded, SOFT, NULL)
{
    struct testpeer *peer = testpeer_opened(embed, false);
    struct table *table = embed_table(embed, "t");
    for (uint64_t i = 0; i < 30; i++) {
        fill(peer, 1 + i * 100, 100);
        assert_true(table->in.size <= 1251);
    }
    assert_true(table->in.size >= 1249);
    assert_int_equal(embed->broker->store.chunks, table->in.size);
}

EMBED_TEST(a_reset_during_the_removal_leaves_new_items_alone, SOFT, NULL)
{
    struct testpeer *peer = testpeer_opened(embed, false);
    fill(peer, 1, 1240);
    struct table *table = embed_table(embed, "t");
    table_remove_surplus(table);
    table_remove_surplus(table); /* under way: not twice */
    assert_non_null(embed->broker->loop.chores.first);
    assert_int_equal(table_reset(table, NULL), RP_OK);
    testpeer_insert(peer, "t", 9000, 50, 1);
    embed_settle(embed);
    assert_int_equal(table->in.size, 50);
    assert_false(table->removing);
}
