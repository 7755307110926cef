/* Kept samples: a request that is retried with its id because its reply was lost gets the same selection, counted once. So a
 * queue never loses an item between broker and learner.
 *
 * For each client the last KEPT_PER_CLIENT samples are kept (KEPT_SETTLING of a client that says what it has read, in
 * Request.settled), all of them together within a sixteenth of memory_limit. Picks of a table whose items leave when they
 * are sampled hold their chunks; of other tables the keys are kept, and the items are looked up again. If the connection
 * of a client ends or the broker stops while a sample is being filled, the unanswered sample is kept, and a retry
 * continues from its picks. Client 0 is anonymous and cannot retry: its samples are not kept.
 *
 * A client that reads shared memory has a loan: its picks hold their chunks, too, and the memory that is lent for small ones, until
 * it says that it has read them, or asks again. A loan takes no room from other samples; it ends when they need the room, or after a second if memory is short. Then the
 * keys stay. */
#pragma once

#include "broker/loop/loop.h"
#include "broker/peer/kept.h"
#include "broker/sample/picks.h"
#include "proto/base/log.h"

#define KEPT_PER_CLIENT 64u
#define KEPT_SETTLING 1024u

struct kept_sample;
struct samples;
struct waiter;

/* What a client asked for, and how far it was answered. */
struct kept_info {
    uint64_t client, id;
    struct table *table;
    uint32_t want, flags; /* PICK_... of loop/entries.h */
    bool answered;        /* false: its connection ended while it was being filled */
    bool holds; /* its picks hold their chunks and layouts; otherwise only the items' keys and numbers are kept */
};

/* A client is known even when none of its samples is kept: its settled id still counts. */
struct kept_samples {
    struct kept_list list;
    TAILQ_HEAD(loaned_list, kept_sample) loans; /* samples of the list, the oldest loan first */
    uint64_t loan_bytes;                        /* of list.bytes, that go when all loans end */
    struct chore chore;                         /* releases what is in `dropped` */
    bool releasing;                             /* the chore is running */
    struct samples *samples;
    uint64_t budget;                     /* most of list.bytes */
    struct kept_sample *dropped, *spare; /* linked by next */
    uint32_t n_spare;
    uint32_t releases_left; /* chunk references that may still be released at now_ns */
    int64_t now_ns;
    struct log_limit full_log, gone_log;
};

/* Borrows the samples, which embed it. */
void kept_samples_init(struct kept_samples *self, struct samples *samples);
/* Releases all samples; the list is empty after that. Its chore has run. Nothing is recorded: after a restart, clients may
 * still ask for what the journal has. */
void kept_samples_fini(struct kept_samples *self);

/* Reserves the memory to keep the picks of a waiter that has its want set. False: no memory. */
bool kept_samples_reserve(struct waiter *waiter);
/* Returns the reserved memory, if it was not used. */
void kept_samples_unreserve(struct waiter *waiter);
/* Keeps the waiter's picks, which are about to be sent (answered) or are left unanswered. Returns the picks to send: the
 * waiter's, or the kept ones, which are valid until the next call of this file. */
struct picks *kept_samples_keep(struct waiter *waiter, bool answered);
/* Returns shared memory for a reply that lies in no frame; it is the sample's, which has a loan with it. NULL: no room. */
void *kept_samples_lend(struct kept_samples *self, struct kept_sample *sample, size_t bytes);
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

/* Memory is short: ends the oldest loan, if its client has had time to read. False: there is none. */
bool kept_samples_relieve(void *samples);
/* Returns the number of clients that have read shared memory and are still known. */
uint32_t kept_samples_readers(const struct kept_samples *self);

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
typedef void kept_image_fn(void *ctx, const struct kept_image *image);
/* Calls fn for every kept sample, oldest first. */
void kept_samples_each(const struct samples *samples, kept_image_fn *fn, void *ctx);
/* Returns what a sample that is being filled would be kept as. */
struct kept_info kept_samples_info(const struct waiter *waiter);
/* Restores a sample. Takes the picks in any case. False: no memory, or no room for it. */
bool kept_samples_restore(struct samples *samples, struct kept_image *image);
