/* Permits and paid samples: the limiter is charged once, when somebody is told so, and picks that are paid ask it nothing. */

#include "tests/support/testpeer.h"
#include "tests/support/twin.h"

/* The cursor begins at 2 * 10 and may go from 0 to 40. */
#define RATIO                                                                                                          \
    "  - {name: t, max_size: 100, sampler: {kind: prioritized, exponent: 1}, limiter: {kind: "                         \
    "sample_to_insert_ratio, samples_per_insert: 2, min_size: 10, error_buffer: 20}}\n"
#define KINDS                                                                                                          \
    "  - {name: none, max_size: 9, limiter: {kind: none}}\n"                                                           \
    "  - {name: min, max_size: 9, limiter: {kind: min_size, min_size: 2}}\n"                                           \
    "  - {name: queue, max_size: 8, max_times_sampled: 1, sampler: {kind: fifo}, limiter: {kind: queue}}\n"            \
    "  - {name: once, max_size: 9, max_times_sampled: 1, sampler: {kind: fifo}, limiter: {kind: min_size}}\n"          \
    "  - {name: heap, max_size: 9, sampler: {kind: max_heap}, limiter: {kind: min_size}}\n"

static struct embed *served;
static struct testpeer *peer, *writer;

static const struct limiter *limiter(void)
{
    return &embed_table(served, "t")->limiter;
}

static void begin(struct embed *embed)
{
    served = embed;
    peer = testpeer_new(served);
    writer = testpeer_opened(served, false);
}

static void insert(const char *table, uint64_t first, uint32_t n)
{
    testpeer_inserted(writer, table, first, n, 3);
}

static uint64_t ask(uint64_t id, uint32_t count, int64_t timeout_ms, int flags)
{
    return testpeer_permit(peer, id, "t", count, timeout_ms, flags);
}

static const Replay__PermitReply *granted(uint64_t id, uint32_t n)
{
    const struct testpeer_answer *answer = testpeer_good(peer, id);
    assert_int_equal(answer->reply->permit->granted, n);
    return answer->reply->permit;
}

EMBED_TEST(a_permit_charges_and_picks_nothing, RATIO, NULL)
{
    begin(embed);
    insert("t", 1, 15);
    const Replay__PermitReply *reply = granted(ask(0, 12, 0, 0), 12);
    assert_int_equal(reply->room, 18);
    assert_int_equal(reply->size, 15);
    assert_int_equal(reply->min_size, 10);
    assert_int_equal(reply->deal, 0);
    assert_true(reply->mass == 45.0 && reply->buffer == 40.0);
    assert_int_equal(limiter()->samples, 12);
    assert_int_equal(embed_table(served, "t")->stats.total_samples, 0);
    assert_int_equal(embed_table(served, "t")->stats.permits, 12);
    granted(ask(0, 0, 0, 0), 0);
    assert_int_equal(limiter()->samples, 12);
    const uint32_t too_many[] = {(1 << 24) + 1, UINT32_MAX};
    for (uint32_t i = 0; i < 2; i++)
        assert_int_equal(testpeer_await(peer, ask(0, too_many[i], 0, 0))->status, RP_INVALID_ARGUMENT);
    assert_int_equal(testpeer_await(peer, testpeer_permit(peer, 0, "u", 1, 0, 0))->status, RP_NOT_FOUND);
    granted(ask(0, 1 << 24, INT64_MAX, FLEXIBLE), 18);
}

EMBED_TEST(a_permit_waits_for_all_or_for_some, RATIO, NULL)
{
    begin(embed);
    insert("t", 1, 10);
    granted(ask(0, 15, 0, 0), 15);
    uint64_t whole = ask(0, 13, NO_TIMEOUT, 0), some = ask(0, 50, NO_TIMEOUT, FLEXIBLE);
    uint64_t sample = testpeer_sample(peer, "t", 1, NO_TIMEOUT, 0);
    embed_settle(served);
    assert_int_equal(limiter()->samples, 15); /* nothing is charged for those that wait */
    assert_int_equal(embed_table(served, "t")->waiters.n, 3);
    insert("t", 11, 3);
    assert_null(testpeer_poll(peer, whole));
    insert("t", 14, 2);
    granted(whole, 13);
    granted(some, 2);
    assert_null(testpeer_poll(peer, sample));
    insert("t", 16, 1);
    assert_int_equal(testpeer_await(peer, sample)->status, RP_OK);
    assert_int_equal(limiter()->samples, 31);
}

