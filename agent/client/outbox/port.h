/* Where a writer's thread and the I/O thread meet: a ring of items for one producer and one consumer, running totals,
 * and what the writer waits for. */
#ifndef AGENT_CLIENT_PORT_H
#define AGENT_CLIENT_PORT_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "agent/client/outbox/form.h"
#include "agent/client/outbox/stream.h"
#include "proto/wire/wire.h"
#include "replay/writer.h"

#define PORT_SLOTS 2048u
#define PORT_REJECTIONS 1024u
#define PORT_WAKE_BATCHES 4u
#define CACHE_LINE 64

struct item {
    struct chunk *chunk; /* its first */
    struct form *form;
    uint64_t key;
    double priority;
    uint64_t policy;
    union {
        uint64_t mark;           /* before it is sent: no later item refers to a chunk before this one */
        struct message *message; /* after */
    };
    uint32_t offset, length; /* steps */
};

struct port_slot {
    struct item item;      /* item.chunk NULL: none */
    struct chunk *evicted; /* chunks that have left the window; no item that comes later refers to them */
};

/* What the I/O thread wants to be woken for. */
enum port_mode {
    PORT_AWAKE,   /* it looks by itself */
    PORT_IDLE,    /* any item */
    PORT_LINGER,  /* a few full batches; what is less has its own time */
    PORT_BLOCKED, /* no credit: only when the ring fills up */
};

/* The I/O thread's counts, for rp_writer_info. */
struct port_counts {
    uint64_t sent, rejected, in_doubt, lost_messages, messages, bytes, resent, sessions, stored, rejections_dropped;
};

struct port_table {
    uint64_t sent, resolved, rejected, allowed;
};

struct port {
    _Alignas(CACHE_LINE) atomic_uint_fast64_t tail; /* written by the producer */
    uint64_t seen_head;
    _Alignas(CACHE_LINE) atomic_uint_fast64_t head; /* written by the consumer */
    uint64_t seen_tail;
    _Alignas(CACHE_LINE) atomic_int mode;
    atomic_uint_fast64_t resolved;            /* items: accepted, rejected or in doubt */
    atomic_uint_fast64_t done_bytes;          /* of chunks whose message is resolved */
    atomic_uint_fast64_t key_base, key_count; /* of the session: its keys are key_base + 0 ... key_count - 1 */
    atomic_uint_fast32_t waiters;
    atomic_bool urgent; /* send what is there, be it little */
    atomic_bool renew;  /* the session's keys are used up: open a new one when everything is confirmed */
    struct port_slot *slots;
    uint32_t batch_items;

    pthread_mutex_t mutex; /* guards what follows */
    pthread_cond_t moved;
    uint64_t explain_serial; /* answers to heartbeats that asked why */
    char why[400];
    bool open;
    rp_error refusal; /* of the first HELLO */
    uint8_t session[WIRE_SESSION_BYTES];
    uint64_t last_number;
    uint64_t max_message_bytes;
    struct port_counts counts;
    struct port_table *tables; /* [n_tables] */
    uint32_t n_tables;
    rp_rejection *rejections; /* a ring */
    uint32_t first_rejection, n_rejections;
    rp_error unreported; /* the first rejection since the last flush */
    uint64_t n_unreported;
};

bool port_init(struct port *self, uint32_t batch_items, uint32_t n_tables);
void port_fini(struct port *self);

/* Producer. False: the ring is full. */
bool port_push(struct port *self, const struct item *item, struct chunk *evicted);
/* Producer: whether the I/O thread must be woken for what was pushed. */
bool port_should_wake(struct port *self);
/* Consumer: the next slot, or NULL. Valid until port_popped. */
struct port_slot *port_peek(struct port *self);
/* Consumer: a hint to fetch what the slots after this one point to, if they are filled. */
void port_prefetch(struct port *self);
void port_popped(struct port *self);

/* I/O thread: something that a writer may wait for has changed. */
void port_signal(struct port *self);
/* I/O thread: keeps a rejection for the application. */
void port_reject(struct port *self, const rp_rejection *rejection);

#endif
