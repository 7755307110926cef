/* Who is answered, and how: envelopes, frames out, and the bound on replies that a peer leaves unread.
 *
 * The ROUTER sends with MANDATORY and without waiting: a peer that is gone or whose queue is full costs one failed send.
 * libzmq bounds its queue by messages; the bytes in it are bounded here, by counting what has not yet left. */
#ifndef BROKER_PEER_H
#define BROKER_PEER_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <zmq.h>

struct broker;

/* The frames before the header, as they came: each a length byte and so many bytes. */
#define ENVELOPE_BYTES 79u
struct envelope {
    uint8_t size;
    uint8_t bytes[ENVELOPE_BYTES];
};

/* False: no room for it. */
bool envelope_add(struct envelope *self, const void *frame, size_t size);

/* Unread reply bytes of one route. Shared with the frames under way, so the last of them frees it. */
struct peer {
    atomic_long refs;
    atomic_llong pending_bytes;
    uint64_t route;
};

/* Frames of a reply. Each buffer is given away to the frame; the peer's account is charged until it has left. */
struct peer *peer_find(struct broker *broker, const struct envelope *to); /* NULL: no memory */
bool peer_is_full(const struct broker *broker, const struct peer *peer);
/* message becomes a frame of `size` bytes at data (malloc'ed, given). False: no memory, data is freed. */
bool peer_frame(struct peer *peer, zmq_msg_t *message, void *data, size_t size);
/* message becomes a view of part of a kept message. */
bool peer_frame_view(struct peer *peer, zmq_msg_t *message, zmq_msg_t *kept, const void *data, size_t size);

/* Charges the peer for a message of another kind until it has left. False: no memory. */
bool peer_charge(struct peer *peer, zmq_msg_t *message);

/* Sends envelope, header and payload, at once or when the journal is that far; closes or gives away all messages. False:
 * the peer is gone or full; counted. */
bool peer_send(struct broker *broker, const struct envelope *to, zmq_msg_t *header, zmq_msg_t *payload, uint32_t n);

/* The same, past the messages that wait for the journal (commit.h). */
bool peer_send_now(struct broker *broker, const struct envelope *to, zmq_msg_t *header, zmq_msg_t *payload, uint32_t n);

/* Once a second: forget peers with nothing pending. */
void peers_sweep(struct broker *broker);
void peers_fini(struct broker *broker);

#endif
