#include "agent/client/conn/handshake.h"

#include <stdlib.h>
#include <string.h>
#include <zmq.h>

#include "proto/base/endpoint.h"
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

/* Writes the mechanism that the peer at an endpoint speaks, "NULL" or "CURVE". False: not known.
 *
 * If a client has a key and the broker wants none, or the other way round, both sides close the connection when they have read
 * the other's greeting. Whoever is faster destroys what the other would have read, so libzmq often reports an end without a
 * reason. The first 11 bytes of a greeting (ZMTP 3.0) are enough to get the peer's whole greeting, mechanism and all. */
static bool ask_mechanism(void *context, const char *endpoint, char out[MECHANISM_BYTES + 1])
{
    static const uint8_t ours[] = {0xff, 0, 0, 0, 0, 0, 0, 0, 1, 0x7f, 3};
    uint8_t theirs[GREETING_BYTES] = {0}, route[256];
    size_t got = 0;
    int patience = PATIENCE_MS, none = 0, never = -1, ipv6 = endpoint_is_ipv6(endpoint), n = -1;
    void *raw = zmq_socket(context, ZMQ_STREAM);
    if (!raw)
        return false;
    zmq_setsockopt(raw, ZMQ_LINGER, &none, sizeof none);
    zmq_setsockopt(raw, ZMQ_IPV6, &ipv6, sizeof ipv6);
    zmq_setsockopt(raw, ZMQ_RECONNECT_IVL, &never, sizeof never);
    zmq_setsockopt(raw, ZMQ_RCVTIMEO, &patience, sizeof patience);
    zmq_setsockopt(raw, ZMQ_SNDTIMEO, &patience, sizeof patience);
    if (zmq_connect(raw, endpoint) == 0)
        n = zmq_recv(raw, route, sizeof route,
                     0); /* each message has its route in front; an empty one tells of the connection */
    if (n > 0 && zmq_recv(raw, NULL, 0, 0) == 0 && zmq_send(raw, route, (size_t)n, ZMQ_SNDMORE) == n &&
        zmq_send(raw, ours, sizeof ours, 0) == sizeof ours)
        while (got < sizeof theirs && zmq_recv(raw, route, sizeof route, 0) > 0) {
            n = zmq_recv(raw, theirs + got, sizeof theirs - got, 0);
            if (n <= 0)
                break;
            got += (size_t)n < sizeof theirs - got ? (size_t)n : sizeof theirs - got;
        }
    zmq_close(raw);
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

static enum failure find_out(const struct handshake *self, void *context, const char *endpoint, uint16_t event,
                             uint32_t value)
{
    char mechanism[MECHANISM_BYTES + 1];
    if (event == ZMQ_EVENT_HANDSHAKE_FAILED_AUTH)
        return REFUSED_KEY;
    if (event == ZMQ_EVENT_HANDSHAKE_FAILED_PROTOCOL && value == ZMQ_PROTOCOL_ERROR_ZMTP_MECHANISM_MISMATCH)
        return self->has_key ? NO_KEY_WANTED : KEY_WANTED;
    if (!ask_mechanism(context, endpoint, mechanism))
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

bool handshake_failed(struct handshake *self, void *context, const char *endpoint, uint16_t event, uint32_t value,
                      rp_error *out)
{
    enum failure failure = find_out(self, context, endpoint, event, value);
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
