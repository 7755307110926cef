/* Requests for samples that have to wait: deadlines, order, partial, distinct and flexible batches, and those who give
 * up. */

#include "tests/support/facts.h"
#include "tests/support/one_table.h"

TEST(a_timeout_of_0_polls, NULL, end)
{
    begin("max_size: 100, limiter: {kind: none}");
    struct testpeer_answer *answer = testpeer_await(peer, testpeer_sample(peer, "t", 1, 0, 0));
    testpeer_refused(answer, RP_DEADLINE_EXCEEDED, "needs 1 more insert");
    assert_int_equal(embed.broker->peers.waits.count, 0);
    testpeer_inserted(peer, "t", 1, 1, 1);
    assert_int_equal(testpeer_await(peer, testpeer_sample(peer, "t", 3, 0, 0))->status, RP_OK);
}

/* What confirms nothing goes ahead of them. */
TEST(replies_of_a_turn_leave_together_at_its_end, NULL, end)
{
    begin("max_size: 100, limiter: {kind: none}");
    testpeer_inserted(peer, "t", 1, 1, 1);
    testpeer_forget(peer);
    Replay__Info info = REPLAY__INFO__INIT;
    TESTPEER_REQUEST(request, INFO, info, &info);
    uint64_t first = testpeer_sample(peer, "t", 1, 0, 0), second = testpeer_sample(peer, "t", 1, 0, 0);
    uint64_t ahead = testpeer_ask(peer, &request);
    assert_int_equal(testpeer_await(peer, second)->status, RP_OK);
    const struct testpeer_answer *answer = peer->answers;
    assert_int_equal(answer->id, ahead);
    assert_int_equal(answer->next->id, first);
    assert_int_equal(answer->next->next->id, second);
}

TEST(no_timeout_waits_as_long_as_it_takes, NULL, end)
{
    begin("max_size: 100, limiter: {kind: none}");
    uint64_t id = testpeer_sample(peer, "t", 1, NO_TIMEOUT, 0);
    embed_settle(&embed);
    struct testpeer *writer = testpeer_new(&embed);
    for (int day = 0; day < 3; day++) {
        embed_advance(&embed, 86400000);
        assert_null(testpeer_poll(peer, id));
    }
    testpeer_open(writer, false);
    testpeer_insert(writer, "t", 1, 1, 1);
    struct testpeer_answer *answer = testpeer_good(peer, id);
    assert_int_equal(answer->reply->sample->waited_ns, 3 * 86400 * NS_PER_S);
}

TEST(the_deadline_gives_a_partial_batch_or_an_error, NULL, end)
{
    begin("max_size: 100, max_times_sampled: 1, sampler: {kind: fifo}, limiter: {kind: queue}");
    testpeer_insert(peer, "t", 1, 3, 1);
    uint64_t id = testpeer_sample(peer, "t", 5, 1000, 0);
    embed_advance(&embed, 999);
    assert_null(testpeer_poll(peer, id));
    assert_int_equal(table()->in.size, 0); /* taken one by one as they came */
    embed_advance(&embed, 2);
    struct testpeer_answer *answer = testpeer_good(peer, id);
    assert_true(answer->reply->sample->partial);
    assert_int_equal(answer->reply->sample->n_key, 3);
    assert_true(facts_within(answer->text, "3 of 5 items picked; needs 2 more inserts"));
    for (uint32_t i = 0; i < 3; i++)
        sampled_check(answer, i);
    id = testpeer_sample(peer, "t", 2, 1000, 0);
    embed_advance(&embed, 1001);
    answer = testpeer_await(peer, id);
    testpeer_refused(answer, RP_DEADLINE_EXCEEDED, "needs 2 more inserts");
    assert_int_equal(table()->waiters.n, 0);
}

TEST(waiters_are_served_in_order, NULL, end)
{
    begin("max_size: 100, max_times_sampled: 1, sampler: {kind: fifo}, limiter: {kind: queue}");
    struct testpeer *others[4];
    uint64_t ids[4];
    for (uint32_t i = 0; i < 4; i++) {
        others[i] = testpeer_new(&embed);
        ids[i] = testpeer_sample(others[i], "t", i == 1 ? 3 : 1, NO_TIMEOUT, 0);
        embed_settle(&embed);
    }
    /* A poll does not overtake those who wait. */
    testpeer_inserted(peer, "t", 1, 2, 1);
    struct testpeer_answer *poll = testpeer_await(peer, testpeer_sample(peer, "t", 1, 0, 0));
    assert_int_equal(poll->status, RP_DEADLINE_EXCEEDED);
    assert_int_equal(testpeer_await(others[0], ids[0])->reply->sample->key[0], 1);
    assert_null(testpeer_poll(others[1], ids[1])); /* has one of three */
    assert_null(testpeer_poll(others[2], ids[2]));
    testpeer_insert(peer, "t", 3, 3, 1);
    assert_int_equal(testpeer_await(others[1], ids[1])->reply->sample->n_key, 3);
    assert_int_equal(testpeer_await(others[1], ids[1])->reply->sample->key[2], 4);
    assert_int_equal(testpeer_await(others[2], ids[2])->reply->sample->key[0], 5);
    assert_null(testpeer_poll(others[3], ids[3]));
}