EMBED_TEST(a_count_above_the_bounds_is_granted_in_part, RATIO, NULL)
{
    begin(embed);
    insert("t", 1, 10);
    uint64_t id = testpeer_waits(peer, ask(0, 1000, NO_TIMEOUT, 0));
    insert("t", 11, 9);
    granted(id, 38);
}

EMBED_TEST(a_deadline_grants_what_there_is, RATIO, NULL)
{
    begin(embed);
    insert("t", 1, 10);
    uint64_t id = testpeer_waits(peer, ask(0, 30, 50, 0));
    embed_advance(served, 51);
    granted(id, 20);
    id = ask(0, 30, 50, FLEXIBLE);
    embed_advance(served, 51);
    const struct testpeer_answer *answer = testpeer_await(peer, id);
    assert_int_equal(answer->status, RP_DEADLINE_EXCEEDED);
    assert_int_equal(answer->reply->permit->size, 10); /* with the state, by which the next shard is chosen */
    assert_int_equal(answer->reply->permit->room, 0);
    assert_int_equal(limiter()->samples, 20);
    /* Nobody overtakes a permit that waits. */
    ask(0, 30, NO_TIMEOUT, 0);
    insert("t", 11, 1);
    assert_int_equal(testpeer_await(peer, ask(0, 1, 0, 0))->status, RP_DEADLINE_EXCEEDED);
}

EMBED_TEST(who_gives_up_or_is_gone_was_charged_nothing, RATIO,
           "service: tcp://127.0.0.1:0\ningest: tcp://127.0.0.1:0\nevents: tcp://127.0.0.1:0\n")
{
    begin(embed);
    insert("t", 1, 10);
    const int64_t timeouts[] = {NO_TIMEOUT, INT64_MAX};
    for (uint32_t i = 0; i < 2; i++) {
        uint64_t id = ask(0, 30, timeouts[i], 0);
        embed_settle(served);
        assert_int_equal(testpeer_cancel(peer, 1, &id), 1);
        assert_int_equal(testpeer_await(peer, id)->status, RP_CANCELLED);
    }
    ask(0, 30, NO_TIMEOUT, 0);
    embed_settle(served);
    testpeer_reconnect(peer); /* over tcp the broker sees the end of the connection */
    for (uint32_t i = 0; i < WAIT && embed_table(served, "t")->waiters.n; i++) {
        zmq_poll(NULL, 0, 1);
        embed_advance(served, 1);
    }
    assert_int_equal(embed_table(served, "t")->waiters.n, 0);
    assert_int_equal(limiter()->samples, 0);
    granted(ask(0, 20, 0, 0), 20);
}

EMBED_TEST(a_retry_takes_a_waiting_permit_over, RATIO, NULL)
{
    begin(embed);
    insert("t", 1, 10);
    uint64_t id = ask(0, 30, NO_TIMEOUT, 0);
    embed_settle(served);
    struct testpeer *second = testpeer_new(served);
    second->client = peer->client;
    testpeer_permit(second, id, "t", 30, NO_TIMEOUT, 0);
    embed_settle(served);
    assert_int_equal(embed_table(served, "t")->waiters.n, 1);
    insert("t", 11, 5);
    assert_int_equal(testpeer_await(second, id)->reply->permit->granted, 30);
    assert_null(testpeer_poll(peer, id));
    assert_int_equal(limiter()->samples, 30);
}

