/* A channel that cannot grow refuses one message, all of it, and takes the next one. */

#include "proto/wire/channel.h"
#include "tests/support/nomem.h"
#include "tests/support/test.h"

#define FRAMES 3u

/* As all callers do: none goes on after a refusal. */
static bool send_message(struct port port, uint64_t number, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++)
        if (!port_send_bytes(port, &number, sizeof number, i + 1 < n))
            return false;
    return true;
}

static void expect_frame(struct port port, uint64_t number, bool more)
{
    zmq_msg_t frame;
    bool got_more = !more;
    zmq_msg_init(&frame);
    assert_true(port_receive(port, &frame, &got_more));
    assert_memory_equal(zmq_msg_data(&frame), &number, sizeof number);
    assert_int_equal(got_more, more);
    zmq_msg_close(&frame);
}

/* So many frames are there already: the channel has to grow at the message's first frame, or at a later one. True: it had to. */
static bool refuse_once(uint64_t before)
{
    struct channel channel = {0};
    struct port port = {.channel = &channel};
    for (uint64_t i = 0; i < before; i++)
        assert_true(send_message(port, i, 1));
    nomem_arm(1, NOMEM_ONCE);
    nomem_enter();
    bool sent = send_message(port, before, FRAMES);
    nomem_leave();
    bool failed = nomem_disarm();
    assert_int_equal(sent, !failed);
    if (failed)
        assert_true(send_message(port, before, FRAMES));
    assert_true(send_message(port, before + 1, 1));
    for (uint64_t i = 0; i < before; i++)
        expect_frame(port, i, false);
    for (uint32_t i = 0; i < FRAMES; i++)
        expect_frame(port, before, i + 1 < FRAMES);
    expect_frame(port, before + 1, false);
    assert_false(port_receive(port, &(zmq_msg_t){0}, &(bool){false}));
    channel_fini(&channel);
    return failed;
}

TEST(refused_once)
{
    uint32_t refused = 0;
    for (uint64_t before = 0; before <= 140; before++)
        refused += refuse_once(before);
    assert_true(refused > FRAMES); /* at each of its frames */
}
