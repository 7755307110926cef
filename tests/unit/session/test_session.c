/* The life of a session: silence, tombstone, resumption, BYE, and what a broker that shuts down acknowledges. */

#include "tests/support/facts.h"
#include "tests/support/testpeer.h"

#define FREE_TABLE "  - {name: t, max_size: 100000, sampler: {kind: fifo}, limiter: {kind: none}}\n"
#define QUEUE_TABLE "  - {name: q, max_size: 2, sampler: {kind: fifo}, max_times_sampled: 1, limiter: {kind: queue}}\n"
#define TIMES "session: {expiry: 10s}\n"

EMBED_TEST(silence_ends_a_session_and_releases_everything, QUEUE_TABLE, TIMES)
{
    struct testpeer *peer = testpeer_opened(embed, false);
    testpeer_insert(peer, "q", 1, 8, 1);
    uint64_t value = 1;
    const void *blocks[] = {&value};
    testpeer_chunk(peer, 1, blocks, false); /* kept for an item to come */
    testpeer_pushed(peer);
    assert_int_equal(embed->broker->store.chunks, 9);
    assert_int_equal(embed_table(embed, "q")->n_waiting_items, 6);
    embed_advance(embed, 9999);
    assert_int_equal(embed->broker->sessions.n_open, 1);
    embed_advance(embed, 2);
    assert_int_equal(embed->broker->sessions.n_open, 0);
    assert_int_equal(embed_table(embed, "q")->n_waiting_items, 0);
    assert_int_equal(embed->broker->store.chunks, 2); /* of the two items in the table */
    assert_int_equal(embed->broker->sessions.granted_bytes, 0);
}

/* PROTOCOL 10: an error on a heartbeat would be taken for the end of the session. */
EMBED_TEST(a_heartbeat_to_a_tombstone_says_hello_again, QUEUE_TABLE, TIMES)
{
    struct testpeer *peer = testpeer_opened(embed, false);
    peer->keep = true;
    testpeer_insert(peer, "q", 1, 4, 1);
    embed_advance(embed, 11000);
    assert_int_equal(embed->broker->sessions.n_open, 0);
    struct testpeer_answer *answer = testpeer_heartbeat(peer, 0, false);
    assert_int_equal(answer->status, RP_OK);
    assert_true(answer->reply->credit->gap && answer->reply->credit->expired);
    assert_int_equal(answer->reply->credit->epoch, peer->epoch);
    assert_int_equal(answer->reply->credit->n_table, 0); /* says nothing about what has arrived */
    assert_int_equal(embed->broker->sessions.n_open, 0);
    assert_int_equal(testpeer_resume(peer, 1, false)->status, RP_OK);
    testpeer_resend(peer, peer->credit->received);
    answer = testpeer_heartbeat(peer, 0, false);
    assert_false(answer->reply->credit->gap || answer->reply->credit->expired);
    assert_int_equal(testpeer_resolved(peer, 0), 2);
}

/* It comes from a connection that the writer has given up: it neither takes the notices along nor keeps the session. */
EMBED_TEST(a_heartbeat_of_another_epoch_is_refused, FREE_TABLE, TIMES)
{
    struct testpeer *peer = testpeer_opened(embed, true), *ghost = testpeer_new(embed);
    memcpy(ghost->session, peer->session, sizeof ghost->session);
    ghost->epoch = peer->epoch;
    assert_int_equal(testpeer_resume(peer, 1, true)->status, RP_OK);
    for (uint32_t epoch = 0; epoch < 5; epoch++) {
        ghost->epoch = epoch;
        if (epoch != peer->epoch)
            assert_int_equal(testpeer_heartbeat(ghost, 0, false)->status, RP_FAILED_PRECONDITION);
    }
    uint64_t before = peer->notices;
    testpeer_inserted(peer, "t", 1, 60, 1);
    testpeer_read(peer);
    testpeer_read(ghost);
    assert_true(peer->notices > before);
    assert_int_equal(ghost->notices, 0);
    embed_advance(embed, 9000);
    assert_int_equal(testpeer_heartbeat(ghost, 0, false)->status, RP_FAILED_PRECONDITION);
    embed_advance(embed, 1001);
    assert_int_equal(embed->broker->sessions.n_open, 0); /* a ghost is no life */
}

