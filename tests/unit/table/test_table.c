/* Tables through the embedded broker: what is kept, what goes, what is counted. */

#include "tests/support/one_table.h"

static void insert(uint64_t key, double priority)
{
    testpeer_inserted(peer, "t", key, 1, priority);
}

static bool has(uint64_t key)
{
    return table_find(table(), key) != UINT32_MAX;
}

static uint64_t sample_one(void)
{
    struct testpeer_answer *answer = testpeer_sampled(peer, "t", 1);
    sampled_check(answer, 0);
    return answer->reply->sample->key[0];
}

static uint64_t waiting(void)
{
    embed_settle(&embed);
    return table()->n_waiting_items;
}

/* ---- overflow ---- */

TEST(a_negative_exponent_removes_low_priorities, NULL, end)
{
    begin("max_size: 100, remover: {kind: prioritized, exponent: -2}, limiter: {kind: none}");
    for (uint64_t key = 1; key <= 400; key++)
        insert(key, key % 2 ? 1 : 100);
    uint32_t high = 0;
    for (uint64_t key = 1; key <= 400; key++)
        high += has(key) && key % 2 == 0;
    assert_true(high >= 97);
}

/* ---- what may not be done ---- */

TEST(a_bad_priority_leaves_the_table_alive, NULL, end)
{
    begin("max_size: 10, sampler: {kind: prioritized}, limiter: {kind: none}");
    insert(1, -1);
    insert(2, (double)INFINITY);
    insert(3, (double)NAN);
    insert(4, 1);
    assert_int_equal(table()->in.size, 1);
    static const uint64_t keys[] = {4, 4, 9, 4};
    static const double priorities[] = {2, -1, (double)NAN, (double)INFINITY};
    struct testpeer_answer *answer = testpeer_update(peer, "t", 4, keys, priorities);
    assert_int_equal(answer->status, RP_INVALID_ARGUMENT);
    assert_int_equal(answer->reply->change->applied, 1);
    assert_int_equal(answer->reply->change->missing, 0); /* key 9 is missing, and its priority is wrong in any case */
    assert_int_equal(answer->reply->change->refused, 3);
    assert_non_null(strstr(answer->text, "key 4: priority -1"));
    answer = testpeer_sampled(peer, "t", 5);
    assert_true(answer->reply->sample->priority[0] == 2.0);
}

TEST(missing_keys_and_tables_are_told, NULL, end)
{
    begin("max_size: 10, limiter: {kind: none}");
    insert(1, 1);
    static const uint64_t keys[] = {5, 1, 6, 1};
    struct testpeer_answer *answer = testpeer_delete(peer, "t", 4, keys);
    assert_int_equal(answer->reply->change->applied, 1);
    assert_int_equal(answer->reply->change->missing, 3);
    assert_int_equal(testpeer_delete(peer, "none", 1, keys)->status, RP_NOT_FOUND);
    assert_int_equal(testpeer_update(peer, "none", 1, keys, &(double){1})->status, RP_NOT_FOUND);
    assert_int_equal(testpeer_reset(peer, "none")->status, RP_NOT_FOUND);
    assert_int_equal(testpeer_fetch(peer, "none", 1, keys)->status, RP_NOT_FOUND);
    assert_int_equal(testpeer_await(peer, testpeer_sample(peer, "none", 1, 0, 0))->status, RP_NOT_FOUND);
    assert_int_equal(testpeer_await(peer, testpeer_sample(peer, "t", 0, 0, 0))->status, RP_INVALID_ARGUMENT);
    assert_int_equal(testpeer_await(peer, testpeer_sample(peer, "t", 8193, 0, 0))->status, RP_INVALID_ARGUMENT);
}

/* ---- limiter ---- */

