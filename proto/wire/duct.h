/* Messages between two sides of one process that share a thread: replaces a pair of sockets, without system calls and locks. A
 * message has one or more frames; it can be received once its last frame was sent. */
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
    uint32_t whole;    /* frames of complete messages */
    uint32_t begun;    /* frames of the incomplete message after them */
};

/* Drops messages that were not received. */
void duct_fini(struct duct *self);

/* The ducts between a client and a broker. The owner of both owns the ducts, and destroys them last. */
struct ducts {
    struct duct requests, replies; /* with an envelope, as a ROUTER has them */
    struct duct data;              /* for ingest */
};

void ducts_fini(struct ducts *self);

/* Where frames go to or come from: a duct, or a socket if duct is NULL. */
struct way {
    void *socket;
    struct duct *duct;
};

/* Neither waits. way_send takes the frame if it returns true. It refuses the first frame of a message if the socket has no room
 * or there is no memory, and a later frame only for lack of memory: then the whole message is dropped, and the caller sends no
 * more of it. way_receive moves the frame into an initialised one. */
bool way_send(struct way to, zmq_msg_t *frame, bool more);
bool way_send_bytes(struct way to, const void *data, size_t size, bool more);
bool way_receive(struct way from, zmq_msg_t *frame, bool *more);

#endif
