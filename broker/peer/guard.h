/* Guards around libzmq, which has no bounds of its own: descriptors, and bytes of unfinished messages.
 *
 * libzmq aborts the process where it runs out of descriptors, so connections that would take the last ones are closed at once.
 *
 * libzmq collects the parts of a message until the last of them has come, however many they are, and only then is the message
 * there to be read. So the broker counts the bytes of each connection since its last whole message, and cuts a connection whose
 * unfinished message becomes too large; and the one that is unfinished for longest while all together hold too much. What
 * they held is freed. Clients reconnect.
 *
 * Both are done in functions that replace accept4, listen and recv of libzmq's I/O threads. All other functions belong to the core
 * thread. */
#pragma once

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "proto/base/error.h"
#include "proto/base/log.h"

struct broker_config;
struct inflow_watch;

/* Raises the limit to the highest that the system allows, and fails if that is too low to start: libzmq and czmq abort the
 * process when they cannot open what they need. From now on connections leave DESCRIPTORS_RESERVE descriptors to the broker. */
rp_status descriptors_init(const struct broker_config *config, rp_error *err);

/* Logs when descriptors become scarce, once each time, and when connections were refused. */
struct descriptors_watch {
    bool few;
    uint64_t refused; /* connections, at the last check */
};
void descriptors_check(struct descriptors_watch *self);

/* Bounds in bytes. */
struct inflow_bounds {
    const struct inflow_watch *watch; /* whose connections these are: a process may have several brokers */
    uint64_t first;                   /* of a connection that nobody knows yet; 0: no connection is counted */
    uint64_t ask_above;               /* beyond this the connection's next message has to be reported (inflow_taken) */
};

/* Most unfinished bytes of a connection that may publish parameters or reduce, and of one that inserts. */
uint64_t inflow_most_requests(const struct broker_config *config);
uint64_t inflow_most_inserts(const struct broker_config *config);

/* The bounds of connections to endpoints that this thread binds from now on; zeros: they are not counted. */
void inflow_bind(struct inflow_bounds bounds);
extern atomic_bool inflow_asks;
/* True if inflow_taken is to be called for messages. */
static inline bool inflow_wants(void)
{
    return atomic_load_explicit(&inflow_asks, memory_order_relaxed);
}
/* A whole message of a connection was read. most: what the connection may have unfinished from now on; 0: as before. */
void inflow_taken(int descriptor, uint64_t most);

/* Logs what was cut. */
struct inflow_watch {
    uint64_t cut; /* connections that were logged */
    struct log_limit log;
};
/* What brokers before in this process have cut is not logged again. */
void inflow_watch_init(struct inflow_watch *self);
/* Cuts connections until no more than `most` bytes are unfinished; 0: no bound for all together. Returns the bytes. */
uint64_t inflow_check(struct inflow_watch *self, uint64_t most, int64_t now_ns);
