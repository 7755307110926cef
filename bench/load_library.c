/* The same loads through libreplay: what a program that uses the library gets. */
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <time.h>
#include <unistd.h>

#include "bench/bench.h"
#include "proto/base/rng.h"
#include "replay/replay.h"

/* Idle writers of one client, and how much each writes before it is idle: enough for its window to grow. */
#define IDLE_WRITERS 100u
#define IDLE_BURST 100u
#define IDLE_ROUNDS 4u
/* Items between two reads of the writer's totals. */
#define LOOK_EVERY 1000u
/* Steps of an episode, with shards: an episode goes to one of them. */
#define EPISODE_STEPS 200u

static rp_client *connect_client(struct load *load)
{
    rp_error err = {0};
    rp_client *client = rp_client_connect(load->service, NULL, 30000, &err);
    if (!client)
        load_fail(load, "libreplay: %s", err.text);
    return client;
}

static rp_writer *open_writer(struct load *load, rp_client *client)
{
    rp_error err = {0};
    rp_column column = {"x", RP_DTYPE_UINT8, RP_CODEC_RAW, 1, {(uint32_t)load->options->size}};
    rp_writer_options options = {.struct_size = sizeof options, .batch_items = load->options->per_message};
    rp_writer *writer = rp_writer_new(client, &column, 1, &options, 30000, &err);
    if (!writer)
        load_fail(load, "libreplay: %s", err.text);
    return writer;
}

static void write_item(struct load *load, rp_writer *writer, struct rng *rng)
{
    rp_error err = {0};
    struct raw_store *store = &load->store;
    uint64_t size = load->options->size;
    if (store->at + size > store->size)
        store->at = 0;
    const void *row = store->data + store->at;
    store->at += size;
    if (rp_writer_append(writer, &row, 30000, &err) != RP_OK ||
        rp_writer_item_last(writer, LOAD_TABLE, 0.01 + rng_unit(rng), 1, 30000, NULL, &err) != RP_OK)
        load_fail(load, "libreplay: %s", err.text);
}

static void end_episode(struct load *load, rp_writer *writer)
{
    rp_error err = {0};
    if (load->options->shards > 1 && rp_writer_end_episode(writer, RP_END_GO, 30000, &err) != RP_OK)
        load_fail(load, "libreplay: %s", err.text);
}

void load_library_insert(void *ctx)
{
    struct load *load = ctx;
    uint32_t k = load->connections;
    rp_writer **writers = calloc(k, sizeof(*writers));
    uint64_t *seen = calloc(k, sizeof *seen);
    for (uint32_t i = 0; i < k; i++)
        writers[i] = open_writer(load, connect_client(load));
    struct rng rng;
    rng_seed(&rng, 1);
    lane_set_state(load->lane, LANE_READY);
    for (uint32_t i = 0;; i = (i + 1) % k) {
        for (uint32_t n = 0; n < (load->options->shards > 1 ? EPISODE_STEPS : LOOK_EVERY / k + 1); n++)
            write_item(load, writers[i], &rng);
        end_episode(load, writers[i]);
        rp_writer_info info = {.struct_size = sizeof info};
        rp_error err = {0};
        if (rp_writer_get_info(writers[i], &info, &err) != RP_OK || info.rejected)
            load_fail(load, "libreplay: %s", info.rejected ? "items were rejected" : err.text);
        lane_add(load->lane, info.accepted - seen[i]);
        seen[i] = info.accepted;
    }
}

static void write_burst(struct load *load, rp_writer *writer, struct rng *rng)
{
    rp_error err = {0};
    for (uint32_t i = 0; i < IDLE_BURST; i++)
        write_item(load, writer, rng);
    if (rp_writer_flush(writer, 0, 30000, &err) != RP_OK)
        load_fail(load, "libreplay: %s", err.text);
}

void load_library_idle(void *ctx)
{
    struct load *load = ctx;
    uint32_t k = load->connections;
    struct rlimit limit;
    if (getrlimit(RLIMIT_NOFILE, &limit) == 0) {
        limit.rlim_cur = limit.rlim_max; /* a socket for each */
        setrlimit(RLIMIT_NOFILE, &limit);
    }
    rp_writer **writers = calloc(k, sizeof(*writers));
    rp_client *client = NULL;
    struct rng rng;
    rng_seed(&rng, 1);
    for (uint32_t i = 0; i < k; i++) {
        if (i % IDLE_WRITERS == 0)
            client = connect_client(load);
        writers[i] = open_writer(load, client);
    }
    for (uint32_t round = 0; round < IDLE_ROUNDS; round++)
        for (uint32_t i = 0; i < k; i++)
            write_burst(load, writers[i], &rng);
    lane_set_state(load->lane, LANE_READY);
    for (;;)
        pause();
}

