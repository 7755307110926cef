#include "broker/peer/sockets.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>
#include <zmq.h>

#include "broker/config/config.h"
#include "broker/loop/loop.h"
#include "broker/peer/inflow.h"
#include "broker/peer/ipc.h"
#include "broker/peer/peers.h"
#include "broker/peer/zap.h"
#include "proto/base/endpoint.h"
#include "proto/base/log.h"

/* A stable option of libzmq since 4.3.0 that zmq.h names only with its draft interface. Without it, CURVE accepts every key while
 * no ZAP handler is bound. */
#ifndef ZMQ_ZAP_ENFORCE_DOMAIN
#define ZMQ_ZAP_ENFORCE_DOMAIN 93
#endif

/* A stranger who connects and says nothing is cut off after this time. */
#define HANDSHAKE_MS 5000

/* What a client may subscribe to: in libzmq's memory a byte of a subscription takes tens of bytes. */
#define EVENTS_BYTES (UINT64_C(1) << 20)
/* Unread requests without payload: of a client that sends many of them at once while the core thread is busy. */
#define REQUESTS_BYTES (UINT64_C(8) << 20)
/* With keys: connections with less than this do not count in the sum of all. */
#define FEW_BYTES (UINT64_C(256) << 10)

static int socket_type(void *socket)
{
    int type = 0;
    size_t size = sizeof type;
    zmq_getsockopt(socket, ZMQ_TYPE, &type, &size);
    return type;
}

/* Makes a socket the server's side of CURVE: only keys that the ZAP handler accepts come in. */
static bool socket_secure(const struct peers *peers, void *socket)
{
    int one = 1, patience = HANDSHAKE_MS;
    const char *domain = socket_type(socket) == ZMQ_PULL ? ZAP_DOMAIN_INGEST : ZAP_DOMAIN;
    const struct identities *identities = &peers->identities;
    return !identities->on ||
           (zmq_setsockopt(socket, ZMQ_HANDSHAKE_IVL, &patience, sizeof patience) == 0 &&
            zmq_setsockopt(socket, ZMQ_CURVE_SERVER, &one, sizeof one) == 0 &&
            zmq_setsockopt(socket, ZMQ_CURVE_SECRETKEY, identities->key.secret_key, KEY_BYTES) == 0 &&
            zmq_setsockopt(socket, ZMQ_ZAP_DOMAIN, domain, strlen(domain)) == 0 &&
            zmq_setsockopt(socket, ZMQ_ZAP_ENFORCE_DOMAIN, &one, sizeof one) == 0);
}

/* Sets all socket options. */
static void *socket_open(struct peers *peers, int type, rp_error *err)
{
    void *socket = zmq_socket(peers->context, type);
    if (!socket) {
        err_set(err, RP_IO, "cannot open a socket: %s", zmq_strerror(errno));
        return NULL;
    }
    int linger = (int)(PEER_DRAIN_NS / NS_PER_MS), hwm = 1000, one = 1, backlog = 4096;
    int64_t most = peers->config->max_message_bytes;
    zmq_setsockopt(socket, ZMQ_LINGER, &linger, sizeof linger);
    zmq_setsockopt(socket, ZMQ_SNDHWM, &hwm, sizeof hwm);
    zmq_setsockopt(socket, ZMQ_RCVHWM, &hwm, sizeof hwm);
    zmq_setsockopt(socket, ZMQ_BACKLOG, &backlog, sizeof backlog);
    zmq_setsockopt(socket, ZMQ_MAXMSGSIZE, &most, sizeof most);
    if (type == ZMQ_ROUTER)
        zmq_setsockopt(socket, ZMQ_ROUTER_MANDATORY, &one, sizeof one);
    if (socket_secure(peers, socket))
        return socket;
    err_set(err, RP_UNSUPPORTED, "cannot use CURVE: %s", zmq_strerror(errno));
    zmq_close(socket);
    return NULL;
}

