/* Bounds on what a peer can make the broker do or keep. */

#include "tests/support/testpeer.h"

#define TABLE "  - {name: t, max_size: 100000, sampler: {kind: fifo}, limiter: {kind: none}}\n"

/* A client that asks and does not read: its samples wait above its bound, and others are served. */
EMBED_TEST(a_slow_consumer_waits_and_others_are_served, TABLE, "peer_backlog_bytes: 2MiB\n")
{
    struct testpeer *writer = testpeer_new(embed), *slow = testpeer_new(embed), *good = testpeer_new(embed);
    static const struct testpeer_column column = {"x", "uint8", 1, {100000}, 100000};
    testpeer_open_with(writer, false, &column, 1);
    testpeer_insert_large(writer, "t", 1, 100000, true);
    embed_settle(embed);
    for (uint32_t i = 0; i < 200; i++) {
        testpeer_sample(slow, "t", 1, i < 100 ? NO_TIMEOUT : i < 199 ? 50 : 0, 0);
        embed_settle(embed);
    }
    assert_int_equal(embed_table(embed, "t")->stats.unique_samples, 1);
    assert_in_range(embed->broker->peers.waits.count, 170, 180);
    assert_int_equal(testpeer_sampled(good, "t", 1)->reply->sample->n_key, 1);
    embed_advance(embed, 60); /* those with a time-out end */
    assert_in_range(embed->broker->peers.waits.count, 75, 80);
    uint32_t served = 0, late = 0;
    for (uint32_t round = 0; round < 400 && served + late < 200; round++) {
        testpeer_read(slow);
        for (const struct testpeer_answer *answer = slow->answers; answer; answer = answer->next) {
            served += answer->status == RP_OK;
            late += answer->status == RP_DEADLINE_EXCEEDED;
        }
        testpeer_forget(slow); /* inside one process, a reply is unread until then */
        embed_advance(embed, 1);
    }
    assert_int_equal(served, 100);
    assert_int_equal(late, 100);
    assert_int_equal(embed->broker->peers.waits.count, 0);
}

EMBED_TEST(too_many_frames_are_refused, TABLE, NULL)
{
    struct testpeer *peer = testpeer_opened(embed, false);
    for (uint32_t i = 0; i < 200; i++)
        zmq_send(peer->service, "0123456789", 10, i < 199 ? ZMQ_SNDMORE : 0);
    assert_int_equal(testpeer_await(peer, 0)->status, RP_BAD_MESSAGE);
    /* On ingest: a header that needs no frames, with two thousand of them. */
    struct text header = {0};
    struct wire_ingest_out out = {.session = peer->session, .epoch = 1, .number = ++peer->number};
    wire_write_ingest(&header, &out);
    zmq_send(peer->ingest, header.data, header.size, ZMQ_SNDMORE);
    for (uint32_t i = 0; i < 2000; i++)
        zmq_send(peer->ingest, "x", 1, i < 1999 ? ZMQ_SNDMORE : 0);
    text_fini(&header);
    testpeer_insert(peer, "t", 1, 1, 1);
    testpeer_heartbeat(peer, 0, false);
    assert_int_equal(peer->credit->received, 2);
    assert_int_equal(embed_table(embed, "t")->in.size, 1);
}

/* A damaged header of a known session is passed over with a rejection; the next message goes on. */
EMBED_TEST(a_damaged_message_is_passed_over, TABLE, NULL)
{
    struct testpeer *peer = testpeer_opened(embed, false);
    testpeer_insert(peer, "t", 1, 1, 1);
    struct text header = {0};
    struct wire_ingest_out out = {.session = peer->session, .epoch = 1, .number = ++peer->number};
    wire_write_ingest(&header, &out);
    pb_put_fixed64(&header, 24, 7); /* item_key is an array, not a number */
    zmq_send(peer->ingest, header.data, header.size, 0);
    text_fini(&header);
    testpeer_insert(peer, "t", 2, 1, 1);
    testpeer_heartbeat(peer, 0, false);
    assert_int_equal(peer->credit->received, 3);
    assert_int_equal(peer->credit->n_rejections, 1);
    assert_int_equal(peer->credit->rejections[0]->status, RP_BAD_MESSAGE);
    assert_int_equal(peer->credit->rejections[0]->table, UINT32_MAX);
    assert_int_equal(embed_table(embed, "t")->in.size, 2);
    assert_int_equal(embed->broker->peers.counters.messages_bad, 1);
}

/* What is wrong with a chunk concerns the items that need it, and each is told what is wrong with its own. */
EMBED_TEST(bad_chunks_concern_their_items_only, TABLE, NULL)
{
    struct testpeer *peer = testpeer_opened(embed, false);
    uint32_t layout = testpeer_plain(peer, "t");
    uint64_t value = 1;
    const void *blocks[] = {&value};
    for (uint64_t key = 1; key <= 4; key++)
        testpeer_item(peer, layout, key, 1, testpeer_chunk(peer, 1, blocks, false), 0, 1);
    peer->draft->block_codec[0] = 99;
    peer->draft->block_size[1] = 7;
    peer->draft->pack.size--; /* the third begins a byte earlier, and is whole */
    peer->draft->block_codec[3] = 98;
    testpeer_push(peer);
    testpeer_insert(peer, "t", 10, 1, 1);
    testpeer_heartbeat(peer, 0, false);
    assert_int_equal(testpeer_resolved(peer, 0), 5);
    static const char *const reasons[] = {"codec", "chunk 2: column 'x': 7 bytes for 1 steps of 8 bytes", "codec"};
    static const uint64_t keys[] = {1, 2, 4};
    assert_int_equal(peer->credit->n_rejections, 3);
    for (uint32_t i = 0; i < 3; i++) {
        assert_int_equal(peer->credit->rejections[i]->key, keys[i]);
        assert_has(peer->credit->rejections[i]->text, reasons[i]);
    }
    assert_int_equal(embed_table(embed, "t")->in.size, 2);
}
