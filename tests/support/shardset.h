/* Several broker processes that are the shards of one broker, in a folder of their own. */
#ifndef TESTS_SUPPORT_SHARDSET_H
#define TESTS_SUPPORT_SHARDSET_H

#include <stdint.h>

#include "tests/support/process.h"

#define SHARDSET_MOST 8u

struct shardset {
    uint32_t n;
    char dir[40];
    struct broker_process brokers[SHARDSET_MOST];
};

/* Starts n shards with these tables (as for one broker) and waits until all listen. more: further keys, or NULL. */
void shardset_start(struct shardset *self, uint32_t n, const char *tables, const char *more);
void shardset_fini(struct shardset *self);
/* Returns the service endpoint of a shard. */
const char *shardset_endpoint(const struct shardset *self, uint32_t shard);
void shardset_kill(struct shardset *self, uint32_t shard);
/* Starts a shard that was killed. */
void shardset_again(struct shardset *self, uint32_t shard);

#endif
