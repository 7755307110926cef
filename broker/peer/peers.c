#include "broker/peer/peers.h"

#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>
#include <zmq.h>

#include "broker/config/config.h"
#include "broker/loop/loop.h"
#include "proto/base/endpoint.h"
#include "proto/base/error.h"
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
/* An endpoint that cannot be bound for this long is in the log. */
#define BIND_PATIENCE_NS (5 * NS_PER_S)

#define ZAP_ENDPOINT "inproc://zeromq.zap.01"
#define ZAP_VERSION "1.0"
/* Requests that a turn answers: a flood of handshakes must not hold up the clients that are in. */
#define ZAP_PER_TURN 16u

/* The longest time that a handshake waits for a list of keys that is being written. */
#define HOLD_NS NS_PER_S

/* Frames of a request. */
enum { VERSION, REQUEST_ID, DOMAIN, ADDRESS, ROUTING_ID, MECHANISM, CREDENTIALS, REQUEST_FRAMES };
_Static_assert(REQUEST_FRAMES == ZAP_FRAMES, "room for a held request");

static rp_status zap_open(struct peers *peers, rp_error *err)
{
    struct identities *self = &peers->identities;
    if (!self->on)
        return RP_OK;
    int linger = 0;
    self->zap = zmq_socket(peers->context, ZMQ_REP);
    if (self->zap)
        zmq_setsockopt(self->zap, ZMQ_LINGER, &linger, sizeof linger);
    if (!self->zap || zmq_bind(self->zap, ZAP_ENDPOINT) != 0)
        return err_set(err, RP_IO, "cannot answer handshakes in this ZeroMQ context: %s", zmq_strerror(errno));
    return RP_OK;
}

static void zap_close(struct peers *peers)
{
    if (peers->identities.held_ns)
        frames_close(peers->identities.held, ZAP_FRAMES);
    peers->identities.held_ns = 0;
    if (peers->identities.zap)
        zmq_close(peers->identities.zap);
    peers->identities.zap = NULL;
}

/* ---- ownership of ipc paths ---- */

/* Milliseconds to wait for another process that binds in the same folder. A process that holds the lock for longer is no broker:
 * then the check alone must do. */
#define LOCK_TRIES 1000