/* The cursor may move by 4 only; the batch has 20. */
TEST(a_batch_larger_than_the_cursors_width_still_fills, NULL, end)
{
    begin("max_size: 1000, "
          "limiter: {kind: sample_to_insert_ratio, samples_per_insert: 1, min_size: 1, error_buffer: 2}");
    uint64_t id = testpeer_sample(peer, "t", 20, NO_TIMEOUT, 0);
    testpeer_insert(peer, "t", 1, 30, 1);
    struct testpeer_answer *answer = testpeer_good(peer, id);
    assert_int_equal(answer->reply->sample->n_key, 20);
    assert_int_equal(table()->limiter.samples, 20);
    assert_true(table()->limiter.inserts >= 19 && table()->limiter.inserts <= 23);
}

TEST(a_flexible_batch_takes_what_is_there, NULL, end)
{
    begin("max_size: 100, max_times_sampled: 1, sampler: {kind: fifo}, limiter: {kind: queue}");
    testpeer_insert(peer, "t", 1, 3, 1);
    struct testpeer_answer *answer = testpeer_await(peer, testpeer_sample(peer, "t", 10, NO_TIMEOUT, FLEXIBLE));
    assert_int_equal(answer->reply->sample->n_key, 3);
    assert_true(answer->reply->sample->partial);
    uint64_t id = testpeer_waits(peer, testpeer_sample(peer, "t", 10, NO_TIMEOUT, FLEXIBLE));
    testpeer_insert(peer, "t", 4, 1, 1);
    assert_int_equal(testpeer_await(peer, id)->reply->sample->n_key, 1);
}

TEST(a_whole_batch_takes_all_or_nothing, NULL, end)
{
    begin("max_size: 100, max_times_sampled: 1, sampler: {kind: fifo}, limiter: {kind: queue}");
    testpeer_insert(peer, "t", 1, 3, 1);
    struct testpeer_answer *answer = testpeer_await(peer, testpeer_sample(peer, "t", 4, 0, WHOLE));
    testpeer_refused(answer, RP_DEADLINE_EXCEEDED, "needs 1 more insert");
    assert_int_equal(table()->limiter.samples, 0);
    uint64_t id = testpeer_waits(peer, testpeer_sample(peer, "t", 4, NO_TIMEOUT, WHOLE));
    testpeer_insert(peer, "t", 4, 1, 1);
    assert_int_equal(testpeer_await(peer, id)->reply->sample->n_key, 4);
    answer = testpeer_await(peer, testpeer_sample(peer, "t", 4, 0, WHOLE | FLEXIBLE));
    assert_int_equal(answer->status, RP_INVALID_ARGUMENT);
}

TEST(a_whole_batch_that_the_limiter_never_allows_is_refused, NULL, end)
{
    begin(
        "max_size: 100, limiter: {kind: sample_to_insert_ratio, samples_per_insert: 2, min_size: 5, error_buffer: 10}");
    uint64_t id = testpeer_sample(peer, "t", 21, NO_TIMEOUT, WHOLE);
    testpeer_refused(testpeer_await(peer, id), RP_INVALID_ARGUMENT, "at most 20 samples");
    id = testpeer_waits(peer, testpeer_sample(peer, "t", 20, NO_TIMEOUT, WHOLE));
    testpeer_insert(peer, "t", 1, 10, 1);
    assert_int_equal(testpeer_await(peer, id)->reply->sample->n_key, 20);
    assert_int_equal(TESTPEER_LIMIT(peer, "t", ERROR_BUFFER, error_buffer, 5), RP_OK);
    testpeer_forget(peer); /* a retry of what was picked gets it all the same */
    testpeer_sample_as(peer, id, "t", 20, 0, WHOLE);
    assert_int_equal(testpeer_await(peer, id)->reply->sample->n_key, 20);
}

