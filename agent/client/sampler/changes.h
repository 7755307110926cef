/* Requests that change items by key: updates of priorities, and deletes. changes_call.c and updater.c use it.
 *
 * A key goes to the shard that owns it. Requests at a shard that is away wait there until it is back; they do not count as in
 * flight, so that the other shards get their changes all the same. */
#ifndef AGENT_CLIENT_CHANGES_H
#define AGENT_CLIENT_CHANGES_H

#include <pthread.h>

#include "agent/client/conn/client.h"
#include "replay/sampler.h"

/* Requests without an answer, unless the caller says otherwise. */
#define CHANGES_IN_FLIGHT 16u

/* Items of a table to be changed: updated if there are priorities, else deleted. */
struct keys {
    const char *table;
    const uint64_t *keys;
    const double *priorities;
    uint64_t n;
};

struct changes;

/* The requests at one shard. */
struct changes_lane {
    struct changes *changes;
    struct conn *conn;
    uint32_t open; /* requests without an answer */
};

struct changes {
    pthread_mutex_t lock; /* guards what follows, but for refs and the connections */
    pthread_cond_t done;
    uint32_t refs; /* the caller and every request */
    uint32_t open; /* of all lanes */
    rp_change change;
    rp_status status; /* the first status that was not RP_OK */
    rp_error error;
    uint32_t n_lanes;
    struct changes_lane lanes[];
};

/* NULL: out of memory. */
struct changes *changes_new(rp_client *client);
void changes_unref(struct changes *self);
/* Returns the largest number of keys in one request. */
uint32_t changes_max(struct conn *conn);
rp_status changes_check_table(struct conn *conn, const char *table, rp_error *err);
/* Sends one request, whose answer is added to self->change. timeout_ms as in conn_send. RP_NO_MEMORY: not sent. */
rp_status changes_send(struct changes *self, uint32_t shard, const struct keys *keys, int64_t timeout_ms,
                       rp_error *err);
/* Waits until fewer than `most` requests are in flight. False: the deadline has passed, or the caller has ended the wait. */
bool changes_wait_for_room(struct changes *self, uint32_t most, int64_t deadline_ns);
/* Waits until all requests are answered, also at shards that are away. */
bool changes_wait_for_all(struct changes *self, int64_t deadline_ns);

#endif
