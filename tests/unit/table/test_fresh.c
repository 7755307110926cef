/* Tables with max_lag: what may be sampled, and what the limiter lets in, while versions come and items leave. */

#include "tests/support/testpeer.h"

static void put(struct testpeer *peer)
{
    testpeer_put(peer, "policy", 0, "w", 1);
}

static void write_items(struct testpeer *writer, const char *table, uint64_t version, uint64_t first, uint32_t n)
{
    writer->policy = version;
    for (uint32_t i = 0; i < n; i += 50) {
        testpeer_insert(writer, table, first + i, n - i < 50 ? n - i : 50, 1);
        testpeer_heartbeat(writer, 0, false); /* allows more */
    }
}

/* Of two requests that are read in the same turn, the second sees the items that the first has made too old. */
EMBED_TEST(nobody_samples_what_has_yet_to_leave,
           "  - {name: t, max_lag: 0, limiter: {kind: none}}\n"
           "  - {name: ratio, max_lag: 0, limiter: {kind: sample_to_insert_ratio, samples_per_insert: 4, error_buffer: "
           "4000}}\n",
           NULL)
{
    static const char *const tables[] = {"t", "ratio"};
    static const int flags[] = {0, PAID, PAID | DISTINCT, FLEXIBLE};
    struct testpeer *peer = testpeer_new(embed), *writer = testpeer_opened(embed, false);
    uint64_t version = 0, key = 1;
    for (uint32_t i = 0; i < 8; i++, key += 600) {
        put(peer);
        embed_settle(embed);
        write_items(writer, tables[i % 2], ++version, key, 600);
        assert_int_equal(embed_table(embed, tables[i % 2])->in.size, 600);
        put(peer);
        version++;
        uint64_t id = testpeer_sample(peer, tables[i % 2], 8, 0, flags[i / 2]);
        const struct testpeer_answer *answer = testpeer_await(peer, id);
        assert_int_equal(answer->status == RP_OK ? answer->reply->sample->n_key : 0, 0);
        embed_settle(embed);
        assert_int_equal(embed_table(embed, tables[i % 2])->in.size, 0);
        testpeer_forget(peer);
    }
}

/* The items that leave for max_bytes are those that are too old, and a queue gets their places back. */
EMBED_TEST(what_is_too_old_makes_room_first,
           "  - {name: t, sampler: {kind: fifo}, max_times_sampled: 1, max_size: 1000, max_bytes: 4000, max_lag: 0, "
           "limiter: {kind: queue}}\n",
           NULL)
{
    struct testpeer *peer = testpeer_new(embed), *writer = testpeer_opened(embed, false);
    const struct table *table = embed_table(embed, "t");
    put(peer);
    for (uint64_t version = 1; version < 6; version++) {
        write_items(writer, "t", version, version * 1000, 500 - table->in.size);
        assert_int_equal(table->in.size, 500);
        put(peer); /* read in one turn with the first items that follow */
        write_items(writer, "t", version + 1, version * 1000 + 500, 40);
        assert_int_equal(table->in.size, 40);
        assert_true(limiter_cursor(&table->limiter) == 40.0);
        assert_int_equal(table->stats.stale, version * 500);
        assert_int_equal(table->stats.evicted, 0);
    }
}
