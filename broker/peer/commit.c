#include "broker/peer/commit.h"

#include <stdlib.h>

#include "broker/broker.h"
#include "broker/journal/stream.h"

/* Clients are told in words when nothing became durable for so long. */
#define STUCK_NS (500 * NS_PER_MS)

struct parked_message {
    struct parked_message *next;
    uint64_t number; /* of the record that must be durable first */
    int64_t since_ns;
    struct envelope to;
    uint32_t n;
    zmq_msg_t frames[]; /* header, payload */
};

void commit_init(struct commit *self)
{
    *self = (struct commit){0};
    self->last = &self->first;
}

static void move(zmq_msg_t *to, zmq_msg_t *from)
{
    zmq_msg_init(to);
    zmq_msg_move(to, from);
    zmq_msg_close(from);
}

bool commit_reserve(struct broker *broker)
{
    struct commit *self = &broker->peers.commit;
    if (!self->spare && broker->stream && broker->stream->journal)
        self->spare = malloc(sizeof *self->spare + sizeof self->spare->frames[0]);
    return self->spare || !broker->stream || !broker->stream->journal;
}

bool commit_hold(struct broker *broker, const struct envelope *to, zmq_msg_t *header, zmq_msg_t *payload, uint32_t n)
{
    struct commit *self = &broker->peers.commit;
    const struct stream *stream = broker->stream;
    if (!stream || !stream->journal || self->ahead)
        return false;
    uint64_t number = stream_now(stream);
    if (!self->first && number <= stream->durable)
        return false;
    struct parked_message *message = malloc(sizeof *message + (n + 1) * sizeof message->frames[0]);
    if (!message && n == 0) {
        message = self->spare;
        self->spare = NULL;
    }
    if (!message) { /* it may not go now, and can not wait: the client asks again */
        zmq_msg_close(header);
        for (uint32_t i = 0; i < n; i++)
            zmq_msg_close(&payload[i]);
        broker->peers.counters.replies_dropped++;
        return true;
    }
    message->next = NULL;
    message->number = number;
    message->since_ns = broker->loop.now_ns;
    message->to = *to;
    message->n = n;
    move(&message->frames[0], header);
    for (uint32_t i = 0; i < n; i++)
        move(&message->frames[1 + i], &payload[i]);
    if (!self->first)
        self->oldest_ns = message->since_ns;
    *self->last = message;
    self->last = &message->next;
    self->count++;
    return true;
}

static struct parked_message *take(struct commit *self)
{
    struct parked_message *message = self->first;
    self->first = message->next;
    self->count--;
    if (self->first)
        self->oldest_ns = self->first->since_ns;
    else
        self->last = &self->first;
    return message;
}

void commit_release(struct broker *broker)
{
    struct commit *self = &broker->peers.commit;
    while (self->first && self->first->number <= broker->stream->durable) {
        struct parked_message *message = take(self);
        peer_send_now(broker, &message->to, &message->frames[0], message->frames + 1, message->n);
        free(message);
    }
}

bool commit_is_stuck(const struct broker *broker)
{
    return broker->peers.commit.first && broker->loop.now_ns - broker->peers.commit.oldest_ns >= STUCK_NS;
}

void commit_fini(struct commit *self)
{
    free(self->spare);
    self->spare = NULL;
    while (self->first) {
        struct parked_message *message = take(self);
        for (uint32_t i = 0; i <= message->n; i++)
            zmq_msg_close(&message->frames[i]);
        free(message);
    }
}
