/* One peer: where its replies go, the frames of a reply, and the bound on replies that the peer leaves unread.
 *
 * The ROUTER sends with MANDATORY and without waiting: a peer that is gone or whose queue is full costs one failed send.
 * libzmq bounds the number of messages in its queue; this module bounds their bytes, by counting the bytes in flight. */
#pragma once

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/queue.h>
#include <zmq.h>

#include "broker/loop/histogram.h"
#include "proto/wire/channel.h"

struct peers;
struct unread;

/* The frames before the header, as they came: for each a length byte, then its bytes. */
#define ENVELOPE_BYTES 79u
struct envelope {
    struct unread *unread; /* counter of the key by which the peer came in; NULL: none. Owned by the identity */
    uint8_t size;
    uint8_t bytes[ENVELOPE_BYTES];
};

/* False: the envelope is full. */
bool envelope_add(struct envelope *self, const void *frame, size_t size);
/* Returns a number for the route of the connection. */
uint64_t envelope_route(const struct envelope *self);
/* True if libzmq has made up the route, because the client names none: no other connection has the same. */
static inline bool envelope_is_unique(const struct envelope *self)
{
    return self->bytes[0] == 5 && self->bytes[1] == 0;
}

/* Unread reply bytes of one route. Shared with the frames in flight: the last of them frees it. */
struct peer {
    atomic_long refs;
    atomic_llong pending_bytes;
    struct unread *unread; /* of all peers with the same key, counted together; NULL: no key */
    uint64_t route;
};

/* Gives up a reference. */
void peer_release(struct peer *self);
/* Returns the peer of a route, made when first used. */
struct peer *peer_find(struct peers *peers, const struct envelope *to);
/* True if the peer has left more than peer_backlog_bytes of replies unread. */
bool peer_is_full(const struct peers *peers, const struct peer *peer);
/* Makes message a frame of `size` bytes at data (malloc'ed; taken), charged to the peer until it has left. False: no memory,
 * data is freed. */
bool peer_frame(struct peer *peer, zmq_msg_t *message, void *data, size_t size);
/* The same for a view of part of a kept message. */
bool peer_frame_view(struct peer *peer, zmq_msg_t *message, zmq_msg_t *kept, const void *data, size_t size);
/* Charges the peer for any other message until it has left, and not its key: the message is in memory once, whoever gets it. False: no
 * memory. */
bool peer_charge(struct peer *peer, zmq_msg_t *message);

/* Sends envelope, header and payload, now or later (see below); takes all messages. False: the peer is gone or full, which is
 * counted. */
bool peer_send(struct peers *peers, const struct envelope *to, zmq_msg_t *header, zmq_msg_t *payload, uint32_t n);

/* The same, ahead of the messages that wait for the journal. */
bool peer_send_now(struct peers *peers, const struct envelope *to, zmq_msg_t *header, zmq_msg_t *payload, uint32_t n);

/* Reads the frames of a message without waiting. False: there was none. Frames beyond the first `most` are read and dropped, and
 * *whole is false. The caller closes the frames. */
bool frames_receive(struct port from, zmq_msg_t *frames, uint32_t most, uint32_t *n, bool *whole);
void frames_close(zmq_msg_t *frames, uint32_t n);

/* ---- output commit ----
 *
 * Messages of one turn leave together, at its end: each that finds the I/O thread asleep wakes it, and the client's threads after it.
 *
 * Output commit: with the journal on, a message to a client waits until everything that happened before it is durable. So
 * whatever a client was told is true after a crash, and there is one rule instead of one per message.
 *
 * Messages that confirm nothing (info, why, list, errors, a heartbeat that says that the journal is stuck) may go ahead.
 *
 * This room does not know the journal: the journal fills in the first three fields of struct commit. */

struct commit {
    /* Returns the number of the record that must be durable before anything told now may leave. NULL: the journal is off. */
    uint64_t (*needed)(const void *journal);
    const uint64_t *durable; /* number of the last durable record */
    const void *journal;
    STAILQ_HEAD(parked_list, parked_message) parked;
    uint64_t count;          /* of those that wait for the journal */
    bool gathers;            /* messages wait for commit_release in any case */
    bool ahead;              /* messages are sent past the queue: what is told now confirms nothing */
    struct histogram waited; /* nanoseconds that messages were parked */
};

void commit_init(struct commit *self);
/* Sends parked messages whose record is durable, and gathers no more. */
void commit_release(struct peers *peers);
/* Returns when the oldest parked message came; now, if there is none. */
int64_t commit_since_ns(const struct peers *peers);
/* True if nothing has become durable for so long that clients must hear of it: heartbeats are then answered with words
 * only. */
bool commit_is_stuck(const struct peers *peers);
void commit_fini(struct commit *self);