/* The first two items leave with their third pick, and there are fewer than min_size then. */
TEST(a_whole_batch_goes_on_below_min_size, NULL, end)
{
    begin("max_size: 100, max_times_sampled: 3, sampler: {kind: fifo}, limiter: {kind: min_size, min_size: 4}");
    testpeer_inserted(peer, "t", 1, 5, 1);
    struct testpeer_answer *answer = testpeer_good(peer, testpeer_sample(peer, "t", 10, 0, WHOLE));
    assert_int_equal(answer->reply->sample->n_key, 10);
    assert_false(answer->reply->sample->partial);
    assert_int_equal(table()->in.size, 2);
    assert_int_equal(table()->limiter.samples, 10);
    answer = testpeer_await(peer, testpeer_sample(peer, "t", 1, 0, WHOLE));
    testpeer_refused(answer, RP_DEADLINE_EXCEEDED, "needs 2 more inserts");
}

/* ---- without replacement ---- */

static void assert_distinct(const struct testpeer_answer *answer)
{
    const Replay__SampleReply *reply = answer->reply->sample;
    for (size_t i = 0; i < reply->n_key; i++) {
        sampled_check(answer, (uint32_t)i);
        for (size_t j = 0; j < i; j++)
            assert_true(reply->key[i] != reply->key[j]);
    }
}

TEST(a_distinct_batch_larger_than_the_table_waits_for_more, NULL, end)
{
    begin("max_size: 100, limiter: {kind: none}");
    testpeer_inserted(peer, "t", 1, 5, 1);
    struct testpeer_answer *answer = testpeer_good(peer, testpeer_sample(peer, "t", 8, 0, DISTINCT));
    assert_true(answer->reply->sample->partial);
    assert_int_equal(answer->reply->sample->n_key, 5);
    assert_true(facts_within(answer->text, "needs 3 more items that are not in the batch yet"));
    assert_distinct(answer);
    uint64_t id = testpeer_waits(peer, testpeer_sample(peer, "t", 8, NO_TIMEOUT, DISTINCT));
    testpeer_insert(peer, "t", 6, 2, 1);
    assert_null(testpeer_poll(peer, id));
    /* An item that goes and comes back in the same slot is a new one. */
    testpeer_delete(peer, "t", 1, &(uint64_t){3});
    testpeer_insert(peer, "t", 30, 1, 1);
    answer = testpeer_await(peer, id);
    assert_int_equal(answer->reply->sample->n_key, 8);
    assert_false(answer->reply->sample->partial);
    assert_distinct(answer);
    answer = testpeer_await(peer, testpeer_sample(peer, "t", 101, NO_TIMEOUT, DISTINCT));
    testpeer_refused(answer, RP_INVALID_ARGUMENT, "max_size 100");
}

/* ---- giving up ---- */

/* What has left its table goes to whoever took it out. */
TEST(a_cancelled_request_is_answered_with_what_it_has, NULL, end)
{
    begin("max_size: 100, max_times_sampled: 1, sampler: {kind: fifo}, limiter: {kind: queue}");
    testpeer_insert(peer, "t", 1, 2, 1);
    uint64_t id = testpeer_sample(peer, "t", 5, NO_TIMEOUT, 0), ids[] = {id, 12345};
    assert_null(testpeer_poll(peer, id));
    struct testpeer *stranger = testpeer_new(&embed);
    assert_int_equal(testpeer_cancel(stranger, 2, ids), 0);
    assert_int_equal(testpeer_cancel(peer, 2, ids), 1);
    struct testpeer_answer *answer = testpeer_good(peer, id);
    assert_true(answer->reply->sample->partial);
    assert_int_equal(answer->reply->sample->n_key, 2);
    assert_non_null(strstr(answer->text, "cancelled"));
    assert_int_equal(table()->stats.orphaned_picks, 0);
    assert_int_equal(table()->waiters.n, 0);
}

TEST(picks_of_a_cancelled_request_are_counted_if_they_are_still_there, NULL, end)
{
    begin("max_size: 100, limiter: {kind: queue}");
    testpeer_insert(peer, "t", 1, 2, 1);
    uint64_t id = testpeer_waits(peer, testpeer_sample(peer, "t", 5, NO_TIMEOUT, 0));
    assert_int_equal(testpeer_cancel(peer, 1, &id), 1);
    assert_int_equal(testpeer_await(peer, id)->status, RP_CANCELLED);
    assert_int_equal(table()->stats.orphaned_picks, 2);
    assert_int_equal(testpeer_table_info(peer, "t")->orphaned_picks, 2);
    assert_int_equal(table()->waiters.n, 0);
}

