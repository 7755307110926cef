/* The journal: one function per effect, called where the effect happens, right after it. Each is nothing but a test when
 * the journal is off. What they write is described in disk/record.h; restore.c and disk/image.c read it.
 *
 * Not in it: chunks and items that wait (writers keep and send again what is not resolved), rounds of a reduce (members
 * try again), statistics such as rates and mean ages, and counts that only inform (evictions, episodes). */
#ifndef BROKER_JOURNAL_H
#define BROKER_JOURNAL_H

#include "broker/broker.h"
#include "broker/journal/stream.h"
#include "broker/sample/sample.h"
#include "broker/session/session.h"

static inline bool journal_is_on(const struct broker *broker)
{
    return broker->stream && broker->stream->journal;
}

/* Where entries go: a stream, or the record of a checkpoint. room: see stream_entry. */
struct entry_sink {
    void *(*room)(void *ctx, uint16_t type, uint32_t table, size_t size);
    void *ctx;
};

/* The entries that every file begins with: START, every TABLE, ORDINAL. */
void journal_start(struct broker *broker, struct stream *stream);

/* State as entries. */
/* start: what it says of files before it. */
void journal_put_start(struct entry_sink to, const struct broker *broker, struct entry_start start);
void journal_put_table(struct entry_sink to, const struct table *table);
void journal_put_ordinal(struct entry_sink to, const struct broker *broker);
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

/* tables. An insert first puts the item's chunks and layout there. flow: NULL for an insert by an extension. */
void journal_insert_(struct table *table, uint32_t slot, const struct flow *flow);
void journal_remove_(struct table *table, uint32_t slot);
void journal_priority_(struct table *table, uint32_t slot, double priority);
void journal_reset_(struct table *table);
void journal_limiter_(struct table *table);
/* Slots that were sampled for a waiter, at the time when they are. */
void journal_pick_(const struct waiter *waiter, uint32_t slot, double probability);
void journal_answered_(struct broker *broker, uint64_t client, uint64_t id);
void journal_forget_(struct broker *broker, uint64_t client, uint64_t id);
/* sessions */
void journal_session_(struct broker *broker, const struct session *session);
void journal_form_(struct broker *broker, const struct session *session, const void *layout, size_t size);
/* Numbers and credit as they are now, if they have changed since this was last written. Before a client is told. */
void journal_progress_(struct broker *broker, struct session *session);
void journal_rejection_(struct broker *broker, const struct session *session, uint32_t table, uint64_t item,
                        uint64_t key, rp_status status, const char *text, uint32_t more);
void journal_session_end_(struct broker *broker, const struct session *session);
/* Entries up to so many bytes that follow go into one record: after a crash all of them are there, or none. */
void journal_together_(struct broker *broker, size_t bytes);
/* The same for all up to a large one, in a record that has begun: what is sent before that one waits for it, too. */
void journal_begin_(struct broker *broker);
/* parameters and requests */
void journal_slot_(struct broker *broker, struct slot *slot);
void journal_counter_(struct broker *broker, const struct counter *counter);
void journal_reply_(struct broker *broker, uint64_t client, uint64_t id, const void *frame, size_t size);

/* journal_x(broker, ...) is journal_x_(...) if the journal is on. */
#define JOURNAL(broker, call)                                                                                          \
    do {                                                                                                               \
        if (__builtin_expect(journal_is_on(broker), 0))                                                                \
            call;                                                                                                      \
    } while (0)

#endif
