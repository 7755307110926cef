/* Credit: what a session may send, and what its writer is told about it. credit_grant.c decides how much a session may send;
 * credit.c has the notices, the rejections and the Credit message. */
#ifndef BROKER_CREDIT_H
#define BROKER_CREDIT_H

#include <protobuf-c/protobuf-c.h>
#include <stdbool.h>
#include <stdint.h>

#include "replay/error.h"

struct credit_message;
struct flow;
struct session;
struct sessions;

#define REJECTED_NOWHERE UINT32_MAX /* the item did not get as far as a table */
#define REJECTIONS_KEPT 8192u       /* of one session */
struct rejection {
    uint32_t table; /* or REJECTED_NOWHERE */
    rp_status status;
    uint64_t item, key;
    char *text;
};

/* ---- grants ---- */

/* Grants the first credit to a session that opens or resumes; takes all credit from a session that ends. */
void credit_open(struct session *self);
void credit_close(struct session *self);
/* Raises what the session may send, as far as the budget allows. */
void credit_refresh(struct session *self);
/* Adds to what the session may send, whatever the budget. */
void credit_offer(struct session *self, uint64_t bytes);
/* Credit.allowed_bytes: never falls within an epoch. */
uint64_t credit_allowed(const struct session *self);
/* New bytes have arrived: the session counts as writing. */
void credit_use(struct session *self);
/* Returns the credit of bytes whose items are all resolved. */
void credit_return(struct session *self, uint64_t bytes);
/* At a heartbeat: measures how much of its credit the session uses, and decides how much it may keep. */
void credit_measure(struct session *self);
/* At a heartbeat: takes back the credit that the client has given up, a running total of this epoch. */
void credit_release(struct session *self, uint64_t released);

/* ---- notices ---- */

/* The session has news: they are sent at the end of a turn when they are worth a notice, or in this turn if urgent. */
void credit_mark(struct session *self, bool urgent);
/* Sends the notices that are due. */
void credit_notify(struct sessions *sessions);

/* ---- rejections ---- */

/* Rejects the flow's next item; text is copied. */
void credit_reject(struct flow *flow, uint64_t key, rp_status status, const char *text);
/* Rejects an item that belongs to no flow: an unknown layout or table, a damaged message. The text is copied. */
void credit_reject_at(struct session *self, const struct rejection *rejection);
/* Makes room for one more rejection. False: no memory. */
bool credit_reserve(struct session *self);
/* Keeps a copy of a rejection until the writer has read it. False: no memory, or there are too many. */
bool credit_keep_rejection(struct session *self, const struct rejection *rejection);
/* The writer has read rejections up to this running count. */
void credit_confirm(struct session *self, uint64_t confirmed);

/* ---- the message ---- */

/* Makes a Credit message. explain: with a sentence for each table that holds items back. NULL: no memory. */
struct credit_message *credit_message_new(struct session *self, bool explain);
const ProtobufCMessage *credit_message_body(const struct credit_message *self);
void credit_message_destroy(struct credit_message **self);

#endif
