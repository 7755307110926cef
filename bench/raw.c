#include "bench/bench.h"

#include <string.h>

#include "proto/keys/keys.h"

static const struct key *broker_key, *client_key; /* NULL: nothing is encrypted */

void curve_use(const struct key *broker, const struct key *client)
{
    broker_key = broker;
    client_key = client;
}

void curve_serve(void *socket)
{
    int one = 1;
    if (!broker_key)
        return;
    zmq_setsockopt(socket, ZMQ_CURVE_SERVER, &one, sizeof one);
    zmq_setsockopt(socket, ZMQ_CURVE_SECRETKEY, broker_key->secret_key, KEY_BYTES);
}

void curve_connect(void *socket)
{
    if (!broker_key)
        return;
    zmq_setsockopt(socket, ZMQ_CURVE_SERVERKEY, broker_key->public_key, KEY_BYTES);
    zmq_setsockopt(socket, ZMQ_CURVE_PUBLICKEY, client_key->public_key, KEY_BYTES);
    zmq_setsockopt(socket, ZMQ_CURVE_SECRETKEY, client_key->secret_key, KEY_BYTES);
}

void raw_frame(zmq_msg_t *frame, struct raw_store *store, size_t size)
{
    if (store->at + size > store->size)
        store->at = 0;
    const uint8_t *data = store->data + store->at;
    store->at += size;
    if (store->lend) {
        zmq_msg_init_data(frame, (void *)(uintptr_t)data, size, NULL, NULL); /* NULL: the memory is never freed */
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

/* Discards a message and returns the number of its frames, 0: there is none. size: of its last frame. */
static uint32_t receive(void *socket, int flags, size_t *size)
{
    zmq_msg_t frame;
    uint32_t frames = 0;
    zmq_msg_init(&frame);
    for (bool more = true; more && zmq_msg_recv(&frame, socket, flags) >= 0; frames++) {
        *size = zmq_msg_size(&frame);
        more = zmq_msg_more(&frame);
    }
    zmq_msg_close(&frame);
    return frames;
}

static bool answer(struct raw_job *job, void *router, int flags)
{
    zmq_msg_t route;
    size_t size = 0;
    zmq_msg_init(&route);
    if (zmq_msg_recv(&route, router, flags) < 0 || receive(router, 0, &size) == 0)
        return false;
    zmq_msg_send(&route, router, ZMQ_SNDMORE);
    send_message(router, &job->reply[size == job->request[1].size[0]], &job->store);
    return true;
}

void raw_server(void *ctx)
{
    struct raw_job *job = ctx;
    void *context = zmq_ctx_new();
    zmq_ctx_set(context, ZMQ_IO_THREADS, job->io_threads);
    void *sockets[2] = {job->ingest.n ? zmq_socket(context, ZMQ_PULL) : NULL,
                        job->request[0].n ? zmq_socket(context, ZMQ_ROUTER) : NULL};
    for (int i = 0; i < 2; i++)
        if (sockets[i]) {
            curve_serve(sockets[i]);
            zmq_bind(sockets[i], job->bind[i]);
            zmq_getsockopt(sockets[i], ZMQ_LAST_ENDPOINT, job->server->endpoint[i], &(size_t){TALLY_ENDPOINT_BYTES});
        }
    tally_set_state(job->tally, TALLY_READY);
    int flags = sockets[0] && sockets[1] ? ZMQ_DONTWAIT : 0; /* a lone socket is simply waited at */
    for (;;) {
        uint32_t n = 0, m = 0;
        for (size_t size; n < 64 && sockets[0] && receive(sockets[0], flags, &size); n++)
            tally_add(job->tally, job->items);
        while (m < 64 && sockets[1] && answer(job, sockets[1], flags))
            m++;
        if (n + m == 0)
            zmq_poll((zmq_pollitem_t[]){{sockets[0], 0, ZMQ_POLLIN, 0}, {sockets[1], 0, ZMQ_POLLIN, 0}}, 2, -1);
    }
}

void raw_client(void *ctx)
{
    struct raw_job *job = ctx;
    bool push = job->ingest.n > 0;
    void *socket = zmq_socket(zmq_ctx_new(), push ? ZMQ_PUSH : ZMQ_DEALER);
    int hwm = 1000 / (int)job->connections + 1; /* libzmq's own bound, for all connections together */
    zmq_setsockopt(socket, ZMQ_SNDHWM, &hwm, sizeof hwm);
    curve_connect(socket);
    for (uint32_t i = 0; i < job->connections; i++) /* messages go to the connections in turn */
        zmq_connect(socket, job->server->endpoint[!push]);
    tally_set_state(job->tally, TALLY_READY);
    while (job->ingest.n) /* until the process is ended */
        send_message(socket, &job->ingest, &job->store);
    for (uint32_t n = 0; n < job->in_flight * job->connections; n++)
        send_message(socket, &job->request[0], &job->store);
    for (size_t size; receive(socket, 0, &size) > 0;) {
        if (job->request[1].n && size == job->reply[1].size[0])
            continue; /* the reply to a second request */
        if (job->request[1].n)
            send_message(socket, &job->request[1], &job->store);
        send_message(socket, &job->request[0], &job->store);
        tally_add(job->tally, job->items);
    }
}
