/* The sending half of a writer's session, on the I/O thread: items by table, messages with numbers, what has to be kept
 * to be sent again, and credit. It knows nothing of sockets but the PUSH that it is given.
 *
 * Each table has one ring of items with three cursors, resolved <= sent <= tail. A message holds items of one table, and
 * the chunks they need that no earlier message of the session has brought. It is kept while it has an unresolved item,
 * or a chunk that is in the writer's window or that an unresolved item refers to. */
#ifndef AGENT_CLIENT_OUTBOX_H
#define AGENT_CLIENT_OUTBOX_H

#include "agent/client/outbox/handoff.h"
#include "replay.pb-c.h"

/* Chunks from this size on are frames of their own. */
#define OUTBOX_OWN_FRAME ((size_t)32 << 10)
/* But no more of them in one message than this. */
#define OUTBOX_MAX_FRAMES 512u
/* Messages with several items stay below this. */
#define OUTBOX_MESSAGE_BYTES ((size_t)1 << 20)
#define OUTBOX_LINGER_NS 1000000

struct message {
    struct message *next, *prev;
    uint64_t number;
    uint64_t session; /* serial of the session it was numbered in; 0: of an earlier one */
    uint32_t epoch;   /* stated in its header */
    uint32_t items;   /* unresolved */
    uint32_t live;    /* unresolved items, and chunks that may be needed */
    uint64_t lowest;  /* number of the oldest chunk that its items refer to */
    size_t chunk_bytes;
    uint32_t n_frames;
    zmq_msg_t frames[];
};

struct message_list {
    struct message *first, *last;
    uint64_t count;
};

struct outbox_table {
    uint32_t id; /* in Credit */
    bool known;  /* the broker has it */
    struct queued_item *ring;
    uint64_t capacity; /* a power of two, or 0 */
    uint64_t resolved, sent, tail;
    uint64_t base;    /* items before this session; item number = index - base + 1 */
    uint64_t allowed; /* index */
    uint64_t again;   /* items before this index were sent in an earlier session too */
    uint64_t rejected;
    uint64_t session_rejected; /* of them, in this session, as the broker counts */
};

struct outbox {
    struct handoff *handoff;
    const struct conn_hello *hello; /* of the writer's start: names of its tables */
    uint32_t n_columns, batch_items;
    bool short_of_memory; /* for the last message: it is tried again soon */
    int32_t doubt;
    struct outbox_table *tables;
    uint32_t n_tables, turn;
    uint64_t mark;              /* of the item taken last */
    uint64_t announced;         /* oldest_chunk of the message built last: never falls in a session */
    struct message_list kept;   /* of this session */
    struct message_list stored; /* of earlier ones: only chunks are of use */
    struct message *cursor;     /* first kept message with number >= wire_next */
    uint64_t last_number, wire_next, highest_sent;
    uint64_t received;  /* by the broker, as far as it is known */
    uint32_t n_layouts; /* registered in this session */
    uint64_t sent_bytes, allowed_bytes, max_message_bytes;
    uint64_t released_bytes;  /* credit given up since the newest HELLO: counts as if it had been sent */
    uint64_t rejections_seen; /* running count in this session */
    uint64_t serial;          /* of the session, from 1 */
    uint8_t session[WIRE_SESSION_BYTES];
    uint32_t epoch;
    int64_t last_partial_ns;
    struct handoff_counts counts;
    struct step_chunk_chain done; /* chunks and blocks to be given back at the end of a turn */
    uint64_t builds;
    struct outbox_scratch *scratch; /* working arrays of the message being built */
};

bool outbox_init(struct outbox *self, struct handoff *handoff, const struct conn_hello *hello, uint32_t n_columns,
                 int32_t doubt);
/* Frees all items, messages and handed-over chunks; takes the remaining items out of the handoff first. */
void outbox_fini(struct outbox *self);

/* Chunks that have left the window; only while the writer's thread is known to be elsewhere. */
void outbox_evict(struct outbox *self, struct step_chunk *list);
/* Moves items from the handoff into the rings. False: out of memory, and some items stay in the handoff. */
bool outbox_take(struct outbox *self);

enum outbox_more {
    OUTBOX_EMPTY,   /* nothing to send */
    OUTBOX_LINGER,  /* a small batch waits for its time */
    OUTBOX_BLOCKED, /* credit is used up */
    OUTBOX_FULL,    /* the socket takes no more for now */
    OUTBOX_MORE,    /* its turn is over, there is more to do */
};
/* Sends what may be sent. */
enum outbox_more outbox_send(struct outbox *self, struct way push, int64_t now_ns, bool urgent);

/* A session was opened (fresh) or taken up again: goes back to what the broker has not received. */
void outbox_open(struct outbox *self, const uint8_t *session, uint32_t epoch, const Replay__HelloReply *hello);
/* The session is over. Left by the writer, it has nothing unresolved; otherwise the broker has forgotten it, and its
 * unresolved items are in doubt, or are sent again. */
void outbox_forget(struct outbox *self, bool left);
/* Every item that was handed over is resolved. */
bool outbox_is_settled(const struct outbox *self);
/* Takes in a Credit of this session and epoch. If the broker needs credit for others, the outbox gives up what it is asked
 * for: released_bytes grows, and a heartbeat should say so. */
void outbox_credit(struct outbox *self, const Replay__Credit *credit);
/* The oldest message that can be sent again. */
uint64_t outbox_oldest(const struct outbox *self);
/* Shows counts to the writer's thread. */
void outbox_publish(struct outbox *self);

#endif
