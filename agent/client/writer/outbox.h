/* What a writer hands to the I/O thread, and the sending half of its session there: items by table, numbered messages, the messages that are kept for
 * a resend, and credit. The only socket that it knows is the PUSH that it is given.
 *
 * Each table has one ring of items with three cursors, resolved <= sent <= tail. A message holds items of one table, and those
 * of their chunks that no earlier message of the session has carried. It is kept while it has an unresolved item, or a chunk
 * that is in the writer's window or that an unresolved item refers to. */
#pragma once

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/queue.h>

#include "agent/client/writer/item_layout.h"
#include "agent/client/writer/step_stream.h"
#include "proto/wire/channel.h"
#include "proto/wire/wire.h"
#include "replay.pb-c.h"
#include "replay/writer.h"

#define HANDOFF_SLOTS 2048u
#define HANDOFF_REJECTIONS 1024u
#define HANDOFF_WAKE_BATCHES 4u
/* How many slots ahead they, and what they point to, are fetched. */
#define HANDOFF_PREFETCH 6u
#define CACHE_LINE 64

/* ---- handoff: from the writing thread to the I/O thread of one shard, a ring of items with one producer and one consumer, and running
 * totals ---- */

/* What the writing thread waits on, and hears of: news of any shard. */
struct handoff_news {
    atomic_uint_fast32_t waiters;
    pthread_cond_t moved;
    pthread_mutex_t mutex;    /* guards what follows */
    rp_rejection *rejections; /* a ring */
    uint32_t first_rejection, n_rejections;
    uint64_t rejections_dropped;
    rp_error unreported; /* the first rejection since the last flush */
    uint64_t n_unreported;
};

struct queued_item {
    struct step_chunk *chunk; /* the first chunk */
    struct item_layout *layout;
    uint64_t key;
    double priority;
    uint64_t policy;
    union {
        uint64_t mark;           /* before the item is sent: no later item refers to a chunk before this one */
        struct message *message; /* after it was sent */
    };
    uint32_t offset, length; /* steps */
};

struct handoff_slot {
    struct queued_item item;    /* item.chunk NULL: none; with a length, later items have the group in item.key */
    struct step_chunk *evicted; /* chunks that have left the window; no later item refers to them */
};
_Static_assert(sizeof(struct handoff_slot) == CACHE_LINE, "a slot is a line of the cache");

/* What the writing thread wakes the I/O thread for. */
enum handoff_mode {
    HANDOFF_AWAKE,   /* nothing: the I/O thread looks by itself */
    HANDOFF_IDLE,    /* any item */
    HANDOFF_LINGER,  /* a few full batches; smaller batches have a timer */
    HANDOFF_BLOCKED, /* a ring that fills up: there is no credit */
};

/* The I/O thread's counts, for rp_writer_info. */
struct handoff_counts {
    uint64_t sent, rejected, in_doubt, lost_messages, messages, bytes, resent, sessions, stored;
};

struct handoff_table {
    uint64_t sent, resolved, allowed;
};

struct handoff {
    _Alignas(CACHE_LINE) atomic_uint_fast64_t tail; /* written by the producer */
    uint64_t seen_head;
    _Alignas(CACHE_LINE) atomic_uint_fast64_t head; /* written by the consumer */
    uint64_t seen_tail;
    /* Read by the producer for every item, and seldom written. */
    _Alignas(CACHE_LINE) atomic_int mode;
    uint32_t batch_items;
    struct handoff_slot *slots;
    atomic_uint_fast64_t key_base, key_count; /* the session's keys are key_base + 0 ... key_count - 1 */
    atomic_uint_fast64_t max_message_bytes;   /* of the broker; 0: no session was opened yet */
    /* Written by the consumer for every message. */
    _Alignas(CACHE_LINE) atomic_uint_fast64_t resolved; /* items: accepted, rejected or in doubt */
    atomic_uint_fast64_t done_bytes;                    /* bytes of chunks whose message is resolved */
    atomic_bool urgent;                                 /* send small batches without delay */
    atomic_bool renew; /* the session's keys are used up: open a new session when all items are confirmed */

