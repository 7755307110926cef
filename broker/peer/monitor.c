#include "broker/peer/monitor.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "broker/loop/loop.h"
#include "broker/peer/frames.h"
#include "broker/peer/peers.h"
#include "proto/base/error.h"

/* Handshakes that break off without a reason are no news: clients probe an endpoint before they use it. */
#define HANDSHAKE_FAILED ZMQ_EVENT_HANDSHAKE_FAILED_PROTOCOL

/* Values of monitor.connections; a running number of the connection from FIRST_CONNECTION on. */
enum { NEVER_SEEN, HAS_ENDED, FIRST_CONNECTION };

rp_status monitor_open(struct monitor *self, void *context, void *service, rp_error *err)
{
    char endpoint[64];
    static _Atomic unsigned serial;
    snprintf(endpoint, sizeof endpoint, "inproc://replay-monitor-%p-%u", (void *)self, serial++);
    int linger = 0;
    self->socket = zmq_socket(context, ZMQ_PAIR);
    if (!self->socket ||
        zmq_socket_monitor(service, endpoint, ZMQ_EVENT_ACCEPTED | ZMQ_EVENT_DISCONNECTED | HANDSHAKE_FAILED) != 0 ||
        zmq_connect(self->socket, endpoint) != 0)
        return err_set(err, RP_IO, "cannot watch the service socket: %s", zmq_strerror(errno));
    zmq_setsockopt(self->socket, ZMQ_LINGER, &linger, sizeof linger);
    /* Connections to the previous socket are not reported any more. */
    if (self->connections)
        memset(self->connections, 0, self->n_connections * sizeof *self->connections);
    return RP_OK;
}

void monitor_close(struct monitor *self, void *service)
{
    if (service)
        zmq_socket_monitor(service, NULL, 0);
    if (self->socket)
        zmq_close(self->socket);
    self->socket = NULL;
}

void monitor_fini(struct monitor *self)
{
    free(self->connections);
    self->connections = NULL;
    self->n_connections = 0;
}

uint64_t monitor_connection(const struct monitor *self, int descriptor)
{
    return descriptor >= 0 && (uint32_t)descriptor < self->n_connections ? self->connections[descriptor] : 0;
}

static void set_open(struct monitor *self, int descriptor, bool open)
{
    uint32_t at = (uint32_t)descriptor;
    if (at >= self->n_connections) {
        uint32_t n = at < 32 ? 64 : (at + 1) * 2;
        uint64_t *connections = realloc(self->connections, n * sizeof *connections);
        if (!connections)
            return;
        memset(connections + self->n_connections, 0, (n - self->n_connections) * sizeof *connections);
        self->connections = connections;
        self->n_connections = n;
    }
    self->connections[at] = open ? FIRST_CONNECTION + self->n_accepted++ : HAS_ENDED;
}

static void wait_lost(struct wait *wait)
{
    wait->ops->cancel(wait->ctx, wait, RP_UNAVAILABLE, "the connection was lost: ask again");
}

static void connection_ended(struct waits *waits, int descriptor)
{
    struct wait *next;
    for (struct wait *wait = waits->first; wait; wait = next) {
        next = wait->next;
        if (wait->descriptor == descriptor)
            wait_lost(wait);
    }
}

/* A client that could not even state its key: the ZAP handler never hears of it. value: in the place of a descriptor, an error. */
static void log_failure(struct peers *peers, zmq_msg_t *address, uint32_t value)
{
    struct identities *identities = &peers->identities;
    uint32_t held;
    char text[128], quoted[160];
    if (!identities->on)
        return;
    identities->refused++;
    if (!log_allow(&identities->log, 5, peers->loop->now_ns, &held))
        return;
    snprintf(text, sizeof text, "%.*s", (int)zmq_msg_size(address), (const char *)zmq_msg_data(address));
    const char *why = value == ZMQ_PROTOCOL_ERROR_ZMTP_MECHANISM_MISMATCH ? "the client has no key"
                      : value == ZMQ_PROTOCOL_ERROR_ZMTP_CRYPTOGRAPHIC    ? "the client expects another broker's key"
                                                                          : "the handshake broke off";
    log_line(LEVEL_WARN, "B0606", "connection refused", "endpoint=%s key=- why=\"%s\" held_back=%u",
             log_quote(quoted, sizeof quoted, text), why, held);
}

void monitor_run(struct peers *peers)
{
    struct monitor *self = &peers->monitor;
    zmq_msg_t frames[4];
    uint32_t n;
    bool whole;
    while (self->socket && frames_receive((struct way){self->socket, NULL}, frames, 4, &n, &whole)) {
        if (zmq_msg_size(&frames[0]) == 6) {
            uint16_t event;
            int32_t descriptor;
            memcpy(&event, zmq_msg_data(&frames[0]), sizeof event);
            memcpy(&descriptor, (const char *)zmq_msg_data(&frames[0]) + 2, sizeof descriptor);
            if (event & HANDSHAKE_FAILED)
                log_failure(peers, &frames[n - 1], (uint32_t)descriptor);
            else if (descriptor >= 0)
                set_open(self, descriptor, event == ZMQ_EVENT_ACCEPTED);
            if (event == ZMQ_EVENT_DISCONNECTED)
                connection_ended(&peers->waits, descriptor);
        }
        frames_close(frames, n);
    }
}

void monitor_sweep(struct peers *peers)
{
    monitor_run(peers);
    struct wait *next;
    for (struct wait *wait = peers->waits.first; wait; wait = next) {
        next = wait->next;
        if (wait->descriptor >= 0 && peers->loop->now_ns - wait->since_ns > NS_PER_S &&
            monitor_connection(&peers->monitor, wait->descriptor) == HAS_ENDED)
            wait_lost(wait);
    }
}
