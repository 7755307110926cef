/* The rules of the wire that small experiments with libzmq showed to be necessary, each with a test. The broker is
 * embedded; "a client" is a raw peer that speaks the protocol and nothing more. */

#include "tests/support/testpeer.h"

#define FREE_TABLE "  - {name: t, max_size: 1000, sampler: {kind: fifo}, limiter: {kind: none}}\n"
/* Takes two items, then waits for samples. */
#define BLOCKED_TABLE                                                                                                  \
    "  - {name: b, max_size: 1000, sampler: {kind: fifo}, limiter: {kind: sample_to_insert_ratio, "                    \
    "samples_per_insert: 1,"                                                                                           \
    " min_size: 1, min_diff: 0, max_diff: 2}}\n"

/* ---- rule 1: envelopes and unasked messages ---- */

EMBED_TEST(a_req_peer_never_gets_an_unasked_message, FREE_TABLE, NULL)
{
    struct testpeer *req = testpeer_new_type(embed, ZMQ_REQ, false);
    testpeer_open(req, false);
    for (uint64_t key = 1; key <= 200; key++) {
        testpeer_insert(req, "t", key, 1, 1);
        embed_advance(embed, 5);
        testpeer_read(req);
    }
    testpeer_heartbeat(req, 0, false);
    assert_int_equal(req->notices, 0);
    assert_int_equal(testpeer_resolved(req, 0), 200);
    /* Nor does a DEALER that did not ask for notices. */
    struct testpeer *dealer = testpeer_opened(embed, false);
    testpeer_insert(dealer, "t", 1000, 64, 1);
    embed_advance(embed, 100);
    testpeer_read(dealer);
    assert_int_equal(dealer->notices, 0);
}

EMBED_TEST(a_dealer_that_asks_gets_notices, FREE_TABLE, NULL)
{
    for (int delimiter = 0; delimiter < 2; delimiter++) {
        struct testpeer *peer = testpeer_new_type(embed, ZMQ_DEALER, delimiter);
        testpeer_open(peer, true);
        testpeer_insert(peer, "t", delimiter ? 1000 : 1, 64, 1);
        embed_settle(embed);
        testpeer_read(peer);
        assert_true(peer->notices >= 1);
        assert_int_equal(testpeer_resolved(peer, 0), 64);
        assert_int_equal(testpeer_counter(peer, "steps", 1), 1 + delimiter);
        assert_int_equal(peer->credit->session, peer->ordinal);
        assert_int_equal(peer->credit->epoch, peer->epoch);
        for (struct testpeer_answer *answer = peer->answers; answer; answer = answer->next)
            assert_int_equal(answer->delimited, delimiter);
    }
}

/* REQ_RELAXED: a second request may be sent before the answer to the first; REQ_CORRELATE drops the first's answer. */
EMBED_TEST(a_relaxed_req_gets_the_answer_to_its_last_request, BLOCKED_TABLE, NULL)
{
    struct testpeer *req = testpeer_new_type(embed, ZMQ_REQ, false), *writer = testpeer_opened(embed, false);
    uint64_t id = testpeer_sample(req, "b", 1, NO_TIMEOUT, 0);
    assert_null(testpeer_poll(req, id));
    /* The same request again: it goes on waiting, and is answered where it was asked last. */
    req->next_id--;
    assert_int_equal(testpeer_sample(req, "b", 1, NO_TIMEOUT, 0), id);
    assert_null(testpeer_poll(req, id));
    testpeer_insert(writer, "b", 1, 2, 1);
    assert_int_equal(testpeer_await(req, id)->status, RP_OK);
    assert_int_equal(embed_table(embed, "b")->limiter.samples, 1);
}

/* ---- rule 2: routes ---- */

EMBED_TEST(a_session_is_bound_to_its_newest_route, FREE_TABLE, NULL)
{
    struct testpeer *peer = testpeer_opened(embed, true);
    testpeer_reconnect(peer);
    testpeer_heartbeat(peer, 0, false);
    testpeer_insert(peer, "t", 1, 64, 1);
    embed_settle(embed);
    testpeer_read(peer);
    assert_true(peer->notices >= 1);
    assert_int_equal(embed->broker->peers.counters.replies_dropped, 0);
}

