/* Messages between two sides of one process that share a thread: what a pair of sockets is elsewhere, without a system call
 * or a lock. A message is one frame or more; it can be received once its last frame is there. */
#ifndef PROTO_DUCT_H
#define PROTO_DUCT_H

#include <stdbool.h>
#include <stdint.h>
#include <zmq.h>

struct duct_frame {
    zmq_msg_t data;
    bool more; /* frames of the same message follow */
};

/* One direction. All zeros: empty. */
struct duct {
    struct duct_frame *ring;
    uint32_t capacity; /* a power of two, or 0 */
    uint32_t first;    /* position of the oldest frame */
    uint32_t whole;    /* frames of messages that are complete */
    uint32_t begun;    /* further frames, of the message that is being sent */
};

/* Drops what was not received. */
void duct_fini(struct duct *self);

/* Between a client and a broker. Whoever makes the two owns it, and destroys it after both. */
struct ducts {
    struct duct requests, replies; /* with an envelope, as a ROUTER has them */
    struct duct data;              /* for ingest */
};

void ducts_fini(struct ducts *self);

/* Where frames go to or come from: a duct, or if there is none a socket. */
struct way {
    void *socket;
    struct duct *duct;
};

/* Neither waits. way_send takes the frame if it is true; the first frame of a message is refused if the socket has no room
 * or there is no memory, a later one only for lack of memory, and then the whole message is dropped: whoever is refused a
 * frame sends no more of that message. way_receive moves the frame into one that was initialised. */
bool way_send(struct way to, zmq_msg_t *frame, bool more);
bool way_send_bytes(struct way to, const void *data, size_t size, bool more);
bool way_receive(struct way from, zmq_msg_t *frame, bool *more);

#endif
