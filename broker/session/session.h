/* Sessions: one writer each, with its stream of numbered messages, its chunks, and its credit.
 *
 * A session is open until BYE or silence. Silence leaves a tombstone: the numbers and layouts, without chunks and waiting
 * items, so that the writer can take it up again and nothing is inserted twice. The rules are in PROTOCOL.md. */
#ifndef BROKER_SESSION_H
#define BROKER_SESSION_H

#include "broker/loop/idmap.h"
#include "broker/loop/timer.h"
#include "broker/peer/peer.h"
#include "broker/peer/wait.h"
#include "broker/store/layout.h"
#include "broker/table/ordinals.h"
#include "broker/table/table.h"
#include "proto/base/log.h"
#include "proto/wire/wire.h"

struct broker;
struct session;

/* A layout as a writer registered it; refused ones are kept with the reason, for the rejection of items that use them. */
struct session_layout {
    struct layout *layout;
    struct table *table;
    char *refusal;
    void *form; /* of a refused one: the message as it came, for checkpoints */
    uint32_t form_size;
};

/* A chunk that was refused, and why: for the rejection of items that refer to it. */
#define REFUSALS_KEPT 16u
struct refusal {
    uint64_t number;
    rp_error error; /* RP_OK: not used yet */
};

struct session {
    struct session *prev, *next; /* all */
    struct session *next_dirty;
    bool dirty, urgent; /* has something to tell; at once */
    int64_t told_ns;    /* when it last was told */
    uint8_t id[WIRE_SESSION_BYTES];
    uint32_t ordinal;
    struct key_range keys;
    uint64_t serial; /* later sessions have higher ones */
    char name[64];
    struct columns *columns;
    struct envelope to;
    bool notices, tombstone;
    bool restored; /* comes from a file, and was not taken up since */
    /* stream */
    uint32_t epoch;
    uint64_t received;
    uint64_t counted; /* messages up to this number are in received_bytes: a resend counts once */
    bool gap;
    bool rebase;         /* the next message says where the ring starts */
    struct chunk **ring; /* chunk `number` at number & mask */
    uint32_t ring_mask;
    uint64_t oldest_chunk, newest_chunk; /* numbers in [oldest, newest] may be in the ring */
    uint64_t chunk_bytes;
    struct refusal *refusals; /* ring of the last chunks refused; NULL until there is one */
    uint32_t next_refusal;
    struct session_layout *layouts; /* by the writer's id */
    uint32_t n_layouts;
    uint64_t layout_bytes; /* of the interned ones */
    /* credit */
    struct flow **flows; /* per table; NULL until used */
    uint32_t n_tables;
    uint64_t received_bytes, returned_bytes, told_returned;
    uint64_t allowed_bytes;  /* most that it was ever promised: what goes beyond is rejected. Survives a restart */
    uint64_t offered_bytes;  /* what it may send in this epoch; offered - returned counts against the budget */
    uint64_t released_bytes; /* credit that it gave up in this epoch */
    uint64_t keep_bytes;     /* unused credit that it may keep; 0: all of it */
    uint64_t window_bytes;   /* bytes that may be unresolved */
    uint64_t measured_bytes; /* received_bytes at measured_ns */
    int64_t measured_ns;
    bool writing;                 /* used its credit lately: counts in broker.n_writing */
    uint64_t items;               /* all that arrived, for their mean size */
    struct rejection *rejections; /* ring of unconfirmed ones */
    uint32_t rejection_head, rejection_count, rejection_capacity;
    uint64_t confirmed_rejections; /* running count before the ring's first */
    uint64_t journaled;            /* a hash of the numbers that were last written: see journal_progress_ */
    /* life */
    int64_t seen_ns;
    struct timer timer; /* expiry, then the end of the tombstone */
    struct bye *bye;
};

/* All sessions of a broker. */
struct sessions {
    struct idmap by_id; /* by the first half of the id */
    struct session *list;
    uint32_t n_open;
    uint32_t n_writing;   /* open ones that used their credit lately */
    uint64_t next_serial; /* they are listed by it */
    struct session *dirty;
    uint64_t kept_bytes;    /* sum over sessions of chunk_bytes */
    uint64_t granted_bytes; /* sum over sessions of offered - returned */
    uint64_t ingest_budget; /* most of granted_bytes */
    bool ingest_idle;       /* the ingest socket was found empty in this turn */
    uint64_t ingest_stale, ingest_gaps;
    struct log_limit ingest_log, session_log, credit_log, reject_log;
};

/* Finds an open session or a tombstone. NULL: unknown. */
struct session *session_find(struct broker *broker, const uint8_t *id);
/* A new session, with its first credit. NULL with err set. */
struct session *session_open(struct broker *broker, const char *name, struct columns *columns, rp_error *err);
/* One that comes from a file, as a tombstone: the caller fills in its numbers. Takes the columns. NULL with err set. */
struct session *session_restore(struct broker *broker, const uint8_t *id, const char *name, uint32_t ordinal,
                                struct key_range keys, struct columns *columns, rp_error *err);
/* Takes an open session or a tombstone up again. */
rp_status session_resume(struct broker *broker, struct session *self, uint64_t oldest_number, uint64_t *lost);
/* Forgets it: waiting items are dropped, chunks let go, in slices. */
void session_close(struct broker *broker, struct session *self);
void sessions_fini(struct broker *broker);
static inline void session_touch(struct session *self, int64_t now_ns)
{
    self->seen_ns = now_ns;
}

/* The flow to a table, made when first used. NULL: no memory. */
struct flow *session_flow(struct session *self, struct table *table);
/* Everything up to the last number is resolved. */
bool session_is_settled(const struct session *self);
uint64_t session_unresolved(const struct session *self);

/* chunks */
struct chunk *session_chunk(const struct session *self, uint64_t number);
rp_status session_keep_chunk(struct session *self, struct broker *broker, uint64_t number, struct chunk *chunk,
                             rp_error *err);
/* No later item refers to chunks before this one. At most so many numbers are passed over now, the rest later. */
void session_drop_chunks(struct session *self, struct broker *broker, uint64_t oldest, uint32_t most);

/* service/req_session.c: answers a BYE if it is due; answers it with an error because the session ends. */
struct bye;
void bye_check(struct broker *broker, struct session *self);
void bye_cancel(struct broker *broker, struct bye *bye);

#endif