/* PROTOCOL 10.2: after a gap everything is discarded until HELLO, also the message that was missing. */
EMBED_TEST(after_a_gap_nothing_is_taken_until_hello, FREE_TABLE, TIMES)
{
    struct testpeer *peer = testpeer_opened(embed, true);
    peer->keep = true;
    testpeer_insert(peer, "t", 1, 1, 1);
    peer->lose = true;
    testpeer_insert(peer, "t", 2, 1, 1);
    peer->lose = false;
    testpeer_inserted(peer, "t", 3, 1, 1);
    testpeer_read(peer);
    assert_true(peer->credit->gap); /* by a notice */
    testpeer_heartbeat(peer, 0, false);
    assert_true(peer->credit->gap && !peer->credit->expired && peer->credit->n_table > 0);
    testpeer_resend(peer, 1); /* in the same epoch */
    testpeer_heartbeat(peer, 0, false);
    assert_true(peer->credit->gap);
    assert_int_equal(peer->credit->received, 1);
    assert_int_equal(embed_table(embed, "t")->in.size, 1);
    assert_int_equal(testpeer_resume(peer, 1, true)->status, RP_OK);
    assert_true(peer->resumed && peer->epoch == 2 && !peer->credit->gap);
    assert_int_equal(peer->credit->received, 1);
    testpeer_resend(peer, peer->credit->received);
    testpeer_heartbeat(peer, 0, false);
    assert_false(peer->credit->gap);
    assert_int_equal(peer->credit->received, 3);
    assert_int_equal(testpeer_resolved(peer, 0), 3);
    assert_int_equal(embed_table(embed, "t")->in.size, 3);
    assert_int_equal(testpeer_sampled(peer, "t", 1)->reply->sample->key[0], 1);
}

EMBED_TEST(any_traffic_is_life, FREE_TABLE, TIMES)
{
    struct testpeer *beats = testpeer_opened(embed, false), *writes = testpeer_opened(embed, false);
    for (uint64_t i = 0; i < 10; i++) {
        testpeer_heartbeat(beats, 0, false);
        testpeer_insert(writes, "t", 10 * i + 1, 2, 1);
        embed_advance(embed, 9000);
    }
    assert_int_equal(embed->broker->sessions.n_open, 2);
}

/* Rule 9 over an expiry: items exactly once, chunks sent again. */
EMBED_TEST(a_session_silent_past_its_expiry_is_resumed_exactly_once, QUEUE_TABLE, TIMES)
{
    struct testpeer *peer = testpeer_opened(embed, false);
    peer->keep = true;
    for (uint64_t key = 1; key <= 6; key++)
        testpeer_insert(peer, "q", key, 1, 1);
    embed_advance(embed, 11000);
    assert_int_equal(embed_table(embed, "q")->in.size, 2);
    assert_int_equal(testpeer_resume(peer, 1, false)->status, RP_OK);
    assert_true(peer->resumed);
    assert_int_equal(peer->epoch, 2);
    assert_int_equal(peer->credit->received, 0);
    assert_int_equal(testpeer_resolved(peer, 0), 2);
    testpeer_resend(peer, peer->credit->received);
    for (uint64_t key = 1; key <= 6; key++) {
        struct testpeer_answer *answer = testpeer_sampled(peer, "q", 1);
        assert_int_equal(answer->reply->sample->key[0], key);
        sampled_check(answer, 0);
    }
    testpeer_heartbeat(peer, 0, false);
    assert_int_equal(testpeer_resolved(peer, 0), 6);
    assert_int_equal(peer->credit->rejected[0], 0);
    assert_int_equal(testpeer_await(peer, testpeer_sample(peer, "q", 1, 0, 0))->status, RP_DEADLINE_EXCEEDED);
}

