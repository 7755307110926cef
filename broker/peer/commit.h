/* Output commit: with the journal on, a message to a client waits until everything that happened before it is durable. So
 * whatever a client was told is true after a crash, and there is one rule instead of one per message.
 *
 * Messages that confirm nothing (info, why, list, errors, a heartbeat that says that the journal is stuck) may go ahead.
 *
 * This room does not know the journal: the journal fills in the first three fields of struct commit. */
#ifndef BROKER_COMMIT_H
#define BROKER_COMMIT_H

#include <zmq.h>

#include "broker/metrics/histogram.h"
#include "broker/peer/peer.h"

struct parked_message;

struct commit {
    /* Returns the number of the record that must be durable before anything told now may leave. NULL: the journal is off. */
    uint64_t (*needed)(const void *journal);
    const uint64_t *durable; /* number of the last durable record */
    const void *journal;
    struct parked_message *first, **last;
    uint64_t count;
    int64_t oldest_ns;            /* when the first parked message came */
    struct parked_message *spare; /* for a reply without payload: commit_reserve */
    bool ahead;                   /* messages are sent past the queue: what is told now confirms nothing */
    struct histogram waited;      /* nanoseconds that messages were parked */
};

void commit_init(struct commit *self);
/* Before a request changes anything: makes sure that its reply can be parked. False: no memory. */
bool commit_reserve(struct commit *self);
/* With the journal on: takes the message if it has to wait. False: it may go now, and nothing was taken. */
bool commit_hold(struct peers *peers, const struct envelope *to, zmq_msg_t *header, zmq_msg_t *payload, uint32_t n);
/* Sends parked messages whose record is durable. */
void commit_release(struct peers *peers);
/* True if nothing has become durable for so long that clients must hear of it: heartbeats are then answered with words
 * only. */
bool commit_is_stuck(const struct peers *peers);
void commit_fini(struct commit *self);

#endif
