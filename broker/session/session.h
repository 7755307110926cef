/* Sessions: one writer each, with its stream of numbered messages, its chunks, and its credit.
 *
 * The room owns what is on its way in: sessions, the chunks that they keep for later items, and the items that wait for
 * their table (flow.h). It offers the way in (ingest.c), credit for writers, and the pump that serves waiting inserts and samples
 * (flow.h). It uses the loop, the store, tables, peers and samples.
 *
 * A session is open until BYE or silence. Silence leaves a tombstone: the numbers and layouts, without chunks and waiting
 * items, so that the writer can resume it and nothing is inserted twice. The rules are in PROTOCOL.md. */
#pragma once

#include <sys/queue.h>

#include "broker/loop/histogram.h"
#include "broker/loop/idmap.h"
#include "broker/loop/loop.h"
#include "broker/peer/peer.h"
#include "broker/session/flow.h"
#include "broker/store/layout.h"
#include "broker/table/ordinals.h"
#include "proto/base/log.h"
#include "proto/wire/wire.h"

struct broker_config;
struct chunk;
struct goodbye;
struct identity;
struct loop;
struct peers;
struct request;
struct store;

/* A layout as a writer registered it. A refused layout is kept with the reason, for the rejection of items that use it. */
struct session_layout {
    struct layout *layout;
    struct table *table;
    char *refusal;
    void *packed; /* of a refused layout: the Layout message as it came, for checkpoints */
    uint32_t packed_size;
};

/* A chunk that was refused, and why: for the rejection of items that refer to it. */
#define REFUSALS_KEPT 16u
/* Most unconfirmed items of a session in one table, and bytes: several milliseconds of the fastest writers, so that they never wait
 * for a notice. */
#define WINDOW_ITEMS 20000u
#define WINDOW_BYTES (UINT64_C(64) << 20)
struct refusal {
    uint64_t number;
    rp_error error; /* RP_OK: not used yet */
};

/* Transit: whether the network holds a writer back.
 *
 * The broker sees what arrives, and the writer says in its heartbeats how long it waits and how long its messages take. If the writer
 * waits although nothing of it waits here, its data is on its way: that is the network, unless the broker is too busy to read. A
 * writer of this machine has no network between. */
struct transit {
    int64_t at_ns;                /* time of the last measurement */
    uint64_t waited_ns;           /* as the writer stated it then */
    uint64_t bytes;               /* that had arrived by then */
    int64_t since_ns;             /* since when the network holds the writer back; 0: it does not */
    uint32_t misses;              /* measurements in a row that did not say so */
    double share;                 /* of the time for which the writer waited */
    double rate;                  /* bytes/s that arrived */
    uint64_t flight_ns, messages; /* duration of a message's way and its confirmation; messages on their way */
};

/* Memory of a writer on this host, mapped read-only: its messages say where chunks lie in it. Their writer may change it at any time,
 * so what lies there is copied first and checked after that. */
struct borrowed {
    const uint8_t *data; /* NULL: none */
    uint64_t size, nonce;
};

/* What a heartbeat says. Untrusted: any numbers. */
struct transit_report {
    uint64_t sent; /* number of the last message sent */
    uint64_t waited_ns, flight_ns;
};