/* A chunk of the keep-alive window that was sent before the silence can be used after it. */
EMBED_TEST(chunks_sent_again_serve_new_items, FREE_TABLE, TIMES)
{
    struct testpeer *peer = testpeer_opened(embed, false);
    peer->keep = true;
    uint32_t layout = testpeer_plain(peer, "t");
    for (uint64_t i = 1; i <= 5; i++) {
        const void *blocks[] = {&i};
        uint64_t chunk = testpeer_chunk(peer, 1, blocks, false);
        if (i < 3)
            testpeer_item(peer, layout, i, 1, chunk, 0, 1);
        peer->oldest_chunk = i > 2 ? i - 2 : 1;
        testpeer_push(peer);
    }
    embed_advance(embed, 11000);
    testpeer_resume(peer, 3, false); /* messages 1 and 2 were dropped: chunks 3, 4 and 5 are in the window */
    assert_int_equal(peer->credit->received, 2);
    testpeer_resend(peer, 2);
    testpeer_item(peer, layout, 3, 1, 3, 0, 1);
    testpeer_push(peer);
    testpeer_heartbeat(peer, 0, false);
    assert_int_equal(peer->credit->received, 6);
    assert_int_equal(peer->credit->n_rejections, 0);
    assert_int_equal(testpeer_resolved(peer, 0), 3);
    assert_int_equal(embed_table(embed, "t")->in.size, 3);
}

/* PROTOCOL 9: a message that is sent again does not count again, also after an expiry. */
EMBED_TEST(bytes_sent_again_after_an_expiry_need_no_new_credit, QUEUE_TABLE FREE_TABLE, TIMES)
{
    struct testpeer *peer = testpeer_new(embed);
    static const struct testpeer_column image = {"x", "uint8", 1, {100000}, 100000};
    testpeer_open_with(peer, false, &image, 1);
    /* Traffic that widens the window. */
    uint64_t key = 1000;
    while (peer->credit->allowed_bytes - peer->sent_bytes < 4000000 && key < 2000) {
        for (uint32_t i = 0; i < 5 || peer->sent_bytes + 600000 < peer->credit->allowed_bytes; i++)
            testpeer_insert_large(peer, "t", ++key, 100000, true);
        testpeer_heartbeat(peer, 0, false);
        assert_int_equal(peer->credit->n_rejections, 0);
    }
    /* Two are in the queue; the rest waits for it, within the credit. */
    peer->keep = true;
    uint64_t first = peer->number + 1;
    for (key = 1; key <= 35; key++)
        testpeer_insert_large(peer, "q", key, 100000, true);
    testpeer_heartbeat(peer, 0, false);
    assert_true(peer->sent_bytes <= peer->credit->allowed_bytes);
    assert_int_equal(peer->credit->n_rejections, 0);
    for (int round = 0; round < 3; round++) {
        embed_advance(embed, 11000);
        assert_int_equal(testpeer_resume(peer, first, false)->status, RP_OK);
        testpeer_resend(peer, peer->credit->received);
        testpeer_heartbeat(peer, 0, false);
        assert_int_equal(peer->credit->received, peer->number);
        assert_int_equal(peer->credit->n_rejections, 0);
    }
    for (key = 1; key <= 35; key++) {
        struct testpeer_answer *answer = testpeer_sampled(peer, "q", 1);
        assert_int_equal(answer->reply->sample->key[0], key);
        testpeer_forget(peer);
    }
}

EMBED_TEST(without_a_tombstone_the_session_is_unknown, FREE_TABLE, TIMES)
{
    struct testpeer *peer = testpeer_opened(embed, false);
    embed_advance(embed, 10001);
    assert_non_null(session_find(&embed->broker->sessions, peer->session));
    embed_advance(embed, 200001);
    assert_null(session_find(&embed->broker->sessions, peer->session));
    struct testpeer_answer *answer = testpeer_resume(peer, 1, false);
    testpeer_refused(answer, RP_SESSION_UNKNOWN, "HELLO");
}

EMBED_TEST(resuming_with_other_columns_is_refused, FREE_TABLE, TIMES)
{
    struct testpeer *peer = testpeer_opened(embed, false);
    peer->columns[0].dtype = "float64";
    assert_int_equal(testpeer_resume(peer, 1, false)->status, RP_INVALID_ARGUMENT);
    peer->columns[0].dtype = "uint64";
    assert_int_equal(testpeer_resume(peer, 1, false)->status, RP_OK);
    assert_int_equal(peer->epoch, 2); /* the refused one changed nothing */
}

/* ---- bye ---- */