EMBED_TEST(why_explains_a_permit, RATIO, NULL)
{
    begin(embed);
    insert("t", 1, 10);
    ask(0, 30, NO_TIMEOUT, 0);
    const Replay__WhyReply *reply = testpeer_why(peer);
    assert_int_equal(reply->n_waits, 1);
    assert_string_equal(reply->waits[0]->kind, "permit");
    assert_string_equal(reply->waits[0]->table, "t");
    assert_int_equal(reply->waits[0]->count, 30);
    assert_non_null(strstr(reply->waits[0]->text, "room for 20 of 30"));
}

EMBED_TEST(paid_samples_ask_the_limiter_nothing, RATIO, NULL)
{
    begin(embed);
    insert("t", 1, 5); /* min_size is 10 */
    const struct testpeer_answer *answer = testpeer_await(peer, testpeer_sample(peer, "t", 8, 0, PAID));
    const Replay__SampleReply *reply = answer->reply->sample;
    assert_int_equal(answer->status, RP_OK);
    assert_int_equal(reply->n_key, 8);
    assert_true(reply->mass == 15.0 && reply->room == 0 && !reply->partial);
    assert_int_equal(limiter()->samples, 0);
    assert_int_equal(embed_table(served, "t")->stats.total_samples, 8);
    /* With replacement a batch may be larger than the table, without it may not. */
    answer = testpeer_await(peer, testpeer_sample(peer, "t", 8, NO_TIMEOUT, PAID | DISTINCT));
    assert_int_equal(answer->reply->sample->n_key, 5);
    assert_true(answer->reply->sample->partial);
    assert_int_equal(testpeer_await(peer, testpeer_sample(peer, "t", 8, 0, PAID | WHOLE))->status, RP_INVALID_ARGUMENT);
    ask(0, 30, 50, 0); /* who waits for the limiter does not hold them up */
    answer = testpeer_await(peer, testpeer_sample(peer, "t", 3, NO_TIMEOUT, PAID));
    assert_int_equal(answer->reply->sample->n_key, 3);
    embed_advance(served, 51);
    testpeer_reset(peer, "t");
    answer = testpeer_good(peer, testpeer_sample(peer, "t", 3, NO_TIMEOUT, PAID));
    assert_int_equal(answer->reply->sample->n_key, 0);
    assert_true(answer->reply->sample->partial && answer->reply->sample->mass == 0.0);
    /* What others see of a reply is as it was. */
    insert("t", 21, 10);
    answer = testpeer_sampled(peer, "t", 2);
    assert_true(answer->reply->sample->mass == 0.0 && answer->reply->sample->room == 0);
}

EMBED_TEST(a_paid_sample_is_kept_for_a_retry, RATIO, NULL)
{
    begin(embed);
    insert("t", 1, 20);
    uint64_t keys[8], id = testpeer_sample(peer, "t", 8, 0, PAID);
    memcpy(keys, testpeer_await(peer, id)->reply->sample->key, sizeof keys);
    testpeer_forget(peer);
    testpeer_reconnect(peer);
    testpeer_sample_as(peer, id, "t", 8, 0, PAID);
    assert_memory_equal(testpeer_await(peer, id)->reply->sample->key, keys, sizeof keys);
    assert_int_equal(limiter()->samples, 0);
    assert_int_equal(embed_table(served, "t")->stats.total_samples, 8);
    testpeer_forget(peer);
    testpeer_sample_as(peer, id, "t", 8, 0, 0); /* another request than the first */
    assert_int_equal(testpeer_await(peer, id)->status, RP_INVALID_ARGUMENT);
}

