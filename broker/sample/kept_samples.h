/* Kept samples: a request that is retried with its id because its reply was lost gets the same selection, counted once. So a
 * queue never loses an item between broker and learner.
 *
 * For each client the last KEPT_PER_CLIENT samples are kept (KEPT_SETTLING of a client that says what it has read, in
 * Request.settled), all of them together within a sixteenth of memory_limit. Picks of a table whose items leave when they
 * are sampled hold their chunks; of other tables the keys are kept, and the items are looked up again. If the connection
 * of a client ends or the broker stops while a sample is being filled, the unanswered sample is kept, and a retry
 * continues from its picks. Client 0 is anonymous and cannot retry: its samples are not kept. */
#ifndef BROKER_KEPT_SAMPLES_H
#define BROKER_KEPT_SAMPLES_H

#include "broker/peer/request.h"
#include "broker/sample/kept_list.h"

#define KEPT_PER_CLIENT 64u
#define KEPT_SETTLING 1024u

struct waiter;

/* Reserves the memory to keep the picks of a waiter that has its want set. False: no memory. */
bool kept_samples_reserve(struct waiter *waiter);
/* Returns the reserved memory, if it was not used. */
void kept_samples_unreserve(struct waiter *waiter);
/* Keeps the waiter's picks, which are about to be sent (answered) or are left unanswered. Returns the picks to send: the
 * waiter's, or the kept ones, which are valid until the next call of this file. */
struct picks *kept_samples_keep(struct waiter *waiter, bool answered);
/* Counts the waiter's picks as lost: nobody will ask for them again. */
void kept_samples_lose(struct waiter *waiter);

/* Checks that a sample may have its id: the client has not settled the id, nor used it for another sample. */
rp_status kept_samples_check(const struct samples *samples, const struct kept_info *asked, rp_error *err);
enum kept_found {
    KEPT_NOTHING,
    KEPT_ANSWERED,   /* the waiter has the picks of the first answer that are still there, and is to be answered */
    KEPT_UNANSWERED, /* the waiter has the picks of the unanswered sample, and is to be filled */
    KEPT_NO_MEMORY   /* nothing has changed */
};
/* Loads the picks of the kept sample that the waiter asks for again. The waiter waits, and has its want and flags set. */
enum kept_found kept_samples_load(struct waiter *waiter);

/* At any request of a client: it is there, and has read the replies to all its samples up to this id. */
void kept_samples_settle(struct samples *samples, uint64_t client, uint64_t id);
/* Once a second: forgets clients that have been silent for session.tombstone. */
void kept_samples_sweep(struct samples *samples);

/* A kept sample on its way to or from a checkpoint. picks.age_ns is the time of insertion. If info.holds is false, n_refs is
 * 0, and all but key, priority, probability and times_sampled are zeros. */
struct kept_image {
    struct kept_info info;
    struct picks picks;
};
/* Calls fn for every kept sample, oldest first; then for the picks of samples that wait at present, as unanswered ones. */
void kept_samples_each(const struct samples *samples, void (*fn)(void *ctx, const struct kept_image *image), void *ctx);
/* Restores a sample. Takes the picks in any case. False: no memory, or no room for it. */
bool kept_samples_restore(struct samples *samples, struct kept_image *image);

#endif