EMBED_TEST(a_peer_that_has_gone_costs_a_failed_send, FREE_TABLE, NULL)
{
    struct testpeer *gone = testpeer_opened(embed, true), *other = testpeer_new(embed);
    testpeer_insert(gone, "t", 1, 64, 1);
    testpeer_sample(gone, "t", 100, NO_TIMEOUT, DISTINCT);
    testpeer_close(gone);
    embed_settle(embed);
    assert_int_equal(testpeer_counter(other, "steps", 3), 3);
}

/* ---- rule 3: retries ---- */

static uint64_t ask_counter(struct testpeer *peer, uint64_t id)
{
    return testpeer_ask_with(peer, REQUEST_OF(COUNTER, counter, Counter, .name = testpeer_text("steps"), .add = 5), id,
                             NULL, 0);
}

/* A request that comes again with its id, from a new connection, too, is answered as before and changes nothing. */
EMBED_TEST(what_is_retried_happens_once, FREE_TABLE, NULL)
{
    struct testpeer *peer = testpeer_opened(embed, false), *other = testpeer_new(embed);
    uint8_t first[WIRE_SESSION_BYTES];
    memcpy(first, peer->session, sizeof first);
    peer->next_id--; /* HELLO */
    testpeer_forget(peer);
    testpeer_reconnect(peer);
    testpeer_open(peer, false);
    assert_memory_equal(peer->session, first, sizeof first);
    assert_int_equal(embed->broker->sessions.n_open, 1);
    testpeer_insert(peer, "t", 1, 3, 1);
    for (int round = 0; round < 3; round++) {
        assert_int_equal(testpeer_await(peer, ask_counter(peer, 77))->reply->counter->value, 5);
        Replay__Request *put = REQUEST_OF(PARAMS_PUT, params_put, ParamsPut, .name = testpeer_text("policy"));
        testpeer_ask_with(peer, put, 99, "abc", 3);
        assert_int_equal(testpeer_await(peer, 99)->reply->params->slots[0]->version, 1);
        Replay__Request *reset = REQUEST_OF(RESET, reset, Reset, .table = testpeer_text("t"));
        testpeer_ask_with(peer, reset, 88, NULL, 0);
        assert_int_equal(testpeer_await(peer, 88)->reply->change->applied, 3);
        testpeer_insert(peer, "t", 10 + (uint64_t)round, 1, 1);
        embed_settle(embed);
        testpeer_forget(peer);
        testpeer_reconnect(peer);
    }
    assert_int_equal(testpeer_counter(peer, "steps", 0), 5);
    assert_int_equal(params_version(&embed->broker->params, "policy"), 1);
    assert_int_equal(embed_table(embed, "t")->in.size, 3);
    /* The same id of another client is another request. */
    assert_int_equal(testpeer_await(other, ask_counter(other, 77))->reply->counter->value, 10);
}

EMBED_TEST(a_waiting_sample_follows_its_retry_to_a_new_route, FREE_TABLE, NULL)
{
    struct testpeer *peer = testpeer_new(embed), *writer = testpeer_opened(embed, false);
    uint64_t id = testpeer_sample(peer, "t", 2, NO_TIMEOUT, 0);
    assert_null(testpeer_poll(peer, id));
    testpeer_reconnect(peer);
    peer->next_id--;
    assert_int_equal(testpeer_sample(peer, "t", 2, NO_TIMEOUT, 0), id);
    assert_null(testpeer_poll(peer, id));
    assert_int_equal(embed_table(embed, "t")->waiters.n, 1);
    testpeer_insert(writer, "t", 1, 1, 1);
    struct testpeer_answer *answer = testpeer_await(peer, id);
    assert_int_equal(answer->status, RP_OK);
    assert_int_equal(answer->reply->sample->n_key, 2);
    assert_int_equal(embed_table(embed, "t")->limiter.samples, 2);
    assert_int_equal(embed->broker->peers.waits.count, 0);
}

