/* A request that is not answered yet. It has a deadline or none, can explain what it waits for, can be taken over by a retry
 * from a new route, and is cancelled when the broker drains. Embedded as the first member of the struct that waits. */
#ifndef BROKER_WAIT_H
#define BROKER_WAIT_H

#include "broker/loop/idmap.h"
#include "broker/loop/loop.h"
#include "broker/peer/peer.h"
#include "broker/peer/request.h"

struct wait;

/* What a request waits for, in words. */
struct wait_text {
    char table[256];
    uint64_t count, got;
    char text[512];
};

/* ctx is the wait's. */
struct wait_ops {
    const char *kind; /* "sample", "permit", "fetch", "params", "reduce", "checkpoint", "bye" */
    /* The deadline has passed. Ends the wait and answers. */
    void (*expire)(void *ctx, struct wait *wait);
    /* Ends the wait and answers with status and text. */
    void (*cancel)(void *ctx, struct wait *wait, rp_status status, const char *text);
    void (*explain)(const void *ctx, const struct wait *wait, struct wait_text *out);
};

struct wait {
    const struct wait_ops *ops;
    void *ctx;
    struct wait *prev, *next;
    struct timer timer;
    struct envelope to;
    uint64_t client, id;
    int64_t since_ns;
    int64_t traced_ns;           /* the same by a fresh look at the clock; 0: no trace was recorded then */
    int descriptor;              /* of the connection by which the request came; -1: not known */
    uint64_t connection;         /* number of that connection: monitor.h */
    struct identity *identity;   /* whose request it is */
    uint32_t roles;              /* that may ask for it, of enum key_role */
    uint32_t places;             /* that it takes of those there are */
    struct request_times *times; /* of its kind; NULL: not measured */
    uint64_t message;            /* running number of the message by which the request came */
    bool measured;               /* its time counts when it ends: it was not answered at once */
};

struct waits {
    struct wait *first, *last;
    struct idmap by_request;
    uint64_t count;
    uint64_t places; /* that are taken */
};

/* A timeout this long, or longer than a century, means "no deadline". */
#define WAIT_FOREVER UINT64_MAX

static inline void wait_init(struct wait *self, const struct wait_ops *ops, void *ctx)
{
    *self = (struct wait){.ops = ops, .ctx = ctx};
}
/* Starts to wait on behalf of a request. */
rp_status wait_begin(struct peers *peers, struct wait *self, const struct request *request, uint64_t timeout_ms,
                     rp_error *err);
/* Adds to the trace how long the request has waited. */
void wait_trace(const struct peers *peers, const struct wait *self);
void wait_end(struct peers *peers, struct wait *self);
/* After the handler of a request: true if the request waits. Its time then counts when it ends. */
bool wait_goes_on(struct peers *peers);
/* Returns the waiting request that (client, id) named. NULL: there is none. */
struct wait *wait_find(const struct waits *waits, uint64_t client, uint64_t id);
/* Sends the answer to where a retry came from. Not if the retry is older than the known route: then it came late, by a
 * connection that the client has closed. */
void wait_take_over(const struct peers *peers, struct wait *self, const struct request *request);
/* After a change of the list of keys: ends the waits of keys that may no longer ask for what they wait for. */
void waits_check_roles(struct peers *peers);
/* Cancels every wait. */
void waits_cancel_all(struct waits *waits, rp_status status, const char *text);

#endif
