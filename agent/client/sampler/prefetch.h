/* A sampler that keeps requests in flight and decodes their replies on a thread of its own, so that the next batch is ready
 * when the caller wants it. See prefetch.c for the threads and their states. */
#ifndef AGENT_CLIENT_PREFETCH_H
#define AGENT_CLIENT_PREFETCH_H

#include "agent/client/sampler/sample_source.h"

#define PREFETCH_MAX_IN_FLIGHT 1024u

struct prefetch;

/* Starts sampling. The options were checked. Borrows conn. NULL: no memory, or no thread. */
struct prefetch *prefetch_new(struct conn *conn, const char *table, const rp_sampler_options *options);
void prefetch_destroy(struct prefetch **self);
/* See rp_sampler_next. */
rp_status prefetch_next(struct prefetch *self, rp_batch **batch, int64_t timeout_ms, rp_error *err);
/* See rp_sampler_stop. */
void prefetch_stop(struct prefetch *self);
struct sample_source *prefetch_source(struct prefetch *self);
void prefetch_get_stats(struct prefetch *self, rp_sampler_stats *out);

#endif
