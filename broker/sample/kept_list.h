/* The list of kept samples: by client, by age, and within a budget of bytes; and how their chunks are released.
 * kept_samples.h decides what is kept. */
#ifndef BROKER_KEPT_LIST_H
#define BROKER_KEPT_LIST_H

#include "broker/loop/idmap.h"
#include "broker/loop/loop.h"
#include "broker/sample/picks.h"
#include "proto/base/log.h"

/* Bytes of an item of which only key, priority, probability and times_sampled are kept. */
#define KEPT_ITEM_BYTES (3 * 8 + 4)

struct samples;

/* What a client asked for, and how far it was answered. */
struct kept_info {
    uint64_t client, id;
    struct table *table;
    uint32_t want, flags; /* PICK_... of disk/record.h */
    bool answered;        /* false: its connection ended while it was being filled */
    bool holds; /* its picks hold their chunks and layouts; otherwise only the items' keys and numbers are kept */
};

/* A kept sample is in two lists, both oldest first: of all (older, newer), and of its client (before, after). */
struct kept_sample {
    struct kept_info info;
    struct kept_client *client;
    struct kept_sample *older, *newer;
    struct kept_sample *before, *after;
    uint64_t bytes;
    uint64_t own_bytes; /* of them: other than of chunks */
    struct picks picks; /* if info.holds */
    /* Otherwise: key[n], priority[n], probability[n], times_sampled[n]. */
    uint32_t n;
    uint64_t table_size;
    uint8_t *block;
    size_t room; /* bytes of the block */
};

/* A client is known even when none of its samples is kept: its settled id still counts. */
struct kept_client {
    uint64_t client;
    struct kept_client *prev, *next; /* in the order in which they were last heard of */
    struct kept_sample *first, *last;
    uint32_t count;
    bool settles;     /* it says which replies it has read */
    uint64_t settled; /* it has read the replies to all requests up to this id */
    uint64_t highest; /* id */
    int64_t heard_ns;
};

struct kept_list {
    struct chore chore; /* releases what is in `dropped` */
    bool releasing;     /* the chore is running */
    struct samples *samples;
    struct idmap clients;
    struct kept_client *first_client, *last_client;
    uint32_t n_clients;
    struct kept_sample *oldest, *newest;
    uint64_t bytes, budget;
    struct kept_sample *dropped, *spare; /* linked by newer */
    uint32_t n_spare;
    uint32_t releases_left; /* chunk references that may still be released at now_ns */
    int64_t now_ns;
    struct log_limit full_log, gone_log;
};

static inline double *kept_priority(const struct kept_sample *self)
{
    return (double *)(void *)(self->block + (size_t)self->n * 8);
}

static inline double *kept_probability(const struct kept_sample *self)
{
    return (double *)(void *)(self->block + (size_t)self->n * 16);
}

static inline uint32_t *kept_times_sampled(const struct kept_sample *self)
{
    return (uint32_t *)(void *)(self->block + (size_t)self->n * 24);
}

/* Borrows the samples, which embed the list. */
void kept_list_init(struct kept_list *self, struct samples *samples);
/* Releases all samples; the list is empty after that. Its chore has run. Nothing is recorded: after a restart, clients may
 * still ask for what the journal has. */
void kept_list_fini(struct kept_list *self);

/* Returns a client. NULL: nothing is known of it. */
struct kept_client *kept_list_client(const struct kept_list *self, uint64_t client);
/* Returns a client, made if need be. NULL: no memory, or client is 0. */
struct kept_client *kept_list_make_client(struct kept_list *self, uint64_t client);
/* The client was heard of now. */
void kept_list_touch(struct kept_list *self, struct kept_client *client);
/* Returns the sample of a client that has this id. NULL: it is not kept. client may be NULL. */
struct kept_sample *kept_list_find(const struct kept_client *client, uint64_t id);

/* Returns an empty sample. NULL: no memory. Filled in, it is added to the lists. */
struct kept_sample *kept_list_new(struct kept_list *self);
void kept_list_add(struct kept_list *self, struct kept_client *client, struct kept_sample *sample);
/* Takes a sample out of both lists. */
void kept_list_remove(struct kept_list *self, struct kept_sample *sample);
/* Frees a sample that is in no list and holds nothing, or keeps its memory for the next. */
void kept_list_recycle(struct kept_list *self, struct kept_sample *sample);
/* Forgets a sample for good, or a client with all its samples. */
void kept_list_drop(struct kept_list *self, struct kept_sample *sample);
void kept_list_drop_client(struct kept_list *self, struct kept_client *client);

#endif