/* Until the ROUTER has heard that the peer behind a waiting request is gone. */
static void await_gone(const struct envelope *to)
{
    for (int i = 0; i < WAIT; i++) {
        if (zmq_send(embed.broker->peers.service, to->bytes + 1, to->bytes[0], ZMQ_SNDMORE | ZMQ_DONTWAIT) < 0)
            return;
        zmq_send(embed.broker->peers.service, "", 0, ZMQ_DONTWAIT);
        zmq_poll(NULL, 0, 1);
    }
    fail_msg("the peer does not go");
}

/* A sampler of a queue of three items dies while it waits for the third. */
static void die_waiting(bool named)
{
    begin("max_size: 100, max_times_sampled: 1, sampler: {kind: fifo}, limiter: {kind: queue}");
    struct testpeer *dead = testpeer_new(&embed);
    dead->client = named ? dead->client : 0;
    testpeer_insert(peer, "t", 1, 2, 1);
    testpeer_waits(dead, testpeer_sample(dead, "t", 3, NO_TIMEOUT, 0));
    testpeer_close(dead);
    await_gone(&embed.broker->peers.waits.first->to);
    testpeer_inserted(peer, "t", 3, 1, 1);
    assert_int_equal(embed.broker->peers.counters.replies_dropped, 1);
}

TEST(picks_of_a_sampler_that_died_are_kept_for_a_while, NULL, end)
{
    die_waiting(true);
    assert_int_equal(table()->stats.orphaned_picks, 0);
    assert_int_equal(embed.broker->store.chunks, 3);
    embed_advance(&embed, 1000 * 60 * 9);
    assert_int_equal(embed.broker->store.chunks, 3);
    embed_advance(&embed, 1000 * 60 * 2); /* past session.tombstone */
    embed_advance(&embed, 1000);
    assert_int_equal(embed.broker->store.chunks, 0);
}

TEST(picks_of_a_sampler_without_a_name_are_lost, NULL, end)
{
    die_waiting(false);
    assert_int_equal(table()->stats.orphaned_picks, 3);
    assert_int_equal(embed.broker->store.chunks, 0);
}

/* Requests of different clients without a name are not the same one, whatever their ids are. */
TEST(clients_without_a_name_are_not_taken_for_each_other, NULL, end)
{
    begin("max_size: 100, limiter: {kind: none}");
    struct testpeer *first = testpeer_new(&embed), *second = testpeer_new(&embed);
    first->client = second->client = 0;
    assert_int_equal(first->next_id, second->next_id);
    assert_int_equal(testpeer_counter(first, "c", 1), 1);
    assert_int_equal(testpeer_counter(second, "c", 1), 2);
    uint64_t a = testpeer_sample(first, "t", 1, NO_TIMEOUT, 0), b = testpeer_sample(second, "t", 1, NO_TIMEOUT, 0);
    assert_int_equal(a, b);
    assert_null(testpeer_poll(first, a));
    assert_null(testpeer_poll(second, b));
    testpeer_insert(peer, "t", 1, 1, 1);
    assert_int_equal(testpeer_await(first, a)->status, RP_OK);
    assert_int_equal(testpeer_await(second, b)->status, RP_OK);
}

/* Over tcp the end of a connection is told: its requests are given up, and the next one gets the items. */
TEST(requests_of_a_lost_connection_are_given_up, NULL, end)
{
    embed_start(&embed,
                "  - {name: t, max_size: 100, max_times_sampled: 1, sampler: {kind: fifo}, limiter: {kind: none}}\n",
                "service: tcp://127.0.0.1:0\ningest: tcp://127.0.0.1:0\nevents: tcp://127.0.0.1:0\n");
    peer = testpeer_new(&embed);
    struct testpeer *dead = testpeer_new(&embed);
    testpeer_open(peer, false);
    testpeer_counter(dead, "hello", 1);
    testpeer_sample(dead, "t", 3, NO_TIMEOUT, 0);
    wait_until((broker_turn(embed.broker, 1), embed.broker->peers.waits.count == 1));
    testpeer_close(dead);
    wait_until((broker_turn(embed.broker, 1), embed.broker->peers.waits.count == 0));
    testpeer_insert(peer, "t", 1, 1, 1);
    while (testpeer_resolved(peer, 0) < 1)
        testpeer_heartbeat(peer, 0, false);
    assert_int_equal(testpeer_sampled(peer, "t", 1)->reply->sample->key[0], 1);
}

