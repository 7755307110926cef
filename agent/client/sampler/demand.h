/* A sampler that asks for nothing ahead: one request inside each call, decoded on the caller's thread. When a call has
 * returned, no request is in flight. */
#ifndef AGENT_CLIENT_DEMAND_H
#define AGENT_CLIENT_DEMAND_H

#include "agent/client/sampler/sample_source.h"

struct demand;

/* The options were checked. Borrows conn. NULL: no memory. */
struct demand *demand_new(struct conn *conn, const char *table, const rp_sampler_options *options);
void demand_destroy(struct demand **self);
/* See rp_sampler_next. */
rp_status demand_next(struct demand *self, rp_batch **batch, int64_t timeout_ms, rp_error *err);
struct sample_source *demand_source(struct demand *self);

#endif
