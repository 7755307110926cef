/* Flow: the items of one session for one table.
 *
 * An item that its table does not take at once waits in the flow's queue, behind its predecessors: items of a flow are
 * resolved (inserted or rejected) in the order in which they came. Flows with a queue form a ring at their table. */
#ifndef BROKER_FLOW_H
#define BROKER_FLOW_H

#include <stdbool.h>
#include <stdint.h>

#include "broker/table/table.h"

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
/* Appends an item to the queue. False: no memory, and nothing has changed. */
bool flow_push(struct flow *self, const struct pending_item *item);
/* Counts a rejected item with the last item of the queue, if that is rejected as well. False: it is not. */
bool flow_merge_rejection(struct flow *self);
/* Drops the queue, in slices. */
void flow_drop(struct flow *self);
/* Inserts the flow's next item into its table. */
rp_status flow_insert(struct flow *self, struct arrival *arrival, rp_error *err);
/* Inserts or rejects the first item of the queue. False: no memory, and the item keeps waiting. */
bool flow_resolve_first(struct flow *self);

#endif
