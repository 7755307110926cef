/* A sampler over several parts: tables of several brokers, or the shards of one. It deals items of all parts out into batches, so
 * that the caller sees one table. See mixer_impl.h for how. */
#ifndef AGENT_CLIENT_MIXER_H
#define AGENT_CLIENT_MIXER_H

#include "agent/client/sampler/sample_source.h"

struct mixer;

/* Starts sampling. The options were checked. Borrows the clients. NULL with err set: no memory, no thread, or sources that do not go
 * together. */
struct mixer *mixer_new(const rp_source *sources, uint32_t n, const rp_sampler_options *options, rp_error *err);
void mixer_destroy(struct mixer **self);
/* See rp_sampler_next. */
rp_status mixer_next(struct mixer *self, rp_batch **batch, int64_t timeout_ms, rp_error *err);
/* See rp_sampler_stop. */
void mixer_stop(struct mixer *self);
void mixer_get_stats(struct mixer *self, rp_sampler_stats *out);
/* Returns the connection of the first part: all parts belong to one process. */
struct conn *mixer_conn(struct mixer *self);
struct batch_pool *mixer_pool(struct mixer *self);
uint32_t mixer_batch_size(const struct mixer *self);

#endif
