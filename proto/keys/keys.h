/* The keys room: CURVE keys in files, and the list of the keys that a broker lets in. It knows nothing of sockets.
 *
 * This header: one key file. A key file is text, belongs to one user, and nobody else may read it (mode 0600; a looser one is
 * refused):
 *
 *   name NAME          a label for people
 *   public KEY         40 characters of Z85 (ZeroMQ RFC 32)
 *   secret KEY
 *   broker KEY         public key of a broker that the holder connects to; several while that broker's key is rotated, or if
 *                      the shards of a broker have different keys
 *
 * Lines that begin with '#' are comments. No secret is ever logged or printed. */
#pragma once

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

#include "replay/error.h"

#define KEY_BYTES 32u
#define KEY_TEXT 41u /* with the terminating zero */
#define KEY_NAME 64u
#define KEY_BROKERS 16u
/* Names the key file of a client that gives none. */
#define KEY_FILE_VARIABLE "REPLAY_KEY_FILE"

struct key {
    char name[KEY_NAME];
    uint8_t public_key[KEY_BYTES], secret_key[KEY_BYTES];
    uint8_t brokers[KEY_BROKERS][KEY_BYTES];
    uint32_t n_brokers;
};

/* Makes a new pair. */
rp_status key_make(struct key *out, const char *name, rp_error *err);
/* Forgets the secret. */
void key_wipe(struct key *self);
/* Reads a file. RP_PERMISSION_DENIED: others may read it, or it belongs to somebody else. */
rp_status key_read(const char *path, struct key *out, rp_error *err);
/* Writes a file of mode 0600. RP_ALREADY_EXISTS: there is one, and replace is false. */
rp_status key_write(const char *path, const struct key *key, bool replace, rp_error *err);
/* Adds a broker that the holder may connect to, as the first to be tried. The oldest goes when there are too many. */
void key_add_broker(struct key *self, const uint8_t public_key[KEY_BYTES]);

/* Writes the path of a file in a folder of keys. */
#define KEY_PATH 4096u
rp_status key_path(const char *folder, const char *name, char out[KEY_PATH], rp_error *err);
/* Reads a whole text file of at most `most` bytes; *text is freed by the caller. RP_NOT_FOUND: there is none.
 * RP_PERMISSION_DENIED: others may read it (secret) or write it, or it belongs to somebody else. */
rp_status key_file_read(const char *path, bool secret, size_t most, char **text, rp_error *err);
/* Writes a file of mode 0600 beside the path and gives it the name, so that no reader sees half of it. It keeps the mode of the file
 * that it replaces, unless it is secret, and root gives it to the owner of that file or of the folder. RP_ALREADY_EXISTS: there is one, and replace is false. */
rp_status key_file_write(const char *path, bool secret, void (*print)(FILE *file, const void *from), const void *from,
                         bool replace, rp_error *err);

/* A name of a key: 1 to 63 letters, digits, dots, dashes and underscores, and no dot or dash first. */
bool key_name_is_good(const char *name);
/* Writes a key as Z85. */
void key_text(const uint8_t key[KEY_BYTES], char out[KEY_TEXT]);
/* Reads Z85. False: it is no key. */
bool key_parse(const char *text, uint8_t out[KEY_BYTES]);
