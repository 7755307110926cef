/* An ingest message on its way in: what ingest.c hands to intake_data.c (layouts, chunks) and intake_items.c.
 *
 * A function that returns false has found no memory. What was taken so far stays, and is skipped when the writer sends the
 * message again. */
#ifndef BROKER_INTAKE_H
#define BROKER_INTAKE_H

#include "broker/session/session.h"
#include "proto/wire/wire.h"

struct intake {
    struct session *session;
    struct wire_ingest in;
    zmq_msg_t *payload;
    uint32_t n_payload;
    uint64_t bytes;     /* that count against the credit: of all frames, or 0 if the message was sent again */
    bool lone;          /* its only item may be sent without credit */
    rp_status refused;  /* none of its items can be taken, for this reason; or RP_OK */
    const char *why;    /* text of refused */
    uint64_t allowance; /* inserts that the limiter of this run's table has allowed */
    struct ingest_message *message; /* made when the first item has to wait */
    uint32_t spanned;               /* chunks after the first of each item, so far */
};

/* Registers the message's layouts. Refused layouts are kept with the reason. */
bool intake_layouts(struct intake *self);
/* Registers a layout; data is the message that `wire` was unpacked from. */
bool intake_register(struct session *session, const Replay__Layout *wire, const void *data, size_t size);
/* Puts the message's chunks into the store and the session's ring. Refused chunks are noted with the reason. */
bool intake_chunks(struct intake *self);
/* Puts the message's items into their tables or flows. */
bool intake_items(struct intake *self);

/* Logs what is wrong with a message, a few times per second at most. session may be NULL. */
void intake_complain(struct sessions *sessions, const char *id, const char *what, const struct session *session,
                     const char *text);

#endif
