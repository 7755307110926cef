/* Waiter: a sample that is being filled. It collects its picks, at once or whenever its table allows more. */
#ifndef BROKER_WAITER_H
#define BROKER_WAITER_H

#include "broker/peer/wait.h"
#include "broker/sample/picks.h"

struct kept_sample;

/* A waiter whose picks are read from disk: see spill.h. */
enum park_state { PARK_NOT, PARK_WAITS, PARK_ADMITTED, PARK_READY };
struct park {
    enum park_state state;
    struct waiter *next, **prev;
    uint32_t pinned; /* references that are pinned, from the first on */
    uint32_t at;     /* references before it are in memory, or cannot be read */
    bool damaged;    /* some references cannot be read */
    bool broken;     /* no memory to wait */
    char *text;      /* for the answer, or NULL */
};

struct waiter {
    struct wait wait;
    struct samples *samples;
    struct waiter *next, **prev; /* in the table's queue; prev NULL: not queued */
    struct table *table;
    /* Goes on with a waiter of the queue; sets *progress if it got something. True: it was answered, and is gone. */
    bool (*serve)(struct waiter *self, bool *progress);
    uint32_t want;
    uint32_t stamp; /* distinct: marks the items picked */
    uint32_t flags; /* PICK_... of disk/record.h */
    bool distinct, flexible, whole, queued;
    bool paid;                    /* the limiter is not asked; it was charged before, if it takes permits */
    bool full;                    /* its reply has as many chunks as a reply may have */
    bool again;                   /* it was answered before, and gets the same items */
    uint32_t gone;                /* items of the first answer that are no longer in the table */
    bool fetch;                   /* asked for by key: nothing is counted */
    bool short_of_memory;         /* it could not take what the table had for it */
    struct kept_sample *reserved; /* memory to keep its picks in */
    struct park park;
    struct picks picks;
};

/* Takes an empty waiter from the spare ones, or makes one. NULL: no memory. */
struct waiter *waiter_new(struct samples *samples, struct table *table);
/* Releases its picks; the waiter becomes a spare one. It is in no queue and waits no more. */
void waiter_release(struct waiter *self);
/* Appends it to the queue of its table, and takes it out. */
void waiter_enqueue(struct waiter *self);
void waiter_unqueue(struct waiter *self);
/* Picks what the limiter allows, one by one or in batches, up to `want`. */
void waiter_fill(struct waiter *self);
/* Picks up to `want` without asking the limiter. It is charged if nobody can have paid before. */
void waiter_fill_paid(struct waiter *self);
/* True if the limiter counts its picks. */
static inline bool waiter_is_counted(const struct waiter *self)
{
    return !self->paid || !limiter_takes_permits(&self->table->limiter);
}
bool waiter_is_done(const struct waiter *self);
/* Writes what it waits for. */
void waiter_explain(const struct waiter *self, char *text, size_t size);

#endif
