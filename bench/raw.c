#include "bench/raw.h"

#include <stdbool.h>
#include <string.h>

static void keep(void *data, void *hint)
{
    (void)data;
    (void)hint;
}

void raw_frame(zmq_msg_t *frame, struct raw_store *store, size_t size)
{
    if (store->at + size > store->size)
        store->at = 0;
    const uint8_t *data = store->data + store->at;
    store->at += size;
    if (size >= RAW_LEND_BYTES) {
        zmq_msg_init_data(frame, (void *)(uintptr_t)data, size, keep, NULL);
    } else {
        zmq_msg_init_size(frame, size);
        memcpy(zmq_msg_data(frame), data, size);
    }
}

static void send_message(void *socket, const struct raw_message *message, struct raw_store *store)
{
    for (uint32_t i = 0; i < message->n; i++) {
        zmq_msg_t frame;
        raw_frame(&frame, store, message->size[i]);
        zmq_msg_send(&frame, socket, i + 1 < message->n ? ZMQ_SNDMORE : 0);
    }
}

/* Throws a message away. False: there is none. size: of its last frame. */
static bool receive(void *socket, int flags, uint32_t *frames, size_t *size)
{
    zmq_msg_t frame;
    zmq_msg_init(&frame);
    bool more = true;
    for (*frames = 0; more && zmq_msg_recv(&frame, socket, flags) >= 0; ++*frames) {
        *size = zmq_msg_size(&frame);
        more = zmq_msg_more(&frame);
    }
    zmq_msg_close(&frame);
    return !more;
}

static bool answer(struct raw_job *job, void *router, int flags)
{
    zmq_msg_t route;
    uint32_t frames;
    size_t size = 0;
    zmq_msg_init(&route);
    if (zmq_msg_recv(&route, router, flags) < 0 || !receive(router, 0, &frames, &size))
        return false;
    zmq_msg_send(&route, router, ZMQ_SNDMORE);
    send_message(router, &job->reply[size == job->request[1].size[0]], &job->store);
    return true;
}

/* Socket i of a process: the servers' are bound, the clients' connected. */
static void *open_socket(struct raw_job *job, void *context, int type, int which)
{
    void *socket = zmq_socket(context, type);
    size_t size = sizeof job->server->endpoint[which];
    if (type == ZMQ_PULL || type == ZMQ_ROUTER) {
        zmq_bind(socket, job->bind[which]);
        zmq_getsockopt(socket, ZMQ_LAST_ENDPOINT, job->server->endpoint[which], &size);
    } else {
        zmq_connect(socket, job->server->endpoint[which]);
    }
    return socket;
}

void raw_server(struct raw_job *job)
{
    void *context = zmq_ctx_new();
    zmq_ctx_set(context, ZMQ_IO_THREADS, job->io_threads);
    void *pull = job->ingest.n ? open_socket(job, context, ZMQ_PULL, 0) : NULL;
    void *router = job->request[0].n ? open_socket(job, context, ZMQ_ROUTER, 1) : NULL;
    lane_set_state(job->lane, LANE_READY);
    int flags = pull && router ? ZMQ_DONTWAIT : 0; /* with one socket, simply wait at it */
    for (uint32_t frames, n, m;;) {
        size_t size;
        for (n = 0; n < 64 && pull && receive(pull, flags, &frames, &size); n++)
            lane_add(job->lane, job->items);
        for (m = 0; m < 64 && router && answer(job, router, flags); m++) {
        }
        if (n + m == 0)
            zmq_poll((zmq_pollitem_t[]){{pull, 0, ZMQ_POLLIN, 0}, {router, 0, ZMQ_POLLIN, 0}}, 2, -1);
    }
}

void raw_push(struct raw_job *job)
{
    void *context = zmq_ctx_new(), *sockets[MOST_CONNECTIONS];
    for (uint32_t i = 0; i < job->connections; i++)
        sockets[i] = open_socket(job, context, ZMQ_PUSH, 0);
    lane_set_state(job->lane, LANE_READY);
    for (;;)
        for (uint32_t i = 0; i < job->connections; i++)
            send_message(sockets[i], &job->ingest, &job->store);
}

void raw_dealer(struct raw_job *job)
{
    void *context = zmq_ctx_new(), *sockets[MOST_CONNECTIONS];
    zmq_pollitem_t polls[MOST_CONNECTIONS];
    for (uint32_t i = 0; i < job->connections; i++) {
        sockets[i] = open_socket(job, context, ZMQ_DEALER, 1);
        polls[i] = (zmq_pollitem_t){sockets[i], 0, ZMQ_POLLIN, 0};
        for (uint32_t n = 0; n < job->in_flight; n++)
            send_message(sockets[i], &job->request[0], &job->store);
    }
    lane_set_state(job->lane, LANE_READY);
    for (uint32_t frames, got = 0;; got = 0) {
        for (uint32_t i = 0; i < job->connections; i++)
            for (size_t size; receive(sockets[i], job->connections > 1 ? ZMQ_DONTWAIT : 0, &frames, &size); got++) {
                if (frames < job->reply[0].n) /* the reply to a second request */
                    continue;
                if (job->request[1].n)
                    send_message(sockets[i], &job->request[1], &job->store);
                send_message(sockets[i], &job->request[0], &job->store);
                lane_add(job->lane, job->items);
            }
        if (!got)
            zmq_poll(polls, (int)job->connections, -1);
    }
}
