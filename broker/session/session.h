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

/* An ingest message some of whose items wait: its bytes are given back as credit when the last is resolved. */
struct inbound {
    uint64_t bytes;
    uint32_t waiting;
};

/* An item that has arrived and waits for its table; or, with a status, for the rejection of its predecessors' kind to be
 * told in order. */
struct pending {
    struct arrival arrival;
    struct inbound *inbound;
    char *text;
    rp_status status;
    uint32_t more; /* further items with the same fate, which were not kept one by one */
};

/* The items of one session for one table. Numbers are running totals. */
struct flow {
    struct session *session;
    struct table *table;
    uint64_t arrived;  /* number of the last item that came */
    uint64_t resolved; /* in the table, or rejected */
    uint64_t rejected;
    uint64_t allowed;
    bool jumps;             /* messages were lost for good: item numbers may go on at a later one */
    uint32_t episode;       /* of the last item inserted, plus 1 */
    uint64_t told_resolved; /* as of the last notice */
    uint64_t window;        /* items that may be unresolved */
    struct pending *queue;  /* ring */
    uint32_t head, count, capacity;
    int64_t blocked_ns;       /* since when its first item waits */
    struct flow *prev, *next; /* in the table's ring of blocked flows */
};

/* A layout as a writer registered it; refused ones are kept with the reason, for the rejection of items that use them. */
struct session_layout {
    struct layout *layout;
    struct table *table;
    char *refusal;
    void *form; /* of a refused one: the message as it came, for checkpoints */
    uint32_t form_size;
};

/* table is REJECTED_NOWHERE if the item did not get as far as a table. */
#define REJECTED_NOWHERE UINT32_MAX
#define REJECTIONS_KEPT 8192u /* of one session: image.c, too, keeps no more */
struct rejection {
    uint32_t table;
    rp_status status;
    uint64_t item, key;
    char *text;
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

/* req_bye.c: answers a BYE if it is due; or that the session has ended. */
struct bye;
void bye_check(struct broker *broker, struct session *self);
void bye_cancel(struct broker *broker, struct bye *bye);

/* credit_grant.c */
void credit_open(struct broker *broker, struct session *self);
/* Raises what the session may send, as far as the budget allows. */
void credit_refresh(struct broker *broker, struct session *self);
/* Adds to what the session may send, whatever the budget. */
void credit_offer(struct broker *broker, struct session *self, uint64_t bytes);
/* Credit.allowed_bytes: never falls within an epoch. */
uint64_t credit_allowed(const struct session *self);
/* New bytes have arrived: the session counts among those that write. */
void credit_use(struct broker *broker, struct session *self);
/* At a heartbeat: finds out how much of its credit the session uses, and how much it may keep. */
void credit_measure(struct broker *broker, struct session *self);
/* At a heartbeat: the running total of credit that the client has given up in this epoch. */
void credit_release(struct broker *broker, struct session *self, uint64_t released);
void credit_return(struct broker *broker, struct session *self, uint64_t bytes);
void credit_close(struct broker *broker, struct session *self);

/* credit.c */
/* The session has something to tell: at the end of the turn, or at once. */
void credit_mark(struct broker *broker, struct session *self, bool urgent);
/* Sends notices that are due. */
void credit_notify(struct broker *broker);
/* Records a rejection of the flow's next item; text is copied. */
void credit_reject(struct broker *broker, struct flow *flow, uint64_t key, rp_status status, const char *text);
/* The same for what belongs to no flow: an unknown layout or table, a damaged message. */
void credit_reject_at(struct broker *broker, struct session *self, uint32_t table, uint64_t item, uint64_t key,
                      rp_status status, const char *text);
/* Makes room for one more rejection. False: no memory. */
bool credit_reserve(struct session *self);
/* Keeps a rejection until the writer has read it. False: no memory, or there are too many. */
bool credit_keep_rejection(struct session *self, uint32_t table, uint64_t item, uint64_t key, rp_status status,
                           const char *text);
void credit_confirm(struct session *self, uint64_t confirmed);
/* Fills a Credit message from an arena that the caller frees by credit_message_fini. */
struct credit_message;
struct credit_message *credit_message_new(struct broker *broker, struct session *self, bool explain);
const ProtobufCMessage *credit_message_body(const struct credit_message *self);
void credit_message_destroy(struct credit_message **self);

/* ingest.c */
bool ingest_receive(struct broker *broker);

/* pump.c: matches what waits with what the limiter allows. False: no memory, and nothing has changed. */
bool flow_push(struct flow *flow, const struct pending *pending);
/* Counts an item with its predecessor if that is rejected as well. False: it is not. */
bool flow_merge_rejection(struct flow *flow);
void flow_drop(struct broker *broker, struct flow *flow);
/* table_insert of the flow's next item. */
rp_status flow_insert(struct flow *flow, const struct arrival *arrival, rp_error *err);
/* One item of the flow is resolved (inserted, or rejected by credit_reject before). */
void flow_resolved(struct broker *broker, struct flow *flow, struct inbound *inbound);
void pump_mark(struct table *table);
/* A clause about what the first waiting insert of a table waits for: limiter, disk or memory. Empty: for nothing. */
void pump_explain_insert(const struct table *table, char *text, size_t size);
/* True: more could be done. */
bool pump_run(struct broker *broker);

#endif
