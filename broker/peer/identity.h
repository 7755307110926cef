/* Who sent a message: the keys that a broker knows, with what each may do and how much it uses.
 *
 * The identities belong to the core thread. The ZAP handler (peers.c) gives each connection the number of its identity, and
 * libzmq attaches that number to every message, so a role is checked on each message, and a key that was revoked is refused
 * with the next one. Without security there is one identity, anyone, who may do everything. */
#pragma once

#include <stdatomic.h>
#include <zmq.h>

#include "broker/loop/idmap.h"
#include "proto/base/log.h"
#include "proto/keys/allow.h"

struct peers;

/* Reply bytes that the holder of a key has left unread. Shared with frames in flight, which may outlive the broker. */
struct unread {
    atomic_long refs;
    atomic_llong bytes;
    atomic_llong most; /* 0: no limit */
};

/* Gives up a reference; NULL is none. */
void unread_release(struct unread *self);
/* True if more is left unread than the key may. */
static inline bool unread_is_full(struct unread *self)
{
    long long most = atomic_load_explicit(&self->most, memory_order_relaxed);
    return most > 0 && atomic_load_explicit(&self->bytes, memory_order_relaxed) > most;
}

struct identity {
    char name[KEY_NAME];
    uint8_t public_key[KEY_BYTES];
    uint32_t number; /* place in the list */
    uint32_t roles;  /* 0: not in the allow-list, or not any more */
    bool own;        /* of this process: it is in no list, and stays */
    uint32_t before; /* its roles in the list before */
    bool limited;    /* its limits differ from those of the list before */
    struct quota quota;
    /* in use */
    uint32_t sessions;
    uint64_t granted_bytes;
    uint32_t waiting; /* places of requests that wait */
    struct unread *unread;
    double insert_debt; /* items inserted beyond inserts_per_second; negative: may be inserted at once */
    int64_t paid_ns;    /* time up to which the debt was paid */
    uint64_t added;     /* to counters since added_ns, signs aside */
    int64_t added_ns;
};

/* A file as it was when it was last read; all 0: there was none. */
struct seen_file {
    int64_t changed_ns, size, node;
    int64_t empty_ns; /* since when it was seen empty; 0: it is not */
};

/* Frames of a request to the ZAP handler. */
#define ZAP_FRAMES 7u

struct identities {
    bool on; /* CURVE is used */
    struct identity anyone;
    struct identity **list; /* never shrinks: connections refer to numbers */
    uint32_t n, capacity;
    struct idmap by_key; /* by the first 8 bytes of the public key */
    struct key key;      /* of the broker */
    uint8_t next_key[KEY_BYTES];
    bool has_next;
    void *zap; /* socket of the ZAP handler */
    /* Handshake that waits for the list, and since when; 0: none. */
    zmq_msg_t held[ZAP_FRAMES];
    int64_t held_ns;
    struct seen_file list_file, key_file, next_file;
    bool listed;      /* a list was taken over before: changes are logged */
    int64_t look_ns;  /* no look at the files before this time */
    int64_t known_ns; /* time of the list that is in use: what was in the file then is known */
    int64_t took_ns;  /* time that the last look took */
    uint64_t refused; /* handshakes */
    struct log_limit log, list_log;
};

/* Reads the keys, if the configuration asks for security. A missing broker key is made. */
rp_status identities_open(struct peers *peers, rp_error *err);
void identities_close(struct identities *self);
/* Reads the files of keys again if they have changed. A list that cannot be read is logged and lets nobody in. On a slow disk
 * the looks become rare: they take at most a twentieth of the core thread's time. Returns what has changed. */
enum { KEYS_BROKER = 1, KEYS_LIST = 2 };
uint32_t identities_look(struct peers *peers);

/* Lets a key in that this process has just made, as an admin, whatever the list says. */
void identities_trust(struct identities *self, const struct key *key);

/* Returns who sent a message; never NULL. */
struct identity *identity_of(struct peers *peers, zmq_msg_t *message);
/* Returns the number by which the broker knows a client that calls itself `client`: nobody can name the clients of another key,
 * even who knows their ids and keys. */
uint64_t identity_client(const struct identity *self, uint64_t client);
/* Returns the identity of a public key; NULL: it is not known. */
struct identity *identity_find(const struct identities *self, const uint8_t *public_key);
/* Returns the identity of a public key, made without roles if it is not known; anyone for NULL, or without security. */
struct identity *identity_by_key(struct identities *self, const uint8_t *public_key);

/* RP_PERMISSION_DENIED unless the identity has one of the roles. what: "a sample request". */
rp_status identity_check(const struct identity *self, uint32_t roles, const char *what, rp_error *err);
/* Counts items that were inserted. */
void identity_inserted(struct identity *self, uint64_t items, int64_t now_ns);
/* Counts what the key adds to counters. RP_RESOURCE_EXHAUSTED: for an actor it is too much. A learner and an admin may add
 * anything: they can end a run anyway. */
rp_status identity_adds(struct identity *self, int64_t add, int64_t now_ns, rp_error *err);
/* Returns the seconds until credit may be given again; 0: now. */
double identity_owes_s(struct identity *self, int64_t now_ns);
