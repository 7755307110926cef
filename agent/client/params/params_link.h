/* What a publisher and a subscriber have in common: a part of the connection that has at most one request for one slot in
 * flight, and whose caller learns of a refused request at the next call. */
#ifndef AGENT_CLIENT_PARAMS_LINK_H
#define AGENT_CLIENT_PARAMS_LINK_H

#include <pthread.h>

#include "agent/client/conn/client.h"
#include "proto/base/clock.h"

/* Delay before the next request after the broker has ended one because it shuts down. */
#define PARAMS_RETRY_NS (100 * NS_PER_MS)

struct params_link {
    struct conn_part part; /* first: reply functions get it */
    struct conn *conn;
    char *name; /* of the slot */
    pthread_mutex_t lock;
    pthread_cond_t changed; /* signalled when a request has ended */
    rp_status status;       /* lock: of a refused request that the caller has not seen yet; RP_OK: none */
    rp_error error;
    /* I/O thread */
    bool up; /* the connection is up */
    bool in_flight;
    int64_t next_ns; /* time before which no request is sent */
};

/* Checks the name. The owner calls conn_attach. After an error there is nothing to free. */
rp_status params_link_init(struct params_link *self, rp_client *client, const char *name,
                           const struct conn_part_ops *ops, rp_error *err);
/* Detaches the part and frees the members. */
void params_link_fini(struct params_link *self);

/* Parts of conn_part_ops. */
void params_link_up(struct conn_part *part, const struct conn_hello *hello);
void params_link_down(struct conn_part *part);
/* True if a request may be sent now; otherwise *wake_ns is the time to look again. I/O thread. */
bool params_link_is_free(const struct params_link *self, int64_t now_ns, int64_t *wake_ns);
/* Returns the error of a refused request, once: "WHAT 'NAME': error". Lock held. */
rp_status params_link_take_error(struct params_link *self, const char *what, rp_error *err);

#endif
