/* The journal: writes effects and state as entries.
 *
 * The room owns the stream (stream.h), its segments (segments.h), the threads that write and sync files
 * (disk_writer.h, syncer.h), and the rules for room on the disk (space.h). It offers an implementation of the effects
 * (loop/effects.h) that other rooms report, and functions that write state as entries, which checkpoints use. It uses
 * the disk format and the rooms whose state it records (durable_state.h). disk/record.h describes the entries;
 * checkpoint/loading.c applies them. */
#ifndef BROKER_JOURNAL_H
#define BROKER_JOURNAL_H

#include "broker/journal/stream.h"
#include "broker/sample/samples.h"
#include "broker/session/session.h"
#include "broker/store/params.h"
#include "broker/table/table.h"

/* Where entries go: a stream, or the record of a checkpoint. room: like stream_entry. */
struct entry_sink {
    void *(*room)(void *ctx, uint16_t type, uint32_t table, size_t size);
    void *ctx;
};

/* Writes the entries that every segment begins with: START, every TABLE, ORDINAL. */
void journal_start(struct stream *stream);

/* Functions that write state as entries. */
/* The caller sets the fields of start that are about earlier files. */
void journal_put_start(struct entry_sink to, const struct durable_state *state, struct entry_start start);
void journal_put_table(struct entry_sink to, const struct table *table);
void journal_put_ordinal(struct entry_sink to, const struct ordinals *ordinals);
void journal_put_layout(struct entry_sink to, const struct layout *layout);
/* Writes SESSION, its FORMs, PROGRESS, and its REJECTIONs that are not confirmed. */
void journal_put_session_all(struct entry_sink to, const struct session *session);
void journal_put_counter(struct entry_sink to, const struct param_counter *counter);
void journal_put_reply(struct entry_sink to, uint64_t client, uint64_t id, const void *frame, size_t size);
/* Returns the body of an ENTRY_INSERT for the item in a slot, with session and number 0. The caller adds the places of
 * its chunks. */
struct entry_insert journal_insert_body(const struct item *item, uint32_t slot);
struct entry_limiter journal_limiter_body(const struct limiter *limiter);

/* The operations by which a stream records effects. An insert first writes the item's chunks and layout, if they are
 * not there. */
extern const struct effects journal_effects;

#endif
