/* The journal: writes effects (loop/effects.h) and state as entries. What they look like is described in disk/record.h;
 * restore.c and disk/image.c read them. */
#ifndef BROKER_JOURNAL_H
#define BROKER_JOURNAL_H

#include "broker/journal/stream.h"
#include "broker/params/params.h"
#include "broker/sample/samples.h"
#include "broker/session/session.h"
#include "broker/table/tables.h"

/* Where entries go: a stream, or the record of a checkpoint. room: see stream_entry. */
struct entry_sink {
    void *(*room)(void *ctx, uint16_t type, uint32_t table, size_t size);
    void *ctx;
};

/* The entries that every file begins with: START, every TABLE, ORDINAL. */
void journal_start(struct stream *stream);

/* State as entries. */
/* start: what it says of files before it. */
void journal_put_start(struct entry_sink to, const struct durable_state *state, struct entry_start start);
void journal_put_table(struct entry_sink to, const struct table *table);
void journal_put_ordinal(struct entry_sink to, const struct ordinals *ordinals);
void journal_put_layout(struct entry_sink to, const struct layout *layout);
/* SESSION alone. */
void journal_put_session(struct entry_sink to, const struct session *session);
/* SESSION, its FORMs, PROGRESS, and REJECTIONs that are not confirmed. */
void journal_put_session_all(struct entry_sink to, const struct session *session);
void journal_put_progress(struct entry_sink to, const struct session *session);
void journal_put_slot(struct entry_sink to, struct slot *slot);
void journal_put_counter(struct entry_sink to, const struct counter *counter);
void journal_put_reply(struct entry_sink to, uint64_t client, uint64_t id, const void *frame, size_t size);
/* ENTRY_INSERT's body of the item in a slot; session and number are 0. Places of chunks are the caller's. */
struct entry_insert journal_insert_body(const struct item *item, uint32_t slot);
struct entry_limiter journal_limiter_body(const struct limiter *limiter);

/* The operations by which a stream records effects. An insert first puts the item's chunks and layout there. */
extern const struct effects journal_effects;

#endif
