/* Connections that end: their waits end before another connection takes the descriptor. */

#include <poll.h>

#include "broker/peer/peers.h"
#include "tests/support/test.h"
#include "tests/support/testpeer.h"

#define TCP "service: tcp://127.0.0.1:0\ningest: tcp://127.0.0.1:0\nevents: tcp://127.0.0.1:0\n"

static void explain(const struct wait *wait, struct wait_text *out)
{
    (void)wait, (void)out;
}

static const struct wait_ops ops = {"test", explain, wait_end, NULL, NULL};

static void begin(struct peers *peers, struct wait *wait, struct request *request)
{
    request->head.id++;
    assert_int_equal(wait_begin(peers, wait, &ops, NULL, request, WAIT_FOREVER, &err), RP_OK);
}

EMBED_TEST(waits_end_with_their_connection, "  - {name: t, max_size: 10, limiter: {kind: min_size, min_size: 1}}\n",
           TCP)
{
    struct peers *peers = &embed->broker->peers;
    struct testpeer *peer = testpeer_new(embed);
    testpeer_sample(peer, "t", 1, NO_TIMEOUT, 0);
    wait_until((broker_turn(embed->broker, 1), peers->waits.count > 0));
    broker_turn(embed->broker, 0);
    struct pollfd monitor = {socket_fd(peers->monitor.socket), POLLIN, 0};
    assert_int_equal(poll(&monitor, 1, 0), 0); /* all that it has told was read */
    const struct wait *sample = peers->waits.first;
    struct request request = {
        .from = sample->to, .descriptor = sample->descriptor, .identity = sample->identity, .head = {.client = 1}};
    static struct wait late, other;
    testpeer_close(peer);
    assert_int_equal(poll(&monitor, 1, WAIT), 1);
    begin(peers, &late, &request); /* the connection had sent it before */
    assert_int_equal(peers->waits.count, 2);
    request.from.bytes[5] ^= 1; /* the route of another connection */
    begin(peers, &other, &request);
    assert_int_equal(peers->waits.count, 1);
    assert_ptr_equal(peers->waits.first, &other);
    wait_end(&other);
}