/* Returns how much a connection may leave unfinished before the broker knows its key. Without keys there is none to know. */
static struct inflow_bounds socket_bounds(const struct peers *peers, void *socket)
{
    const struct broker_config *config = peers->config;
    bool on = peers->identities.on, inserts = socket_type(socket) == ZMQ_PULL;
    if (socket_type(socket) == ZMQ_PUB)
        return (struct inflow_bounds){&peers->inflow, EVENTS_BYTES, FEW_BYTES};
    uint64_t most = inserts ? inflow_most_inserts(config) : on ? REQUESTS_BYTES : inflow_most_requests(config);
    return (struct inflow_bounds){&peers->inflow, most, on ? FEW_BYTES : most / 2};
}

static rp_status socket_bind(const struct peers *peers, void *socket, const char *endpoint, char *bound, size_t size,
                             rp_error *err)
{
    int ipv6 = endpoint_is_ipv6(endpoint); /* which includes IPv4 */
    zmq_setsockopt(socket, ZMQ_IPV6, &ipv6, sizeof ipv6);
    int lock;
    rp_status status = ipc_claim(endpoint, &lock, err);
    inflow_bind(socket_bounds(peers, socket));
    if (status == RP_OK && zmq_bind(socket, endpoint) != 0)
        status = err_set(err, RP_IO, "cannot bind %s: %s%s", endpoint, zmq_strerror(errno),
                         errno == EADDRINUSE ? ". Another broker runs there, or use port 0 for a free one" : "");
    inflow_bind((struct inflow_bounds){0});
    ipc_release(lock);
    RP_TRY(status);
    if (zmq_getsockopt(socket, ZMQ_LAST_ENDPOINT, bound, &size) != 0)
        snprintf(bound, size, "%s", endpoint);
    /* libzmq reports a wildcard as an address that nobody can connect to. */
    static const char *const any[] = {"tcp://0.0.0.0:", "tcp://[::]:"};
    for (uint32_t i = 0; i < 2; i++) {
        size_t prefix = strlen(any[i]);
        if (strncmp(bound, any[i], prefix) == 0) {
            char port[16];
            snprintf(port, sizeof port, "%s", bound + prefix);
            snprintf(bound, 64, "tcp://*:%s", port);
        }
    }
    return RP_OK;
}

/* Names the bound endpoints as other machines reach them. */
static rp_status tell_all(struct peers *peers, rp_error *err)
{
    const char *host = peers->config->advertise;
    size_t size = sizeof peers->told.service;
    if (endpoint_with_host(peers->service_endpoint, host, peers->told.service, size) &&
        endpoint_with_host(peers->ingest_endpoint, host, peers->told.ingest, size) &&
        endpoint_with_host(peers->events_endpoint, host, peers->told.events, size))
        return RP_OK;
    return err_set(err, RP_INVALID_ARGUMENT, "advertise is too long: %s", host);
}

static rp_status bind_all(struct peers *peers, rp_error *err)
{
    struct {
        void **socket;
        int type;
        const char *endpoint;
        char *bound;
    } rows[] = {
        {&peers->service, ZMQ_ROUTER, peers->config->service, peers->service_endpoint},
        {&peers->ingest, ZMQ_PULL, peers->config->ingest, peers->ingest_endpoint},
        {&peers->events, ZMQ_PUB, peers->config->events, peers->events_endpoint},
    };
    for (uint32_t i = 0; i < 3; i++) {
        *rows[i].socket = socket_open(peers, rows[i].type, err);
        if (!*rows[i].socket)
            return RP_IO;
        RP_TRY(
            socket_bind(peers, *rows[i].socket, rows[i].endpoint, rows[i].bound, sizeof peers->service_endpoint, err));
    }
    return tell_all(peers, err);
}

rp_status sockets_open(struct peers *peers, void *context, rp_error *err)
{
    peers->context = context;
    if (peers->ducts)
        return RP_OK;
    if (!context) {
        peers->context = zmq_ctx_new();
        peers->own_context = true;
        zmq_ctx_set(peers->context, ZMQ_IO_THREADS, (int)peers->config->io_threads);
        zmq_ctx_set(peers->context, ZMQ_MAX_SOCKETS, 65536);
    }
    RP_TRY(zap_open(peers, err));
    RP_TRY(bind_all(peers, err));
    return monitor_open(&peers->monitor, peers->context, peers->service, err);
}

