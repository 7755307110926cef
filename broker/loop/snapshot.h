/* What other threads may know of a running broker: a snapshot, and the exchange through which the core thread hands it over.
 *
 * Rooms that measure embed histograms, service/snapshot_maker.c fills a snapshot in, and http/ shows it.
 *
 * A snapshot is the reply to Info and, if asked for, the reply to Why. It is made by the core thread, given away, and never changed
 * after that. Each message in it is consistent in itself. In a broker with very many sessions they are copied over several turns,
 * so two messages may be some milliseconds apart. */
#pragma once

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "proto/base/arena.h"
#include "replay.pb-c.h"

/* Parts that are made only if somebody asks for them. */
enum snapshot_part {
    SNAPSHOT_STATE = 1,    /* everything but the lists below */
    SNAPSHOT_SESSIONS = 2, /* the list of sessions */
    SNAPSHOT_WAITS = 4,    /* sentences: what waits, and for what */
};

struct snapshot {
    unsigned parts;  /* of enum snapshot_part */
    int64_t made_ns; /* CLOCK_MONOTONIC */
    uint64_t cpu_ns; /* processor time of the core thread */
    Replay__InfoReply info;
    Replay__WhyReply why;
    struct arena arena; /* memory of all of the above */
};

/* Returns a snapshot without parts. */
struct snapshot *snapshot_new(void);
/* NULL is fine. */
void snapshot_destroy(struct snapshot **self);

/* Where the core thread hands snapshots to one other thread, without a lock: the reader asks and is woken by a descriptor; the
 * core thread looks at one number per turn, and does nothing while nobody asks. A snapshot has one owner at a time: the core
 * thread, the exchange, then the reader, who destroys it. */
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