EMBED_TEST(unknown_versions_and_messages_get_a_sentence, FREE_TABLE, NULL)
{
    struct testpeer *peer = testpeer_new(embed);
    static const uint8_t version_2[] = {0x08, 2, 0x11, 5, 0, 0, 0, 0, 0, 0, 0, 0xda, 1, 0};
    static const uint8_t message_40[] = {0x08, 1, 0x11, 6, 0, 0, 0, 0, 0, 0, 0, 0xc2, 2, 0};
    static const uint8_t no_body[] = {0x08, 1, 0x11, 7, 0, 0, 0, 0, 0, 0, 0};
    zmq_send(peer->service, version_2, sizeof version_2, 0);
    zmq_send(peer->service, message_40, sizeof message_40, 0);
    zmq_send(peer->service, no_body, sizeof no_body, 0);
    for (uint64_t id = 5; id <= 7; id++) {
        struct testpeer_answer *answer = testpeer_await(peer, id);
        assert_int_equal(answer->status, RP_UNSUPPORTED);
        assert_true(strlen(answer->text) > 20);
    }
    static const uint8_t no_id[] = {0x08, 1, 0xda, 1, 0};
    zmq_send(peer->service, no_id, sizeof no_id, 0);
    assert_int_equal(testpeer_await(peer, 0)->status, RP_BAD_MESSAGE);
    testpeer_forget(peer);
    zmq_send(peer->service, "garbage that is no header", 25, 0);
    assert_int_equal(testpeer_await(peer, 0)->status, RP_BAD_MESSAGE);
    assert_int_equal(testpeer_counter(peer, "steps", 1), 1);
}

/* ---- rule 4: loss is found by numbers ---- */

EMBED_TEST(stale_epochs_and_duplicates_are_ignored, FREE_TABLE, NULL)
{
    struct testpeer *peer = testpeer_new(embed);
    peer->keep = true;
    testpeer_open(peer, false);
    testpeer_insert(peer, "t", 1, 2, 1);
    embed_settle(embed);
    testpeer_resume(peer, 1, false);
    peer->epoch = 1;
    testpeer_insert(peer, "t", 3, 1, 1);
    embed_settle(embed);
    assert_int_equal(embed_table(embed, "t")->in.size, 2);
    assert_int_equal(embed->broker->sessions.ingest_stale, 1);
    peer->epoch = 2;
    testpeer_resend(peer, 0); /* all of them: the first is there already */
    testpeer_resend(peer, 0);
    testpeer_heartbeat(peer, 0, false);
    assert_int_equal(peer->credit->received, 2);
    assert_int_equal(testpeer_resolved(peer, 0), 3);
    assert_int_equal(peer->credit->n_rejections, 0);
    assert_int_equal(embed_table(embed, "t")->in.size, 3);
}

EMBED_TEST(messages_of_unknown_sessions_are_ignored, FREE_TABLE, NULL)
{
    struct testpeer *peer = testpeer_opened(embed, false), *other = testpeer_opened(embed, false);
    peer->session[3] ^= 1;
    testpeer_insert(peer, "t", 1, 2, 1);
    testpeer_insert(other, "t", 10, 2, 1);
    embed_settle(embed);
    assert_int_equal(embed_table(embed, "t")->in.size, 2);
    assert_int_equal(embed->broker->sessions.ingest_stale, 1);
    assert_int_equal(testpeer_heartbeat(peer, 0, false)->status, RP_SESSION_UNKNOWN);
}

/* A writer is told that it lost messages for good, and goes on. */
EMBED_TEST(lost_messages_are_told_and_the_session_goes_on, FREE_TABLE, NULL)
{
    struct testpeer *peer = testpeer_new(embed);
    peer->keep = true;
    testpeer_open(peer, false);
    testpeer_insert(peer, "t", 1, 1, 1);
    embed_settle(embed);
    peer->lose = true;
    testpeer_insert(peer, "t", 2, 1, 1);
    testpeer_insert(peer, "t", 3, 1, 1);
    peer->lose = false;
    /* The client no longer has messages 2 and 3: an older broker had confirmed them. */
    testpeer_resume(peer, 4, false);
    assert_int_equal(peer->lost_messages, 2);
    testpeer_insert(peer, "t", 4, 1, 1);
    testpeer_heartbeat(peer, 0, false);
    assert_int_equal(peer->credit->received, 4);
    assert_int_equal(embed_table(embed, "t")->in.size, 2);
    assert_int_equal(testpeer_resolved(peer, 0), 4);
}

/* ---- rule 6: rejections ---- */

