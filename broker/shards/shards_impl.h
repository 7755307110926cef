/* The parent's own structs. Included by the files of this folder alone. */
#ifndef BROKER_SHARDS_IMPL_H
#define BROKER_SHARDS_IMPL_H

#include <signal.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include "broker/shards/shards.h"

#define LINE_BYTES 4096u
/* Between the endpoints of a line: the path of an ipc endpoint may have spaces. */
#define SHARD_SEPARATOR "\t"

struct shard {
    pid_t pid; /* 0: it does not run */
    int link;  /* -1: none */
    char line[LINE_BYTES];
    size_t filled;
    bool told;                        /* it has sent its endpoints, and waits for the list */
    char *endpoints[SHARD_ENDPOINTS]; /* of its first start; NULL: not known yet */
    int64_t start_ns, again_ns, pause_ns;
};

struct parent {
    struct broker_config *config; /* a shard changes its own copy */
    const char *endpoints_file;
    bool again; /* binds the ports that the file has from before */
    shards_serve_fn *serve;
    void *ctx;
    uint32_t n;
    struct shard *shards;
    int signals;
    sigset_t mask; /* signals that the parent takes */
    sigset_t before;
    bool ready; /* all shards have bound their endpoints, and everybody was told */
    bool stopping, failed;
    bool is_shard; /* this is the process of a shard, which has ended with `status` */
    int status;
};

/* shards.c: passes a signal on that ends everything. A shard that still waits for the list learns of it by the end of its link: the
 * signal may have reached it just before it began to wait. */
void parent_stop(struct parent *self, int signal_number);

/* shards_link.c */
void shard_close_link(struct shard *self);
/* Takes what a shard has sent: its endpoints. When all shards have, everybody is told. */
void parent_read_link(struct parent *self, struct shard *shard);

#endif
