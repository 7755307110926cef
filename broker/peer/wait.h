/* A request that is not answered yet: it has a deadline or none, can be asked what it waits for, can be taken over by a
 * retry from a new route, and is cancelled when the broker drains. Embedded first in what really waits. */
#ifndef BROKER_WAIT_H
#define BROKER_WAIT_H

#include "broker/loop/idmap.h"
#include "broker/loop/timer.h"
#include "broker/peer/peer.h"
#include "broker/service/request.h"

struct wait;

/* What it waits for, in words. */
struct wait_text {
    char table[256];
    uint64_t count, got;
    char text[512];
};

struct wait_ops {
    const char *kind; /* "sample", "params", "reduce", "bye" */
    /* The deadline has passed. Ends the wait and answers. */
    void (*expire)(struct broker *broker, struct wait *wait);
    /* Ends the wait and answers with status and text. */
    void (*cancel)(struct broker *broker, struct wait *wait, rp_status status, const char *text);
    void (*explain)(const struct broker *broker, const struct wait *wait, struct wait_text *out);
};

struct wait {
    const struct wait_ops *ops;
    struct wait *prev, *next;
    struct timer timer;
    struct envelope to;
    uint64_t client, id;
    int64_t since_ns;
    int descriptor;      /* of the connection it came by; -1: not known */
    uint64_t connection; /* its number: monitor.h */
};

struct waits {
    struct wait *first, *last;
    struct idmap by_request;
    uint64_t count;
};

/* Starts to wait on behalf of a request. */
rp_status wait_begin(struct broker *broker, struct wait *self, const struct wait_ops *ops,
                     const struct request *request, bool has_timeout, uint64_t timeout_ms, rp_error *err);
void wait_end(struct broker *broker, struct wait *self);
/* The request that (client, id) named and that still waits, or NULL. */
struct wait *wait_find(struct broker *broker, uint64_t client, uint64_t id);
/* A retry came: the answer goes there. Unless it was sent before the one that is known, by a connection that has ended on
 * the client's side and whose last bytes came late. */
void wait_take_over(const struct broker *broker, struct wait *self, const struct request *request);
/* Cancels all. */
void waits_cancel_all(struct broker *broker, rp_status status, const char *text);

#endif