/* Locks the folder of the path: of two brokers that start together, one checks after the other has bound. */
static int lock_folder(const char *path)
{
    char folder[sizeof(struct sockaddr_un)];
    snprintf(folder, sizeof folder, "%s", path);
    char *slash = strrchr(folder, '/');
    snprintf(slash ? slash + 1 : folder, slash ? sizeof folder - (size_t)(slash + 1 - folder) : sizeof folder, ".");
    int lock = open(folder, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    for (int i = 0; lock >= 0 && i < LOCK_TRIES && flock(lock, LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK; i++)
        usleep(1000);
    return lock;
}

static rp_status check_path(const struct sockaddr_un *address, rp_error *err)
{
    struct stat file;
    if (lstat(address->sun_path, &file) != 0)
        return RP_OK;
    if (!S_ISSOCK(file.st_mode))
        return err_set(err, RP_IO, "cannot bind ipc://%s: a file that is not a socket is there", address->sun_path);
    int probe = socket(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    if (probe < 0)
        return err_set(err, RP_IO, "cannot bind ipc://%s: %s", address->sun_path, strerror(errno));
    int error = connect(probe, (const struct sockaddr *)address, sizeof *address) == 0 ? 0 : errno;
    close(probe);
    if (error == ECONNREFUSED || error == ENOENT)
        return RP_OK;
    if (error == 0 || error == EAGAIN || error == EINPROGRESS)
        return err_set(err, RP_IO,
                       "cannot bind ipc://%s: another process listens there, most likely a broker. Stop it, or use "
                       "another path",
                       address->sun_path);
    return err_set(err, RP_IO, "cannot find out whether a process listens at ipc://%s: %s", address->sun_path,
                   strerror(error));
}

/* libzmq removes whatever is at the path of an ipc endpoint before it binds: another broker's socket, or a file of the user. This fails
 * (RP_IO) if a process listens there or if the path is not a socket; a socket that a killed process left is no obstacle. Endpoints of
 * other transports pass. *lock (close it after binding, unless it is negative) keeps other brokers from binding there. */
static rp_status ipc_claim(const char *endpoint, int *lock, rp_error *err)
{
    static const char prefix[] = "ipc://";
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    *lock = -1;
    if (strncmp(endpoint, prefix, sizeof prefix - 1) != 0)
        return RP_OK;
    const char *path = endpoint + sizeof prefix - 1;
    /* libzmq chooses the name; or it is abstract, which the kernel guards; or libzmq refuses it. */
    if (path[0] == '*' || path[0] == '@' || path[0] == '\0' || strlen(path) >= sizeof address.sun_path)
        return RP_OK;
    snprintf(address.sun_path, sizeof address.sun_path, "%s", path);
    *lock = lock_folder(path);
    return check_path(&address, err);
}

/* ---- sockets ---- */

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
    if (!socket)
        return err_null(err, RP_IO, "cannot open a socket: %s", zmq_strerror(errno));
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

/* bound: ENDPOINT_BYTES for the endpoint as libzmq names it. */
static rp_status socket_bind(struct peers *peers, void *socket, const char *endpoint, char *bound, rp_error *err)
{
    size_t size = ENDPOINT_BYTES;
    peers->service_used = peers->ingest_used = true;
    int ipv6 = endpoint_is_ipv6(endpoint); /* which includes IPv4 */
    zmq_setsockopt(socket, ZMQ_IPV6, &ipv6, sizeof ipv6);
    int lock;
    rp_status status = ipc_claim(endpoint, &lock, err);
    inflow_bind(socket_bounds(peers, socket));
    if (status == RP_OK && zmq_bind(socket, endpoint) != 0)
        status = err_set(err, RP_IO, "cannot bind %s: %s%s", endpoint, zmq_strerror(errno),
                         errno == EADDRINUSE ? ". Another broker runs there, or use port 0 for a free one" : "");
    inflow_bind((struct inflow_bounds){0});
    if (lock >= 0)
        close(lock);
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

#define SOCKETS 3u
struct socket_row {
    void **socket;
    int type;
    const char *endpoint; /* of the configuration */
    char *bound, *told;   /* as bound; as other machines reach it */
};

static void socket_rows(struct peers *peers, struct socket_row rows[SOCKETS])
{
    rows[0] = (struct socket_row){&peers->service, ZMQ_ROUTER, peers->config->service, peers->service_endpoint,
                                  peers->told.service};
    rows[1] = (struct socket_row){&peers->ingest, ZMQ_PULL, peers->config->ingest, peers->ingest_endpoint,
                                  peers->told.ingest};
    rows[2] =
        (struct socket_row){&peers->events, ZMQ_PUB, peers->config->events, peers->events_endpoint, peers->told.events};
}

static rp_status bind_all(struct peers *peers, rp_error *err)
{
    struct socket_row rows[SOCKETS];
    socket_rows(peers, rows);
    for (uint32_t i = 0; i < SOCKETS; i++) {
        *rows[i].socket = socket_open(peers, rows[i].type, err);
        if (!*rows[i].socket)
            return RP_IO;
        RP_TRY(socket_bind(peers, *rows[i].socket, rows[i].endpoint, rows[i].bound, err));
        if (!endpoint_with_host(rows[i].bound, peers->config->advertise, rows[i].told, ENDPOINT_BYTES))
            return err_set(err, RP_INVALID_ARGUMENT, "advertise is too long: %s", peers->config->advertise);
    }
    return RP_OK;
}

rp_status sockets_open(struct peers *peers, void *context, rp_error *err)
{
    peers->context = context;
    if (peers->channels)
        return RP_OK;
    if (!context) {
        peers->context = zmq_ctx_new();
        peers->own_context = true;
        zmq_ctx_set(peers->context, ZMQ_IO_THREADS, (int)peers->config->io_threads);
        zmq_ctx_set(peers->context, ZMQ_MAX_SOCKETS, 65536);
    }
    RP_TRY(zap_open(peers, err));
    RP_TRY(bind_all(peers, err));
    RP_TRY(monitor_open(&peers->monitor, peers->context, peers->service, err));
    monitor_run(peers); /* from now on its descriptor tells of events */
    return RP_OK;
}

/* Gives up all endpoints and takes the present key for later connections. Connections end. An endpoint is free only when an I/O
 * thread has closed its listener, so bind_rest is called until all are bound. */
static rp_status sockets_unbind(struct peers *peers, rp_error *err)
{
    struct socket_row rows[SOCKETS];
    socket_rows(peers, rows);
    peers->service_used = peers->ingest_used = true;
    for (uint32_t i = 0; i < SOCKETS; i++) {
        char endpoint[ENDPOINT_BYTES];
        size_t size = sizeof endpoint;
        /* As libzmq names it, with a wildcard's address. */
        if (zmq_getsockopt(*rows[i].socket, ZMQ_LAST_ENDPOINT, endpoint, &size) != 0)
            snprintf(endpoint, sizeof endpoint, "%s", rows[i].bound);
        if (!(peers->unbound >> i & 1))
            zmq_unbind(*rows[i].socket, endpoint);
        peers->unbound |= 1u << i;
        if (!socket_secure(peers, *rows[i].socket))
            return err_set(err, RP_UNSUPPORTED, "cannot use CURVE: %s", zmq_strerror(errno));
    }
    return RP_OK;
}

/* Binds the endpoints with the new key: tried at every look until another program has left them. */
static void bind_rest(struct peers *peers)
{
    struct socket_row rows[SOCKETS];
    char bound[ENDPOINT_BYTES], text[KEY_TEXT];
    rp_error err = {0};
    int64_t now_ns = clock_now(&peers->loop->clock);
    socket_rows(peers, rows);
    for (uint32_t i = 0; i < SOCKETS; i++)
        if (peers->unbound >> i & 1 && socket_bind(peers, *rows[i].socket, rows[i].bound, bound, &err) == RP_OK)
            peers->unbound &= ~(1u << i);
    if (!peers->unbound) {
        key_text(peers->identities.key.public_key, text);
        log_line(LEVEL_INFO, "B0607", "broker key changed", "public=%s", text);
    } else if (now_ns - peers->unbound_ns > BIND_PATIENCE_NS) {
        log_line(LEVEL_ERROR, "B0608", "an endpoint cannot be bound with the new key: it is tried again", "why=%s",
                 log_text(err.text));
        peers->unbound_ns = now_ns;
    }
}

void peers_look_at_keys(struct peers *self)
{
    rp_error err = {0};
    if (self->unbound)
        bind_rest(self);
    uint32_t changed = identities_look(self);
    if (changed & KEYS_BROKER) { /* connections end, and clients come back with the new key */
        self->unbound_ns = clock_now(&self->loop->clock);
        if (sockets_unbind(self, &err) != RP_OK)
            log_line(LEVEL_ERROR, "B0608", "the broker's key cannot be changed", "why=%s", log_text(err.text));
        bind_rest(self);
    }
    if (changed & KEYS_LIST)
        waits_check_roles(self);
}

void sockets_close(struct peers *peers)
{
    monitor_close(&peers->monitor, peers->service);
    struct socket_row rows[SOCKETS];
    socket_rows(peers, rows);
    for (uint32_t i = 0; i < SOCKETS; i++) {
        if (*rows[i].socket)
            zmq_close(*rows[i].socket);
        *rows[i].socket = NULL;
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

/* ---- the ZAP handler ---- */

static bool is_text(zmq_msg_t *frame, const char *text)
{
    return zmq_msg_size(frame) == strlen(text) && memcmp(zmq_msg_data(frame), text, strlen(text)) == 0;
}

/* Returns the identity that asks. NULL: it is not let in, and *why says the reason; a NULL there: the key is not allowed so far,
 * and the list may be newer than what was read. libzmq's clients do not come back after a refusal, so a key that was allowed a moment
 * ago must count. */
static const struct identity *judge(struct peers *peers, zmq_msg_t *frames, uint32_t n, int64_t asked_ns,
                                    const char **why)
{
    *why = "the handshake cannot be read";
    if (n != REQUEST_FRAMES || !is_text(&frames[VERSION], ZAP_VERSION))
        return NULL;
    bool ingest = is_text(&frames[DOMAIN], ZAP_DOMAIN_INGEST);
    if (!ingest && !is_text(&frames[DOMAIN], ZAP_DOMAIN))
        return NULL;
    *why = "the client does not use CURVE";
    if (!is_text(&frames[MECHANISM], "CURVE") || zmq_msg_size(&frames[CREDENTIALS]) != KEY_BYTES)
        return NULL;
    peers_look_at_keys(peers);
    const uint8_t *key = zmq_msg_data(&frames[CREDENTIALS]);
    const struct identity *identity = identity_find(&peers->identities, key);
    uint32_t roles = identity ? identity->roles : 0;
    *why = peers->identities.known_ns < asked_ns ? NULL
           : roles                               ? "the key may not write: ingest is for the role actor"
                                                 : "the key is not allowed";
    return roles & (ingest ? KEY_ACTOR | KEY_ADMIN : KEY_ANY) ? identity : NULL;
}

static void log_refusal(struct peers *peers, zmq_msg_t *frames, uint32_t n, const char *why)
{
    struct identities *self = &peers->identities;
    uint32_t held;
    char key[KEY_TEXT] = "-", address[64] = "-";
    self->refused++;
    if (!log_allow(&self->log, 5, peers->loop->now_ns, &held))
        return;
    if (n == REQUEST_FRAMES && zmq_msg_size(&frames[CREDENTIALS]) == KEY_BYTES)
        key_text(zmq_msg_data(&frames[CREDENTIALS]), key);
    if (n > ADDRESS)
        snprintf(address, sizeof address, "%.*s", (int)zmq_msg_size(&frames[ADDRESS]),
                 (const char *)zmq_msg_data(&frames[ADDRESS]));
    log_line(LEVEL_WARN, "B0606", "connection refused", "address=%s key=%s why=\"%s\" held_back=%u", log_text(address),
             key, why, held);
}

static void zap_answer(struct identities *self, zmq_msg_t *request_id, const struct identity *identity)
{
    char number[16] = "";
    if (identity)
        snprintf(number, sizeof number, "%u", identity->number);
    const char *texts[] = {ZAP_VERSION, NULL, identity ? "200" : "400", identity ? "OK" : "unknown key", number, ""};
    for (uint32_t i = 0; i < 6; i++) {
        int more = i < 5 ? ZMQ_SNDMORE : 0;
        if (texts[i])
            zmq_send(self->zap, texts[i], strlen(texts[i]), more | ZMQ_DONTWAIT);
        else
            zmq_send(self->zap, zmq_msg_data(request_id), zmq_msg_size(request_id), more | ZMQ_DONTWAIT);
    }
}

/* Answers a request that came at asked_ns, and closes its frames. False: it has to wait. */
static bool zap_serve(struct peers *peers, zmq_msg_t *frames, uint32_t n, int64_t asked_ns)
{
    const char *why;
    const struct identity *identity = judge(peers, frames, n, asked_ns, &why);
    if (!identity && !why && clock_now(&peers->loop->clock) - asked_ns < HOLD_NS)
        return false;
    if (!identity)
        log_refusal(peers, frames, n, why ? why : "the key is not allowed, and the list of keys cannot be read");
    zmq_msg_t none;
    zmq_msg_init(&none);
    zap_answer(&peers->identities, n > REQUEST_ID ? &frames[REQUEST_ID] : &none, identity);
    frames_close(frames, n);
    return true;
}

/* True if no request waits any more. The timer that looks at the keys wakes the core thread for the next try. */
static bool serve_held(struct peers *peers)
{
    struct identities *self = &peers->identities;
    if (self->held_ns && zap_serve(peers, self->held, ZAP_FRAMES, self->held_ns))
        self->held_ns = 0;
    return !self->held_ns;
}

static void hold(struct identities *self, zmq_msg_t *frames, int64_t asked_ns)
{
    for (uint32_t i = 0; i < ZAP_FRAMES; i++) {
        zmq_msg_init(&self->held[i]);
        zmq_msg_move(&self->held[i], &frames[i]);
    }
    frames_close(frames, ZAP_FRAMES);
    self->held_ns = asked_ns;
}

bool zap_run(struct peers *peers)
{
    struct identities *self = &peers->identities;
    zmq_msg_t frames[REQUEST_FRAMES + 1];
    uint32_t n, served = 0;
    bool whole;
    while (self->zap && served < ZAP_PER_TURN && serve_held(peers) &&
           frames_receive((struct port){self->zap, NULL}, frames, REQUEST_FRAMES + 1, &n, &whole)) {
        int64_t asked_ns = clock_now(&peers->loop->clock);
        if (!zap_serve(peers, frames, n, asked_ns))
            hold(self, frames, asked_ns);
        served++;
    }
    return served > 0;
}

/* ---- all ---- */

void peers_init(struct peers *self, struct loop *loop, const struct broker_config *config, struct channels *channels)
{
    self->loop = loop;
    self->config = config;
    self->channels = channels;
    commit_init(&self->commit);
    kept_list_init(&self->kept_replies.list);
    inflow_watch_init(&self->inflow);
    self->identities.anyone = (struct identity){.name = "anyone", .roles = KEY_ANY};
}

void peers_bound(struct peers *self)
{
    /* Without keys anybody may open any number of connections, and each has its own bound alone. */
    uint64_t all = inflow_most_inserts(self->config) + inflow_most_requests(self->config);
    self->unfinished_bytes = inflow_check(&self->inflow, self->identities.on ? all : 0, self->loop->now_ns);
}

void peers_sweep(struct peers *self)
{
    struct idmap *by_route = &self->by_route;
    peers_bound(self);
    for (uint32_t i = 0; by_route->entries && i <= by_route->mask; i++) {
        struct peer *peer = by_route->entries[i].value;
        if (peer && atomic_load_explicit(&peer->refs, memory_order_acquire) == 1) {
            idmap_remove(by_route, peer->route); /* may move another entry to this place: the next sweep sees it */
            peer_release(peer);
        }
    }
    monitor_sweep(self);
    descriptors_check(&self->descriptors);
}

void peers_fini(struct peers *self)
{
    sockets_close(self);
    struct idmap *by_route = &self->by_route;
    for (uint32_t i = 0; by_route->entries && i <= by_route->mask; i++)
        if (by_route->entries[i].value)
            peer_release(by_route->entries[i].value);
    idmap_fini(by_route);
    kept_replies_fini(&self->kept_replies);
    idmap_fini(&self->waits.by_request);
    monitor_fini(&self->monitor);
    commit_fini(&self->commit);
    identities_close(&self->identities);
}
