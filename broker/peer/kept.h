/* What clients may ask for again: answers that are kept by client and by age. The list knows nothing of what is kept; each kind of
 * answer embeds a struct kept, and sets its own bounds.
 *
 * Kept replies are the last replies to requests that must not be done twice: a retry gets the kept reply instead of a second
 * execution. Kept samples (sample/kept_samples.h) are the other kind. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/queue.h>

#include "broker/loop/idmap.h"

struct loop;

/* An answer is in two lists, both oldest first: of all, and of its client. */
struct kept {
    uint64_t id; /* of the request */
    uint64_t bytes;
    struct kept_client *client;
    TAILQ_ENTRY(kept) of_all, of_client;
};
TAILQ_HEAD(kept_answers, kept);

struct kept_client {
    uint64_t client;
    TAILQ_ENTRY(kept_client) link;
    struct kept_answers answers;
    uint32_t count;
    uint64_t highest; /* id */
    int64_t heard_ns;
    /* of samples */
    uint64_t settled; /* it has read the replies to all requests up to this id; 0: it never said so */
    bool shared;      /* it has read shared memory */
};

struct kept_list {
    struct idmap clients;
    TAILQ_HEAD(heard_list, kept_client) heard; /* all clients, in the order in which they were last heard of */
    struct kept_answers answers;
    uint32_t count;
    uint64_t bytes;
};

/* Before all else: a zeroed list cannot be used. */
void kept_list_init(struct kept_list *self);
/* Returns a client. NULL: nothing is known of it. */
struct kept_client *kept_client_find(const struct kept_list *self, uint64_t client);
/* A client is heard of now. */
void kept_client_heard(struct kept_list *self, struct kept_client *client, int64_t now_ns);
/* Returns a client that is heard of now, made if need be. */
struct kept_client *kept_client_make(struct kept_list *self, uint64_t client, int64_t now_ns);
/* Forgets a client that has no answers. */
void kept_client_forget(struct kept_list *self, struct kept_client *client);
/* Returns the newest answer of a client to this id. NULL: none is kept. client may be NULL. */
struct kept *kept_list_find(const struct kept_client *client, uint64_t id);
/* Appends an answer whose id and bytes are set; takes it out of both lists. */
void kept_list_add(struct kept_list *self, struct kept_client *client, struct kept *kept);
void kept_list_remove(struct kept_list *self, struct kept *kept);

/* ---- replies ---- */

/* Largest reply that is kept. */
#define KEPT_REPLY_BYTES 16384u
/* Most replies that are kept, and most of one client. While all places are taken, a client with more than KEPT_FAIR loses its own
 * oldest one: so a sampler with many permits pushes out nobody else's reply. */
#define KEPT_REPLIES 8192u
#define KEPT_OF_CLIENT 256u
#define KEPT_FAIR 16u

struct kept_reply {
    uint64_t client, id;
    uint8_t *frame; /* the encoded Reply */
    size_t size;    /* bytes of the frame */
};

struct kept_replies {
    struct kept_list list;
    uint64_t *account; /* that counts the bytes, too; NULL: none */
};

/* Keeps a copy of the frame, and tells loop's effects. Client 0 is anonymous and cannot
 * retry: its replies are not kept, nor are large ones. */
void kept_replies_add(struct kept_replies *self, struct loop *loop, const struct kept_reply *reply);
/* NULL: no reply to this request is kept. */
const struct kept_reply *kept_replies_find(const struct kept_replies *self, uint64_t client, uint64_t id);
/* Calls fn for every kept reply, oldest first. */
typedef void kept_reply_fn(void *ctx, const struct kept_reply *reply);
void kept_replies_each(const struct kept_replies *self, kept_reply_fn *fn, void *ctx);
/* Forgets all replies; the account stays. */
void kept_replies_fini(struct kept_replies *self);
