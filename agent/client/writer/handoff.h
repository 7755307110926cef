/* The handoff between a writer's thread and the I/O thread: a ring of items with one producer and one consumer, running
 * totals, and the condition that the writer waits on. */
#ifndef AGENT_CLIENT_HANDOFF_H
#define AGENT_CLIENT_HANDOFF_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "agent/client/writer/item_layout.h"
#include "agent/client/writer/step_stream.h"
#include "proto/wire/wire.h"
#include "replay/writer.h"

#define HANDOFF_SLOTS 2048u
#define HANDOFF_REJECTIONS 1024u
#define HANDOFF_WAKE_BATCHES 4u
/* How many slots ahead they, and what they point to, are fetched. */
#define HANDOFF_PREFETCH 6u
#define CACHE_LINE 64

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
    struct queued_item item;    /* item.chunk NULL: none */
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
    uint64_t sent, rejected, in_doubt, lost_messages, messages, bytes, resent, sessions, stored, rejections_dropped;
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
    /* Written by the consumer for every message. */
    _Alignas(CACHE_LINE) atomic_uint_fast64_t resolved; /* items: accepted, rejected or in doubt */
    atomic_uint_fast64_t done_bytes;                    /* bytes of chunks whose message is resolved */
    atomic_uint_fast32_t waiters;
    atomic_bool urgent; /* send small batches without delay */
    atomic_bool renew;  /* the session's keys are used up: open a new session when all items are confirmed */

    pthread_mutex_t mutex; /* guards what follows */
    pthread_cond_t moved;
    char why[400];
    int64_t wait_ns;    /* since when a call waits; 0: none does */
    uint64_t waited_ns; /* by calls that have ended */
    bool open;
    rp_error refusal; /* of the first HELLO */
    uint8_t session[WIRE_SESSION_BYTES];
    uint64_t last_number;
    uint64_t max_message_bytes;
    struct handoff_counts counts;
    struct handoff_table *tables; /* [n_tables] */
    uint32_t n_tables;
    rp_rejection *rejections; /* a ring */
    uint32_t first_rejection, n_rejections;
    rp_error unreported; /* the first rejection since the last flush */
    uint64_t n_unreported;
};

bool handoff_init(struct handoff *self, uint32_t batch_items, uint32_t n_tables);
void handoff_fini(struct handoff *self);

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

/* I/O thread: wakes writers that wait, because a total has changed. */
void handoff_signal(struct handoff *self);
/* I/O thread: keeps a rejection for the application. */
void handoff_reject(struct handoff *self, const rp_rejection *rejection);

#endif
