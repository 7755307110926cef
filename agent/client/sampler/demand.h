/* A sampler that asks for nothing ahead: one request inside each call, decoded on the caller's thread. When a call has
 * returned, nothing of it is under way. */
#ifndef AGENT_CLIENT_DEMAND_H
#define AGENT_CLIENT_DEMAND_H

#include "agent/client/batch/batch.h"
#include "agent/client/conn/conn.h"
#include "replay/sampler.h"

struct demand;

/* The options were checked. Borrows conn. NULL: no memory. */
struct demand *demand_new(struct conn *conn, const char *table, const rp_sampler_options *options);
void demand_destroy(struct demand **self);
/* rp_sampler_next. */
rp_status demand_next(struct demand *self, rp_batch **batch, int64_t timeout_ms, rp_error *err);
struct batch_pool *demand_pool(struct demand *self);
void demand_get_stats(const struct demand *self, rp_sampler_stats *out);

#endif