/* Ten times the same 20 items into an empty table of 19: which one goes, and which one is picked. */
static void play_rounds(const char *seed, uint64_t *evicted, uint64_t *picked)
{
    embed_start(
        &embed,
        "  - {name: t, max_size: 19, sampler: {kind: uniform}, remover: {kind: uniform}, limiter: {kind: none}}\n",
        seed);
    peer = testpeer_opened(&embed, false);
    for (uint32_t round = 0; round < 10; round++) {
        testpeer_insert(peer, "t", 1, 20, 1);
        testpeer_heartbeat(peer, 0, false);
        for (uint64_t key = 1; key <= 20; key++)
            if (!has(key))
                evicted[round] = key;
        picked[round] = sample_one();
        testpeer_reset(peer, "t");
    }
    embed_stop(&embed);
}

static uint32_t distinct(const uint64_t *values, uint32_t n)
{
    uint32_t count = 0;
    for (uint32_t i = 0; i < n; i++) {
        uint32_t k = 0;
        while (values[k] != values[i])
            k++;
        count += k == i;
    }
    return count;
}

TEST(random_numbers_go_on_after_a_reset)
{
    uint64_t evicted[2][10], picked[2][10];
    for (uint32_t run = 0; run < 2; run++)
        play_rounds("seed: 7\n", evicted[run], picked[run]);
    assert_true(distinct(evicted[0], 10) >= 4);
    assert_true(distinct(picked[0], 10) >= 4);
    /* The seed decides all of it. */
    assert_memory_equal(evicted[0], evicted[1], sizeof evicted[0]);
    assert_memory_equal(picked[0], picked[1], sizeof picked[0]);
}

/* NaN in any field is refused, and what stands beside it changes nothing. */
TEST(a_limiter_value_that_is_not_a_number_is_refused, NULL, end)
{
    begin(
        "max_size: 100, limiter: {kind: sample_to_insert_ratio, samples_per_insert: 2, min_size: 3, error_buffer: 20}");
    for (int field = 0; field < 5; field++) {
        Replay__SetLimiter set = REPLAY__SET_LIMITER__INIT;
        set.has_samples_per_insert_case = REPLAY__SET_LIMITER__HAS_SAMPLES_PER_INSERT_SAMPLES_PER_INSERT;
        set.samples_per_insert = field == 0 ? NAN : 4;
        set.has_min_size_case = field == 1 ? REPLAY__SET_LIMITER__HAS_MIN_SIZE_MIN_SIZE : 0;
        set.has_min_diff_case = field == 2 ? REPLAY__SET_LIMITER__HAS_MIN_DIFF_MIN_DIFF : 0;
        set.has_max_diff_case = field == 3 ? REPLAY__SET_LIMITER__HAS_MAX_DIFF_MAX_DIFF : 0;
        set.has_error_buffer_case = field == 4 ? REPLAY__SET_LIMITER__HAS_ERROR_BUFFER_ERROR_BUFFER : 0;
        set.min_size = set.min_diff = set.max_diff = set.error_buffer = NAN;
        assert_int_equal(testpeer_limit(peer, "t", set), RP_INVALID_ARGUMENT);
        assert_true(table()->limiter.samples_per_insert == 2.0);
        assert_true(table()->limiter.min_size == 3.0);
    }
}

TEST(a_pause_holds_back_both_sides_until_it_ends, NULL, end)
{
    begin("max_size: 100, limiter: {kind: none}");
    testpeer_insert(peer, "t", 1, 4, 1);
    assert_int_equal(TESTPEER_LIMIT(peer, "t", PAUSED, paused, true), RP_OK);
    testpeer_insert(peer, "t", 5, 3, 1);
    uint64_t id = testpeer_sample(peer, "t", 2, NO_TIMEOUT, 0);
    assert_int_equal(waiting(), 3);
    assert_null(testpeer_poll(peer, id));
    const Replay__WhyReply *why = testpeer_why(peer);
    assert_int_equal(why->n_waits, 2); /* an insert and a sample */
    for (uint32_t i = 0; i < 2; i++)
        assert_has(why->waits[i]->text, "is paused");
    assert_int_equal(table()->limiter.changed_from, 0); /* settings that outlive the broker are as they were */
    assert_int_equal(TESTPEER_LIMIT(peer, "t", PAUSED, paused, false), RP_OK);
    assert_int_equal(testpeer_await(peer, id)->status, RP_OK);
    assert_int_equal(waiting(), 0);
}

