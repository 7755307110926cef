/* Messages between two sides of one process that share a thread: replaces a pair of sockets, without system calls and locks. A
 * message has one or more frames; it can be received once its last frame was sent. */
#pragma once

#include <stdbool.h>
#include <stdint.h>
#include <string.h>
#include <zmq.h>

struct channel_frame {
    zmq_msg_t data;
    bool more; /* frames of the same message follow */
};

/* One direction. All zeros: empty. */
struct channel {
    struct channel_frame *ring;
    uint32_t capacity; /* a power of two, or 0 */
    uint32_t first;    /* position of the oldest frame */
    uint32_t whole;    /* frames of complete messages */
    uint32_t begun;    /* frames of the incomplete message after them */
};

/* Drops messages that were not received. */
void channel_fini(struct channel *self);

/* The channels between a client and a broker. The owner of both owns the channels, and destroys them last. */
struct channels {
    struct channel requests, replies; /* with an envelope, as a ROUTER has them */
    struct channel data;              /* for ingest */
};

void channels_fini(struct channels *self);

/* Where frames go to or come from: a channel, or a socket if channel is NULL. */
struct port {
    void *socket;
    struct channel *channel;
};

/* Makes a message with a copy of the data, which is NULL if it has no bytes. False: no memory, and the message is empty. */
static inline bool message_copy(zmq_msg_t *message, const void *data, size_t size)
{
    bool ok = zmq_msg_init_size(message, size) == 0;
    if (!ok)
        zmq_msg_init(message); /* libzmq leaves one that cannot be closed */
    else if (data)
        memcpy(zmq_msg_data(message), data, size);
    return ok;
}

/* Neither waits. port_send takes the frame if it returns true. It refuses the first frame of a message if the socket has no room
 * or there is no memory, and a later frame only for lack of memory: then the whole message is dropped, and the caller sends no
 * more of it. port_receive moves the frame into an initialised one. */
bool port_send(struct port to, zmq_msg_t *frame, bool more);
bool port_send_bytes(struct port to, const void *data, size_t size, bool more);
bool port_receive(struct port from, zmq_msg_t *frame, bool *more);

/* How a thread waits for sockets. zmq_poll asks each socket for its events, up to twice in a wait, and each question is two system
 * calls. poll can wait for the sockets' descriptors instead. A descriptor is readable while its socket has commands that no call has
 * processed; so a socket that was read until it was empty, and was not used since then, need not be asked. */

/* Returns the descriptor of a socket; -1, which poll ignores: there is no socket. */
int socket_fd(void *socket);
/* Asks a socket, which may be NULL. True also if a signal came between: ask again. */
bool socket_has(void *socket, int wanted);
