/* The loops of loops.py in C, on the same library: what the package is measured against. loops.py loads it with ctypes. */
#include <stdint.h>
#include <stdlib.h>
#include <time.h>

#include "replay/replay.h"

#define BENCH_WAIT_MS 30000

static double cpu_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
    return (double)now.tv_sec * 1e9 + (double)now.tv_nsec;
}

static double wall_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec * 1e9 + (double)now.tv_nsec;
}

RP_API rp_client *bench_connect(const char *endpoint);
RP_API rp_writer *bench_writer(rp_client *client);
RP_API double bench_write(rp_writer *writer, const char *table, uint32_t steps);
RP_API rp_sampler *bench_sampler(rp_client *client, const char *table, uint32_t batch_size);
RP_API double bench_sample(rp_sampler *sampler, uint32_t batches);

rp_client *bench_connect(const char *endpoint)
{
    return rp_client_connect(endpoint, NULL, BENCH_WAIT_MS, NULL);
}

rp_writer *bench_writer(rp_client *client)
{
    const rp_column columns[] = {
        {.name = "observation", .dtype = RP_DTYPE_FLOAT32, .codec = RP_CODEC_AUTO, .rank = 1, .shape = {4}},
        {.name = "action", .dtype = RP_DTYPE_INT32, .codec = RP_CODEC_AUTO},
        {.name = "reward", .dtype = RP_DTYPE_FLOAT32, .codec = RP_CODEC_AUTO},
    };
    rp_writer_options options = {.struct_size = sizeof options, .chunk_length = 64, .keep_alive = 128};
    return rp_writer_new(client, columns, 3, &options, BENCH_WAIT_MS, NULL);
}

/* CPU ns of this thread for each step with its item; negative: an error. The flush that follows is not counted. */
double bench_write(rp_writer *writer, const char *table, uint32_t steps)
{
    float observation[4] = {0}, reward = 1;
    int32_t action = 1;
    uint64_t key;
    const void *values[] = {observation, &action, &reward};
    rp_status status = rp_writer_append(writer, values, BENCH_WAIT_MS, NULL);
    double start = cpu_ns();
    for (uint32_t i = 0; i < steps && status == RP_OK; i++) {
        observation[0] = (float)i;
        status = rp_writer_append(writer, values, BENCH_WAIT_MS, NULL);
        if (status == RP_OK)
            status = rp_writer_item_last(writer, table, 1.0, 2, BENCH_WAIT_MS, &key, NULL);
    }
    double took = cpu_ns() - start;
    if (status == RP_OK)
        status = rp_writer_flush(writer, 0, BENCH_WAIT_MS, NULL);
    return status == RP_OK ? took / steps : -status;
}

rp_sampler *bench_sampler(rp_client *client, const char *table, uint32_t batch_size)
{
    rp_sampler_options options = {.struct_size = sizeof options};
    options.batch_size = batch_size;
    return rp_sampler_new(client, table, &options, NULL);
}

/* Wall ns for each batch; negative: an error. */
double bench_sample(rp_sampler *sampler, uint32_t batches)
{
    double start = wall_ns();
    for (uint32_t i = 0; i < batches; i++) {
        rp_batch *batch;
        rp_status status = rp_sampler_next(sampler, &batch, BENCH_WAIT_MS, NULL);
        if (status != RP_OK)
            return -status;
        rp_batch_arrays arrays = {.struct_size = sizeof arrays};
        rp_batch_get_arrays(batch, &arrays);
        rp_batch_release(&batch);
    }
    return (wall_ns() - start) / batches;
}
