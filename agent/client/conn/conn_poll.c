/* What the I/O thread waits for. zmq_poll asks each socket for its events, up to twice in a wait, and each question is two system
 * calls. This waits for the sockets' descriptors instead. A descriptor is readable while its socket has commands that no call has
 * processed; so a socket that was read until it was empty, and was not used since then, need not be asked. */
#include <poll.h>
#include <stdlib.h>

#include "agent/client/conn/conn_impl.h"
#include "proto/base/clock.h"

#define MOST_MS 60000

enum { POLL_PIPE, POLL_DEALER, POLL_MONITOR, POLL_PARTS };

/* Returns the descriptor of a socket; -1, which poll ignores: there is no socket. */
static int socket_fd(void *socket)
{
    int fd = -1;
    size_t size = sizeof fd;
    return socket && zmq_getsockopt(socket, ZMQ_FD, &fd, &size) == 0 ? fd : -1;
}

static bool socket_has(void *socket, int wanted)
{
    int events = 0;
    size_t size = sizeof events;
    return socket && zmq_getsockopt(socket, ZMQ_EVENTS, &events, &size) == 0 && (events & wanted);
}

static bool poll_reserve(struct conn_poll *self, const struct conn *conn)
{
    uint32_t n = POLL_PARTS;
    for (const struct conn_part *part = conn->parts; part; part = part->next)
        n++;
    if (n <= self->capacity)
        return true;
    struct pollfd *grown = realloc(self->fds, n * sizeof *grown);
    if (!grown)
        return false;
    self->fds = grown;
    self->capacity = n;
    return true;
}

/* Adds the parts' sockets; *ready is set if one of them has what the part waits for. Returns the number of descriptors. */
static uint32_t add_parts(struct conn_poll *self, const struct conn *conn, bool *ready)
{
    uint32_t n = POLL_PARTS;
    for (struct conn_part *part = conn->parts; part; part = part->next) {
        short events = 0;
        void *socket = part->ops->poll ? part->ops->poll(part, &events) : NULL;
        if (!socket || !events)
            continue;
        self->fds[n++] = (struct pollfd){.fd = socket_fd(socket), .events = POLLIN};
        *ready |= socket_has(socket, events);
    }
    return n;
}

static int wait_ms(int64_t until_ns)
{
    if (until_ns == INT64_MAX)
        return -1;
    int64_t left = until_ns - conn_now();
    if (left <= 0)
        return 0;
    return left / NS_PER_MS >= MOST_MS ? MOST_MS : (int)((left + NS_PER_MS - 1) / NS_PER_MS);
}

void conn_poll(struct conn_poll *self, struct conn *conn, int64_t until_ns)
{
    if (!poll_reserve(self, conn)) { /* looks at everything after a short sleep instead of waiting for it */
        poll(NULL, 0, 1);
        conn->pipe_ready = conn->dealer_used = conn->monitor_used = true;
        return;
    }
    conn->dealer_used = conn->dealer_used && socket_has(conn->dealer, ZMQ_POLLIN);
    conn->monitor_used = conn->monitor_used && socket_has(conn->monitor, ZMQ_POLLIN);
    bool ready = conn->dealer_used || conn->monitor_used;
    uint32_t n = add_parts(self, conn, &ready);
    self->fds[POLL_PIPE] = (struct pollfd){.fd = conn->wake_read, .events = POLLIN};
    self->fds[POLL_DEALER] = (struct pollfd){.fd = socket_fd(conn->dealer), .events = POLLIN};
    self->fds[POLL_MONITOR] = (struct pollfd){.fd = socket_fd(conn->monitor), .events = POLLIN};
    poll(self->fds, n, ready ? 0 : wait_ms(until_ns));
    conn->pipe_ready = self->fds[POLL_PIPE].revents != 0;
    conn->dealer_used |= self->fds[POLL_DEALER].revents != 0;
    conn->monitor_used |= self->fds[POLL_MONITOR].revents != 0;
}
