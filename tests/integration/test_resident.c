/* memory_limit bounds the resident memory of a real broker, whatever the size of items and chunks. */

#include "tests/support/asked.h"
#include "tests/support/shardbed.h"

#define MIB (UINT64_C(1) << 20)
#define LIMIT (32 * MIB)

struct shape {
    const char *table;     /* what the configuration says besides its name */
    uint32_t floats;       /* of an item */
    uint32_t chunk_length; /* steps */
    uint32_t items;        /* to write: more than fit */
    uint32_t least;        /* that the table has at the end */
    uint32_t shards;
};

/* Returns the most that a shard has had while the table was filled. Memory of the writer that the broker reads is not its own. */
static uint64_t fill(rp_client *client, const struct shape *shape, const struct shardbed *set)
{
    uint64_t most = 0;
    float *row = calloc(shape->floats, sizeof *row);
    const void *values[] = {row};
    const rp_column column = {
        .name = "x", .dtype = RP_DTYPE_FLOAT32, .codec = RP_CODEC_RAW, .rank = 1, .shape = {shape->floats}};
    SCOPED(rp_writer) writer = WRITER(client, &column, 1, .chunk_length = shape->chunk_length);
    for (uint32_t i = 0; i < shape->items; i++) {
        assert_int_equal(rp_writer_append(writer, values, WAIT, &err), RP_OK);
        assert_int_equal(rp_writer_item_last(writer, "t", 1.0, 1, WAIT, NULL, &err), RP_OK);
        for (uint32_t k = 0; i % (shape->floats > 1000 ? 32 : 1024) == 31 && k < shape->shards; k++) {
            uint64_t bytes = process_memory(set->shards[k].pid, "RssAnon");
            most = bytes > most ? bytes : most;
        }
        if (i % 1024 == 1023) /* an episode goes to one shard */
            assert_int_equal(rp_writer_end_episode(writer, RP_END_GO, WAIT, &err), RP_OK);
    }
    free(row);
    return most;
}

static void check_bound(const struct shape *shape)
{
    struct shardbed set;
    shardbed_start(&set, shape->shards, textf("  - {name: t, limiter: {kind: none}, %s}\n", shape->table),
                   "memory_limit: 32MiB\n");
    rp_client *client = CONNECT(set.services[0]);
    uint64_t most = fill(client, shape, &set);
    rp_info *info = asked_info(client, NULL);
    uint64_t items = rp_info_u64(info, "tables.0.size"), counted = rp_info_u64(info, "server.memory_bytes");
    print_message("%u floats, chunks of %u, %u shards: %llu items, %.1f MiB counted, %.1f MiB resident at most\n",
                  shape->floats, shape->chunk_length, shape->shards, (unsigned long long)items,
                  (double)counted / (double)MIB, (double)most / (double)MIB);
    if (!*process_env("RP_SANITIZE")) /* a sanitizer's own memory is several times that */
        assert_true(most <= LIMIT / shape->shards * 11 / 10 + 16 * MIB);
    assert_true(counted <= LIMIT);
    assert_in_range(items, shape->least, shape->items - 1);
    rp_info_free(&info);
    rp_client_destroy(&client);
    shardbed_stop(&set);
}

TEST(resident_memory_is_bounded)
{
    static const struct shape shapes[] = {
        {"max_size: 50000000", 1, 256, 1000000, 200000, 1},
        {"max_size: 50000000, sampler: {kind: prioritized}, remover: {kind: uniform}", 6, 1, 400000, 80000, 1},
        {"max_size: 50000000", 100, 16, 120000, 30000, 1},
        {"max_size: 50000000, sampler: {kind: prioritized}", 10000, 1, 2000, 400, 1},
        {"max_size: 50000000", 100000, 1, 400, 40, 1},
        {"max_size: 50000000, sampler: {kind: prioritized}, remover: {kind: min_heap}", 1, 64, 600000, 150000, 2},
    };
    for (uint32_t i = 0; i < sizeof shapes / sizeof *shapes; i++)
        check_bound(&shapes[i]);
}
