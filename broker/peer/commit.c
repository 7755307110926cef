#include "broker/peer/commit.h"

#include <stdlib.h>

#include "broker/loop/loop.h"
#include "broker/peer/peers.h"

/* Heartbeats are answered with words only when nothing became durable for this long. */
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

bool commit_reserve(struct commit *self)
{
    if (!self->spare && self->needed)
        self->spare = malloc(sizeof *self->spare + sizeof self->spare->frames[0]);
    return self->spare || !self->needed;
}

bool commit_hold(struct peers *peers, const struct envelope *to, zmq_msg_t *header, zmq_msg_t *payload, uint32_t n)
{
    struct commit *self = &peers->commit;
    if (self->ahead)
        return false;
    uint64_t number = self->needed(self->journal);
    if (!self->first && number <= *self->durable)
        return false;
    struct parked_message *message = malloc(sizeof *message + (n + 1) * sizeof message->frames[0]);
    if (!message && n == 0) {
        message = self->spare;
        self->spare = NULL;
    }
    if (!message) { /* it must not leave now, and cannot wait: the client asks again */
        zmq_msg_close(header);
        for (uint32_t i = 0; i < n; i++)
            zmq_msg_close(&payload[i]);
        peers->counters.replies_dropped++;
        return true;
    }
    message->next = NULL;
    message->number = number;
    message->since_ns = peers->loop->now_ns;
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

void commit_release(struct peers *peers)
{
    struct commit *self = &peers->commit;
    while (self->first && self->first->number <= *self->durable) {
        struct parked_message *message = take(self);
        histogram_add_ns(&self->waited, peers->loop->now_ns - message->since_ns, 1);
        peer_send_now(peers, &message->to, &message->frames[0], message->frames + 1, message->n);
        free(message);
    }
}

bool commit_is_stuck(const struct peers *peers)
{
    return peers->commit.first && peers->loop->now_ns - peers->commit.oldest_ns >= STUCK_NS;
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
