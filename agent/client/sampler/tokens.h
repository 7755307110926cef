/* Batches that are filled by steps instead of items.
 *
 * Batches of a sampler go in, in the order in which they came; packed batches of at most so many steps come out. Items keep their order,
 * and each comes out once. Used by the caller's thread alone. */
#pragma once

#include "agent/client/sampler/batch.h"

struct tokens;

/* Reads tokens, beta, max_bytes, in_flight and memory of the options. unit: items of a group, or 1. NULL: no memory. */
struct tokens *tokens_new(const rp_sampler_options *options, uint32_t unit);
void tokens_destroy(struct tokens **self);
/* Adds the items of a packed batch, which is taken in any case. */
rp_status tokens_add(struct tokens *self, rp_batch **batch, rp_error *err);
/* True if the next batch is complete: no further item would fit. */
bool tokens_full(const struct tokens *self);
/* True if there are no items. */
bool tokens_empty(const struct tokens *self);
/* Gives the next batch, which is partial if it is not complete. There must be items. After an error they are still there. */
rp_status tokens_take(struct tokens *self, rp_batch **out, rp_error *err);
