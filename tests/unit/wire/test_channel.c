/* Frames in memory against the plain model of a queue of messages. */

#include "proto/wire/channel.h"
#include "tests/support/naive.h"

/* Frames hold their number, and so many bytes more that they are on the heap now and then. */
static void send_frame(struct port port, uint64_t number, size_t more_bytes, bool more)
{
    zmq_msg_t frame;
    assert_int_equal(zmq_msg_init_size(&frame, sizeof number + more_bytes), 0);
    memset(zmq_msg_data(&frame), 0, zmq_msg_size(&frame));
    memcpy(zmq_msg_data(&frame), &number, sizeof number);
    assert_true(port_send(port, &frame, more));
    assert_int_equal(zmq_msg_size(&frame), 0); /* taken */
    zmq_msg_close(&frame);
}

static bool receive_frame(struct port port, uint64_t *number, size_t *more_bytes, bool *more)
{
    zmq_msg_t frame;
    zmq_msg_init(&frame);
    bool any = port_receive(port, &frame, more);
    if (any) {
        memcpy(number, zmq_msg_data(&frame), sizeof *number);
        *more_bytes = zmq_msg_size(&frame) - sizeof *number;
    }
    zmq_msg_close(&frame);
    return any;
}

/* Half a message cannot be seen, however long it is. */
TEST(model)
{
    struct channel channel = {0};
    struct port port = {.channel = &channel};
    struct rng rng = rng_of(1);
    uint64_t sent = 0, whole = 0, received = 0;
    for (uint32_t i = 0; i < 20000; i++) {
        /* It fills up and runs empty by turns. */
        bool send = rng_below(&rng, 100) < (i / 1000 % 2 ? 35u : 65u);
        if (send) {
            bool more = i % 1000 < 300 ? i % 1000 > 0 : rng_below(&rng, 3) == 0;
            send_frame(port, sent, sent % 50, more);
            sent++;
            whole = more ? whole : sent;
            continue;
        }
        uint64_t number = 0;
        size_t more_bytes = 0;
        bool more = false;
        assert_int_equal(receive_frame(port, &number, &more_bytes, &more), received < whole);
        if (received == whole)
            continue;
        assert_int_equal(number, received);
        assert_int_equal(more_bytes, received % 50);
        received++;
        assert_true(more ? received < whole : true);
    }
    assert_true(sent > 5000 && received > 5000);
    channel_fini(&channel); /* with what is left in it */
    assert_false(port_receive(port, &(zmq_msg_t){0}, &(bool){false}));
}
