/* Samples: from picked items to replies.
 *
 * The room owns the samples that wait for items (waiter.h), their picks (picks.h), the samples that were answered and may be
 * asked for again (kept_samples.h), and what it knows of samplers that wait for all shards (watchers.h). It offers answering
 * (answer.h, reply.h). It uses the loop, parameters, the configuration, tables, peers, and the flags of a pick from the disk
 * format. */
#ifndef BROKER_SAMPLES_H
#define BROKER_SAMPLES_H

#include "broker/config/config.h"
#include "broker/sample/kept_list.h"
#include "broker/sample/watchers.h"

struct layouts;
struct loop;
struct params;
struct peers;
struct reply_build;
struct store;
struct waiter;

#define SAMPLE_MAX_ITEMS CONFIG_MAX_BATCH

/* The disk as a second tier for chunks (spill/). ctx NULL: all chunks are in memory. */
struct sample_parking {
    void *ctx;
    /* Parks a waiter some of whose chunks are on disk; when they are read, sample_answer is called again with the text.
     * False: all chunks are in memory. */
    bool (*park)(void *ctx, struct waiter *waiter, const char *text);
    /* The waiter ends, parked or not. */
    void (*unpark)(void *ctx, struct waiter *waiter);
    /* Writes what a parked waiter waits for. */
    void (*explain)(const struct waiter *waiter, char *text, size_t size);
};

struct samples {
    struct loop *loop;
    const struct broker_config *config;
    struct store *store;
    struct layouts *layouts;
    const struct params *params;
    struct peers *peers;
    struct sample_parking parking;
    struct waiter *spare_waiters;
    uint32_t n_spare_waiters;
    struct reply_build *build; /* working memory of replies */
    struct kept_list kept;     /* samples that may be asked for again */
    struct watchers watchers;
};

/* The caller has set what is borrowed: loop to peers. */
void samples_init(struct samples *self);
/* No sample waits any more, and the chores have run. */
void samples_fini(struct samples *self);

#endif
