/* The keys that a broker lets in: DIR/clients, one line each, which people may edit:
 *
 *   NAME ROLES PUBLIC [sessions=N] [granted=BYTES] [waiting=N] [unread=BYTES] [inserts=N]
 *
 * ROLES are actor, learner, observer and admin, several joined by '+'. The limits replace those of the broker's configuration
 * for this key. Lines that begin with '#' are comments. Nobody but its owner may write the file. The broker reads it again
 * whenever it changes. DIR/broker.key is the broker's own key, DIR/broker.next.key the key that will replace it. */
#pragma once

#include <stddef.h>

#include "proto/keys/keys.h"

#define ALLOW_FILE "clients"
#define ALLOW_BROKER_KEY "broker.key"
#define ALLOW_NEXT_KEY "broker.next.key"

enum key_role { KEY_ACTOR = 1, KEY_LEARNER = 2, KEY_OBSERVER = 4, KEY_ADMIN = 8, KEY_ANY = 15 };

/* Limits of one key over all its connections. 0: no limit. */
struct quota {
    int64_t sessions;           /* open writers */
    int64_t granted_bytes;      /* that its writers may have in flight */
    int64_t waiting;            /* requests that wait for an answer */
    int64_t unread_bytes;       /* replies that it leaves unread */
    int64_t inserts_per_second; /* items */
};

struct allowed_key {
    char name[KEY_NAME];
    uint8_t public_key[KEY_BYTES];
    uint32_t roles;     /* of enum key_role */
    struct quota quota; /* -1: as the configuration says */
};

struct allow_list {
    struct allowed_key *keys;
    uint32_t n, capacity;
};

/* Returns the roles in "actor+learner"; 0: there is an unknown word. */
uint32_t roles_parse(const char *text);
/* Writes "actor+learner" and returns out. */
const char *roles_text(uint32_t roles, char *out, size_t size);
/* The same for a sentence in which one of them is enough: "learner or admin". */
const char *roles_any(uint32_t roles, char *out, size_t size);

/* Replaces those limits that `by` has: that are not -1. */
void quota_replace(struct quota *self, const struct quota *by);
/* Reads a limit, "sessions=10", and changes the text. False: it is wrong. */
bool quota_parse(char *word, struct quota *out);
/* Reads one line of the file, and changes the text. False: it is wrong. */
bool allow_parse(char *line, struct allowed_key *out);

/* Reads DIR/clients; without the file the list is empty. RP_INVALID_ARGUMENT with the line; RP_PERMISSION_DENIED: others may
 * write it. */
rp_status allow_read(const char *folder, struct allow_list *out, rp_error *err);
void allow_free(struct allow_list *self);
/* Finds a key by its name or its public key as text; NULL: there is none. */
struct allowed_key *allow_find(struct allow_list *self, const char *who);

/* Reads the broker's key of a folder; makes the folder and the key if they do not exist. */
rp_status allow_broker_key(const char *folder, struct key *out, rp_error *err);

/* Changes to the file; each leaves comments and other lines as they are, and one writer waits for another. */
/* RP_ALREADY_EXISTS: the name or the key is in the list. */
rp_status allow_add(const char *folder, const struct allowed_key *key, rp_error *err);
/* Gives a key another set of roles (0: they stay), and those limits that are not -1. RP_NOT_FOUND: neither a name nor a key. */
rp_status allow_change(const char *folder, const char *who, uint32_t set, const struct quota *quota, rp_error *err);
/* RP_NOT_FOUND as above. */
rp_status allow_remove(const char *folder, const char *who, rp_error *err);
