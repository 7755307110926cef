/* One ingest message on its way in: what ingest.c hands to intake_data.c (layouts, chunks) and intake_items.c. */
#ifndef BROKER_INTAKE_H
#define BROKER_INTAKE_H

#include "broker/session/session.h"
#include "proto/wire/wire.h"

struct intake {
    struct session *session;
    struct wire_ingest in;
    zmq_msg_t *payload;
    uint32_t n_payload;
    uint64_t bytes;
    bool lone;                      /* the one item that may always be sent */
    uint64_t allowance;             /* inserts that the limiter of this run's table has allowed */
    struct ingest_message *message; /* made when the first item has to wait */
    uint32_t spanned;               /* chunks of its items so far, those over one chunk aside */
};

/* These give false if there is no memory: what was done so far stands, and is passed over when the message comes again. */
/* Registers the message's layouts; refused ones are kept with the reason. */
bool intake_layouts(struct intake *self);
/* One of them; data is the message that `wire` was unpacked from. */
bool intake_register(struct session *session, const Replay__Layout *wire, const void *data, size_t size);
/* Puts the message's chunks into the store and the session's ring; refused ones are remembered with the reason. */
bool intake_chunks(struct intake *self);
/* Puts the message's items into their tables or flows. refused: none of them can be taken, and why. */
bool intake_items(struct intake *self, rp_status refused, const char *why);

/* A log line about what a writer sent, limited in number. */
void intake_complain(struct sessions *sessions, const char *id, const char *what, const struct session *session,
                     const char *text);

#endif
