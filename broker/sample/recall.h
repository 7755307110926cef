/* Samples that may be asked for again: a request that is retried with its id after its reply was lost gets the same
 * selection, counted once. So a queue never loses an item between broker and learner.
 *
 * Remembered per client: the last RECALL_PER_CLIENT samples (RECALL_SETTLING of a client that says what it has read, in
 * Request.settled), and all of them together within a sixteenth of memory_limit. Picks of a table whose items leave when
 * they are sampled hold their chunks; of others the keys are kept, and the items are looked up again. A sample whose
 * connection ended, or whose broker stopped, while it was being filled is left behind, and a retry goes on from what it
 * had. A client without an id (0) is not remembered. */
#ifndef BROKER_RECALL_H
#define BROKER_RECALL_H

#include "broker/peer/request.h"
#include "broker/sample/samples.h"

#define RECALL_PER_CLIENT 64u
#define RECALL_SETTLING 1024u
#define RECALL_CLIENTS 65536u
#define RECALL_SHARE 16 /* of memory_limit, as 1 / this */

struct recall; /* broker->samples.recall; NULL: nothing is remembered */

struct recall *recall_new(struct broker *broker);
/* After the chores have run. Nothing is written to the journal: what it has may still be asked for. */
void recall_destroy(struct broker *broker);

/* Puts aside what it takes to remember the picks of a waiter that has its want set. False: no memory. */
bool recall_reserve(struct broker *broker, struct waiter *waiter);
/* Takes that back, if it was not needed. */
void recall_release(struct broker *broker, struct waiter *waiter);
/* The waiter's picks are about to be sent (answered), or are left behind (not answered). Takes what it needs of them, and
 * gives the picks to send: the waiter's, or the remembered ones, which stand until the next call of this file. */
struct picks *recall_keep(struct broker *broker, struct waiter *waiter, bool answered);
/* The waiter's picks are lost: nobody will ask for them again. */
void recall_lose(struct broker *broker, struct waiter *waiter);

/* Whether a sample may have this id: not one that was settled, and not one of another sample. */
rp_status recall_check(struct broker *broker, const struct request *request, const struct table *table, uint32_t want,
                       uint32_t flags, rp_error *err);
enum recall_found {
    RECALL_NOTHING,
    RECALL_ANSWERED, /* the waiter has the picks of the first answer, as far as they are still there: to be sent */
    RECALL_LEFT,     /* the waiter has what was left behind: to be filled */
    RECALL_NO_MEMORY /* nothing has changed */
};
/* Once the waiter waits, with its want and flags set. */
enum recall_found recall_load(struct broker *broker, struct waiter *waiter);

/* Any request of the client: it is there, and has read the replies to all its samples up to this id. */
void recall_settled(struct broker *broker, uint64_t client, uint64_t id);
/* Once a second: clients that have not been heard of for session.tombstone are forgotten. */
void recall_sweep(struct broker *broker);
/* Bytes that remembered samples hold. */
uint64_t recall_bytes(const struct broker *broker);

/* For checkpoints and restore: all that is remembered, oldest first, and the picks of samples that wait at present, as
 * if they had been left behind. */
struct recalled {
    uint64_t client, id;
    struct table *table;
    uint32_t want, flags; /* PICK_... of disk/record.h */
    bool answered;
    struct picks picks; /* age_ns is the time of insertion */
    bool holds;         /* the picks' chunks and layouts are held; otherwise n_refs is 0, and all but key, priority,
                           probability and times_sampled are zeros */
};
void recall_each(struct broker *broker, void (*fn)(void *ctx, const struct recalled *recalled), void *ctx);
/* Takes over what is in it, in any case. False: no memory, or no room for it. */
bool recall_restore(struct broker *broker, struct recalled *recalled);

#endif
