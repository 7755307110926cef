/* The parent of several brokers that are the shards of one.
 *
 * shards_run forks a process for each shard, tells all of them where the others are, and starts a shard again that has
 * died, at its former endpoints. It knows nothing of what a shard does: broker/program/main.c gives it a function that serves. The parent has
 * one thread, so a shard is a fork without exec.
 *
 * Parent and shards share the list of endpoints, and each shard has a socket to its parent: by a byte the shard says that its endpoints
 * are in the list (shards_join), and by another the parent says that those of all shards are. A shard ends with its parent. */
#pragma once

#include "broker/config/config.h"
#include "replay/error.h"

/* Endpoints of a shard: as they were bound, and as others reach them. */
enum shard_endpoint {
    SHARD_SERVICE,
    SHARD_INGEST,
    SHARD_EVENTS,
    SHARD_HTTP, /* "": none */
    SHARD_TOLD_SERVICE,
    SHARD_TOLD_INGEST,
    SHARD_TOLD_EVENTS,
    SHARD_ENDPOINTS,
};

#define SHARD_ENDPOINT_BYTES 300u
struct shard_endpoints {
    char text[SHARD_ENDPOINTS][SHARD_ENDPOINT_BYTES];
};

/* A shard's way to its parent. */
struct shard_link {
    int socket;
    struct shard_endpoints *all; /* of all shards; a shard writes its own */
    uint32_t number, n;
};

/* Runs in the shard's process. Returns the exit status. */
typedef int shards_serve_fn(void *ctx, struct broker_config *config, const struct shard_link *link);

/* Starts config_shards(config) shards and keeps them running until SIGTERM or SIGINT. Writes their endpoints to standard output and,
 * if it is not NULL, to endpoints_file. again: see shards_bind_again. parent: see shards_lost_parent. Returns the exit status of the
 * program; in a shard's process, the shard's. */
int shards_run(struct broker_config *config, const char *endpoints_file, bool again, int64_t parent,
               shards_serve_fn *serve, void *ctx);

/* Asked after each SIGHUP, which the kernel sends when the thread that has started this process ends: true if all of its process, whose id
 * is `parent`, has. 0: nobody's end counts. */
bool shards_lost_parent(int64_t parent);

/* Gives endpoints on any free port or with any ipc name those that a broker before this one has written, so that its clients find this
 * one. A file that does not exist changes nothing. */
void shards_bind_again(struct broker_config *config, uint32_t shard, const char *endpoints_file);

/* In a shard: tells the parent its endpoints, waits until those of all are known, and gives the service endpoints. RP_CANCELLED: a
 * signal has come, or the parent is gone. */
rp_status shards_join(const struct shard_link *link, const char *const own[SHARD_ENDPOINTS],
                      char *service[CONFIG_MAX_SHARDS], rp_error *err);
