/* Bytes that connections have sent and that the core thread has not seen.
 *
 * libzmq collects the parts of a message until the last of them has come, however many they are, and only then is the message
 * there to be read. So the broker counts the bytes of each connection since its last whole message, and cuts a connection whose
 * unfinished message becomes too large; and the one that is unfinished for longest while all together hold too much. What
 * they held is freed. Clients reconnect.
 *
 * The count is taken in the recv of libzmq's I/O threads (imports.h). All other functions belong to the core thread. */
#ifndef BROKER_INFLOW_H
#define BROKER_INFLOW_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#include "proto/base/log.h"

struct broker_config;
struct inflow_watch;

/* Bounds in bytes. */
struct inflow_bounds {
    const struct inflow_watch *watch; /* whose connections these are: a process may have several brokers */
    uint64_t first;                   /* of a connection that nobody knows yet; 0: no connection is counted */
    uint64_t ask_above;               /* beyond this the connection's next message has to be reported (inflow_taken) */
};

/* Most unfinished bytes of a connection that may publish parameters or reduce, and of one that inserts. */
uint64_t inflow_most_requests(const struct broker_config *config);
uint64_t inflow_most_inserts(const struct broker_config *config);

/* The bounds of connections to endpoints that are bound from now on; zeros: they are not counted. */
void inflow_bind(struct inflow_bounds bounds);
/* What libzmq calls for each accepted connection, and instead of listen and recv. */
void inflow_accepted(int listener, int connection);
int inflow_listen(int socket, int backlog);
ssize_t inflow_recv(int socket, void *data, size_t size, int flags);

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

#endif
