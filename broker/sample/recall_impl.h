/* What the files recall*.c share: the memory of samples, and who they belong to. */
#ifndef BROKER_RECALL_IMPL_H
#define BROKER_RECALL_IMPL_H

#include "broker/broker.h"
#include "broker/sample/recall.h"

#define KEY_BYTES (3 * 8 + 4)

/* One sample. It is in two lists: of all, and of its client; both oldest first. */
struct memory {
    struct owner *owner;
    struct memory *older, *newer;
    struct memory *before, *after;
    uint64_t id;
    struct table *table;
    uint32_t want, flags;
    bool answered, holds;
    uint64_t bytes;
    struct picks picks; /* if it holds them */
    /* Otherwise: key[n], priority[n], probability[n], times_sampled[n]. */
    uint32_t n;
    uint64_t table_size;
    uint8_t *block;
    size_t room;
};

/* A client. Stays when it has nothing remembered, for its settled. */
struct owner {
    uint64_t client;
    struct owner *prev, *next; /* in the order in which they were last heard of */
    struct memory *first, *last;
    uint32_t count;
    bool settles;
    uint64_t settled;
    uint64_t highest; /* id */
    int64_t heard_ns;
};

struct recall {
    struct chore chore; /* first: lets go of what is in `dead` */
    struct broker *broker;
    bool burying;
    struct idmap owners; /* by client */
    struct owner *first_owner, *last_owner;
    uint32_t n_owners;
    struct memory *oldest, *newest;
    uint64_t bytes, budget;
    struct memory *dead, *spare; /* linked by newer */
    uint32_t n_spare;
    uint32_t at_once; /* refs that may still be released in this instant */
    int64_t instant_ns;
    struct log_limit full_log, gone_log;
};

static inline double *block_priority(const struct memory *memory)
{
    return (double *)(void *)(memory->block + (size_t)memory->n * 8);
}

static inline double *block_probability(const struct memory *memory)
{
    return (double *)(void *)(memory->block + (size_t)memory->n * 16);
}

static inline uint32_t *block_times(const struct memory *memory)
{
    return (uint32_t *)(void *)(memory->block + (size_t)memory->n * 24);
}

/* NULL: it is not remembered, or there is no such client. */
struct owner *recall_owner(const struct recall *self, uint64_t client);
struct memory *recall_find(const struct owner *owner, uint64_t id);
/* The client, made if need be. NULL: no memory, or client is 0. */
struct owner *recall_owner_make(struct recall *self, uint64_t client);
void recall_heard(struct recall *self, struct owner *owner);

/* An empty one. NULL: no memory. Filled in, it is put into the lists. */
struct memory *recall_memory_new(struct recall *self);
void recall_link(struct recall *self, struct owner *owner, struct memory *memory);
/* Takes it out of all lists; then, when its picks were let go of, its memory serves again. */
void recall_unlink(struct recall *self, struct memory *memory);
void recall_recycle(struct recall *self, struct memory *memory);
/* Forgets a sample for good; a client with all that it has. */
void recall_drop(struct recall *self, struct memory *memory);
void recall_drop_owner(struct recall *self, struct owner *owner);

#endif