    struct handoff_news *news; /* its mutex guards what follows */
    char why[400];
    int64_t wait_ns;    /* since when a call waits; 0: none does */
    uint64_t waited_ns; /* by calls that have ended */
    rp_error refusal;   /* of the first HELLO */
    struct handoff_counts counts;
    struct handoff_table *tables; /* [n_tables] */
    uint32_t n_tables;
};

/* Borrows news. */
bool handoff_init(struct handoff *self, struct handoff_news *news, uint32_t batch_items, uint32_t n_tables);
void handoff_fini(struct handoff *self);

/* True if a session was opened. Any thread. */
static inline bool handoff_is_open(struct handoff *self)
{
    return atomic_load_explicit(&self->max_message_bytes, memory_order_acquire) > 0;
}

/* Producer. False: the ring is full. */
bool handoff_push(struct handoff *self, const struct queued_item *item, struct step_chunk *evicted);
/* Producer: returns true if the I/O thread must be woken. */
bool handoff_should_wake(struct handoff *self);
/* Consumer: returns the next slot, or NULL. Valid until handoff_popped. */
static inline struct handoff_slot *handoff_peek(struct handoff *self)
{
    uint64_t head = atomic_load_explicit(&self->head, memory_order_relaxed);
    if (head == self->seen_tail) {
        self->seen_tail = atomic_load(&self->tail);
        if (head == self->seen_tail)
            return NULL;
    }
    if (self->seen_tail - head > HANDOFF_PREFETCH)
        step_chunk_prefetch(self->slots[(head + HANDOFF_PREFETCH) % HANDOFF_SLOTS].item.chunk);
    return &self->slots[head % HANDOFF_SLOTS];
}
static inline void handoff_popped(struct handoff *self)
{
    uint64_t head = atomic_load_explicit(&self->head, memory_order_relaxed);
    atomic_store_explicit(&self->head, head + 1, memory_order_release);
}

/* I/O thread: wakes a writer that waits, because a total has changed, or the connection was lost. */
void handoff_signal(struct handoff *self);
/* I/O thread: keeps a rejection for the application. */
void handoff_reject(struct handoff_news *self, const rp_rejection *rejection);

/* ---- outbox ---- */

/* Least size of a chunk that is a frame of its own. */
#define OUTBOX_OWN_FRAME ((size_t)32 << 10)
/* The same in memory that the broker reads: a place is named in a few bytes, and nothing is copied here or by the socket. */
#define OUTBOX_OWN_PLACE ((size_t)4 << 10)
/* Most such frames in one message. */
#define OUTBOX_MAX_FRAMES 512u
/* Largest message with more than one item. */
#define OUTBOX_MESSAGE_BYTES ((size_t)1 << 20)
#define OUTBOX_LINGER_NS 1000000

struct message {
    TAILQ_ENTRY(message) link; /* in `kept` */
    uint64_t number;
    uint64_t session; /* serial of the session that numbered it; 0: an earlier session */
    uint32_t epoch;   /* in its header */
    uint32_t items;   /* unresolved items */
    uint32_t live;    /* unresolved items plus chunks that may be needed */
    uint64_t lowest;  /* number of the oldest chunk that its items refer to */
    size_t chunk_bytes;
    uint32_t n_frames;
    uint32_t n_sent; /* of the frames: those that a broker needs which reads this process's memory */
    zmq_msg_t frames[];
};

struct outbox_table {
    uint32_t id; /* in Credit */
    bool known;  /* the broker has this table */
    struct queued_item *ring;
    uint64_t *groups;  /* of the items in the ring; NULL: the table has none */
    uint64_t capacity; /* a power of two, or 0 */
    bool grouped;
    uint64_t resolved, sent, tail;
    uint64_t base;     /* number of items before this session; an item's number is index - base + 1 */
    uint64_t allowed;  /* index up to which items may be sent */
    uint64_t again;    /* items before this index were also sent in an earlier session */
    uint64_t rejected; /* in this session, as the broker counts */
};

