/* Kept replies: the last replies to requests that must not be done twice. A retry gets the kept reply instead of a second
 * execution.
 *
 * Permits come far more often than all other requests, and from few clients: they have places of their own, of which a client
 * takes KEPT_OF_CLIENT at most. Of a client with more, the oldest goes; so no client pushes out the permits of another, as long
 * as there are places. */
#ifndef BROKER_KEPT_REPLIES_H
#define BROKER_KEPT_REPLIES_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "broker/loop/idmap.h"

struct loop;

/* Largest reply that is kept. */
#define KEPT_REPLY_BYTES 16384u

/* Most permits that are kept of one client. */
#define KEPT_OF_CLIENT 256u

struct kept_reply {
    uint64_t client, id;
    uint8_t *frame; /* the encoded Reply; NULL: this place is free */
    size_t size;    /* bytes of the frame */
};

/* A reply, and, if it is a permit, its place in the list of its client. */
struct kept_place {
    struct kept_reply reply; /* first */
    struct kept_place *newer;
    struct kept_place *newest; /* of its client; this and count: in the oldest */
    uint32_t count;
};

enum kept_kind { KEPT_OTHERS, KEPT_PERMITS, KEPT_KINDS };

struct kept_replies {
    struct kept_place *rings[KEPT_KINDS]; /* NULL until a reply is kept */
    uint32_t next[KEPT_KINDS];
    uint64_t bytes;    /* of the frames in the rings */
    uint64_t *account; /* that counts them, too; NULL: none */
    struct idmap by_name;
    struct idmap clients; /* the oldest permit of each */
    uint8_t *spare[2];    /* KEPT_REPLY_BYTES each: a finished request is encoded and kept even when memory runs out */
};

/* Before a request changes anything: makes sure that its reply can be encoded and kept. False: no memory. */
bool kept_replies_reserve(struct kept_replies *self, enum kept_kind kind);
/* Takes a reserved block of KEPT_REPLY_BYTES. NULL: there is none, or size is too large for it. */
uint8_t *kept_replies_spare(struct kept_replies *self, size_t size);
/* Keeps a copy of the frame in place of the oldest reply of its kind (a permit: see above), and tells loop's effects. Client 0 is
 * anonymous and cannot retry: its replies are not kept. */
void kept_replies_add(struct kept_replies *self, struct loop *loop, const struct kept_reply *reply);
/* NULL: no reply to this request is kept. */
const struct kept_reply *kept_replies_find(const struct kept_replies *self, uint64_t client, uint64_t id);
/* Calls fn for every kept reply, oldest first: the permits of each client, one client after the other. */
typedef void kept_reply_fn(void *ctx, const struct kept_reply *reply);
void kept_replies_each(const struct kept_replies *self, kept_reply_fn *fn, void *ctx);
void kept_replies_fini(struct kept_replies *self);

#endif
