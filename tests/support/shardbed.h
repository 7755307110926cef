/* The shards of one broker as real processes: each has the list of all, and can be stopped and restarted alone. */
#pragma once

#include "tests/support/process.h"

#define SHARDBED_MOST 16u

struct shardbed {
    char dir[64]; /* of the sockets */
    uint32_t n;
    char services[SHARDBED_MOST][128]; /* endpoints */
    struct broker_process shards[SHARDBED_MOST];
};

/* Starts n shards with these tables (the YAML under "tables:") and further keys, or NULL. Fails the test if one does not start. */
void shardbed_start(struct shardbed *self, uint32_t n, const char *tables, const char *more);
/* Prepares the same, but starts none: shardbed_run does. */
void shardbed_prepare(struct shardbed *self, uint32_t n);
/* Starts a shard for the first time. */
void shardbed_run(struct shardbed *self, uint32_t shard, const char *tables, const char *more);
/* Stops all shards, and removes the folder with all that is in it. */
void shardbed_stop(struct shardbed *self);

/* Returns how many shards a client is not connected with. */
uint32_t shardbed_missing(rp_client *client);
/* Connects by the service of a shard, and waits until all shards are connected: a connect gets along without a shard that takes
 * longer than a second. options: may be NULL. */
rp_client *shardbed_connect(const struct shardbed *self, uint32_t shard, const rp_client_options *options);