struct outbox {
    struct handoff *handoff;
    struct trace *trace;            /* borrowed */
    uint32_t ordinal;               /* of the session, at the broker */
    const struct conn_hello *hello; /* from the start of the writer: names of its tables */
    uint32_t n_columns, batch_items;
    struct pool *pool;    /* borrowed: of large chunks; NULL: no broker may read them */
    bool reads;           /* the broker reads them where they are */
    bool short_of_memory; /* there was no memory for the last message: retry soon */
    int32_t doubt;
    struct outbox_table *tables;
    uint32_t n_tables, turn;
    uint64_t mark;                          /* of the item taken last */
    uint64_t group;                         /* of the items that are taken next; 0: none */
    uint64_t announced;                     /* oldest_chunk of the last message built: never decreases in a session */
    TAILQ_HEAD(message_list, message) kept; /* of this session */
    uint64_t n_kept;
    uint64_t stored;        /* messages of earlier sessions: only their chunks are needed */
    struct message *cursor; /* first kept message with number >= wire_next */
    uint64_t last_number, wire_next, highest_sent;
    uint64_t received;  /* number of the last message that the broker is known to have received */
    uint32_t n_layouts; /* registered in this session */
    uint64_t sent_bytes, allowed_bytes, max_message_bytes;
    uint64_t released_bytes;  /* credit released since the newest HELLO: counts as sent */
    uint64_t rejections_seen; /* running count in this session */
    uint64_t serial;          /* of the session, from 1 */
    uint8_t session[WIRE_SESSION_BYTES];
    uint32_t epoch;
    int64_t last_partial_ns;
    struct handoff_counts counts;
    struct step_chunk_chain done; /* chunks and blocks to be returned at the end of the loop iteration */
    uint64_t builds;
    struct outbox_scratch *scratch; /* working arrays of the message being built */
};

bool outbox_init(struct outbox *self, struct handoff *handoff, const struct conn_hello *hello, uint32_t n_columns,
                 int32_t doubt);
/* Frees all items, messages and handed-over chunks; takes the remaining items out of the handoff first. */
void outbox_fini(struct outbox *self);

/* Takes chunks that have left the window; only while the writing thread does not use the stream. */
void outbox_evict(struct outbox *self, struct step_chunk *list);
/* Moves items from the handoff into the rings. False: out of memory, and some items stay in the handoff. */
bool outbox_take(struct outbox *self);

enum outbox_more {
    OUTBOX_EMPTY,   /* nothing to send */
    OUTBOX_LINGER,  /* a small batch waits for its timer */
    OUTBOX_BLOCKED, /* credit is used up */
    OUTBOX_FULL,    /* the socket is full */
    OUTBOX_MORE,    /* the limit of messages per wake-up is reached */
};
/* Sends what credit and socket allow. */
enum outbox_more outbox_send(struct outbox *self, struct port push, int64_t now_ns, bool urgent);

/* Starts or resumes a session: continues with the first message that the broker has not received. */
void outbox_open(struct outbox *self, const Replay__HelloReply *hello);
/* The connection is lost: until outbox_open, nobody reads the memory of large chunks. */
void outbox_close(struct outbox *self);
/* Ends the session. left: the writer has ended it, and nothing is unresolved. Otherwise the broker no longer knows it, and its
 * unresolved items are in doubt or are sent again. */
void outbox_forget(struct outbox *self, bool left);
/* Returns true if every item that was handed over is resolved. */
bool outbox_is_settled(const struct outbox *self);
/* Takes a Credit of this session and epoch. If the broker asks for unused credit, the outbox releases it: released_bytes
 * grows, and the next heartbeat should be sent soon. */
void outbox_credit(struct outbox *self, const Replay__Credit *credit);
/* Returns the number of the oldest message that can be sent again. */
uint64_t outbox_oldest(const struct outbox *self);
/* Publishes the counts to the writing thread. */
void outbox_publish(struct outbox *self);
