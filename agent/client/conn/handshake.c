#include "agent/client/conn/handshake.h"

#include <netdb.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>
#include <zmq.h>

#include "proto/base/error.h"

/* ---- keys */

rp_status handshake_load(struct handshake *self, const char *path, rp_error *err)
{
    if (!path)
        path = getenv(KEY_FILE_VARIABLE);
    if (!path || !path[0])
        return RP_OK;
    RP_TRY(key_read(path, &self->key, err));
    if (self->key.n_brokers == 0)
        return err_set(err, RP_INVALID_ARGUMENT,
                       "the key file %s names no broker: add the line 'broker KEY' with the broker's public key "
                       "(replay-ctl key show prints it)",
                       path);
    self->has_key = true;
    return RP_OK;
}

bool handshake_secure(const struct handshake *self, void *socket)
{
    const struct key *key = &self->key;
    return !self->has_key ||
           (zmq_setsockopt(socket, ZMQ_CURVE_SERVERKEY, key->brokers[self->broker_key], KEY_BYTES) == 0 &&
            zmq_setsockopt(socket, ZMQ_CURVE_PUBLICKEY, key->public_key, KEY_BYTES) == 0 &&
            zmq_setsockopt(socket, ZMQ_CURVE_SECRETKEY, key->secret_key, KEY_BYTES) == 0);
}

void handshake_announced(struct handshake *self, const ProtobufCBinaryData *public_key)
{
    if (!self->has_key || public_key->len != KEY_BYTES)
        return;
    /* The key in use stays the one in use: the other is for the time after the broker has changed its key. */
    uint8_t present[KEY_BYTES];
    memcpy(present, self->key.brokers[self->broker_key], KEY_BYTES);
    key_add_broker(&self->key, public_key->data);
    key_add_broker(&self->key, present);
    self->broker_key = 0;
}

/* ---- the peer's mechanism */

#define PATIENCE_MS 300
#define GREETING_BYTES 64u
#define MECHANISM_AT 12u
#define MECHANISM_BYTES 20u

/* Waits until the socket is ready. */
static bool ready(int socket, short events)
{
    struct pollfd item = {.fd = socket, .events = events};
    return poll(&item, 1, PATIENCE_MS) == 1 && item.revents & events;
}

static int connect_to(const struct sockaddr *address, socklen_t size)
{
    int fd = socket(address->sa_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    if (fd < 0)
        return -1;
    int error = 0;
    socklen_t error_size = sizeof error;
    if (connect(fd, address, size) == 0 ||
        (ready(fd, POLLOUT) && getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &error_size) == 0 && error == 0))
        return fd;
    close(fd);
    return -1;
}

static int open_tcp(const char *place)
{
    char host[256];
    const char *colon = strrchr(place, ':');
    if (!colon || (size_t)(colon - place) >= sizeof host || strchr(place, ';'))
        return -1;
    bool bracketed = place[0] == '[';
    snprintf(host, sizeof host, "%.*s", (int)(colon - place) - (bracketed ? 2 : 0), place + bracketed);
    struct addrinfo hints = {.ai_socktype = SOCK_STREAM}, *list = NULL;
    if (getaddrinfo(host, colon + 1, &hints, &list) != 0)
        return -1;
    int fd = connect_to(list->ai_addr, list->ai_addrlen);
    freeaddrinfo(list);
    return fd;
}

static int open_ipc(const char *path)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    if (path[0] == '@' || strlen(path) >= sizeof address.sun_path)
        return -1;
    memcpy(address.sun_path, path, strlen(path) + 1);
    return connect_to((const struct sockaddr *)&address, sizeof address);
}

/* Writes the mechanism that the peer at an endpoint speaks, "NULL" or "CURVE". False: not known.
 *
 * If a client has a key and the broker wants none, or the other way round, both sides close the connection when they have read
 * the other's greeting. Whoever is faster destroys what the other would have read, so libzmq often reports an end without a
 * reason. The first 11 bytes of a greeting (ZMTP 3.0) are enough to get the peer's whole greeting, mechanism and all. */
