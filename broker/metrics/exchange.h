/* Where the core thread hands snapshots to one other thread, without a lock: the reader asks and is woken by a descriptor; the
 * core thread looks at one number per turn, and does nothing while nobody asks. A snapshot has one owner at a time: the core
 * thread, the exchange, then the reader, who destroys it. */
#ifndef BROKER_EXCHANGE_H
#define BROKER_EXCHANGE_H

#include <stdatomic.h>
#include <stdbool.h>

#include "broker/metrics/snapshot.h"

struct exchange {
    atomic_uint wanted; /* of enum snapshot_part; 0: nobody asks */
    _Atomic(struct snapshot *) made;
    int wake_fd; /* eventfd that wakes the core thread; borrowed */
    int made_fd; /* eventfd that wakes the reader; -1: there is no reader */
};

/* wake_fd is borrowed. */
void exchange_init(struct exchange *self, int wake_fd);
/* Neither side uses the exchange any more. */
void exchange_fini(struct exchange *self);

/* ---- the reader's thread ---- */

/* Before the first question, and while the core thread does not run yet. False: no descriptors. */
bool exchange_open(struct exchange *self);
/* Asks for a snapshot with these parts. made_fd becomes readable when it is there. */
void exchange_ask(struct exchange *self, unsigned parts);
/* Takes the newest snapshot, and clears made_fd. NULL: there is none yet. */
struct snapshot *exchange_take(struct exchange *self);

/* ---- the core thread ---- */

/* Returns the parts that are wanted, and forgets them; 0: nothing is wanted. */
static inline unsigned exchange_wanted(struct exchange *self)
{
    return atomic_load_explicit(&self->wanted, memory_order_relaxed) ? atomic_exchange(&self->wanted, 0) : 0;
}
/* Hands a snapshot over, in place of one that was not taken. */
void exchange_give(struct exchange *self, struct snapshot *snapshot);

#endif