static rp_sampler *open_sampler(struct load *load, rp_client *client)
{
    rp_error err = {0};
    rp_sampler_options options = {.struct_size = sizeof options};
    options.batch_size = load->options->batch;
    options.in_flight = load->options->in_flight;
    options.beta = 0.4;
    rp_sampler *sampler = rp_sampler_new(client, LOAD_TABLE, &options, &err);
    if (!sampler)
        load_fail(load, "libreplay: %s", err.text);
    return sampler;
}

static rp_updater *open_updater(struct load *load, rp_client *client)
{
    rp_error err = {0};
    rp_updater_options options = {
        .struct_size = sizeof options, .batch = load->options->batch, .in_flight = load->options->in_flight};
    rp_updater *updater = rp_updater_new(client, LOAD_TABLE, &options, &err);
    if (!updater)
        load_fail(load, "libreplay: %s", err.text);
    return updater;
}

static void sample_loop(struct load *load, bool update)
{
    uint32_t k = load->connections, batch_size = load->options->batch;
    rp_sampler **samplers = calloc(k, sizeof(*samplers));
    rp_updater **updaters = calloc(k, sizeof(*updaters));
    double *priorities = calloc(batch_size, sizeof *priorities);
    struct rng rng;
    rng_seed(&rng, 1);
    for (uint32_t i = 0; i < k; i++) {
        rp_client *client = connect_client(load);
        samplers[i] = open_sampler(load, client);
        updaters[i] = update ? open_updater(load, client) : NULL;
    }
    lane_set_state(load->lane, LANE_READY);
    for (uint32_t i = 0;; i = (i + 1) % k) {
        rp_error err = {0};
        rp_batch *batch;
        if (rp_sampler_next(samplers[i], &batch, 30000, &err) != RP_OK)
            load_fail(load, "libreplay: %s", err.text);
        rp_batch_arrays arrays = {.struct_size = sizeof arrays};
        rp_batch_get_arrays(batch, &arrays);
        for (uint32_t n = 0; update && n < arrays.n; n++)
            priorities[n] = 0.01 + rng_unit(&rng);
        if (update && rp_updater_add(updaters[i], arrays.key, priorities, arrays.n, 30000, NULL, &err) != RP_OK)
            load_fail(load, "libreplay: %s", err.text);
        lane_add(load->lane, arrays.n);
        if (update)
            atomic_fetch_add_explicit(&load->lane->updates, arrays.n, memory_order_relaxed);
        rp_batch_release(&batch);
    }
}

void load_library_sample(void *ctx)
{
    sample_loop(ctx, false);
}

void load_library_sample_update(void *ctx)
{
    sample_loop(ctx, true);
}

/* Updates count when they are handed to the updater: at most in_flight requests are not answered yet. */
void load_library_update(void *ctx)
{
    struct load *load = ctx;
    uint32_t k = load->connections, n = load->options->batch;
    rp_updater **updaters = calloc(k, sizeof(*updaters));
    for (uint32_t i = 0; i < k; i++)
        updaters[i] = open_updater(load, connect_client(load));
    uint64_t *keys = calloc(n, sizeof *keys);
    double *priorities = calloc(n, sizeof *priorities);
    struct rng rng;
    rng_seed(&rng, 7);
    lane_set_state(load->lane, LANE_READY);
    for (uint32_t i = 0;; i = (i + 1) % k) {
        for (uint32_t j = 0; j < n; j++) {
            keys[j] = load->first_key + rng_below(&rng, load->n_keys);
            priorities[j] = 0.01 + rng_unit(&rng);
        }
        rp_error err = {0};
        if (rp_updater_add(updaters[i], keys, priorities, n, 30000, NULL, &err) != RP_OK)
            load_fail(load, "libreplay: %s", err.text);
        lane_add(load->lane, n);
    }
}