/* The port is free as soon as the I/O thread has closed the old listener. */
static rp_status bind_patiently(struct peers *peers, void *socket, const char *endpoint, rp_error *err)
{
    int64_t end = clock_now(&peers->loop->clock) + 5 * NS_PER_S;
    char bound[256];
    rp_status status;
    do
        status = socket_bind(peers, socket, endpoint, bound, sizeof bound, err);
    while (status != RP_OK && clock_now(&peers->loop->clock) < end && usleep(1000) == 0);
    return status;
}

rp_status sockets_rebind(struct peers *peers, rp_error *err)
{
    struct {
        void **socket;
        int type;
        char *bound;
    } rows[] = {{&peers->service, ZMQ_ROUTER, peers->service_endpoint},
                {&peers->ingest, ZMQ_PULL, peers->ingest_endpoint}};
    monitor_close(&peers->monitor, peers->service);
    for (uint32_t i = 0; i < 2; i++) {
        int linger = 0;
        zmq_setsockopt(*rows[i].socket, ZMQ_LINGER, &linger, sizeof linger);
        zmq_close(*rows[i].socket);
        *rows[i].socket = socket_open(peers, rows[i].type, err);
        if (!*rows[i].socket)
            return RP_IO;
        RP_TRY(bind_patiently(peers, *rows[i].socket, rows[i].bound, err));
    }
    log_line(LEVEL_WARN, "B0005", "sockets bound again", NULL);
    return monitor_open(&peers->monitor, peers->context, peers->service, err);
}

#define SOCKETS 3u

/* Fills in the sockets and the endpoints that they are bound to. */
static void list_sockets(const struct peers *peers, void *sockets[SOCKETS], const char *bound[SOCKETS])
{
    sockets[0] = peers->service;
    sockets[1] = peers->ingest;
    sockets[2] = peers->events;
    bound[0] = peers->service_endpoint;
    bound[1] = peers->ingest_endpoint;
    bound[2] = peers->events_endpoint;
}

rp_status sockets_unbind(struct peers *peers, rp_error *err)
{
    void *sockets[SOCKETS];
    const char *bound[SOCKETS];
    list_sockets(peers, sockets, bound);
    for (uint32_t i = 0; i < SOCKETS; i++) {
        char endpoint[256];
        size_t size = sizeof endpoint;
        /* As libzmq names it, with a wildcard's address. */
        if (zmq_getsockopt(sockets[i], ZMQ_LAST_ENDPOINT, endpoint, &size) != 0)
            snprintf(endpoint, sizeof endpoint, "%s", bound[i]);
        if (!(peers->unbound >> i & 1))
            zmq_unbind(sockets[i], endpoint);
        peers->unbound |= 1u << i;
        if (!socket_secure(peers, sockets[i]))
            return err_set(err, RP_UNSUPPORTED, "cannot use CURVE: %s", zmq_strerror(errno));
    }
    return RP_OK;
}

rp_status sockets_bind_rest(struct peers *peers, rp_error *err)
{
    void *sockets[SOCKETS];
    const char *endpoints[SOCKETS];
    rp_status status = RP_OK;
    list_sockets(peers, sockets, endpoints);
    for (uint32_t i = 0; i < SOCKETS; i++) {
        char bound[256];
        if (!(peers->unbound >> i & 1))
            continue;
        rp_status own = socket_bind(peers, sockets[i], endpoints[i], bound, sizeof bound, err);
        if (own == RP_OK)
            peers->unbound &= ~(1u << i);
        else
            status = own;
    }
    return status;
}

void sockets_close(struct peers *peers)
{
    monitor_close(&peers->monitor, peers->service);
    void **const sockets[] = {&peers->service, &peers->ingest, &peers->events};
    for (uint32_t i = 0; i < 3; i++) {
        if (*sockets[i])
            zmq_close(*sockets[i]);
        *sockets[i] = NULL;
    }
    zap_close(peers);
    if (peers->own_context)
        zmq_ctx_term(peers->context);
    peers->own_context = false;
}

void sockets_announce(struct peers *peers, const char *format, ...)
{
    char text[600];
    va_list args;
    va_start(args, format);
    int size = vsnprintf(text, sizeof text, format, args);
    va_end(args);
    if (peers->events && size > 0 && (size_t)size < sizeof text)
        zmq_send(peers->events, text, (size_t)size, ZMQ_DONTWAIT);
}
