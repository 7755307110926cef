/* Leases: items of a queue that samplers have got and not acknowledged yet.
 *
 * A sample with lease_ms takes its items out of nobody's table: it hides them (table_hide) until one of these things happens:
 * - Their client acknowledges them. They leave, and the limiter counts them as sampled: once, however often they were delivered. Until
 *   then a queue counts them as items that it has, so its bound holds for all work that is not done.
 * - Their client releases them, the time of the lease has passed, or the client is gone. They return as the first in line. After
 *   max_deliveries such deliveries an item moves to dead_table (table_return).
 *
 * A lease is one sample: (client, request id). Its time begins when the reply is sent, and a touch begins it anew; its items end
 * together, or one by one if their client names them. A lease lists slots, and an item knows the number of its lease: so an item that
 * leaves in another way (a delete, a reset, max_lag) is simply no longer the lease's when this looks at its slot.
 *
 * A lease whose reply never went out ends as soon as its request does, and the delivery does not count.
 *
 * A client is gone if the connection of its last request has ended, and none of its requests has come by another one for a second. Where connections
 * are not known (a broker in the same process), time alone ends a lease.
 *
 * Files: the journal has the picks with lease_ms, and what becomes of the items; a checkpoint has client, id and time with each
 * item. A restarted broker goes on with the leases that were answered, and each gets its time anew: a worker that outlives the broker
 * acknowledges as if nothing had happened, and the items of one that does not return by time. So an item is acknowledged once, or is
 * there. Touches are not recorded.
 *
 * To end a lease takes time in proportion to its items: a chore does it, in slices. */
#pragma once

#include <sys/queue.h>

#include "broker/loop/idmap.h"
#include "broker/loop/loop.h"
#include "proto/wire/wire.h"

struct request;
struct samples;
struct table;
struct waiter;

/* A client that has leases. */
struct lease_holder {
    uint64_t client;
    TAILQ_HEAD(lease_list, lease) leases; /* oldest first */
    LIST_ENTRY(lease_holder) link;        /* of `holders` or `gone` */
    int descriptor; /* of the connection of its last request, and the number of that connection; -1: not known */
    uint64_t connection;
    bool missing; /* the last sweep found the connection ended */
    bool gone;    /* and so did the one before: its leases end, and it is in `gone` */
};

/* Items of a lease without a block of its own. The first block is large: glibc gathers very many small ones before it frees them, and
 * then frees all of them at once. */
#define LEASE_FEW 8u
#define LEASE_BLOCK 64u

struct lease {
    struct timer timer;
    struct leases *leases;
    struct lease_holder *holder; /* NULL: it ends */
    union {
        TAILQ_ENTRY(lease) link;  /* in the holder's list */
        STAILQ_ENTRY(lease) ends; /* without a holder: in the list of those that end */
    };
    uint64_t client, id;
    struct table *table;
    struct waiter *waiter; /* the sample that it is for, while that waits */
    uint32_t number;       /* item_lease of its items */
    uint32_t ms;
    uint32_t n, capacity; /* of slots */
    uint32_t left;        /* of n: neither acknowledged nor returned by their client */
    bool answered;
    uint32_t *slots; /* `few`, or a block of its own */
    uint32_t few[LEASE_FEW];
};

struct leases {
    struct samples *samples;
    struct lease **list; /* by number - 1; NULL: free */
    uint32_t n, capacity;
    uint32_t *free; /* numbers */
    uint32_t n_free;
    struct idmap clients; /* lease_holder by client */
    LIST_HEAD(holder_list, lease_holder) holders, gone;
    STAILQ_HEAD(ending_list, lease) ending; /* in the order in which they ended */
    struct chore chore;                     /* returns the items of those that end */
    bool running;                           /* it is among the chores */
};

void leases_init(struct leases *self, struct samples *samples);
/* Forgets all leases. Its chore has run, or never will. */
void leases_fini(struct leases *self);

/* Refuses a lease that a sample cannot have. */
rp_status lease_check(const struct wire_sample *ask, const struct table *table, uint64_t client, rp_error *err);
/* Makes a lease without items for a waiter; or lets a waiter that asks for its items again have a lease. */
void lease_new(struct leases *self, struct waiter *waiter, uint32_t ms);
void lease_again(struct lease *self, struct waiter *waiter);
/* Takes an item that was just picked. */
void lease_take(struct lease *self, uint32_t slot);
/* The sample has all its items, which are about to be sent, or were. */
void lease_start(struct lease *self);
void lease_answered(struct lease *self);
/* Its waiter ends, answered or not. */
void lease_leave(struct lease *self);

/* Returns the lease of a client that an item is under. NULL: it is under none. */
struct lease *lease_of(const struct leases *self, uint64_t client, const struct table *table, uint32_t slot);
/* Returns the lease that a number of an item names. */
struct lease *lease_numbered(const struct leases *self, uint32_t number);
/* Acknowledges, returns or touches (ask.op) the items of the slots that are under leases of the client. Returns how many are. */
uint32_t leases_change(struct leases *self, uint64_t client, struct table *table, const struct wire_lease *ask,
                       const uint32_t *slots, uint32_t n);

/* A request of a client has come. */
void leases_heard(struct leases *self, const struct request *request);
/* Once a second: ends the leases of clients that are gone. */
void leases_sweep(struct leases *self);
/* Writes who has items of the table, and for how long. Empty: nobody. */
void leases_explain(const struct leases *self, const struct table *table, char *text, size_t size);

/* Makes a lease without items, and then restores each of its items, which is hidden. */
struct lease *lease_make(struct leases *self, uint64_t client, uint64_t id, struct table *table, uint32_t ms);
void lease_restore_item(struct lease *self, uint32_t slot);
/* Begins the time of a restored lease, or ends it if its client never got it. */
void lease_restored(struct lease *self, bool answered);
