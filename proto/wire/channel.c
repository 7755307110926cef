#include "proto/wire/channel.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#define FIRST_CAPACITY 64u

static struct channel_frame *frame_at(const struct channel *self, uint32_t i)
{
    return &self->ring[(self->first + i) & (self->capacity - 1)];
}

static void move(zmq_msg_t *to, zmq_msg_t *from)
{
    zmq_msg_init(to);
    zmq_msg_move(to, from);
}

static bool channel_grow(struct channel *self)
{
    uint32_t n = self->whole + self->begun, capacity = self->capacity ? self->capacity * 2 : FIRST_CAPACITY;
    struct channel_frame *ring = malloc(capacity * sizeof *ring);
    if (!ring)
        return false;
    for (uint32_t i = 0; i < n; i++) {
        struct channel_frame *from = frame_at(self, i);
        move(&ring[i].data, &from->data);
        ring[i].more = from->more;
    }
    free(self->ring);
    self->ring = ring;
    self->capacity = capacity;
    self->first = 0;
    return true;
}

/* Drops the incomplete message. */
static void channel_drop(struct channel *self)
{
    for (uint32_t i = 0; i < self->begun; i++)
        zmq_msg_close(&frame_at(self, self->whole + i)->data);
    self->begun = 0;
}

static bool channel_send(struct channel *self, zmq_msg_t *frame, bool more)
{
    uint32_t n = self->whole + self->begun;
    if (n == self->capacity && !channel_grow(self)) {
        channel_drop(self);
        return false;
    }
    struct channel_frame *at = frame_at(self, n);
    move(&at->data, frame);
    at->more = more;
    self->begun++;
    if (!more) {
        self->whole += self->begun;
        self->begun = 0;
    }
    return true;
}

static bool channel_receive(struct channel *self, zmq_msg_t *frame, bool *more)
{
    if (self->whole == 0)
        return false;
    struct channel_frame *at = frame_at(self, 0);
    zmq_msg_move(frame, &at->data);
    zmq_msg_close(&at->data);
    *more = at->more;
    self->first = (self->first + 1) & (self->capacity - 1);
    self->whole--;
    return true;
}

void channel_fini(struct channel *self)
{
    for (uint32_t i = 0; i < self->whole + self->begun; i++)
        zmq_msg_close(&frame_at(self, i)->data);
    free(self->ring);
    *self = (struct channel){0};
}

void channels_fini(struct channels *self)
{
    channel_fini(&self->requests);
    channel_fini(&self->replies);
    channel_fini(&self->data);
}

bool port_send(struct port to, zmq_msg_t *frame, bool more)
{
    if (to.channel)
        return channel_send(to.channel, frame, more);
    return zmq_msg_send(frame, to.socket, ZMQ_DONTWAIT | (more ? ZMQ_SNDMORE : 0)) >= 0;
}

bool port_send_bytes(struct port to, const void *data, size_t size, bool more)
{
    zmq_msg_t frame;
    if (!message_copy(&frame, data, size)) {
        if (to.channel)
            channel_drop(to.channel);
        return false;
    }
    bool sent = port_send(to, &frame, more);
    zmq_msg_close(&frame);
    return sent;
}

bool port_receive(struct port from, zmq_msg_t *frame, bool *more)
{
    if (from.channel)
        return channel_receive(from.channel, frame, more);
    if (zmq_msg_recv(frame, from.socket, ZMQ_DONTWAIT) < 0)
        return false;
    *more = zmq_msg_more(frame);
    return true;
}

int socket_fd(void *socket)
{
    int fd = -1;
    size_t size = sizeof fd;
    return socket && zmq_getsockopt(socket, ZMQ_FD, &fd, &size) == 0 ? fd : -1;
}

bool socket_has(void *socket, int wanted)
{
    int events = 0;
    size_t size = sizeof events;
    if (!socket)
        return false;
    return zmq_getsockopt(socket, ZMQ_EVENTS, &events, &size) == 0 ? events & wanted : errno == EINTR;
}
