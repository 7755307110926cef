/* Flow control: what a session may send, what happens beyond it, and who does not notice. */

#include "tests/support/testpeer.h"

#define TWO_TABLES                                                                                                     \
    "  - {name: blocked, max_size: 2, sampler: {kind: fifo}, limiter: {kind: queue}}\n"                                \
    "  - {name: open, max_size: 100000, sampler: {kind: fifo}, limiter: {kind: none}}\n"

/* What a careful client does: sends if the credit allows it, or one item if none of that table is unresolved. */
static bool may_send(const struct testpeer *peer, uint32_t table, uint64_t items_sent, size_t bytes)
{
    if (items_sent == testpeer_resolved(peer, table))
        return true;
    return items_sent < testpeer_allowed(peer, table) && peer->sent_bytes + bytes <= peer->credit->allowed_bytes;
}

/* One writer, two tables, one of them blocked: the other keeps moving. */
TEST(one_blocked_table_does_not_stop_the_other)
{
    static const uint32_t sizes[] = {8, 300000};
    for (uint32_t s = 0; s < 2; s++) {
        struct embed embed;
        embed_start(&embed, TWO_TABLES, "memory_limit: 1GiB\n");
        struct testpeer *peer = testpeer_new(&embed);
        struct testpeer_column column = {"x", "uint8", 1, {sizes[s]}, sizes[s]};
        testpeer_open_with(peer, true, &column, 1);
        uint64_t sent[2] = {0, 0};
        uint32_t idle = 0;
        while (sent[1] < 600 && idle < 50) {
            bool moved = false;
            for (uint32_t table = 0; table < 2; table++)
                if (may_send(peer, table, sent[table], sizes[s] + 500)) {
                    uint64_t key = ((uint64_t)table << 40) + ++sent[table];
                    testpeer_insert_large(peer, table ? "open" : "blocked", key, sizes[s], sizes[s] > 32768);
                    moved = table == 1;
                }
            embed_settle(&embed);
            testpeer_read(peer);
            idle = moved ? 0 : idle + 1;
            assert_int_equal(peer->credit->n_rejections, 0);
            testpeer_forget(peer);
        }
        assert_int_equal(embed_table(&embed, "open")->in.size, 600);
        assert_int_equal(embed_table(&embed, "blocked")->in.size, 2);
        assert_true(embed_table(&embed, "blocked")->n_waiting_items >= 1);
        embed_stop(&embed);
    }
}

/* Without any credit left, an item with its chunks may be sent when none of its table is unresolved. */
EMBED_TEST(one_item_may_always_be_sent, TWO_TABLES, "memory_limit: 24MiB\n")
{
    struct testpeer *peer = testpeer_new(embed);
    static const struct testpeer_column column = {"x", "uint8", 1, {3000000}, 3000000};
    testpeer_open_with(peer, false, &column, 1);
    assert_true(peer->credit->allowed_bytes < 3000000);
    for (uint64_t key = 1; key <= 5; key++) {
        testpeer_insert_large(peer, "open", key, 3000000, true);
        testpeer_heartbeat(peer, 0, false);
        assert_int_equal(testpeer_resolved(peer, 1), key);
        assert_int_equal(peer->credit->n_rejections, 0);
    }
    assert_int_equal(embed_table(embed, "open")->in.size, 5);
}

EMBED_TEST(items_beyond_the_credit_are_refused_and_others_do_not_notice, TWO_TABLES, NULL)
{
    struct testpeer *rude = testpeer_opened(embed, false), *polite = testpeer_opened(embed, false);
    uint64_t allowed = testpeer_allowed(rude, 0);
    assert_true(allowed < 500);
    testpeer_insert(rude, "blocked", 1, 500, 1); /* two go in, the credit's worth waits, the rest is too much */
    testpeer_insert(polite, "open", 10000, 50, 1);
    testpeer_heartbeat(polite, 0, false);
    assert_int_equal(testpeer_resolved(polite, 1), 50);
    assert_int_equal(polite->credit->n_rejections, 0);
    assert_int_equal(embed_table(embed, "blocked")->in.size, 2);
    /* The learner takes what was allowed; then the rejections are due, in the order of the numbers. */
    for (uint64_t i = 0; i < allowed; i++) {
        struct testpeer_answer *answer = testpeer_sampled(polite, "blocked", 1);
        uint64_t key = answer->reply->sample->key[0];
        assert_int_equal(key, i + 1);
        testpeer_delete(polite, "blocked", 1, &key);
    }
    testpeer_heartbeat(rude, 0, false);
    assert_int_equal(testpeer_resolved(rude, 0), 500);
    assert_int_equal(rude->credit->rejected[0], 500 - allowed);
    assert_int_equal(rude->credit->rejections[0]->status, RP_CREDIT_EXCEEDED);
    assert_int_equal(rude->credit->rejections[0]->item, allowed + 1);
    assert_non_null(strstr(rude->credit->rejections[0]->text, "wait for credit"));
}

