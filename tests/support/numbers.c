#include "tests/support/numbers.h"

rp_writer *numbers_writer(rp_client *client)
{
    static const rp_column column = {.name = "number", .dtype = RP_DTYPE_INT32};
    return must(rp_writer_new(client, &column, 1, NULL, WAIT, &err));
}

rp_status numbers_try(rp_writer *writer, const char *table, int32_t number, double priority, int64_t timeout_ms,
                      uint64_t *key, rp_error *error)
{
    static const rp_slice slice = {.column = 0, .count = 1, .start = -1, .squeeze = 1};
    const void *value = &number;
    rp_status status = rp_writer_append(writer, &value, timeout_ms, error);
    return status == RP_OK ? rp_writer_item(writer, table, priority, &slice, 1, timeout_ms, key, error) : status;
}

uint64_t numbers_write(rp_writer *writer, const char *table, int32_t number, double priority)
{
    uint64_t key;
    ok(numbers_try(writer, table, number, priority, WAIT, &key, &err));
    return key;
}

void numbers_insert(rp_client *client, const char *table, int32_t first, uint32_t n, uint64_t *keys)
{
    SCOPED(rp_writer) writer = numbers_writer(client);
    for (uint32_t i = 0; i < n; i++) {
        uint64_t key = numbers_write(writer, table, first + (int32_t)i, 1);
        if (keys)
            keys[i] = key;
        ok(rp_writer_end_episode(writer, RP_END_GO, WAIT, &err));
    }
}

const int32_t *numbers_of(const rp_batch *batch)
{
    return rp_batch_find(batch, "number")->data;
}

rp_batch_info info_of_batch(const rp_batch *batch)
{
    rp_batch_info info = {.struct_size = sizeof info};
    assert_int_equal(rp_batch_get_info(batch, &info), RP_OK);
    return info;
}

rp_batch_arrays arrays_of(const rp_batch *batch)
{
    rp_batch_arrays arrays = {.struct_size = sizeof arrays};
    assert_int_equal(rp_batch_get_arrays(batch, &arrays), RP_OK);
    return arrays;
}

rp_sampler_stats stats_of(rp_sampler *sampler)
{
    rp_sampler_stats stats = {.struct_size = sizeof stats};
    assert_int_equal(rp_sampler_get_stats(sampler, &stats), RP_OK);
    return stats;
}

rp_batch *batch_next(rp_sampler *sampler)
{
    rp_batch *batch = NULL;
    ok(rp_sampler_next(sampler, &batch, WAIT, &err));
    assert_non_null(batch);
    return batch;
}

uint32_t batches_pass(rp_sampler *sampler, uint32_t n)
{
    uint32_t items = 0;
    for (uint32_t i = 0; i < n; i++) {
        SCOPED(rp_batch) batch = batch_next(sampler);
        items += info_of_batch(batch).n;
    }
    return items;
}
