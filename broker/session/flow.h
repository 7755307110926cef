/* Flows: the items of one session for one table, the credit that lets a writer send them, and the pump that serves those that wait.
 *
 * An item that its table does not take at once waits in the flow's queue, behind its predecessors: items of a flow are
 * resolved (inserted or rejected) in the order in which they came. Flows with a queue form a ring at their table. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "broker/table/table.h"
#include "proto/base/arena.h"
#include "replay.pb-c.h"

struct session;

/* An ingest message with items that wait. Its bytes are returned as credit when the last of these items is resolved. */
struct ingest_message {
    uint64_t bytes;
    int64_t arrived_ns;
    uint32_t waiting; /* items */
};

/* An item in the queue of a flow. A rejected item (its status is not RP_OK) waits, too: rejections are reported in order. */
struct pending_item {
    struct arrival arrival;
    struct ingest_message *message;
    char *text; /* of the rejection */
    rp_status status;
    uint32_t more; /* further items that were rejected in the same way, and are only counted */
};

/* Numbers are running totals. */
struct flow {
    struct session *session;
    struct table *table;
    uint64_t arrived;  /* number of the last item that came */
    uint64_t resolved; /* inserted or rejected */
    uint64_t rejected;
    uint64_t allowed;
    bool jumps;                 /* messages were lost for good: item numbers may continue at a later number */
    uint32_t episode;           /* of the last item inserted, plus 1 */
    uint64_t resets;            /* of the table, at that time */
    uint64_t told_resolved;     /* resolved, as of the last notice */
    uint64_t window;            /* items that may be unresolved */
    struct pending_item *queue; /* ring */
    uint32_t head, count, capacity;
    int64_t blocked_ns;       /* since when its first item waits */
    int64_t stopped_ns;       /* since when items of it wait, without a break */
    struct flow *prev, *next; /* in the table's ring of blocked flows */
};

/* Adds to the trace how long items of the flow have waited for their table, without a break. */
void flow_trace(const struct flow *self);
/* Appends an item to the queue. */
void flow_push(struct flow *self, const struct pending_item *item);
/* Counts a rejected item with the last item of the queue, if that is rejected as well. False: it is not. */
bool flow_merge_rejection(struct flow *self);
/* Drops the queue, in slices. */
void flow_drop(struct flow *self);
/* Inserts the flow's next item into its table. */
rp_status flow_insert(struct flow *self, struct arrival *arrival, rp_error *err);
/* Returns how many items of a session are neither inserted nor rejected. */
uint64_t flows_unresolved(const struct session *session);

/* ---- the pump: matches waiting inserts and waiting samples with what the limiter of their table allows ---- */

/* Serves the tables that were marked (table_mark). True: more could be done. */
bool pump_run(struct tables *tables);
/* Marks tables whose inserts waited for room that is there now. True: some tables were. */
bool pump_wake(struct tables *tables);
/* Writes what the first waiting insert of a table waits for: limiter, disk or memory. Empty: for nothing. */
void pump_explain_insert(const struct table *table, char *text, size_t size);

/* A table's limiter as the protocol and the files describe it: settings, counters, and what inserts and samples wait for. */
struct limiter_info {
    Replay__LimiterInfo body; /* points into this struct */
    char inserts_wait[256], samples_wait[256];
};
void limiter_info(const struct table *table, struct limiter_info *out);

/* ---- credit: how much a session may send ---- */

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
/* The session has news: they are sent at the end of a turn when they are worth a notice, or in this turn if urgent. */
void credit_mark(struct session *self, bool urgent);

/* ---- rejections ---- */

#define REJECTED_NOWHERE UINT32_MAX /* the item did not get as far as a table */
#define REJECTIONS_KEPT 8192u       /* of one session */
struct rejection {
    uint32_t table; /* or REJECTED_NOWHERE */
    rp_status status;
    uint64_t item, key;
    char *text;
};

/* Rejects the flow's next item; text is copied. */
void credit_reject(struct flow *flow, uint64_t key, rp_status status, const char *text);
/* Rejects an item that belongs to no flow: an unknown layout or table, a damaged message. The text is copied. */
void credit_reject_at(struct session *self, const struct rejection *rejection);
/* Keeps a copy of a rejection until the writer has read it, unless there are too many. */
void credit_keep_rejection(struct session *self, const struct rejection *rejection);
/* The writer has read rejections up to this running count. */
void credit_confirm(struct session *self, uint64_t confirmed);

/* ---- the Credit message ---- */

/* Returns a Credit message. explain: with a sentence for each table that holds items back. */
Replay__Credit *credit_message(struct arena *arena, struct session *session, bool explain);
