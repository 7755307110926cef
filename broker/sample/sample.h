/* Picks: items that were chosen for a reply, as the parallel arrays that the reply carries; and the waiter that collects
 * them. Picks hold their chunks, so the items may leave the table before the reply is made. */
#ifndef BROKER_SAMPLE_H
#define BROKER_SAMPLE_H

#include "broker/peer/wait.h"
#include "broker/table/table.h"

struct build;
struct memory;

struct picks {
    uint32_t n, capacity;
    uint64_t *key, *age_ns, *policy, *step;
    double *priority, *probability;
    uint32_t *times_sampled, *session, *layout, *offset, *length, *chunks;
    struct chunk **refs; /* chunks of all items, one after another, each held */
    uint32_t n_refs, refs_capacity;
    bool borrowed;       /* chunks and layouts are not held: the reply goes out before anything can leave the table */
    void *block;         /* the arrays' memory */
    uint64_t table_size; /* before the last pick */
};

/* A waiter whose picks are read from disk: see spill.h. */
enum park_state { PARK_NOT, PARK_WAITS, PARK_ADMITTED, PARK_READY };
struct park {
    enum park_state state;
    struct waiter *next, **prev;
    uint32_t pinned; /* so many of its references are */
    uint32_t at;     /* those before it are here, or can not be read */
    bool damaged;    /* some can not be read */
    bool broken;     /* no memory to wait */
    char *text;      /* to be answered with, or NULL */
};

struct waiter {
    struct wait wait;
    struct waiter *next, **prev; /* in the table's queue; prev NULL: not queued */
    struct table *table;
    uint32_t want;
    uint32_t stamp; /* distinct: marks the items picked */
    bool distinct, flexible, whole, queued;
    bool full;             /* its reply has as many chunks as one may have */
    bool again;            /* it was answered before, and is to get the same */
    uint32_t gone;         /* of that: items that are no more in the table */
    bool fetch;            /* asked for by key: nothing is counted */
    bool short_of_memory;  /* it could not take what the table had for it */
    struct memory *memory; /* recall's, put aside to remember its picks */
    struct park park;
    struct picks picks;
};

/* What all samples of a broker share. */
struct samples {
    struct waiter *spare_waiters;
    uint32_t n_spare_waiters;
    struct build *build;   /* working memory of replies */
    struct recall *recall; /* samples that may be asked for again */
};

/* Room for n more. False: no memory. */
bool picks_reserve(struct picks *self, uint32_t n);
bool picks_reserve_refs(struct picks *self, uint32_t n);
/* Adds the item of a slot, with its chunks held and its layout referenced (unless borrowed). The table's counts are not touched. */
bool picks_add(struct picks *self, const struct table *table, uint32_t slot, double probability);
/* Holds what was borrowed: the picks will outlast this call. */
void picks_own(struct picks *self, struct broker *broker);
/* Whether the data of all chunks is in memory. */
bool picks_are_here(const struct picks *self);
/* Leaves item i out. They are owned. */
void picks_drop(struct picks *self, struct broker *broker, uint32_t i);
/* Lets go of everything; the memory stays for the next use. */
void picks_clear(struct picks *self, struct broker *broker);
void picks_fini(struct picks *self);

/* A waiter from the broker's spare ones, empty. NULL: no memory. */
struct waiter *waiter_new(struct broker *broker, struct table *table);
void waiter_release(struct broker *broker, struct waiter *self);
/* Takes what the limiter allows, one by one or in batches, up to `want`. */
void waiter_fill(struct waiter *self);
bool waiter_is_done(const struct waiter *self);
/* What it waits for. */
void waiter_explain(const struct waiter *self, char *text, size_t size);

/* req_sample.c: answers with the picks (text: why there are fewer than asked for, or NULL) and ends the waiter. */
void sample_answer(struct broker *broker, struct waiter *waiter, const char *text);
/* The same with an error: the picks are lost. */
void sample_fail(struct broker *broker, struct waiter *waiter, rp_status status, const char *text);

/* reply.c: sends the picks, at most once each chunk and only the needed blocks. False: they did not go out. */
bool reply_picks(struct broker *broker, const struct envelope *to, uint64_t id, const struct table *table,
                 const struct picks *picks, const char *text, bool partial, int64_t waited_ns);
/* Working memory of replies. */
void reply_build_destroy(struct build **self);

#endif