TEST(a_live_change_of_the_limiter_wakes_both_sides)
{
    begin("max_size: 100, limiter: {kind: min_size, min_size: 10}");
    testpeer_insert(peer, "t", 1, 4, 1);
    uint64_t id = testpeer_waits(peer, testpeer_sample(peer, "t", 2, NO_TIMEOUT, 0));
    assert_int_equal(TESTPEER_LIMIT(peer, "t", MIN_SIZE, min_size, 4), RP_OK);
    assert_int_equal(testpeer_await(peer, id)->status, RP_OK);
    assert_int_equal(TESTPEER_LIMIT(peer, "t", MIN_SIZE, min_size, 0), RP_INVALID_ARGUMENT);
    assert_int_equal(TESTPEER_LIMIT(peer, "t", MIN_SIZE, min_size, 101), RP_INVALID_ARGUMENT); /* never reached */
    assert_int_equal(TESTPEER_LIMIT(peer, "none", MIN_SIZE, min_size, 101), RP_NOT_FOUND);
    assert_true(table()->limiter.min_size == 4.0);
    end(NULL);
    begin("max_size: 2, limiter: {kind: queue}");
    testpeer_insert(peer, "t", 1, 6, 1);
    assert_int_equal(waiting(), 4);
    assert_int_equal(TESTPEER_LIMIT(peer, "t", MAX_DIFF, max_diff, 5), RP_OK);
    assert_int_equal(waiting(), 1);
    end(NULL);
}

/* ---- looking ---- */

static uint32_t list_all(uint32_t limit, uint64_t *keys)
{
    uint64_t cursor = 0;
    uint32_t n = 0, pages = 0;
    do {
        Replay__List list = REPLAY__LIST__INIT;
        list.table = "t";
        list.cursor = cursor;
        list.limit = limit;
        TESTPEER_REQUEST(request, LIST, list, &list);
        struct testpeer_answer *answer = testpeer_call(peer, &request);
        assert_int_equal(answer->status, RP_OK);
        if (limit)
            assert_true(answer->reply->list->n_items <= limit);
        for (size_t i = 0; i < answer->reply->list->n_items; i++) {
            const Replay__ItemInfo *item = answer->reply->list->items[i];
            assert_int_equal(item->length, 1);
            assert_int_equal(item->bytes, 8);
            assert_int_equal(item->session, peer->ordinal);
            keys[n++] = item->key;
        }
        cursor = answer->reply->list->cursor;
        assert_true(++pages < 100000);
    } while (cursor);
    return n;
}

static int by_value(const void *a, const void *b)
{
    uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
    return x < y ? -1 : x > y;
}

TEST(listing_sees_each_item_once, NULL, end)
{
    static uint64_t keys[20000];
    begin("max_size: 9000, limiter: {kind: none}");
    for (uint64_t i = 0; i < 200; i++) {
        testpeer_insert(peer, "t", 1 + i * 50, 50, 1);
        testpeer_heartbeat(peer, 0, false);
    }
    testpeer_delete(peer, "t", 3, (const uint64_t[]){5000, 6000, 7000});
    static const uint32_t limits[] = {0, 1, 7, 1000, 100000};
    for (uint32_t l = 0; l < 5; l++) {
        uint32_t n = list_all(limits[l], keys);
        assert_int_equal(n, 8997);
        qsort(keys, n, sizeof keys[0], by_value);
        for (uint32_t i = 1; i < n; i++)
            assert_true(keys[i] > keys[i - 1]);
        assert_int_equal(keys[0], 1001);
        testpeer_forget(peer);
    }
}

