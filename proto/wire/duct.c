#include "proto/wire/duct.h"

#include <stdlib.h>
#include <string.h>

#define FIRST_CAPACITY 64u

static struct duct_frame *frame_at(const struct duct *self, uint32_t i)
{
    return &self->ring[(self->first + i) & (self->capacity - 1)];
}

static void move(zmq_msg_t *to, zmq_msg_t *from)
{
    zmq_msg_init(to);
    zmq_msg_move(to, from);
}

static bool duct_grow(struct duct *self)
{
    uint32_t n = self->whole + self->begun, capacity = self->capacity ? self->capacity * 2 : FIRST_CAPACITY;
    struct duct_frame *ring = malloc(capacity * sizeof *ring);
    if (!ring)
        return false;
    for (uint32_t i = 0; i < n; i++) {
        struct duct_frame *from = frame_at(self, i);
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
static void duct_drop(struct duct *self)
{
    for (uint32_t i = 0; i < self->begun; i++)
        zmq_msg_close(&frame_at(self, self->whole + i)->data);
    self->begun = 0;
}

static bool duct_send(struct duct *self, zmq_msg_t *frame, bool more)
{
    uint32_t n = self->whole + self->begun;
    if (n == self->capacity && !duct_grow(self)) {
        duct_drop(self);
        return false;
    }
    struct duct_frame *at = frame_at(self, n);
    move(&at->data, frame);
    at->more = more;
    self->begun++;
    if (!more) {
        self->whole += self->begun;
        self->begun = 0;
    }
    return true;
}

static bool duct_receive(struct duct *self, zmq_msg_t *frame, bool *more)
{
    if (self->whole == 0)
        return false;
    struct duct_frame *at = frame_at(self, 0);
    zmq_msg_move(frame, &at->data);
    zmq_msg_close(&at->data);
    *more = at->more;
    self->first = (self->first + 1) & (self->capacity - 1);
    self->whole--;
    return true;
}

void duct_fini(struct duct *self)
{
    for (uint32_t i = 0; i < self->whole + self->begun; i++)
        zmq_msg_close(&frame_at(self, i)->data);
    free(self->ring);
    *self = (struct duct){0};
}

void ducts_fini(struct ducts *self)
{
    duct_fini(&self->requests);
    duct_fini(&self->replies);
    duct_fini(&self->data);
}

bool way_send(struct way to, zmq_msg_t *frame, bool more)
{
    if (to.duct)
        return duct_send(to.duct, frame, more);
    return zmq_msg_send(frame, to.socket, ZMQ_DONTWAIT | (more ? ZMQ_SNDMORE : 0)) >= 0;
}

bool way_send_bytes(struct way to, const void *data, size_t size, bool more)
{
    zmq_msg_t frame;
    if (zmq_msg_init_size(&frame, size) != 0) {
        if (to.duct)
            duct_drop(to.duct);
        return false;
    }
    if (size)
        memcpy(zmq_msg_data(&frame), data, size);
    bool sent = way_send(to, &frame, more);
    zmq_msg_close(&frame);
    return sent;
}

bool way_receive(struct way from, zmq_msg_t *frame, bool *more)
{
    if (from.duct)
        return duct_receive(from.duct, frame, more);
    if (zmq_msg_recv(frame, from.socket, ZMQ_DONTWAIT) < 0)
        return false;
    *more = zmq_msg_more(frame);
    return true;
}
