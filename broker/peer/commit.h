/* Output commit: with the journal on, a message to a client waits until all that happened before it is durable. So
 * whatever a client was told is true after a crash, and there is one rule instead of one per message.
 *
 * What makes no promise (info, why, list, errors, a heartbeat that says that the journal is stuck) may go ahead. */
#ifndef BROKER_COMMIT_H
#define BROKER_COMMIT_H

#include <zmq.h>

#include "broker/peer/peer.h"

struct parked_message;

struct commit {
    struct parked_message *first, **last;
    uint64_t count;
    int64_t oldest_ns;            /* when the first of them came */
    struct parked_message *spare; /* for a reply without payload: commit_reserve */
    bool ahead;                   /* messages go past the queue: what is told now makes no promise */
};

void commit_init(struct commit *self);
/* Before a request changes anything: its reply will be able to wait. False: no memory. */
bool commit_reserve(struct broker *broker);
/* Takes the message if it has to wait. False: it may go now, and nothing was taken. */
bool commit_hold(struct broker *broker, const struct envelope *to, zmq_msg_t *header, zmq_msg_t *payload, uint32_t n);
/* Sends what is durable. */
void commit_release(struct broker *broker);
/* Nothing has become durable for so long that clients must be told: heartbeats are then answered with words only. */
bool commit_is_stuck(const struct broker *broker);
void commit_fini(struct commit *self);

#endif