EMBED_TEST(bye_waits_for_the_last_item, QUEUE_TABLE, TIMES)
{
    for (int notices = 0; notices < 2; notices++) {
        struct testpeer *peer = testpeer_new(embed);
        testpeer_open(peer, notices);
        testpeer_insert(peer, "q", 1, 4, 1);
        uint64_t id = testpeer_waits(peer, testpeer_bye(peer, NO_TIMEOUT));
        testpeer_sampled(peer, "q", 1);
        assert_null(testpeer_poll(peer, id));
        testpeer_sampled(peer, "q", 1);
        struct testpeer_answer *answer = testpeer_good(peer, id);
        assert_int_equal(answer->reply->credit->resolved[0], 4);
        assert_null(session_find(&embed->broker->sessions, peer->session));
        testpeer_sampled(peer, "q", 2);
        testpeer_reset(peer, "q");
    }
}

EMBED_TEST(bye_times_out_with_the_reason_and_the_session_stays, QUEUE_TABLE, TIMES)
{
    struct testpeer *peer = testpeer_opened(embed, false);
    testpeer_insert(peer, "q", 1, 4, 1);
    uint64_t id = testpeer_bye(peer, 500);
    embed_advance(embed, 499);
    assert_null(testpeer_poll(peer, id));
    embed_advance(embed, 2);
    struct testpeer_answer *answer = testpeer_await(peer, id);
    assert_int_equal(answer->status, RP_DEADLINE_EXCEEDED);
    assert_true(facts_within(answer->text, "table 'q' holds back 2"));
    assert_non_null(strstr(answer->text, "more sample"));
    assert_true(answer->reply->credit->n_waiting >= 1);
    assert_int_equal(testpeer_heartbeat(peer, 0, true)->status, RP_OK);
    assert_non_null(strstr(peer->credit->waiting[0], "holds back 2 items"));
}

/* The two sockets have no order between them: BYE may come before the last message, whatever that message holds. */
EMBED_TEST(bye_before_the_last_message_is_answered, FREE_TABLE, TIMES)
{
    for (int variant = 0; variant < 4; variant++) {
        struct testpeer *peer = testpeer_opened(embed, variant & 1);
        peer->keep = true;
        testpeer_inserted(peer, "t", 100 * (uint64_t)variant + 1, 2, 1);
        peer->lose = true;
        if (variant & 2)
            testpeer_insert(peer, "t", 100 * (uint64_t)variant + 11, 2, 1);
        else
            testpeer_push(peer); /* no items, no chunks */
        uint64_t id = testpeer_waits(peer, testpeer_bye(peer, NO_TIMEOUT));
        testpeer_resend(peer, 1);
        embed_settle(embed);
        embed_advance(embed, 2000);
        assert_int_equal(testpeer_await(peer, id)->status, RP_OK);
    }
}

/* The waiting items of a session that expires are dropped: its BYE, whether it came before or after, cannot say that
 * all is in. */
EMBED_TEST(bye_of_an_expired_session_does_not_claim_that_all_is_in, QUEUE_TABLE, TIMES)
{
    for (uint64_t before = 0; before < 2; before++) {
        struct testpeer *peer = testpeer_opened(embed, false);
        testpeer_insert(peer, "q", 1 + 10 * before, 4, 1);
        uint64_t id = before ? testpeer_waits(peer, testpeer_bye(peer, NO_TIMEOUT)) : 0;
        embed_advance(embed, 11000);
        id = before ? id : testpeer_bye(peer, 1000);
        assert_int_equal(testpeer_await(peer, id)->status, RP_FAILED_PRECONDITION);
        assert_int_equal(testpeer_resume(peer, 1, false)->status, RP_OK);
    }
}

/* ---- shutting down ---- */

