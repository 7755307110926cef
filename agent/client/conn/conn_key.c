/* The key of a client: it is loaded once, and every socket of the connection uses it. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "agent/client/conn/conn_impl.h"
#include "proto/base/endpoint.h"
#include "proto/base/error.h"

rp_status conn_key_load(struct conn *self, const rp_client_options *options, const struct key *given, rp_error *err)
{
    if (given) {
        self->key = *given;
        self->has_key = true;
        return RP_OK;
    }
    const char *path = options ? options->key_file : NULL;
    if (!path)
        path = getenv(KEY_FILE_VARIABLE);
    if (!path || !path[0] || conn_is_inside(self))
        return RP_OK;
    RP_TRY(key_read(path, &self->key, err));
    if (self->key.n_brokers == 0)
        return err_set(err, RP_INVALID_ARGUMENT,
                       "the key file %s names no broker: add the line 'broker KEY' with the broker's public key "
                       "(replay-ctl key show prints it)",
                       path);
    self->has_key = true;
    /* If shards have different keys, their lines are likely in the order of the shards; if not, the others are tried. */
    if (self->shard != CONN_SHARD_UNKNOWN)
        self->broker_key = self->shard % self->key.n_brokers;
    return RP_OK;
}

bool conn_secure(const struct conn *self, void *socket)
{
    const struct key *key = &self->key;
    return !self->has_key ||
           (zmq_setsockopt(socket, ZMQ_CURVE_SERVERKEY, key->brokers[self->broker_key], KEY_BYTES) == 0 &&
            zmq_setsockopt(socket, ZMQ_CURVE_PUBLICKEY, key->public_key, KEY_BYTES) == 0 &&
            zmq_setsockopt(socket, ZMQ_CURVE_SECRETKEY, key->secret_key, KEY_BYTES) == 0);
}

/* Gives the sockets of each shard a thread of the context. libzmq would choose the thread with the fewest sockets, but connections
 * that begin at the same time do not count yet: several shards got one thread, while others had nothing to do. */
static bool spread(const struct conn *self, void *socket)
{
    int threads = self->is_shard ? zmq_ctx_get(self->context, ZMQ_IO_THREADS) : 1;
    uint64_t mask = UINT64_C(1) << (threads > 1 ? self->io_thread % (uint32_t)(threads < 64 ? threads : 64) : 0);
    return threads <= 1 || zmq_setsockopt(socket, ZMQ_AFFINITY, &mask, sizeof mask) == 0;
}

bool conn_connect(const struct conn *self, void *socket, const char *endpoint)
{
    int ipv6 = endpoint_is_ipv6(endpoint);
    return zmq_setsockopt(socket, ZMQ_IPV6, &ipv6, sizeof ipv6) == 0 && conn_secure(self, socket) &&
           spread(self, socket) && zmq_connect(socket, endpoint) == 0;
}

void conn_key_announced(struct conn *self, const uint8_t *public_key)
{
    /* The key in use stays the one in use: the other is for the time after the broker has changed its key. */
    uint8_t present[KEY_BYTES];
    memcpy(present, self->key.brokers[self->broker_key], KEY_BYTES);
    key_add_broker(&self->key, public_key);
    key_add_broker(&self->key, present);
    self->broker_key = 0;
}

/* Attempts after which a broker that breaks off handshakes is not one that is just being restarted. */
#define BROKEN_MOST 3u

/* What a failed handshake means. */
enum failure { REFUSED_KEY, NO_KEY_WANTED, KEY_WANTED, OTHER_BROKER, NOT_KNOWN };

static enum failure find_out(const struct conn *self, uint16_t event, uint32_t value)
{
    char mechanism[21];
    if (event == ZMQ_EVENT_HANDSHAKE_FAILED_AUTH)
        return REFUSED_KEY;
    if (event == ZMQ_EVENT_HANDSHAKE_FAILED_PROTOCOL && value == ZMQ_PROTOCOL_ERROR_ZMTP_MECHANISM_MISMATCH)
        return self->has_key ? NO_KEY_WANTED : KEY_WANTED;
    if (!greeting_mechanism(self->endpoint, mechanism))
        return NOT_KNOWN;
    if (strcmp(mechanism, "CURVE") != 0)
        return self->has_key ? NO_KEY_WANTED : NOT_KNOWN;
    return self->has_key ? OTHER_BROKER : KEY_WANTED;
}

static void explain(const struct conn *self, enum failure failure, rp_error *out)
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

bool conn_key_failed(struct conn *self, uint16_t event, uint32_t value, rp_error *out)
{
    enum failure failure = find_out(self, event, value);
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
