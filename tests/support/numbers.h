/* Items that are a number each, written and sampled with the client library. What does not work fails the test. */
#ifndef TESTS_SUPPORT_NUMBERS_H
#define TESTS_SUPPORT_NUMBERS_H

#include "replay/client.h"
#include "replay/sampler.h"
#include "replay/writer.h"
#include "tests/support/test.h"

/* Returns a writer of one column, "number". */
rp_writer *numbers_writer(rp_client *client);
/* Appends a step and makes it an item. */
rp_status numbers_try(rp_writer *writer, const char *table, int32_t number, double priority, int64_t timeout_ms,
                      uint64_t *key, rp_error *error);
/* The same; returns the item's key. */
uint64_t numbers_write(rp_writer *writer, const char *table, int32_t number, double priority);
/* Numbers of the items of a batch. */
const int32_t *numbers_of(const rp_batch *batch);

rp_batch_info info_of_batch(const rp_batch *batch);
rp_batch_arrays arrays_of(const rp_batch *batch);
rp_sampler_stats stats_of(rp_sampler *sampler);
/* Takes a batch. */
rp_batch *batch_next(rp_sampler *sampler);
/* Takes so many batches, and returns the number of items. */
uint32_t batches_pass(rp_sampler *sampler, uint32_t n);

#endif
