#include "broker/peer/peer.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "broker/config/config.h"
#include "broker/loop/loop.h"
#include "broker/peer/peers.h"
#include "proto/base/need.h"

bool envelope_add(struct envelope *self, const void *frame, size_t size)
{
    if (self->size + size + 1 > ENVELOPE_BYTES)
        return false;
    self->bytes[self->size] = (uint8_t)size;
    if (size)
        memcpy(self->bytes + self->size + 1, frame, size);
    self->size = (uint8_t)(self->size + size + 1);
    return true;
}

/* Automatic routing ids are a zero byte and a 32-bit number; longer ones are hashed. */
uint64_t envelope_route(const struct envelope *self)
{
    uint64_t hash = 0;
    for (uint32_t i = 0; i < self->bytes[0]; i++)
        hash = hash * 257 + self->bytes[1 + i];
    return hash;
}

void peer_release(struct peer *self)
{
    if (atomic_fetch_sub_explicit(&self->refs, 1, memory_order_acq_rel) != 1)
        return;
    unread_release(self->unread);
    free(self);
}

struct peer *peer_find(struct peers *peers, const struct envelope *to)
{
    uint64_t route = envelope_route(to);
    struct peer *peer = idmap_get(&peers->by_route, route);
    if (peer)
        return peer;
    peer = need_alloc(sizeof *peer);
    atomic_init(&peer->refs, 1);
    atomic_init(&peer->pending_bytes, 0);
    peer->route = route;
    peer->unread = to->unread;
    if (peer->unread)
        atomic_fetch_add_explicit(&peer->unread->refs, 1, memory_order_relaxed);
    idmap_put(&peers->by_route, route, peer);
    return peer;
}

bool peer_is_full(const struct peers *peers, const struct peer *peer)
{
    return atomic_load_explicit(&peer->pending_bytes, memory_order_relaxed) > peers->config->peer_backlog_bytes ||
           (peer->unread && unread_is_full(peer->unread));
}

/* shared: other clients of the key may be sent the same bytes, which are in memory once. */
static void count(struct peer *peer, long long bytes, bool shared)
{
    atomic_fetch_add_explicit(&peer->pending_bytes, bytes, memory_order_relaxed);
    if (peer->unread && !shared)
        atomic_fetch_add_explicit(&peer->unread->bytes, bytes, memory_order_relaxed);
}

/* Stays with a frame until the frame has left; freed on an I/O thread. */
struct ticket {
    struct peer *peer;
    size_t size;
    void *buffer;
    bool viewing, shared;
    zmq_msg_t kept;
};

static void ticket_done(void *data, void *hint)
{
    (void)data;
    struct ticket *ticket = hint;
    count(ticket->peer, -(long long)ticket->size, ticket->shared);
    peer_release(ticket->peer);
    if (ticket->viewing)
        zmq_msg_close(&ticket->kept);
    free(ticket->buffer);
    free(ticket);
}

static struct ticket *ticket_new(struct peer *peer, size_t size, bool shared)
{
    struct ticket *ticket = need_resize(NULL, 1, sizeof *ticket); /* not cleared: there is one for every frame */
    ticket->peer = peer;
    ticket->size = size;
    ticket->buffer = NULL;
    ticket->viewing = false;
    ticket->shared = shared;
    atomic_fetch_add_explicit(&peer->refs, 1, memory_order_relaxed);
    count(peer, (long long)size, shared);
    return ticket;
}

bool peer_frame(struct peer *peer, zmq_msg_t *message, void *data, size_t size)
{
    struct ticket *ticket = ticket_new(peer, size, false);
    ticket->buffer = data;
    if (zmq_msg_init_data(message, data, size, ticket_done, ticket) == 0)
        return true;
    ticket_done(data, ticket);
    return false;
}

static bool frame_view(struct peer *peer, zmq_msg_t *message, zmq_msg_t *kept, const void *data, size_t size,
                       bool shared)
{
    struct ticket *ticket = ticket_new(peer, size, shared);
    zmq_msg_init(&ticket->kept);
    zmq_msg_copy(&ticket->kept, kept);
    ticket->viewing = true;
    if (zmq_msg_init_data(message, (void *)(uintptr_t)data, size, ticket_done, ticket) == 0)
        return true;
    ticket_done(NULL, ticket);
    return false;
}

bool peer_frame_view(struct peer *peer, zmq_msg_t *message, zmq_msg_t *kept, const void *data, size_t size)
{
    return frame_view(peer, message, kept, data, size, false);
}

bool peer_charge(struct peer *peer, zmq_msg_t *message)
{
    zmq_msg_t view;
    if (!frame_view(peer, &view, message, zmq_msg_data(message), zmq_msg_size(message), true))
        return false;
    zmq_msg_move(message, &view);
    zmq_msg_close(&view);
    return true;
}

static bool send_envelope(struct port port, const struct envelope *to)
{
    for (uint32_t at = 0; at < to->size; at += 1u + to->bytes[at])
        if (!port_send_bytes(port, to->bytes + at + 1, to->bytes[at], true))
            return false;
    return true;
}

/* ---- frames ---- */

bool frames_receive(struct port from, zmq_msg_t *frames, uint32_t most, uint32_t *n, bool *whole)
{
    *n = 0;
    *whole = true;
    for (;;) {
        zmq_msg_t surplus;
        zmq_msg_init(&surplus);
        zmq_msg_t *into = *n < most ? &frames[*n] : &surplus;
        if (into != &surplus)
            zmq_msg_init(into);
        bool more;
        if (!port_receive(from, into, &more)) {
            zmq_msg_close(into);
            return *n > 0;
        }
        if (into == &surplus) {
            zmq_msg_close(&surplus);
            *whole = false;
        } else {
            (*n)++;
        }
        if (!more)
            return true;
    }
}

