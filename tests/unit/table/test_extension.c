/* The built-in extensions: statistics, priority diffusion, insert on sample. */

#include "tests/support/testpeer.h"

static double stat(struct testpeer *peer, const char *table, const char *name)
{
    const Replay__TableInfo *info = testpeer_table_info(peer, table);
    for (size_t i = 0; i < info->n_stats; i++)
        if (strcmp(info->stats[i]->name, name) == 0)
            return info->stats[i]->value;
    fail_msg("no figure '%s'", name);
    return 0;
}

static double priority(struct embed *embed, const char *name, uint64_t key)
{
    const struct table *table = embed_table(embed, name);
    uint32_t slot = table_find(table, key);
    assert_true(slot != UINT32_MAX);
    return table->in.items[slot].priority;
}

EMBED_TEST(
    statistics_count_what_happens,
    "  - {name: t, max_size: 3, sampler: {kind: fifo}, remover: {kind: fifo}, limiter: {kind: none}, extensions: "
    "[{kind: statistics}]}\n",
    NULL)
{
    struct testpeer *peer = testpeer_opened(embed, false);
    testpeer_insert(peer, "t", 1, 2, 4);
    testpeer_insert(peer, "t", 3, 1, 1);
    embed_advance(embed, 2000);
    testpeer_sampled(peer, "t", 2);
    testpeer_update(peer, "t", 2, (const uint64_t[]){1, 3}, (const double[]){1, 2});
    testpeer_insert(peer, "t", 4, 2, 1); /* 1 and 2 go, of which 1 was sampled twice */
    embed_settle(embed);
    testpeer_delete(peer, "t", 1, (const uint64_t[]){3});
    char text[400] = "";
    const Replay__TableInfo *info = testpeer_table_info(peer, "t");
    for (size_t i = 0; i < info->n_stats; i++)
        snprintf(text + strlen(text), sizeof text - strlen(text), "%s %g, ", info->stats[i]->name,
                 info->stats[i]->value);
    assert_string_equal(text,
                        "inserted 5, mean_insert_priority 2.2, mean_insert_length 1, mean_insert_bytes 8, sampled 2, "
                        "mean_sample_priority 4, mean_sample_age_s 2, updated 2, mean_update_change 2, deleted 3, "
                        "deleted_never_sampled 2, mean_samples_when_deleted 0.666667, ");
    testpeer_reset(peer, "t");
    assert_true(stat(peer, "t", "inserted") == 0);
}

EMBED_TEST(diffusion_raises_neighbours_of_the_same_episode,
           "  - {name: t, max_size: 100, sampler: {kind: prioritized}, limiter: {kind: none}, extensions: "
           "[{kind: priority_diffusion, radius: 2, decay: 0.5}]}\n",
           NULL)
{
    struct testpeer *peer = testpeer_opened(embed, false), *other = testpeer_opened(embed, false);
    for (uint64_t key = 0; key < 10; key++) {
        peer->episode = key < 6 ? 1 : 2;
        testpeer_insert(peer, "t", key + 1, 1, key == 3 ? 9 : 1);
        testpeer_insert(other, "t", key + 101, 1, 1); /* the same steps of another session */
    }
    embed_settle(embed);
    testpeer_update(peer, "t", 1, (const uint64_t[]){5}, (const double[]){16});
    static const double want[] = {1, 1, 4, 9, 16, 8, 1, 1, 1, 1}; /* key 7 is in the next episode */
    for (uint64_t key = 1; key <= 10; key++) {
        assert_true(priority(embed, "t", key) == want[key - 1]);
        assert_true(priority(embed, "t", key + 100) == 1);
    }
    assert_true(stat(peer, "t", "diffused") == 2);
    assert_int_equal(embed_table(embed, "t")->stats.updates, 1);
    /* A neighbour that has gone, and a slot that another item has taken. */
    testpeer_delete(peer, "t", 2, (const uint64_t[]){4, 6});
    testpeer_inserted(other, "t", 500, 2, 1);
    testpeer_update(peer, "t", 1, (const uint64_t[]){5}, (const double[]){64});
    assert_true(priority(embed, "t", 500) == 1 && priority(embed, "t", 501) == 1 && priority(embed, "t", 3) == 16);
    testpeer_reset(peer, "t");
    testpeer_inserted(peer, "t", 50, 3, 1);
    testpeer_update(peer, "t", 1, (const uint64_t[]){51}, (const double[]){10});
    assert_true(priority(embed, "t", 50) == 5 && priority(embed, "t", 52) == 5);
}

