#include "broker/peer/monitor.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "broker/broker.h"
#include "broker/peer/frames.h"
#include "proto/base/error.h"

rp_status monitor_open(struct broker *broker, rp_error *err)
{
    char endpoint[64];
    static _Atomic unsigned serial;
    snprintf(endpoint, sizeof endpoint, "inproc://replay-monitor-%016llx-%u", (unsigned long long)broker->instance,
             serial++);
    int linger = 0;
    broker->peers.monitor = zmq_socket(broker->peers.context, ZMQ_PAIR);
    if (!broker->peers.monitor ||
        zmq_socket_monitor(broker->peers.service, endpoint, ZMQ_EVENT_ACCEPTED | ZMQ_EVENT_DISCONNECTED) != 0 ||
        zmq_connect(broker->peers.monitor, endpoint) != 0)
        return err_set(err, RP_IO, "can not watch the service socket: %s", zmq_strerror(errno));
    zmq_setsockopt(broker->peers.monitor, ZMQ_LINGER, &linger, sizeof linger);
    /* Of connections to a socket before this one nothing more is heard. */
    if (broker->peers.connections)
        memset(broker->peers.connections, 0, broker->peers.n_connections * sizeof *broker->peers.connections);
    return RP_OK;
}

void monitor_close(struct broker *broker)
{
    if (broker->peers.service)
        zmq_socket_monitor(broker->peers.service, NULL, 0);
    if (broker->peers.monitor)
        zmq_close(broker->peers.monitor);
    broker->peers.monitor = NULL;
}

/* In broker->peers.connections: what is known of the connection that has a descriptor, or its running number from here on. */
enum { NEVER_SEEN, HAS_ENDED, FIRST_CONNECTION };

uint64_t monitor_connection(const struct broker *broker, int descriptor)
{
    return descriptor >= 0 && (uint32_t)descriptor < broker->peers.n_connections ? broker->peers.connections[descriptor]
                                                                                 : 0;
}

static void set_open(struct broker *broker, int descriptor, bool open)
{
    uint32_t at = (uint32_t)descriptor;
    if (at >= broker->peers.n_connections) {
        uint32_t n = at < 32 ? 64 : (at + 1) * 2;
        uint64_t *connections = realloc(broker->peers.connections, n * sizeof *connections);
        if (!connections)
            return;
        memset(connections + broker->peers.n_connections, 0, (n - broker->peers.n_connections) * sizeof *connections);
        broker->peers.connections = connections;
        broker->peers.n_connections = n;
    }
    broker->peers.connections[at] = open ? FIRST_CONNECTION + broker->peers.n_accepted++ : HAS_ENDED;
}

static void connection_ended(struct broker *broker, int descriptor)
{
    struct wait *next;
    for (struct wait *wait = broker->peers.waits.first; wait; wait = next) {
        next = wait->next;
        if (wait->descriptor == descriptor)
            wait->ops->cancel(broker, wait, RP_UNAVAILABLE, "the connection was lost: ask again");
    }
}

void monitor_run(struct broker *broker)
{
    zmq_msg_t frames[4];
    uint32_t n;
    bool whole;
    while (broker->peers.monitor && frames_receive((struct way){broker->peers.monitor, NULL}, frames, 4, &n, &whole)) {
        if (zmq_msg_size(&frames[0]) == 6) {
            uint16_t event;
            int32_t descriptor;
            memcpy(&event, zmq_msg_data(&frames[0]), sizeof event);
            memcpy(&descriptor, (const char *)zmq_msg_data(&frames[0]) + 2, sizeof descriptor);
            if (descriptor >= 0)
                set_open(broker, descriptor, event == ZMQ_EVENT_ACCEPTED);
            if (event == ZMQ_EVENT_DISCONNECTED)
                connection_ended(broker, descriptor);
        }
        frames_close(frames, n);
    }
}

void monitor_sweep(struct broker *broker)
{
    monitor_run(broker);
    struct wait *next;
    for (struct wait *wait = broker->peers.waits.first; wait; wait = next) {
        next = wait->next;
        if (wait->descriptor >= 0 && broker->loop.now_ns - wait->since_ns > NS_PER_S &&
            monitor_connection(broker, wait->descriptor) == HAS_ENDED)
            wait->ops->cancel(broker, wait, RP_UNAVAILABLE, "the connection was lost: ask again");
    }
}
