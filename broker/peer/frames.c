#include "broker/peer/frames.h"

bool frames_receive(struct way from, zmq_msg_t *frames, uint32_t most, uint32_t *n, bool *whole)
{
    *n = 0;
    *whole = true;
    for (;;) {
        zmq_msg_t surplus;
        zmq_msg_init(&surplus);
        zmq_msg_t *into = *n < most ? &frames[*n] : &surplus;
        if (into != &surplus)
            zmq_msg_init(into);
        bool more;
        if (!way_receive(from, into, &more)) {
            zmq_msg_close(into);
            return *n > 0;
        }
        if (into == &surplus) {
            zmq_msg_close(&surplus);
            *whole = false;
        } else {
            (*n)++;
        }
        if (!more)
            return true;
    }
}

void frames_close(zmq_msg_t *frames, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++)
        zmq_msg_close(&frames[i]);
}