EMBED_TEST(bytes_beyond_the_credit_are_refused, TWO_TABLES, NULL)
{
    struct testpeer *peer = testpeer_new(embed), *polite = testpeer_new(embed);
    static const struct testpeer_column column = {"x", "uint8", 1, {400000}, 400000};
    testpeer_open_with(peer, false, &column, 1);
    testpeer_open(polite, false);
    uint64_t key = 0;
    while (key < 3 || peer->sent_bytes < peer->credit->allowed_bytes + 1000000)
        testpeer_insert_large(peer, "blocked", ++key, 400000, true);
    embed_settle(embed);
    uint64_t memory = store_memory(&embed->broker->store);
    assert_true(memory <= peer->credit->allowed_bytes + 2 * 400000 + 100000);
    testpeer_insert(polite, "open", 1, 20, 1);
    testpeer_heartbeat(polite, 0, false);
    assert_int_equal(testpeer_resolved(polite, 1), 20);
}

/* A peer that never reads its credit cannot make the broker keep more than a bounded record of its rejections. */
EMBED_TEST(a_flood_beyond_the_credit_takes_bounded_memory, TWO_TABLES, NULL)
{
    struct testpeer *rude = testpeer_opened(embed, false);
    for (uint64_t i = 0; i < 100; i++) {
        testpeer_inserted(rude, "blocked", 1 + i * 1000, 1000, 1);
    }
    assert_true(embed_table(embed, "blocked")->n_waiting_items <= 2 * WINDOW_ITEMS + 1);
    testpeer_reset(rude, "blocked");
    testpeer_heartbeat(rude, 0, false);
    for (uint32_t i = 0; i < 20; i++)
        testpeer_inserted(rude, "open", 1, 1000, 1); /* the same keys */
    assert_int_equal(LIST_FIRST(&embed->broker->sessions.list)->rejection_capacity, REJECTIONS_KEPT);
    testpeer_reset(rude, "blocked");
}

EMBED_TEST(windows_open_with_use, TWO_TABLES, NULL)
{
    struct testpeer *peer = testpeer_opened(embed, true);
    uint64_t first = testpeer_allowed(peer, 1), sent = 0;
    for (uint32_t round = 0; round < 40; round++) {
        while (sent < testpeer_allowed(peer, 1) && sent < 90000) {
            uint32_t n = (uint32_t)(testpeer_allowed(peer, 1) - sent < 500 ? testpeer_allowed(peer, 1) - sent : 500);
            testpeer_insert(peer, "open", 1 + sent, n, 1);
            sent += n;
        }
        embed_settle(embed);
        testpeer_read(peer);
        testpeer_forget(peer);
    }
    assert_true(testpeer_allowed(peer, 1) - testpeer_resolved(peer, 1) > 10 * first);
    assert_int_equal(peer->credit->n_rejections, 0);
}

EMBED_TEST(notices_come_by_the_eighth_of_a_window_not_by_the_message, TWO_TABLES, NULL)
{
    struct testpeer *peer = testpeer_opened(embed, true);
    uint64_t sent = 0;
    /* 60 messages in one wake-up: the window of 64 comes back in a few notices. */
    for (; sent < 60; sent++)
        testpeer_insert(peer, "open", 1 + sent, 1, 1);
    embed_settle(embed);
    testpeer_read(peer);
    assert_int_equal(testpeer_resolved(peer, 1), 60);
    assert_true(peer->notices <= 8);
}
