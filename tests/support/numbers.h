/* Items that are a number each, written and sampled with the client library. What does not work fails the test. */
#pragma once

#include "tests/support/scoped.h"

/* Returns a writer of one column, "number". */
rp_writer *numbers_writer(rp_client *client);
/* Appends a step and makes it an item. */
rp_status numbers_try(rp_writer *writer, const char *table, int32_t number, double priority, int64_t timeout_ms,
                      uint64_t *key, rp_error *error);
/* The same; returns the item's key. */
uint64_t numbers_write(rp_writer *writer, const char *table, int32_t number, double priority);
/* Inserts first, first + 1 ... with a writer of its own, an episode each, and waits until they are in the table. Their
 * priorities are 1; their keys go to `keys` unless it is NULL. */
void numbers_insert(rp_client *client, const char *table, int32_t first, uint32_t n, uint64_t *keys);
/* Numbers of the items of a batch. */
const int32_t *numbers_of(const rp_batch *batch);

rp_batch_info info_of_batch(const rp_batch *batch);
rp_batch_arrays arrays_of(const rp_batch *batch);
rp_sampler_stats stats_of(rp_sampler *sampler);
/* Takes a batch. */
rp_batch *batch_next(rp_sampler *sampler);
/* Takes so many batches, and returns the number of items. */
uint32_t batches_pass(rp_sampler *sampler, uint32_t n);
