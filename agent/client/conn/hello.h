/* What a broker said in its answer to HELLO, and whether all shards say the same. */
#pragma once

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>

#include "agent/client/conn/arena.h"
#include "agent/client/conn/request.h"
#include "replay/error.h"

/* ---- one broker's answer ---- */

/* The newest answer to a HELLO: immutable and reference-counted. */
struct conn_hello {
    uint32_t refs;
    Replay__HelloReply *says; /* with defaults filled in and '*' replaced in endpoints */
    struct conn_arena *arena; /* the broker's memory; NULL: it is not here */
};

/* Reads an answer that came from `host` (NULL: the transport has none). NULL: err says why. */
struct conn_hello *hello_read(const struct conn_reply *reply, const char *host, rp_error *err);
/* NULL is allowed. */
struct conn_hello *hello_ref(struct conn_hello *self);
void conn_hello_unref(struct conn_hello **self);
/* Returns the number of shards that the broker is one of; 1: it is alone. */
uint32_t conn_hello_count(const struct conn_hello *self);
/* Finds the index of a table, for which index may be NULL. RP_NOT_FOUND: there is none of this name, and err says which there are. */
rp_status conn_hello_table(const struct conn_hello *self, const char *name, uint32_t *index, rp_error *err);

/* ---- the shards of one broker ---- */

/* The number of a shard that has not said its number yet. */
#define CONN_SHARD_UNKNOWN UINT32_MAX

/* What the connections of one client have heard.
 *
 * The first shard that answers says how many there are, and where. All of them must have the same settings: a shard that says
 * something else is refused, as if its HELLO had failed, until it agrees. When no connection is up, the first that comes back
 * decides the settings again, because then all shards may have been started anew. A shard that is started again with another list
 * of shards moves those that are elsewhere now.
 *
 * Lock order: this mutex, then a connection's. */
struct conn_shards {
    pthread_mutex_t mutex;  /* guards what follows */
    pthread_cond_t changed; /* a connection came up, was lost, or was refused */
    uint32_t n;             /* number of shards; 0: none has answered yet. Atomic: read without the mutex, too */
    uint64_t settings;      /* hash of the settings that all have */
    uint32_t up;            /* connections that are up */
    int64_t first_ns;       /* time of the first answer */
    uint32_t witness;       /* the shard that has agreed last, for messages */
    char where[256];        /* its endpoint */
    struct shard_move *moves;
};

void conn_shards_init(struct conn_shards *self);
void conn_shards_fini(struct conn_shards *self);
/* True if the broker is known to have several shards. */
bool conn_shards_several(const struct conn_shards *self);
/* Asks whether a broker that has answered belongs here. shard: the number that is expected, or CONN_SHARD_UNKNOWN: then it gets
 * the broker's. RP_OK counts the connection as up. */
rp_status conn_shards_join(struct conn_shards *self, const char *endpoint, const struct conn_hello *hello,
                           uint32_t *shard, rp_error *err);
void conn_shards_leave(struct conn_shards *self);
/* A shard has answered again: where its list of shards differs from the one before, a shard has moved. */
void conn_shards_compare(struct conn_shards *self, const struct conn_hello *before, const struct conn_hello *now);
/* Returns the endpoint that a shard has moved to last, which lives as long as self; NULL: it has not moved. */
const char *conn_shards_moved(struct conn_shards *self, uint32_t shard);
/* The state of a connection has changed. */
void conn_shards_signal(struct conn_shards *self);