/* Several items begin at the same step (one for each horizon, say): the first stands for it, and never a stale slot. */
EMBED_TEST(diffusion_survives_items_of_the_same_step,
           "  - {name: t, max_size: 100, sampler: {kind: prioritized}, limiter: {kind: none}, extensions: "
           "[{kind: priority_diffusion, radius: 1, decay: 0.5}]}\n",
           NULL)
{
    struct testpeer *peer = testpeer_opened(embed, false);
    uint32_t layout = testpeer_plain(peer, "t");
    uint64_t rows[2] = {1, 2};
    const void *blocks[] = {rows};
    uint64_t chunk = testpeer_chunk(peer, 2, blocks, false);
    for (uint64_t key = 1; key <= 4; key++)
        testpeer_item(peer, layout, key, 1, chunk, key > 2, 1); /* two at each step */
    testpeer_pushed(peer);
    testpeer_delete(peer, "t", 1, (const uint64_t[]){3}); /* the first of its step goes */
    testpeer_update(peer, "t", 1, (const uint64_t[]){1}, (const double[]){8});
    assert_true(priority(embed, "t", 1) == 8 && priority(embed, "t", 2) == 1); /* at the same step, no neighbour */
    assert_true(priority(embed, "t", 4) == 4 || priority(embed, "t", 4) == 1);
    testpeer_insert(peer, "t", 3, 1, 1); /* takes the free slot, at another step */
    embed_settle(embed);
    testpeer_update(peer, "t", 1, (const uint64_t[]){1}, (const double[]){32});
    assert_true(priority(embed, "t", 3) == 1);
}

#define COPYING                                                                                                        \
    "  - {name: t, max_size: 10, sampler: {kind: fifo}, max_times_sampled: 1, limiter: {kind: none}, extensions: "     \
    "[{kind: insert_on_sample, table: often}]}\n"                                                                      \
    "  - {name: often, max_size: 3, sampler: {kind: fifo}, limiter: {kind: queue}}\n"

EMBED_TEST(sampled_items_are_inserted_past_the_limiter_and_counted, COPYING, NULL)
{
    struct testpeer *peer = testpeer_opened(embed, false);
    testpeer_inserted(peer, "t", 1, 5, 2);
    uint64_t waiting = testpeer_waits(peer, testpeer_sample(peer, "often", 1, NO_TIMEOUT, 0));
    testpeer_sampled(peer, "t", 5);
    /* Never waiting, though the queue has place for three; the remover keeps max_size. */
    assert_int_equal(embed_table(embed, "often")->in.size, 3);
    assert_int_equal(embed_table(embed, "often")->limiter.inserts, 5);
    assert_int_equal(embed_table(embed, "t")->in.size, 0);
    struct testpeer_answer *answer = testpeer_good(peer, waiting);
    sampled_check(answer, 0);
    assert_true(stat(peer, "t", "copied") == 5);
    testpeer_settled(peer, 0);
    assert_true(embed->broker->store.chunks == 3 && embed_table(embed, "often")->bytes == 24);
    /* A key that is there stays as it is. */
    testpeer_inserted(peer, "t", 5, 1, 99);
    testpeer_sampled(peer, "t", 1);
    assert_true(stat(peer, "t", "not_copied") == 1);
    assert_true(priority(embed, "often", 5) == 2);
}

/* Every mistake is found when the configuration is read (--check), not when the broker starts, and none is passed over. */
TEST(mistakes_in_extensions_are_reported_with_their_place)
{
    static const struct {
        const char *extension, *part;
    } rows[] = {
        {"{kind: statistic}", "did you mean 'statistics'"},
        {"{kind: nonsense}", "nonsense"},
        {"{kind: statistics, x: 1}", "'x'"},
        {"{kind: priority_diffusion, radius: 0}", "radius"},
        {"{kind: priority_diffusion, decay: 2}", "decay"},
        {"{kind: priority_diffusion, depth: 1}", "depth"},
        {"{kind: insert_on_sample}", "table"},
        {"{kind: insert_on_sample, table: nowhere}", "nowhere"},
        {"{kind: insert_on_sample, table: t}", "another table"},
    };
    for (uint32_t i = 0; i < sizeof rows / sizeof rows[0]; i++)
        HAS(embed_problems(textf("tables:\n  - name: t\n    extensions: [%s]\n", rows[i].extension)),
            "test.yaml:3:", rows[i].part);
}