void frames_close(zmq_msg_t *frames, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++)
        zmq_msg_close(&frames[i]);
}

/* ---- output commit ---- */

/* Heartbeats are answered with words only when nothing became durable for this long. */
#define STUCK_NS (500 * NS_PER_MS)

struct parked_message {
    STAILQ_ENTRY(parked_message) link;
    uint64_t number; /* of the record that must be durable first; 0: none */
    int64_t since_ns;
    struct envelope to;
    uint32_t n;
    zmq_msg_t frames[]; /* header, payload */
};

void commit_init(struct commit *self)
{
    *self = (struct commit){0};
    STAILQ_INIT(&self->parked);
}

static void move(zmq_msg_t *to, zmq_msg_t *from)
{
    zmq_msg_init(to);
    zmq_msg_move(to, from);
    zmq_msg_close(from);
}

/* Takes the message if it has to wait. False: it may go now, and nothing was taken. */
static bool commit_hold(struct peers *peers, const struct envelope *to, zmq_msg_t *header, zmq_msg_t *payload,
                        uint32_t n)
{
    struct commit *self = &peers->commit;
    if (self->ahead)
        return false;
    uint64_t number = self->needed ? self->needed(self->journal) : 0;
    if (!self->count && (!self->needed || number <= *self->durable))
        number = 0;
    if (!number && !self->gathers)
        return false;
    /* Small beside its payload: a frame of its own has more than 100 KiB. */
    struct parked_message *message = need_resize(NULL, 1, sizeof *message + (n + 1) * sizeof message->frames[0]);
    message->number = number;
    message->since_ns = peers->loop->now_ns;
    message->to = *to;
    message->n = n;
    move(&message->frames[0], header);
    for (uint32_t i = 0; i < n; i++)
        move(&message->frames[1 + i], &payload[i]);
    STAILQ_INSERT_TAIL(&self->parked, message, link);
    self->count += number > 0;
    return true;
}

static struct parked_message *take(struct commit *self)
{
    struct parked_message *message = STAILQ_FIRST(&self->parked);
    STAILQ_REMOVE_HEAD(&self->parked, link);
    self->count -= message->number > 0;
    return message;
}

void commit_release(struct peers *peers)
{
    struct commit *self = &peers->commit;
    self->gathers = false;
    for (struct parked_message *message;
         (message = STAILQ_FIRST(&self->parked)) && (!message->number || message->number <= *self->durable);) {
        take(self);
        if (message->number)
            histogram_add_ns(&self->waited, peers->loop->now_ns - message->since_ns, 1);
        peer_send_now(peers, &message->to, &message->frames[0], message->frames + 1, message->n);
        free(message);
    }
}

int64_t commit_since_ns(const struct peers *peers)
{
    const struct parked_message *oldest = STAILQ_FIRST(&peers->commit.parked);
    return oldest ? oldest->since_ns : peers->loop->now_ns;
}

bool commit_is_stuck(const struct peers *peers)
{
    return peers->loop->now_ns - commit_since_ns(peers) >= STUCK_NS;
}

void commit_fini(struct commit *self)
{
    while (!STAILQ_EMPTY(&self->parked)) {
        struct parked_message *message = take(self);
        frames_close(message->frames, message->n + 1);
        free(message);
    }
}

/* ---- sending */

bool peer_send(struct peers *peers, const struct envelope *to, zmq_msg_t *header, zmq_msg_t *payload, uint32_t n)
{
    if ((peers->commit.needed || peers->commit.gathers) && commit_hold(peers, to, header, payload, n))
        return true;
    return peer_send_now(peers, to, header, payload, n);
}

bool peer_send_now(struct peers *peers, const struct envelope *to, zmq_msg_t *header, zmq_msg_t *payload, uint32_t n)
{
    struct port port = {peers->service, peers->channels ? &peers->channels->replies : NULL};
    uint64_t bytes = zmq_msg_size(header);
    for (uint32_t i = 0; i < n; i++)
        bytes += zmq_msg_size(&payload[i]);
    peers->service_used = true; /* sending processes the socket's commands, and a request may be among them */
    bool sent = send_envelope(port, to) && port_send(port, header, n > 0);
    for (uint32_t i = 0; i < n && sent; i++)
        sent = port_send(port, &payload[i], i + 1 < n);
    peers->counters.bytes_out += sent ? bytes : 0;
    if (!sent) {
        /* A client may leave before it has read its last replies: nobody needs a warning. */
        bool gone = errno == EHOSTUNREACH;
        peers->counters.replies_dropped++;
        uint32_t held;
        if (gone)
            log_line(LEVEL_DEBUG, "B0305", "reply dropped: its peer is gone", "replies_dropped=%llu",
                     (unsigned long long)peers->counters.replies_dropped);
        else if (log_allow(&peers->service_log, 5, peers->loop->now_ns, &held))
            log_line(LEVEL_WARN, "B0301", "reply dropped: its peer does not read", "replies_dropped=%llu held_back=%u",
                     (unsigned long long)peers->counters.replies_dropped, held);
    }
    zmq_msg_close(header); /* sent messages are empty */
    frames_close(payload, n);
    return sent;
}