TEST(a_fetch_gives_items_without_counting, NULL, end)
{
    begin("max_size: 50, max_times_sampled: 2, limiter: {kind: queue}");
    testpeer_inserted(peer, "t", 1, 5, 3);
    static const uint64_t keys[] = {4, 99, 2};
    for (int round = 0; round < 3; round++) {
        struct testpeer_answer *answer = testpeer_fetch(peer, "t", 3, keys);
        assert_int_equal(answer->status, RP_OK);
        assert_int_equal(answer->reply->sample->n_key, 2);
        assert_int_equal(answer->reply->sample->key[0], 4);
        assert_int_equal(answer->reply->sample->key[1], 2);
        sampled_check(answer, 0);
        sampled_check(answer, 1);
    }
    assert_int_equal(table()->limiter.samples, 0);
    assert_int_equal(table()->in.size, 5);
    assert_int_equal(table()->in.items[table_find(table(), 4)].times_sampled, 0);
    assert_int_equal(testpeer_fetch(peer, "t", 1, &keys[1])->status, RP_NOT_FOUND);
}

TEST(a_sample_tells_what_it_is, NULL, end)
{
    begin("max_size: 100, max_times_sampled: 2, sampler: {kind: prioritized}, limiter: {kind: none}");
    peer->policy = 17;
    peer->step = 1000;
    insert(5, 1);
    insert(6, 3);
    embed_advance(&embed, 2500);
    struct testpeer_answer *answer = testpeer_sampled(peer, "t", 1);
    const Replay__SampleReply *reply = answer->reply->sample;
    bool high = reply->key[0] == 6;
    assert_true(reply->priority[0] == (high ? 3.0 : 1.0));
    assert_true(fabs(reply->probability[0] - (high ? 0.75 : 0.25)) < 1e-6);
    assert_int_equal(reply->times_sampled[0], 1);
    assert_int_equal(reply->age_ns[0],
                     2500 * NS_PER_MS - (high ? 1 : 0)); /* the second of one instant is 1 ns younger */
    assert_int_equal(reply->policy[0], 17);
    assert_int_equal(reply->step[0], high ? 1001 : 1000);
    assert_int_equal(reply->session[0], peer->ordinal);
    assert_int_equal(reply->table_size, 2);
    assert_int_equal(reply->waited_ns, 0);
    assert_false(reply->partial);
    for (int i = 0; i < 3; i++)
        answer = testpeer_sampled(peer, "t", 1);
    assert_int_equal(answer->reply->sample->table_size, 1); /* before its removal */
    assert_int_equal(table()->in.size, 0);
}

TEST(information_counts_and_measures, NULL, end)
{
    begin("max_size: 5, sampler: {kind: prioritized, exponent: 2}, limiter: {kind: none}");
    for (uint64_t key = 1; key <= 8; key++) {
        testpeer_insert(peer, "t", key, 1, 2);
        embed_advance(&embed, 1000);
    }
    testpeer_sampled(peer, "t", 4);
    embed_advance(&embed, 1000);
    Replay__TableInfo *info = testpeer_table_info(peer, "t");
    assert_string_equal(info->sampler, "prioritized");
    assert_string_equal(info->remover, "fifo");
    assert_int_equal(info->size, 5);
    assert_int_equal(info->evicted, 3);
    assert_int_equal(info->limiter->inserts, 8);
    assert_int_equal(info->limiter->samples, 4);
    assert_true(fabs(info->total_priority - 20) < 1e-6);
    assert_true(info->insert_rate > 0.5 && info->insert_rate < 1.5);
    assert_true(info->mean_age_s > 0.5 && info->mean_age_s < 6);
    assert_int_equal(testpeer_info(peer)->n_sessions, 1);
}

TEST(staleness_is_counted_in_versions, NULL, end)
{
    begin("max_size: 50, sampler: {kind: fifo}, limiter: {kind: none}");
    testpeer_await(peer, testpeer_put(peer, "policy", 5, "x", 1));
    peer->policy = 2;
    insert(1, 1);
    testpeer_sampled(peer, "t", 10);
    assert_true(fabs(testpeer_table_info(peer, "t")->mean_staleness - 3) < 1e-9);
}
