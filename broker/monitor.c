#include "broker/monitor.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "broker/broker.h"
#include "broker/frames.h"
#include "proto/error.h"

/* Events looked at before the sockets are served again. */
#define EVENTS_AT_ONCE 64u

rp_status monitor_open(struct broker *broker, rp_error *err)
{
    char endpoint[64];
    static _Atomic unsigned serial;
    snprintf(endpoint, sizeof endpoint, "inproc://replay-monitor-%016llx-%u", (unsigned long long)broker->instance,
             serial++);
    int linger = 0;
    broker->monitor = zmq_socket(broker->context, ZMQ_PAIR);
    if (!broker->monitor || zmq_socket_monitor(broker->service, endpoint, ZMQ_EVENT_DISCONNECTED) != 0 ||
        zmq_connect(broker->monitor, endpoint) != 0)
        return err_set(err, RP_IO, "can not watch the service socket: %s", zmq_strerror(errno));
    zmq_setsockopt(broker->monitor, ZMQ_LINGER, &linger, sizeof linger);
    return RP_OK;
}

void monitor_close(struct broker *broker)
{
    if (broker->service)
        zmq_socket_monitor(broker->service, NULL, 0);
    if (broker->monitor)
        zmq_close(broker->monitor);
    broker->monitor = NULL;
}

static void connection_ended(struct broker *broker, int descriptor)
{
    struct wait *next;
    for (struct wait *wait = broker->waits.first; wait; wait = next) {
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
    for (uint32_t i = 0; i < EVENTS_AT_ONCE && frames_receive(broker->monitor, frames, 4, &n, &whole); i++) {
        if (zmq_msg_size(&frames[0]) == 6) {
            int32_t descriptor;
            memcpy(&descriptor, (const char *)zmq_msg_data(&frames[0]) + 2, sizeof descriptor);
            connection_ended(broker, descriptor);
        }
        frames_close(frames, n);
    }
}
