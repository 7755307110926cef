/* Connections that break in mid-stream, sockets that go and come back, and a broker that is killed: what is acknowledged
 * is in its table exactly once. */

#include <sys/wait.h>

#include "tests/support/process.h"
#include "tests/support/testpeer.h"

#define TABLE "  - {name: t, max_size: 100000, sampler: {kind: fifo}, max_times_sampled: 1, limiter: {kind: none}}\n"

/* Reads the table empty: keys 1 .. n, each once, in order, with its data. */
static void check_all(struct testpeer *peer, uint64_t n)
{
    for (uint64_t key = 1; key <= n;) {
        uint32_t count = n - key + 1 < 500 ? (uint32_t)(n - key + 1) : 500;
        struct testpeer_answer *answer = testpeer_sampled(peer, "t", count);
        assert_int_equal(answer->reply->sample->n_key, count);
        for (uint32_t i = 0; i < count; i++, key++) {
            assert_int_equal(answer->reply->sample->key[i], key);
            sampled_check(answer, i);
        }
        testpeer_forget(peer);
    }
    assert_int_equal(testpeer_await(peer, testpeer_sample(peer, "t", 1, 0, 0))->status, RP_DEADLINE_EXCEEDED);
}

static void take_up_again(struct testpeer *peer)
{
    testpeer_reconnect(peer);
    struct testpeer_answer *answer = testpeer_resume(peer, 1, false);
    if (answer->status != RP_OK)
        fail_msg("resume: %s", answer->text);
    assert_int_equal(peer->lost_messages, 0);
    testpeer_resend(peer, peer->credit->received);
    testpeer_forget(peer);
}

/* The same over tcp, where the PUSH connects again by itself and goes on in mid-stream, without knowing what was lost. */
EMBED_TEST(a_push_that_reconnects_by_itself_leaves_a_gap_that_is_found, TABLE,
           "service: tcp://127.0.0.1:0\ningest: tcp://127.0.0.1:0\nevents: tcp://127.0.0.1:0\n")
{
    struct testpeer *peer = testpeer_new(embed);
    peer->keep = true;
    testpeer_open(peer, false);
    uint64_t sent = 0;
    uint32_t healed = 0;
    for (uint32_t round = 0; round < 40; round++) {
        for (uint32_t i = 0; i < 10; i++, sent += 5) {
            while (sent + 5 > testpeer_allowed(peer, 0))
                testpeer_heartbeat(peer, 0, false);
            testpeer_insert(peer, "t", sent + 1, 5, 1);
        }
        if (round % 10 == 5)
            embed_rebind(embed);
        /* Three heartbeats without progress, or a gap: HELLO and again from received + 1. */
        uint64_t before = UINT64_MAX;
        for (uint32_t still = 0; still < 3 && !peer->credit->gap && peer->credit->received < peer->number;) {
            testpeer_heartbeat(peer, 0, false);
            still = peer->credit->received == before ? still + 1 : 0;
            before = peer->credit->received;
        }
        if (peer->credit->gap || peer->credit->received < peer->number) {
            take_up_again(peer);
            healed++;
        }
        testpeer_forget(peer);
    }
    while (testpeer_resolved(peer, 0) < sent) {
        testpeer_heartbeat(peer, 0, false);
        if (peer->credit->gap)
            take_up_again(peer);
    }
    assert_true(healed >= 1);
    assert_int_equal(peer->credit->n_rejections, 0);
    check_all(peer, sent);
}

/* ---- real processes ---- */

static void insert_and_confirm(struct testpeer *peer, uint64_t first, uint32_t n)
{
    testpeer_insert(peer, "t", first, n, 1);
    testpeer_await_resolved(peer, 0, testpeer_resolved(peer, 0) + n);
}

TEST(a_killed_broker_does_not_know_the_session)
{
    struct broker_process broker;
    broker_process_start(&broker, TABLE, NULL);
    struct testpeer *peer = testpeer_connect(broker.service);
    testpeer_open(peer, false);
    uint64_t first = peer->key_base;
    insert_and_confirm(peer, 1, 10);
    broker_process_stop(&broker, SIGKILL);
    broker_process_again(&broker, NULL);
    testpeer_reconnect(peer);
    assert_int_equal(testpeer_resume(peer, 1, false)->status, RP_SESSION_UNKNOWN);
    assert_int_equal(testpeer_heartbeat(peer, 0, false)->status, RP_SESSION_UNKNOWN);
    /* A new session, with keys that do not meet those of the old one. */
    struct testpeer *again = testpeer_connect(broker.service);
    testpeer_open(again, false);
    assert_true(again->key_base != first);
    insert_and_confirm(again, 1, 10);
    testpeer_close(again);
    testpeer_close(peer);
    broker_process_fini(&broker);
}

TEST(sigterm_drains)
{
    struct broker_process broker;
    broker_process_start(&broker,
                         "  - {name: t, max_size: 2, sampler: {kind: fifo}, limiter: {kind: queue}}\n"
                         "  - {name: empty, max_size: 100}\n",
                         NULL);
    struct testpeer *peer = testpeer_connect(broker.service), *waiter = testpeer_connect(broker.service);
    testpeer_open(peer, false);
    testpeer_insert(peer, "t", 1, 5, 1);
    testpeer_await_resolved(peer, 0, 2);
    uint64_t sample = testpeer_sample(waiter, "empty", 1, NO_TIMEOUT, 0), bye = testpeer_bye(peer, NO_TIMEOUT);
    /* Both are known to wait before the signal is sent. */
    while (testpeer_info(waiter)->server->waiter_count < 2)
        testpeer_forget(waiter);
    int status = broker_process_stop(&broker, SIGTERM);
    assert_true(WIFEXITED(status) && WEXITSTATUS(status) == 0);
    struct testpeer_answer *answer = testpeer_await(waiter, sample);
    assert_int_equal(answer->status, RP_CANCELLED);
    assert_non_null(strstr(answer->text, "shutting down"));
    answer = testpeer_await(peer, bye);
    assert_int_equal(answer->status, RP_CANCELLED);
    assert_int_equal(answer->reply->credit->resolved[0], 2);
    testpeer_close(waiter);
    testpeer_close(peer);
    broker_process_fini(&broker);
}