EMBED_TEST(shutting_down_acknowledges_nothing_that_is_not_in_a_table, QUEUE_TABLE FREE_TABLE, TIMES)
{
    struct testpeer *peer = testpeer_opened(embed, true), *sampler = testpeer_new(embed);
    testpeer_inserted(peer, "q", 1, 6, 1);
    uint64_t sample = testpeer_sample(sampler, "t", 1, NO_TIMEOUT, 0);
    uint64_t bye = testpeer_waits(peer, testpeer_bye(peer, NO_TIMEOUT));
    assert_null(testpeer_poll(sampler, sample));
    broker_drain(embed->broker);
    testpeer_insert(peer, "t", 100, 3, 1); /* comes too late */
    embed_settle(embed);
    testpeer_read(peer);
    assert_int_equal(testpeer_await(sampler, sample)->status, RP_CANCELLED);
    assert_int_equal(testpeer_await(peer, bye)->status, RP_CANCELLED);
    testpeer_heartbeat(peer, 0, false);
    assert_int_equal(peer->credit->received, 1);
    assert_int_equal(testpeer_resolved(peer, 0), 2);
    assert_int_equal(testpeer_resolved(peer, 1), 0);
    assert_int_equal(embed_table(embed, "t")->in.size, 0);
    assert_int_equal(testpeer_await(sampler, testpeer_sample(sampler, "t", 1, NO_TIMEOUT, 0))->status, RP_CANCELLED);
}

EMBED_TEST(a_session_without_columns_only_looks, FREE_TABLE QUEUE_TABLE, TIMES)
{
    struct testpeer *peer = testpeer_new(embed);
    Replay__Hello ask = REPLAY__HELLO__INIT;
    TESTPEER_REQUEST(request, HELLO, hello, &ask);
    struct testpeer_answer *answer = testpeer_call(peer, &request);
    assert_int_equal(answer->reply->hello->session.len, 0);
    assert_int_equal(answer->reply->hello->n_tables, 2);
    assert_string_equal(answer->reply->hello->tables[1]->name, "q");
    assert_string_equal(answer->reply->hello->ingest, "inproc://ingest");
    assert_int_equal(answer->reply->hello->heartbeat_ms, 333);
    assert_int_equal(answer->reply->hello->expiry_ms, 10000);
    assert_int_equal(embed->broker->sessions.n_open, 0);
}

/* Keys and ordinals of two starts of a broker must not meet: items of the first may still be on their way. */
EMBED_TEST(sessions_have_keys_of_their_own, FREE_TABLE, TIMES)
{
    struct testpeer *a = testpeer_opened(embed, false), *b = testpeer_opened(embed, false);
    assert_true(a->ordinal != b->ordinal);
    uint64_t apart = a->key_base > b->key_base ? a->key_base - b->key_base : b->key_base - a->key_base;
    assert_true(apart >= KEY_COUNTERS);
    assert_int_equal(a->key_base, (uint64_t)a->ordinal << KEY_COUNTER_BITS);
}

/* Pages of sessions are in the order of their opening, also where ordinals come round. */
EMBED_TEST(sessions_are_listed_once_each_when_ordinals_come_round, FREE_TABLE, TIMES)
{
    enum { N = 600 };
    struct testpeer *peer = testpeer_new(embed);
    embed->broker->tables.ordinals.next = KEY_ORDINALS - N / 2;
    for (uint32_t i = 0; i < N; i++)
        testpeer_open(peer, false);
    static uint8_t seen[KEY_ORDINALS];
    uint64_t cursor = 0;
    uint32_t n = 0;
    do {
        Replay__Info info = REPLAY__INFO__INIT;
        TESTPEER_REQUEST(request, INFO, info, &info);
        info.sessions = true;
        info.session_cursor = cursor;
        const Replay__InfoReply *reply = testpeer_call(peer, &request)->reply->info;
        for (size_t i = 0; i < reply->n_sessions; i++, n++)
            assert_int_equal(seen[reply->sessions[i]->ordinal]++, 0);
        cursor = reply->session_cursor;
    } while (cursor);
    assert_int_equal(n, N);
}

/* A session with nothing to tell must not keep the loop awake. */
EMBED_TEST(a_blocked_writer_does_not_keep_the_loop_awake, QUEUE_TABLE, TIMES)
{
    struct testpeer *peer = testpeer_opened(embed, true);
    testpeer_insert(peer, "q", 1, 2, 1);
    embed_advance(embed, 5);
    testpeer_insert(peer, "q", 3, 2, 1); /* these wait */
    embed_advance(embed, 5);
    assert_true(LIST_EMPTY(&embed->broker->sessions.dirty));
    uint64_t value = 1;
    const void *blocks[] = {&value};
    testpeer_chunk(peer, 1, blocks, false); /* a chunk alone */
    testpeer_push(peer);
    embed_advance(embed, 5);
    assert_true(LIST_EMPTY(&embed->broker->sessions.dirty));
}