struct session {
    struct sessions *sessions;
    LIST_ENTRY(session) link; /* in the list of all */
    LIST_ENTRY(session) news; /* in the list of those that have some */
    bool dirty, urgent;       /* has news for its writer; to be sent in this turn */
    int64_t told_ns;          /* time of the last notice */
    uint8_t id[WIRE_SESSION_BYTES];
    uint32_t ordinal;
    struct key_range keys;
    uint64_t serial;        /* higher for later sessions */
    char name[64];          /* from the client: logs quote it */
    struct identity *owner; /* who opened it: nobody else may feed, resume or end it */
    struct columns *columns;
    struct envelope to;
    bool notices, tombstone;
    bool remote;   /* its writer is on another machine */
    bool restored; /* comes from a file, and was not resumed since */
    struct borrowed borrowed;
    /* stream */
    uint32_t epoch;
    uint64_t received;   /* number of the last message taken */
    uint64_t counted;    /* messages up to this number are in received_bytes: a resend counts once */
    bool gap;            /* messages are missing: nothing is taken until HELLO */
    bool rebase;         /* the next message says where the ring starts */
    struct chunk **ring; /* chunk `number` at number & mask */
    uint32_t ring_mask;
    uint64_t oldest_chunk, newest_chunk; /* numbers in [oldest, newest] may be in the ring */
    uint64_t chunk_bytes;
    struct refusal *refusals; /* ring of the last chunks refused; NULL until there is one */
    uint32_t next_refusal;
    struct session_layout *layouts; /* by the writer's id */
    uint32_t n_layouts;
    uint64_t layout_bytes; /* of all layouts as they are kept */
    /* credit */
    struct flow *flows; /* per table */
    uint32_t n_tables;
    uint64_t received_bytes, returned_bytes, told_returned;
    uint64_t allowed_bytes;  /* highest promise ever made: bytes beyond it are rejected. Survives a restart */
    uint64_t offered_bytes;  /* that it may send in this epoch; offered - returned counts against the budget */
    uint64_t released_bytes; /* of credit that the client has released in this epoch */
    uint64_t keep_bytes;     /* of unused credit that it may keep; 0: all of it */
    uint64_t window_bytes;   /* bytes that may be unresolved */
    uint64_t measured_bytes; /* received_bytes at measured_ns */
    int64_t measured_ns;
    bool writing;                 /* used its credit lately: counts in n_writing */
    uint64_t items;               /* that arrived, for their mean size */
    struct rejection *rejections; /* ring of rejections that the writer has not confirmed */
    uint32_t rejection_head, rejection_count, rejection_capacity;
    uint64_t confirmed_rejections; /* running count before the ring's first */
    uint64_t journaled;            /* hash of the numbers that the journal last recorded */
    struct transit transit;
    /* life */
    int64_t seen_ns;         /* time of the last sign of life */
    struct timer timer;      /* expiry, then the end of the tombstone */
    struct goodbye *goodbye; /* a BYE that waits, or NULL */
};

/* Who a session in a file was. */
struct session_origin {
    const uint8_t *id;
    const char *name;
    uint32_t ordinal;
    struct key_range keys;
};

/* All sessions of a broker. */
struct sessions {
    struct loop *loop;
    const struct broker_config *config;
    struct store *store;
    struct layouts *layouts;
    struct tables *tables;
    struct peers *peers;
    struct idmap by_id; /* by the first half of the id */
    LIST_HEAD(session_list, session) list;
    uint32_t n_open;
    uint32_t n_writing;                     /* open sessions that used their credit lately */
    uint32_t n_borrowed;                    /* sessions whose memory is mapped */
    uint64_t next_serial;                   /* the list is ordered by it */
    LIST_HEAD(session_news, session) dirty; /* sessions with news */
    uint64_t kept_bytes;                    /* sum over sessions of chunk_bytes */
    uint64_t granted_bytes;                 /* sum over sessions of offered - returned */
    uint64_t ingest_budget;                 /* most of granted_bytes */
    bool ingest_idle;                       /* the ingest socket was found empty in this turn */
    bool ingest_held;                       /* no message is read until the disk keeps up */
    bool ingest_stuck;                      /* that has lasted so long that writers hear of it */
    uint64_t ingest_stale, ingest_gaps;
    struct session *walk;         /* next session of a walk over several turns: snapshots */
    uint64_t inserted;            /* items of the newest message that are in their tables; 0: already measured */
    struct histogram insert;      /* nanoseconds from the arrival of a message until an item of it is in its table */
    struct histogram insert_wait; /* the same, of items that did not go in at once */
    struct log_limit ingest_log, session_log, credit_log, reject_log;
};

