/* Batches that are larger than a client may leave unread: they wait for one another, and none fails. Frame stacks in chunks of
 * different lengths, raw and compressed; samplers one after another and two at once; one broker and shards. */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "proto/base/rng.h"
#include "replay/client.h"
#include "replay/sampler.h"
#include "replay/writer.h"
#include "tests/support/shardbed.h"
#include "tests/support/test.h"

#define FRAME 2048u
#define STEPS 5u
#define BATCH 128u /* a batch has 1.3 MB of rows, and the broker lets 1 MiB be unread */
#define ITEMS 300u

static const char tables[] = "  - {name: t, max_size: 100000, sampler: {kind: uniform}}\n";
static const char more[] = "peer_backlog_bytes: 1MiB\n";

/* A frame says its number in every fourth byte; the rest is noise, or zeros that compress. */
static void draw(struct rng *rng, uint32_t number, bool plain, uint32_t *frame)
{
    for (uint32_t i = 0; i < FRAME / 4; i++)
        frame[i] = (plain ? (uint32_t)rng_next(rng) << 16 : 0) | (number & 0xffff);
}

static void write_items(rp_client *client, uint32_t chunk_length, bool plain)
{
    rp_error err = {0};
    struct rng rng;
    rng_seed(&rng, chunk_length);
    const rp_column column = {.name = "frame", .dtype = RP_DTYPE_UINT8, .rank = 1, .shape = {FRAME}};
    rp_writer_options options = {
        .struct_size = sizeof options, .chunk_length = chunk_length, .keep_alive = chunk_length + STEPS};
    rp_writer *writer = must(rp_writer_new(client, &column, 1, &options, WAIT, &err), &err);
    for (uint32_t i = 0; i < ITEMS + STEPS - 1; i++) {
        uint32_t frame[FRAME / 4];
        const void *values[] = {frame};
        draw(&rng, i, plain, frame);
        ok(rp_writer_append(writer, values, WAIT, &err), &err);
        if (i + 1 >= STEPS)
            ok(rp_writer_item_last(writer, "t", 1, STEPS, WAIT, NULL, &err), &err);
    }
    ok(rp_writer_destroy(&writer, WAIT, &err), &err);
}

static void take(rp_sampler *sampler)
{
    rp_batch *batch = NULL;
    rp_error err = {0};
    ok(rp_sampler_next(sampler, &batch, WAIT, &err), &err);
    const rp_field_view *frame = rp_batch_find(batch, "frame");
    assert_int_equal(frame->shape[0], BATCH);
    assert_int_equal(frame->shape[1], STEPS);
    const uint8_t *data = frame->data;
    for (uint32_t i = 0; i < BATCH; i++) {
        uint16_t first = 0, last = 0;
        memcpy(&first, data + (size_t)i * STEPS * FRAME, 2);
        memcpy(&last, data + (size_t)(i + 1) * STEPS * FRAME - 4, 2);
        assert_int_equal(last, first + STEPS - 1);
    }
    rp_batch_release(&batch);
}

static void sample(rp_client *client)
{
    rp_error err = {0};
    rp_sampler_options options = {.struct_size = sizeof options, .batch_size = BATCH};
    for (int again = 0; again < 3; again++) {
        rp_sampler *one = must(rp_sampler_new(client, "t", &options, &err), &err);
        rp_sampler *two = again == 2 ? must(rp_sampler_new(client, "t", &options, &err), &err) : NULL;
        for (int i = 0; i < 4; i++) {
            take(one);
            if (two)
                take(two);
        }
        rp_sampler_destroy(&one); /* what it has asked for is still under way */
        if (two)
            rp_sampler_destroy(&two);
    }
}

static void write_and_sample(const char *service, uint32_t chunk_length, bool plain)
{
    rp_error err = {0};
    rp_client *client = must(rp_client_connect(service, NULL, WAIT, &err), &err);
    write_items(client, chunk_length, plain);
    sample(client);
    rp_client_destroy(&client);
}

static const uint32_t lengths[] = {1, 10, 20, 40};

TEST(one_broker)
{
    for (uint32_t i = 0; i < 16; i++) {
        struct broker_process broker;
        broker_process_start(&broker, tables, more);
        setenv("REPLAY_SHM", i < 8 ? "0" : "1", 1); /* by the socket, and from the broker's memory */
        write_and_sample(broker.service, lengths[i / 2 % 4], i % 2);
        broker_process_fini(&broker);
    }
    unsetenv("REPLAY_SHM");
}

TEST(shards)
{
    for (uint32_t i = 0; i < 4; i++) {
        struct shardbed bed;
        shardbed_start(&bed, 2, tables, more);
        write_and_sample(bed.services[0], lengths[i], i % 2);
        shardbed_stop(&bed);
    }
}