EMBED_TEST(each_limiter_tells_how_its_table_is_dealt, KINDS, NULL)
{
    begin(embed);
    static const struct {
        const char *table;
        uint32_t deal;
    } rows[] = {{"none", 1}, {"min", 1}, {"queue", 2}, {"once", 2}, {"heap", 1}};
    for (uint32_t i = 0; i < 5; i++) {
        insert(rows[i].table, 10 * i + 1, 3);
        const struct testpeer_answer *answer =
            testpeer_await(peer, testpeer_permit(peer, 0, rows[i].table, 0, NO_TIMEOUT, 0));
        assert_int_equal(answer->reply->permit->deal, rows[i].deal);
        assert_int_equal(answer->reply->permit->removes, rows[i].deal == 2); /* those with max_times_sampled */
        assert_true(answer->reply->permit->mass == 3.0 && answer->reply->permit->size == 3);
    }
    for (uint32_t i = 0; i < 2; i++) { /* a table without min_size needs no item but one, on whichever shard */
        const struct testpeer_answer *answer =
            testpeer_await(peer, testpeer_permit(peer, 0, rows[i].table, 0, NO_TIMEOUT, 0));
        assert_int_equal(answer->reply->permit->min_size, i ? 2 : 0);
    }
    /* A paid pick takes an item out as any other does. */
    assert_int_equal(testpeer_await(peer, testpeer_sample(peer, "once", 5, 0, PAID))->reply->sample->n_key, 3);
    assert_int_equal(embed_table(served, "once")->in.size, 0);
}

/* A queue counts what is taken: charges without picks, or picks without charges, would hold it up for ever. */
EMBED_TEST(a_queue_is_neither_charged_ahead_nor_paid_for, KINDS, NULL)
{
    begin(embed);
    insert("queue", 1, 5);
    const struct limiter *queue = &embed_table(served, "queue")->limiter;
    assert_int_equal(testpeer_await(peer, testpeer_permit(peer, 0, "queue", 3, 0, 0))->status, RP_FAILED_PRECONDITION);
    assert_int_equal(testpeer_await(peer, testpeer_sample(peer, "queue", 3, 0, PAID))->status, RP_FAILED_PRECONDITION);
    assert_int_equal(queue->samples, 0);
    assert_int_equal(testpeer_sampled(peer, "queue", 5)->reply->sample->n_key, 5);
    insert("queue", 11, 8); /* its size */
    assert_int_equal(embed_table(served, "queue")->in.size, 8);
}

/* One broker gives all items the same probability then, and so do its shards. */
EMBED_TEST(items_without_priority_have_a_mass, RATIO, NULL)
{
    begin(embed);
    testpeer_inserted(writer, "t", 1, 4, 0);
    double nothing = granted(ask(0, 0, 0, 0), 0)->mass;
    assert_true(nothing > 0.0 && nothing < 1e-200);
    testpeer_inserted(writer, "t", 5, 4, 0);
    assert_true(granted(ask(0, 0, 0, 0), 0)->mass == 2 * nothing);
    insert("t", 9, 1);
    assert_true(granted(ask(0, 0, 0, 0), 0)->mass == 3.0);
}

/* Many connections of one client send the same permit, before and after it is answered. */
EMBED_TEST(a_storm_of_retries_is_charged_once, RATIO, NULL)
{
    enum { PEERS = 8, TIMES = 40 };
    struct testpeer *peers[PEERS];
    begin(embed);
    insert("t", 1, 10);
    for (uint32_t i = 0; i < PEERS; i++) {
        peers[i] = testpeer_new(served);
        peers[i]->client = 77;
    }
    for (uint32_t i = 0; i < PEERS * TIMES; i++)
        testpeer_permit(peers[i % PEERS], 5, "t", 30, NO_TIMEOUT, 0);
    embed_settle(served);
    assert_int_equal(embed_table(served, "t")->waiters.n, 1);
    assert_int_equal(limiter()->samples, 0);
    insert("t", 11, 5);
    for (uint32_t i = 0; i < PEERS * TIMES; i++)
        testpeer_permit(peers[i % PEERS], 5, "t", 30, 0, 0);
    for (uint32_t i = 0; i < PEERS; i++)
        assert_int_equal(testpeer_await(peers[i], 5)->reply->permit->granted, 30);
    assert_int_equal(limiter()->samples, 30);
    assert_int_equal(embed_table(served, "t")->waiters.n, 0);
    /* The answer is what it was, whatever has come since; and another client's request is another one. */
    insert("t", 16, 5);
    granted(ask(0, 5, 0, 0), 5);
    for (uint32_t i = 0; i < 3; i++) {
        testpeer_forget(peers[0]);
        testpeer_reconnect(peers[0]);
        testpeer_permit(peers[0], 5, "t", 30, 0, 0);
        const Replay__PermitReply *reply = testpeer_await(peers[0], 5)->reply->permit;
        assert_true(reply->granted == 30 && reply->room == 0 && limiter()->samples == 35);
    }
    granted(ask(5, 1, 0, 0), 1);
}