/* Notes how long the items took that the newest message has put into tables. */
static inline void sessions_measure(struct sessions *self, int64_t took_ns)
{
    histogram_add_ns(&self->insert, took_ns, self->inserted);
    self->inserted = 0;
}
/* Closes all sessions. */
void sessions_fini(struct sessions *self);
/* Finds an open session or a tombstone. NULL: unknown. */
struct session *session_find(struct sessions *sessions, const uint8_t *id);
/* Opens a session of its owner with its first credit. Takes the columns if it succeeds. NULL with err set. */
struct session *session_open(struct sessions *sessions, const char *name, struct columns *columns,
                             struct identity *owner, rp_error *err);
/* Gives a session to another owner. */
void session_set_owner(struct session *self, struct identity *owner);
/* RP_PERMISSION_DENIED: the session belongs to somebody else. */
rp_status session_check_owner(const struct session *self, const struct identity *who, rp_error *err);
/* Makes a tombstone of a session that comes from a file: the caller fills in its numbers. Takes the columns if it
 * succeeds. NULL with err set. */
struct session *session_restore(struct sessions *sessions, const struct session_origin *origin, struct columns *columns,
                                rp_error *err);
/* Resumes an open session or a tombstone. oldest_number: of the messages that the writer can still send. *lost: messages
 * before it that never arrived. */
void session_resume(struct session *self, uint64_t oldest_number, uint64_t *lost);
/* Maps the memory that the writer offers in its HELLO, instead of what was mapped before; offer may be NULL. What cannot be had (another
 * host, another user) is no error: data comes by the socket then. */
void session_borrow(struct session *self, const Replay__Arena *offer);
/* Ends a session: drops waiting items and releases chunks, in slices. */
void session_close(struct session *self);
static inline void session_touch(struct session *self, int64_t now_ns)
{
    self->seen_ns = now_ns;
}

/* Returns the flow to a table. */
static inline struct flow *session_flow(struct session *self, const struct table *table)
{
    return &self->flows[table->id];
}
/* Lets a BYE wait until message last_number and all items are resolved, then answers it and closes the session. */
rp_status session_say_goodbye(struct session *session, struct request *request, uint64_t last_number,
                              uint64_t timeout_ms, rp_error *err);
/* Sends the notices of credit that are due. */
void sessions_notify(struct sessions *sessions);

/* ---- chunks that a session keeps for later items ---- */

/* Returns the chunk of a number. NULL: it is not kept. */
static inline struct chunk *session_chunk(const struct session *self, uint64_t number)
{
    if (number < self->oldest_chunk || number > self->newest_chunk)
        return NULL;
    return self->ring[number & self->ring_mask];
}
/* Keeps a chunk for later items; takes the reference on RP_OK. */
rp_status session_keep_chunk(struct session *self, uint64_t number, struct chunk *chunk, rp_error *err);
/* Releases chunks before `oldest`: no later item refers to them. At most `most` numbers now, the rest later. */
void session_drop_chunks(struct session *self, uint64_t oldest, uint32_t most);

/* ---- transit ---- */

/* At a heartbeat: measures, if the last measurement is old enough. */
void transit_measure(struct session *session, const struct transit_report *report);
/* True if the network holds the writer back, and the writer still says so. */
bool transit_holds(const struct session *session);
/* Writes a sentence without its full stop. */
void transit_explain(const struct session *session, char *out, unsigned size);

/* ---- the way in (ingest.c) ---- */

/* Reads a message from the ingest socket, and turns it into chunks in the store and items in tables, or items that wait for their
 * table. False: there was none. */
bool ingest_receive(struct sessions *sessions);
/* Registers a layout; data is the message that `wire` was unpacked from. */
void intake_register(struct session *session, const Replay__Layout *wire, const void *data, size_t size);