static bool ask_mechanism(const char *endpoint, char out[MECHANISM_BYTES + 1])
{
    static const uint8_t ours[] = {0xff, 0, 0, 0, 0, 0, 0, 0, 1, 0x7f, 3};
    uint8_t theirs[GREETING_BYTES];
    size_t got = 0;
    int fd = strncmp(endpoint, "tcp://", 6) == 0   ? open_tcp(endpoint + 6)
             : strncmp(endpoint, "ipc://", 6) == 0 ? open_ipc(endpoint + 6)
                                                   : -1;
    if (fd < 0)
        return false;
    if (send(fd, ours, sizeof ours, MSG_NOSIGNAL) == (ssize_t)sizeof ours)
        while (got < sizeof theirs && ready(fd, POLLIN)) {
            ssize_t n = recv(fd, theirs + got, sizeof theirs - got, 0);
            if (n <= 0)
                break;
            got += (size_t)n;
        }
    close(fd);
    if (got < MECHANISM_AT + MECHANISM_BYTES || theirs[0] != 0xff || theirs[9] != 0x7f || theirs[10] < 3)
        return false;
    memcpy(out, theirs + MECHANISM_AT, MECHANISM_BYTES);
    out[MECHANISM_BYTES] = '\0';
    return true;
}

/* ---- failures */

/* Attempts after which a broker that breaks off handshakes is not one that is just being restarted. */
#define BROKEN_MOST 3u

/* What a failed handshake means. */
enum failure { REFUSED_KEY, NO_KEY_WANTED, KEY_WANTED, OTHER_BROKER, NOT_KNOWN };

static enum failure find_out(const struct handshake *self, const char *endpoint, uint16_t event, uint32_t value)
{
    char mechanism[MECHANISM_BYTES + 1];
    if (event == ZMQ_EVENT_HANDSHAKE_FAILED_AUTH)
        return REFUSED_KEY;
    if (event == ZMQ_EVENT_HANDSHAKE_FAILED_PROTOCOL && value == ZMQ_PROTOCOL_ERROR_ZMTP_MECHANISM_MISMATCH)
        return self->has_key ? NO_KEY_WANTED : KEY_WANTED;
    if (!ask_mechanism(endpoint, mechanism))
        return NOT_KNOWN;
    if (strcmp(mechanism, "CURVE") != 0)
        return self->has_key ? NO_KEY_WANTED : NOT_KNOWN;
    return self->has_key ? OTHER_BROKER : KEY_WANTED;
}

static void explain(const struct handshake *self, enum failure failure, rp_error *out)
{
    char public_key[KEY_TEXT];
    key_text(self->key.public_key, public_key);
    switch (failure) {
    case REFUSED_KEY:
        err_set(out, RP_PERMISSION_DENIED,
                "the broker does not know the key '%s': whoever runs it can let it in with replay-ctl key allow DIR %s "
                "'%s' --role ROLE",
                self->key.name, self->key.name, public_key);
        break;
    case NO_KEY_WANTED:
        err_set(out, RP_PERMISSION_DENIED,
                "the broker uses no keys, and this client would only talk to one that does: unset %s, or start the "
                "broker with security: {mode: curve}",
                KEY_FILE_VARIABLE);
        break;
    case KEY_WANTED:
        err_set(
            out, RP_PERMISSION_DENIED,
            "the broker lets only known keys in, and this client has none: set %s to a key file (replay-ctl key new)",
            KEY_FILE_VARIABLE);
        break;
    case OTHER_BROKER:
        err_set(
            out, RP_PERMISSION_DENIED,
            "the handshake failed: the broker's key is not the one in the key file of '%s'. If the broker's key was "
            "changed: replay-ctl key trust FILE PUBLIC",
            self->key.name);
        break;
    case NOT_KNOWN:
        err_set(out, RP_UNAVAILABLE, "the handshake failed: is this a service endpoint?");
        break;
    }
}

bool handshake_failed(struct handshake *self, const char *endpoint, uint16_t event, uint32_t value, rp_error *out)
{
    enum failure failure = find_out(self, endpoint, event, value);
    if (failure != OTHER_BROKER) {
        explain(self, failure, out);
        return true;
    }
    /* While a broker's key is rotated, either may be right: all are tried before the caller hears of it. */
    self->broker_key = (self->broker_key + 1) % self->key.n_brokers;
    if (++self->broken < BROKEN_MOST * self->key.n_brokers)
        return false;
    self->broken = 0;
    explain(self, failure, out);
    return true;
}