TEST(distinct_and_flexible_go_together, NULL, end)
{
    begin("max_size: 100, limiter: {kind: none}");
    uint64_t id = testpeer_waits(peer, testpeer_sample(peer, "t", 50, NO_TIMEOUT, DISTINCT | FLEXIBLE));
    testpeer_insert(peer, "t", 1, 3, 1);
    struct testpeer_answer *answer = testpeer_await(peer, id);
    assert_int_equal(answer->reply->sample->n_key, 3);
    assert_distinct(answer);
}

/* What was picked before the reset stays picked, and what comes after it is new. */
TEST(a_distinct_batch_fills_over_a_reset, NULL, end)
{
    begin("max_size: 100, sampler: {kind: fifo}, limiter: {kind: none}");
    testpeer_insert(peer, "t", 1, 3, 1);
    uint64_t id = testpeer_waits(peer, testpeer_sample(peer, "t", 6, NO_TIMEOUT, DISTINCT));
    testpeer_reset(peer, "t");
    testpeer_insert(peer, "t", 11, 3, 1);
    struct testpeer_answer *answer = testpeer_await(peer, id);
    assert_int_equal(answer->reply->sample->n_key, 6);
    assert_distinct(answer);
    assert_int_equal(embed.broker->store.chunks, 3);
}

TEST(a_reset_leaves_waiters_waiting, NULL, end)
{
    begin("max_size: 100, limiter: {kind: min_size, min_size: 5}");
    testpeer_insert(peer, "t", 1, 3, 1);
    uint64_t id = testpeer_waits(peer, testpeer_sample(peer, "t", 2, NO_TIMEOUT, 0));
    testpeer_reset(peer, "t");
    testpeer_insert(peer, "t", 10, 4, 1);
    assert_null(testpeer_poll(peer, id));
    testpeer_insert(peer, "t", 20, 1, 1);
    assert_int_equal(testpeer_await(peer, id)->status, RP_OK);
}

/* ---- why ---- */

TEST(why_names_who_waits_for_what, NULL, end)
{
    begin("max_size: 2, limiter: {kind: queue}");
    struct testpeer *sampler = testpeer_new(&embed);
    testpeer_inserted(peer, "t", 1, 5, 1);
    uint64_t id = testpeer_sample(sampler, "t", 12, NO_TIMEOUT, 0);
    embed_settle(&embed);
    embed_advance(&embed, 3000);
    const Replay__WhyReply *why = testpeer_why(peer);
    assert_int_equal(why->n_waits, 1); /* its picks let the inserts in */
    const Replay__Wait *wait = why->waits[0];
    assert_string_equal(wait->kind, "sample");
    assert_string_equal(wait->table, "t");
    assert_int_equal(wait->count, 12);
    assert_int_equal(wait->got, 5);
    assert_int_equal(wait->waited_ns, 3 * NS_PER_S);
    assert_non_null(strstr(wait->text, "needs 7 more inserts"));
    testpeer_insert(peer, "t", 10, 14, 1);
    assert_int_equal(testpeer_await(sampler, id)->status, RP_OK);
    why = testpeer_why(peer);
    assert_int_equal(why->n_waits, 1);
    wait = why->waits[0];
    assert_string_equal(wait->kind, "insert");
    assert_string_equal(wait->who, "tester");
    assert_int_equal(wait->count, 5);
    assert_non_null(strstr(wait->text, "needs 1 more sample"));
}

/* A batch without replacement whose client does not read while others take the same items has none of them twice. */
TEST(a_distinct_batch_that_is_held_up_stays_distinct, NULL, end)
{
    begin("max_size: 100, limiter: {kind: none}");
    testpeer_inserted(peer, "t", 1, 10, 1);
    struct testpeer *writer = testpeer_opened(&embed, false), *other = testpeer_new(&embed);
    uint64_t id = testpeer_sample(peer, "t", 20, NO_TIMEOUT, DISTINCT);
    embed_settle(&embed);
    struct peer *to = peer_find(&embed.broker->peers, &embed.broker->peers.waits.first->to);
    atomic_fetch_add(&to->pending_bytes, 1LL << 40);
    testpeer_inserted(writer, "t", 11, 1, 1);
    testpeer_sample(other, "t", 11, NO_TIMEOUT, DISTINCT);
    embed_settle(&embed);
    atomic_fetch_sub(&to->pending_bytes, 1LL << 40);
    embed_advance(&embed, 5);
    testpeer_insert(writer, "t", 12, 30, 1);
    embed_advance(&embed, 5);
    const struct testpeer_answer *answer = testpeer_await(peer, id);
    assert_int_equal(answer->reply->sample->n_key, 20);
    assert_distinct(answer);
}