/* A waiting permit follows the limiter's new bounds: it is served as soon as they allow it. */
EMBED_TEST(a_changed_limiter_serves_waiting_permits, RATIO, NULL)
{
    begin(embed);
    insert("t", 1, 10);
    uint64_t id = ask(0, 30, NO_TIMEOUT, 0);
    embed_settle(served);
    assert_int_equal(limiter()->samples, 0);
    assert_int_equal(TESTPEER_LIMIT(peer, "t", ERROR_BUFFER, error_buffer, 30), RP_OK);
    granted(id, 30);
    id = ask(0, 50, NO_TIMEOUT, 0);
    embed_settle(served);
    /* No such permit is granted whole any more. */
    assert_int_equal(TESTPEER_LIMIT(peer, "t", ERROR_BUFFER, error_buffer, 2), RP_OK);
    insert("t", 11, 15);
    assert_in_range(granted(id, (uint32_t)(limiter()->samples - 30))->granted, 1, 2);
}

EMBED_TEST(a_reset_leaves_waiting_permits_whole, RATIO, NULL)
{
    begin(embed);
    insert("t", 1, 15);
    granted(ask(0, 12, 0, 0), 12);
    uint64_t id = ask(0, 30, NO_TIMEOUT, 0);
    testpeer_reset(peer, "t");
    assert_int_equal(limiter()->samples, 0);
    insert("t", 21, 15);
    granted(id, 30);
    assert_int_equal(limiter()->samples, 30);
}

/* What clients were told is the state after kill -9: neither more nor less. */
TEST(after_a_crash_the_cursor_is_what_clients_were_told)
{
    struct embed first, second;
    struct twin_folder folder, copy;
    uint64_t keys[8];
    twin_folder_init(&folder);
    embed_start(&first, RATIO, twin_config(&folder, NULL));
    begin(&first);
    insert("t", 1, 15);
    granted(ask(0, 12, 0, 0), 12);
    uint64_t permit = peer->next_id, sample = testpeer_sample(peer, "t", 8, 0, PAID);
    memcpy(keys, testpeer_await(peer, sample)->reply->sample->key, sizeof keys);
    testpeer_sampled(peer, "t", 3);
    uint64_t waiting = ask(0, 30, NO_TIMEOUT, 0);
    testpeer_heartbeat(writer, 0, false);
    uint64_t client = peer->client;
    for (uint32_t checkpoint = 0; checkpoint < 2; checkpoint++) {
        if (checkpoint)
            twin_checkpoint(&first);
        twin_folder_copy(&copy, &folder);
        embed_start(&second, RATIO, twin_config(&copy, NULL));
        twin_check(&first, &second);
        served = &second;
        assert_int_equal(limiter()->samples, 15);
        assert_int_equal(embed_table(served, "t")->stats.total_samples, 11);
        peer = testpeer_new(served);
        peer->client = client;
        granted(ask(permit, 12, 0, 0), 12);
        assert_int_equal(limiter()->samples, 15);
        testpeer_sample_as(peer, sample, "t", 8, 0, PAID);
        assert_memory_equal(testpeer_await(peer, sample)->reply->sample->key, keys, sizeof keys);
        granted(ask(waiting, 30, 0, 0), 15); /* it was never answered: it is a new request now */
        assert_int_equal(limiter()->samples, 30);
        embed_stop(&second);
        twin_folder_fini(&copy);
    }
    twin_kill(&first);
    twin_folder_fini(&folder);
}