EMBED_TEST(rejections_are_per_item_and_repeated_until_confirmed, FREE_TABLE, NULL)
{
    struct testpeer *peer = testpeer_opened(embed, true);
    uint32_t layout = testpeer_plain(peer, "t");
    static const double priorities[] = {1, -1, 1, (double)INFINITY, (double)NAN, 1};
    for (uint64_t i = 0; i < 6; i++) {
        uint64_t key = 10 + i;
        const void *blocks[] = {&key};
        testpeer_item(peer, layout, key, priorities[i], testpeer_chunk(peer, 1, blocks, false), 0, 1);
    }
    testpeer_push(peer);
    for (int round = 0; round < 3; round++) {
        testpeer_heartbeat(peer, 0, false);
        assert_int_equal(testpeer_resolved(peer, 0), 6);
        assert_int_equal(peer->credit->rejected[0], 3);
        assert_int_equal(peer->credit->n_rejections, 3);
        assert_int_equal(peer->credit->first_rejection, 0);
        assert_int_equal(peer->credit->rejections[1]->key, 13);
        assert_int_equal(peer->credit->rejections[1]->item, 4);
        assert_int_equal(peer->credit->rejections[1]->status, RP_INVALID_ARGUMENT);
        assert_non_null(strstr(peer->credit->rejections[1]->text, "priority inf"));
    }
    testpeer_heartbeat(peer, 2, false);
    assert_int_equal(peer->credit->n_rejections, 1);
    assert_int_equal(peer->credit->first_rejection, 2);
    assert_int_equal(peer->credit->rejections[0]->key, 14);
    testpeer_heartbeat(peer, 3, false);
    assert_int_equal(peer->credit->n_rejections, 0);
    assert_int_equal(embed_table(embed, "t")->in.size, 3);
    testpeer_insert(peer, "t", 20, 5, 1);
    testpeer_heartbeat(peer, 3, false);
    assert_int_equal(testpeer_resolved(peer, 0), 11);
    assert_int_equal(embed_table(embed, "t")->in.size, 8);
}

EMBED_TEST(a_writer_that_reads_no_rejections_gets_no_credit, FREE_TABLE, NULL)
{
    struct testpeer *peer = testpeer_opened(embed, false), *other = testpeer_opened(embed, false);
    for (uint64_t i = 0; i < 40; i++) {
        testpeer_insert(peer, "t", 1, 30, 1); /* the same keys */
        testpeer_heartbeat(peer, 0, false);
        assert_true(peer->credit->n_rejections <= 32);
    }
    uint64_t allowed = testpeer_allowed(peer, 0);
    testpeer_heartbeat(peer, 0, false);
    assert_int_equal(testpeer_allowed(peer, 0), allowed);
    testpeer_heartbeat(peer, 1200, false);
    assert_true(testpeer_allowed(peer, 0) > allowed);
    testpeer_insert(other, "t", 5000, 10, 1);
    embed_settle(embed);
    assert_int_equal(embed_table(embed, "t")->in.size, 40);
}

/* ---- rule 7: chunks outlive doubt ---- */

EMBED_TEST(a_waiting_item_holds_its_chunks, BLOCKED_TABLE, NULL)
{
    struct testpeer *peer = testpeer_opened(embed, false);
    testpeer_insert(peer, "b", 1, 6, 1); /* says that none of these chunks will be needed again */
    embed_settle(embed);
    assert_int_equal(embed_table(embed, "b")->in.size, 2);
    assert_int_equal(embed->broker->store.chunks, 6);
    for (uint64_t key = 1; key <= 6; key++) {
        struct testpeer_answer *answer = testpeer_sampled(peer, "b", 1);
        sampled_check(answer, 0);
        assert_int_equal(testpeer_delete(peer, "b", 1, &key)->reply->change->applied, 1);
    }
    assert_int_equal(embed->broker->store.chunks, 0);
}

EMBED_TEST(chunks_that_were_let_go_of_are_refused, FREE_TABLE, NULL)
{
    struct testpeer *peer = testpeer_opened(embed, false);
    uint32_t layout = testpeer_plain(peer, "t");
    uint64_t value = 5;
    const void *blocks[] = {&value};
    uint64_t chunk = testpeer_chunk(peer, 1, blocks, false);
    testpeer_push(peer);
    testpeer_item(peer, layout, 1, 1, chunk, 0, 1);
    peer->oldest_chunk = chunk + 1;
    testpeer_push(peer);
    testpeer_item(peer, layout, 2, 1, chunk, 0, 1);
    testpeer_item(peer, layout, 3, 1, chunk + 7, 0, 1);
    testpeer_push(peer);
    testpeer_heartbeat(peer, 0, false);
    assert_int_equal(embed_table(embed, "t")->in.size, 1);
    assert_int_equal(peer->credit->n_rejections, 2);
    assert_int_equal(peer->credit->rejections[0]->status, RP_FAILED_PRECONDITION);
    assert_non_null(strstr(peer->credit->rejections[0]->text, "chunk 1 is gone"));
    assert_non_null(strstr(peer->credit->rejections[1]->text, "never sent"));
}
