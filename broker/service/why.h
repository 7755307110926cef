/* Why something stands still, in sentences: the one place that makes the list which the why request and snapshots show. */
#ifndef BROKER_WHY_H
#define BROKER_WHY_H

#include <stdbool.h>
#include <stdint.h>

struct service;

/* What waits, at which table or "", and for what. Texts last as long as the call, and may quote what clients sent. */
struct why_line {
    const char *who, *kind, *table, *text;
    uint64_t count, got;
    int64_t since_ns;
    double rate;     /* "network": bytes/s that arrive */
    bool all_shards; /* every shard tells of it */
};

/* False: no further lines are wanted. */
typedef bool why_fn(void *ctx, const struct why_line *line);

/* Calls fn for everything that waits: the journal, inserts, data on its way, requests, samplers that wait for
 * all shards; then for evictions that samplers may wait because of. */
void why_each(const struct service *service, why_fn *fn, void *ctx);

#endif
