/* What the files of parameters share: slots (params.c), their publisher and subscriber. All of it is public in replay/params.h.
 *
 * A publisher and a subscriber have in common: a name, errors that the caller learns of at the next call, and lanes: one part for
 * each connection (one for each shard), which has at most one request in flight. */
#ifndef AGENT_CLIENT_PARAMS_H
#define AGENT_CLIENT_PARAMS_H

#include <pthread.h>

#include "agent/client/conn/client.h"
#include "proto/base/clock.h"
#include "replay/params.h"

rp_status params_check_name(const char *name, rp_error *err);
/* Sets err for a reply that is not what was asked for. */
rp_status params_unexpected(rp_error *err);
/* Reads the slots of a reply to ParamsGet; takes the reply. RP_DEADLINE_EXCEEDED: it has no slots. */
rp_status params_read(const char *const *names, const uint64_t *have, uint32_t n, struct conn_reply *reply,
                      rp_params **out, rp_error *err);

/* Delay before the next request after the broker has ended one because it shuts down. */
#define PARAMS_RETRY_NS (100 * NS_PER_MS)

struct params_link {
    rp_client *client;
    char *name; /* of the slot */
    pthread_mutex_t lock;
    pthread_cond_t changed; /* signalled when a request has ended, or a connection was lost */
    rp_status status;       /* lock: of a refused request that the caller has not seen yet; RP_OK: none */
    rp_error error;
};

/* The I/O thread of the connection owns it. */
struct params_lane {
    struct conn_part part; /* first: reply functions get it */
    struct params_link *link;
    struct conn *conn;
    bool up; /* lock: the connection is up */
    bool in_flight;
    int64_t next_ns;   /* time before which no request is sent */
    uint64_t instance; /* of the broker that answered last; 0: none */
};

/* Checks the name. After an error there is nothing to free. */
rp_status params_link_init(struct params_link *self, rp_client *client, const char *name, rp_error *err);
/* Frees the members; all lanes are closed. */
void params_link_fini(struct params_link *self);
/* Returns the error of a refused request, once: "WHAT 'NAME': error". Lock held. */
rp_status params_link_take_error(struct params_link *self, const char *what, rp_error *err);
/* Keeps the error of a refused request for the caller, unless it has not seen an earlier one. Lock held. */
void params_link_keep_error(struct params_link *self, const struct params_lane *lane, const rp_error *error);

/* Attaches the lane to the connection of a shard. */
void params_lane_open(struct params_lane *self, struct params_link *link, uint32_t shard,
                      const struct conn_part_ops *ops);
void params_lane_close(struct params_lane *self);

/* For conn_part_ops. up: returns true if another broker answers than before; false at the first time. */
bool params_lane_up(struct params_lane *self, const struct conn_hello *hello);
void params_lane_down(struct conn_part *part);
/* True if a request may be sent now; otherwise *wake_ns is the time to look again. I/O thread. */
bool params_lane_is_free(const struct params_lane *self, int64_t now_ns, int64_t *wake_ns);

#endif
