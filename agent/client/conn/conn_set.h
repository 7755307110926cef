/* The connections of one client to all shards of a broker; to one broker, if it is alone.
 *
 * The first shard that answers says how many there are, and where. All of them must have the same settings: a shard that says
 * something else is refused, as if its HELLO had failed, until it agrees. When no connection is up, the first that comes back
 * decides the settings again, because then all shards may have been started anew. A shard that is started again with another list
 * of shards moves those that are elsewhere now.
 *
 * Lock order: the set's mutex, then a connection's. */
#ifndef AGENT_CLIENT_CONN_SET_H
#define AGENT_CLIENT_CONN_SET_H

#include "agent/client/conn/conn.h"

/* The number of a shard that has not said its number yet. */
#define CONN_SHARD_UNKNOWN UINT32_MAX

struct conn_set {
    struct conn **conns; /* by number; until the first answer: those to the endpoints that were named */
    uint32_t n;
    void *zmq;          /* context of the connections that do not have their own; NULL: none */
    uint64_t client_id; /* that all of them state */

    pthread_mutex_t mutex;  /* guards what follows */
    pthread_cond_t changed; /* a connection came up, was lost, or was refused */
    uint32_t shards;        /* number of shards; 0: none has answered yet */
    uint64_t settings;      /* hash of the settings that all have */
    bool complete;          /* conns has all shards, and stays as it is */
    uint32_t up;            /* connections that are up */
    int64_t first_ns;       /* time of the first answer */
    uint32_t witness;       /* the shard that has agreed last, for messages */
    char where[256];        /* its endpoint */
};

struct conn_set_plan {
    const char *endpoints; /* one, or several separated by commas */
    const rp_client_options *options;
    const struct conn_host *host; /* NULL: every connection has a thread */
    bool any;                     /* any shard is enough, even without shard 0 */
};

/* Connects to all shards. Returns when all have answered; shards that have not answered a second after the first, or at the end
 * of the time-out, keep trying in the background. Shard 0 must answer, unless the plan says otherwise. Call conn_set_close also
 * after a failure. */
rp_status conn_set_open(struct conn_set *self, const struct conn_set_plan *plan, int64_t timeout_ms, rp_error *err);
void conn_set_close(struct conn_set *self);

/* Writes which shards do not answer, and for how long; "" while all answer. */
void conn_set_describe(struct conn_set *self, char *out, size_t size);

/* ---- for connections, on their I/O threads ---- */

/* Asks whether a broker that has answered belongs here. shard: the number that is expected, or CONN_SHARD_UNKNOWN: then it gets
 * the broker's. RP_OK counts the connection as up. */
rp_status conn_set_join(struct conn_set *self, const char *endpoint, const struct conn_hello *hello, uint32_t *shard,
                        rp_error *err);
void conn_set_leave(struct conn_set *self);
/* A shard has answered again: where its list of shards differs from the one before, a shard has moved. */
void conn_set_compare(struct conn_set *self, const struct conn_hello *before, const struct conn_hello *now);
/* The state of a connection has changed. */
void conn_set_signal(struct conn_set *self);

#endif
