/* The keys of a connection, and why a handshake failed.
 *
 * The key of a client is loaded once, and every socket of the connection uses it. While the broker's key is rotated, the client
 * knows several keys of the broker and tries them in turn. */
#pragma once

#include <protobuf-c/protobuf-c.h>
#include <stdbool.h>
#include <stdint.h>

#include "proto/keys/keys.h"
#include "replay/error.h"

/* The I/O thread changes it. All zeros: without keys. */
struct handshake {
    bool has_key;
    struct key key;      /* with the keys that the broker may have */
    uint32_t broker_key; /* the one of them that is tried, or in use */
    uint32_t broken;     /* handshakes in a row that broke off without a reason */
};

/* Reads the key file of this path, or of the environment (NULL), if any. */
rp_status handshake_load(struct handshake *self, const char *path, rp_error *err);
/* Gives a socket that is not connected yet the keys of the client and of the broker. */
bool handshake_secure(const struct handshake *self, void *socket);
/* The broker will have this key after its own was rotated; empty: there is none. */
void handshake_announced(struct handshake *self, const ProtobufCBinaryData *public_key);
/* A handshake failed, by this event of a monitor and its value. False: another key of the broker is to be tried first. May wait
 * for up to a second, to ask the peer which mechanism it speaks. */
bool handshake_failed(struct handshake *self, const char *endpoint, uint16_t event, uint32_t value, rp_error *out);
