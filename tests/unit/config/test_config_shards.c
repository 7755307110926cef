/* Shards by configuration: what each takes of the whole, where it listens, what all have in common, and what is refused. */

#include <sys/stat.h>

#include "broker/config/config.h"
#include "tests/support/tempdir.h"
#include "tests/support/testpeer.h"

#define TABLES                                                                                                         \
    "tables:\n"                                                                                                        \
    "  - {name: r, max_size: 1001, max_bytes: 10485761, limiter: {kind: sample_to_insert_ratio, samples_per_insert: "  \
    "2, "                                                                                                              \
    "min_size: 10, error_buffer: 100}}\n"                                                                              \
    "  - {name: d, max_size: 8, limiter: {kind: sample_to_insert_ratio, samples_per_insert: 1, min_size: 1, "          \
    "min_diff: -40}}\n"                                                                                                \
    "  - {name: q, max_size: 9, max_times_sampled: 1, sampler: {kind: fifo}, limiter: {kind: queue}}\n"

static void load(const char *yaml)
{
    assert_string_equal(embed_problems(yaml), "");
}

/* Reads a configuration and becomes one of its shards, as the parent of several processes says, or the file. */
static void become_of(const char *yaml, int shard)
{
    load(yaml);
    embed_config.shard = shard;
    ok(config_become_shard(&embed_config, &err));
}

static void become(const char *keys, int shard)
{
    become_of(textf("%s" TABLES, keys), shard);
}

TEST(a_shard_takes_its_part)
{
    become("shards: 4\nmemory_limit: 1GiB\nfolder: /tmp/j\njournal_max: 10MiB\nstorage: {memory: 8MiB}\n", 0);
    const struct table_config *tables = embed_config.tables.data;
    assert_int_equal(embed_config.memory_limit, INT64_C(256) << 20);
    assert_int_equal(embed_config.journal_max, (INT64_C(10) << 20) / 4);
    assert_int_equal(embed_config.storage_memory, INT64_C(2) << 20);
    assert_string_equal(embed_config.folder, "/tmp/j/shard-0");
    assert_int_equal(tables[0].max_size, 251);
    assert_int_equal(tables[0].max_bytes, (INT64_C(10) << 20) / 4 + 1);
    assert_true(tables[0].limiter.min_size == 3 && tables[0].limiter.error_buffer == 25);
    assert_true(tables[1].limiter.min_diff == -10 && tables[1].limiter.max_diff == 1e18);
    assert_true(tables[2].max_size == 3);
}

/* Otherwise a table over many shards would need more items than the file says, or hold more. */
TEST(the_parts_of_a_table_add_up)
{
    double sums[2] = {0};
    int64_t sizes[3] = {0}, bytes = 0;
    for (int shard = 0; shard < 4; shard++) {
        become("shards: 4\n", shard);
        const struct table_config *tables = embed_config.tables.data;
        assert_in_range((uint64_t)tables[0].limiter.min_size, 2, 3);
        sums[0] += tables[0].limiter.min_size;
        sums[1] += tables[1].limiter.min_size;
        bytes += tables[0].max_bytes;
        for (int i = 0; i < 3; i++)
            sizes[i] += tables[i].max_size;
    }
    assert_true(sums[0] == 10 && sums[1] == 1);
    assert_true(sizes[0] == 1001 && sizes[1] == 8 && sizes[2] == 9 && bytes == (10 << 20) + 1);
}

/* Whole groups; the parts add up to the batch. */
TEST(the_parts_of_a_batch_add_up)
{
    static const char *const groups[] = {"", "group: {size: 4, incomplete: drop}, "};
    static const double parts[2][3] = {{10, 9, 9}, {12, 8, 8}};
    for (int i = 0; i < 2; i++)
        for (int shard = 0; shard < 3; shard++) {
            become_of(textf("shards: 3\ntables: [{name: a, sampler: fifo, max_times_sampled: 1, max_lag: 0, %slimiter: "
                            "{kind: lag, batch: 28}}]\n",
                            groups[i]),
                      shard);
            const struct table_config *tables = embed_config.tables.data;
            assert_true(tables[0].limiter.batch == parts[i][shard] && tables[0].limiter.whole == 28);
        }
}

TEST(a_broker_alone_stays_as_it_is)
{
    static const char *const alone[] = {"", "shards: 1\n", "shards: [tcp://127.0.0.1:1]\n"};
    for (uint32_t i = 0; i < 3; i++) {
        become(alone[i], i == 2 ? 0 : -1);
        assert_int_equal(config_shards(&embed_config), 1);
        assert_int_equal(((const struct table_config *)embed_config.tables.data)->max_size, 1001);
        assert_int_equal(embed_config.settings, 0);
        assert_string_equal(embed_config.service, i == 2 ? "tcp://127.0.0.1:1" : "tcp://127.0.0.1:7600");
    }
}

TEST(each_shard_listens_somewhere_else)
{
    static const struct {
        const char *keys;
        int shard;
        const char *service, *ingest, *events, *http;
    } rows[] = {
        {"shards: 3\nhttp: 127.0.0.1:9000\n", 2, "tcp://127.0.0.1:7606", "tcp://127.0.0.1:7607", "tcp://127.0.0.1:7608",
         "127.0.0.1:9002"},
        {"shards: 3\nhttp: 127.0.0.1:0\nservice: tcp://127.0.0.1:0\ningest: ipc:///tmp/i\nevents: tcp://*:0\n", 1,
         "tcp://127.0.0.1:0", "ipc:///tmp/i-1", "tcp://*:0", "127.0.0.1:0"},
        {"shards: 3\ningest: ipc:///tmp/i\n", 0, "tcp://127.0.0.1:7600", "ipc:///tmp/i", "tcp://127.0.0.1:7602", ""},
        {"shards: [tcp://127.0.0.1:7700, tcp://10.0.0.7:7700]\n", 1, "tcp://10.0.0.7:7700", "tcp://10.0.0.7:0",
         "tcp://10.0.0.7:0", ""},
        /* libzmq binds no names. */
        {"shards: [tcp://localhost:7700, tcp://broker.lab:7700]\n", 0, "tcp://127.0.0.1:7700", "tcp://127.0.0.1:0",
         "tcp://127.0.0.1:0", ""},
        {"shards: [tcp://localhost:7700, tcp://broker.lab:7700]\n", 1, "tcp://*:7700", "tcp://*:0", "tcp://*:0", ""},
        {"shards: ['tcp://[::1]:7700', ipc:///tmp/s]\nevents: tcp://127.0.0.1:5\n", 0, "tcp://[::1]:7700",
         "tcp://[::1]:0", "tcp://127.0.0.1:5", ""},
        {"shards: ['tcp://[::1]:7700', ipc:///tmp/s]\n", 1, "ipc:///tmp/s", "tcp://127.0.0.1:0", "tcp://127.0.0.1:0",
         ""},
        {"shards: [tcp://a:7700, tcp://b:7700]\nservice: tcp://*:7700\n", 1, "tcp://*:7700", "tcp://*:0", "tcp://*:0",
         ""},
    };
    for (uint32_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        become(rows[i].keys, rows[i].shard);
        assert_string_equal(embed_config.service, rows[i].service);
        assert_string_equal(embed_config.ingest, rows[i].ingest);
        assert_string_equal(embed_config.events, rows[i].events);
        assert_string_equal(embed_config.http, rows[i].http);
    }
    load("shards: [tcp://a:1, tcp://b:1]\ntables: [{name: a}]\n");
    assert_int_equal(config_become_shard(&embed_config, &err), RP_INVALID_ARGUMENT); /* which of them is it? */
}

static uint64_t settings(const char *keys, int shard)
{
    become(keys, shard);
    return embed_config.settings;
}

TEST(the_hash_covers_tables_and_count_alone)
{
    uint64_t one = settings("shards: 4\n", 0);
    assert_true(one != 0);
    assert_true(one == settings("shards: 4\nservice: tcp://*:1\nfolder: /tmp/x\nseed: 5\n", 3));
    assert_true(one == settings("shards: [tcp://a:1, tcp://b:1, tcp://c:1, tcp://d:1]\n", 2));
    assert_true(one != settings("shards: 3\n", 0));
    static const char *const tables[] = {"max_size: 100", "max_size: 101", "limiter: {kind: none}",
                                         "sampler: {kind: prioritized}", "metadata: x"};
    uint64_t hashes[5];
    for (uint32_t i = 0; i < 5; i++) {
        become_of(textf("shards: 2\ntables: [{name: a, %s}]\n", tables[i]), 0);
        hashes[i] = embed_config.settings;
        for (uint32_t k = 0; k < i; k++)
            assert_true(hashes[i] != hashes[k]);
    }
}

TEST(what_shards_cannot_do_is_refused)
{
    static const struct {
        const char *yaml, *place;
    } rows[] = {
        {"shards: 256\ntables: [{name: a}]\n", ":1:9: shards: "},
        {"shards: 0\ntables: [{name: a}]\n", ":1:9: shards: "},
        {"shards: []\ntables: [{name: a}]\n", "shards: "},
        {"shards: -1\ntables: [{name: a}]\n", ":1:9: shards: "},
        {"shards: ['', tcp://b:1]\ntables: [{name: a}]\n", "shards[0]: "},
        {"shards: many\ntables: [{name: a}]\n", ":1:9: shards: "},
        {"shards: 2\nshard: 2\ntables: [{name: a}]\n", ":2:8: shard: "},
        {"shard: 1\ntables: [{name: a}]\n", ":1:8: shard: "},
        {"shards: 2\nshard: 1\ntables: [{name: a}]\n", ":2:8: shard: "}, /* it would be alone, and not know it */
        {"shards: [tcp://a:1, tcp://b]\ntables: [{name: a}]\n", ":1:21: shards[1]: "},
        {"shards: [tcp://a:1, tcp://b:0]\ntables: [{name: a}]\n", ":1:21: shards[1]: "},
        {"shards: [tcp://a:1, tcp://a:1]\ntables: [{name: a}]\n", ":1:21: shards[1]: "},
        {"shards: 2\nservice: inproc://a\ntables: [{name: a}]\n", ":2:10: service: "},
        {"shards: 200\nservice: tcp://127.0.0.1:65000\ntables: [{name: a}]\n", ":2:10: service: "},
        {"shards: 9\nhttp: 127.0.0.1:65530\ntables: [{name: a}]\n", ":2:7: http: "},
        {"shards: 2\ningest: tcp://127.0.0.1:7603\ntables: [{name: a}]\n", ":2:9: ingest: "},
        {"shards: 4\nhttp: 127.0.0.1:7598\ntables: [{name: a}]\n", ":2:7: http: "},
        {"shards: 8\nmemory_limit: 4MiB\ntables: [{name: a}]\n", ":2:15: memory_limit: "},
        {"shards: 2\ntables: [{name: a, sampler: lifo}]\n", "tables[0].sampler: "},
        {"shards: 2\ntables: [{name: a, sampler: max_heap}]\n", "tables[0].sampler: "},
        {"shards: 2\ntables: [{name: a, sampler: fifo}]\n", "tables[0].sampler: "},
        {"shards: 2\ntables: [{name: a, sampler: fifo, max_times_sampled: 1}]\n", "tables[0].sampler: "},
        {"shards: 4\ntables: [{name: a, max_size: 3}]\n", "tables[0]: "},
        {"shards: 4\ntables: [{name: a, max_bytes: 3}]\n", "tables[0]: "},
        {"shards: 2\ntables: [{name: a, sampler: min_heap}]\n", "tables[0].sampler: "},
        {"shards: 4\ntables: [{name: a, max_size: 3, limiter: {kind: queue}}]\n", "tables[0]: "},
        {"shards: 2\ntables: [{name: a, limiter: {kind: stack}}]\n", "tables[0].limiter: "},
        {"shards: 2\ntables: [{name: a, sampler: fifo, max_lag: 1, limiter: {kind: lag, batch: 4}}]\n",
         "tables[0].sampler: "},
        {"shards: 4\ntables: [{name: a, max_lag: 1, limiter: {kind: lag, batch: 3}}]\n", "tables[0].limiter: "},
        {"shards: 2\ntables: [{name: a, max_lag: 1, group: {size: 4, incomplete: drop}, limiter: {kind: lag, batch: "
         "4}}]\n",
         "tables[0].limiter: "},
        {"shards: 2\ntables: [{name: a, max_lag: 1, max_times_sampled: 1, limiter: {kind: lag, batch: 4, min_size: "
         "2}}]\n",
         "tables[0].limiter: "},
        {"shards: 4\ntables: [{name: a, limiter: {kind: sample_to_insert_ratio, samples_per_insert: 8, min_size: 100, "
         "error_buffer: 31}}]\n",
         "tables[0].limiter: "},
    };
    for (uint32_t i = 0; i < sizeof rows / sizeof rows[0]; i++)
        assert_has(embed_problems(rows[i].yaml), rows[i].place);
    load("shards: 3\nhttp: 127.0.0.1:7597\ningest: ipc:///tmp/i:7600\nevents: tcp://*:7609\ntables: [{name: a}]\n");
    load("shards: 4\ntables: [{name: a, remover: min_heap, limiter: {kind: sample_to_insert_ratio, samples_per_insert: "
         "8, "
         "min_size: 100, error_buffer: 32}}]\n");
}

/* One shard that others can reach makes all of them use keys. */
TEST(one_open_shard_is_enough_for_keys)
{
    for (int shard = 0; shard < 2; shard++) {
        become("shards: [tcp://127.0.0.1:7700, tcp://10.0.0.7:7700]\n", shard);
        assert_true(config_uses_curve(&embed_config));
        become("shards: [tcp://127.0.0.1:7700, ipc:///tmp/s]\n", shard);
        assert_false(config_uses_curve(&embed_config));
    }
}

TEST(a_count_and_a_list_read_back)
{
    static const char *const values[] = {"7", "[\"tcp://a:1\", \"tcp://b:1\"]"};
    for (uint32_t i = 0; i < 2; i++) {
        load(textf("shards: %s\ntables: [{name: a}]\n", values[i]));
        const char *text = PRINTED(schema_print(&broker_schema, &embed_config, printing));
        assert_has(text, textf("\nshards: %s\n", values[i]));
        load(text);
        assert_int_equal(config_shards(&embed_config), i ? 2 : 7);
        assert_true((config_shard_endpoint(&embed_config, 1) != NULL) == (i == 1));
    }
}

/* Keys begin with the number of the shard, clients learn of the others, and items with keys of another shard are refused. */
EMBED_TEST(a_broker_is_one_of_its_shards, "  - {name: t, max_size: 100}\n",
           "shards: [tcp://127.0.0.1:1, ipc:///tmp/b, tcp://127.0.0.1:3, tcp://127.0.0.1:4]\nshard: 3\n")
{
    struct testpeer *writer = testpeer_opened(embed, false);
    assert_int_equal(wire_key_shard(writer->key_base), 3);
    Replay__Hello hello = REPLAY__HELLO__INIT;
    TESTPEER_REQUEST(request, HELLO, hello, &hello);
    const Replay__HelloReply *reply = testpeer_call(writer, &request)->reply->hello;
    assert_int_equal(reply->shard, 3);
    assert_int_equal(reply->n_shards, 4);
    assert_string_equal(reply->shards[1], "ipc:///tmp/b");
    assert_true(reply->settings != 0);
    uint32_t layout = testpeer_plain(writer, "t");
    uint64_t own = writer->key_base, keys[] = {own + 1, 7, own + 2, UINT64_C(2) << 56 | 9};
    for (uint32_t i = 0; i < 4; i++) {
        const void *blocks[] = {&keys[i]};
        testpeer_item(writer, layout, keys[i], 1, testpeer_chunk(writer, 1, blocks, false), 0, 1);
    }
    testpeer_push(writer);
    testpeer_heartbeat(writer, 0, false);
    const struct table *table = embed_table(embed, "t");
    assert_int_equal(table->in.size, 2);
    assert_int_equal(testpeer_resolved(writer, 0), 4);
    assert_int_equal(table->stats.rejected, 2);
    assert_int_equal(embed->broker->tables.ordinals.at[writer->ordinal].items, 2);
    assert_int_equal(testpeer_delete(writer, "t", 4, keys)->reply->change->applied, 2);
    assert_int_equal(embed->broker->tables.ordinals.at[writer->ordinal].items, 0);
}

/* A field that is 0 takes no byte: the reply of a broker alone is what it was before there were shards. */
EMBED_TEST(a_broker_alone_says_nothing_of_shards, "  - {name: t, max_size: 100}\n", NULL)
{
    struct testpeer *peer = testpeer_opened(embed, false);
    assert_int_equal(wire_key_shard(peer->key_base), 0);
    Replay__Hello hello = REPLAY__HELLO__INIT;
    TESTPEER_REQUEST(request, HELLO, hello, &hello);
    const Replay__HelloReply *reply = testpeer_call(peer, &request)->reply->hello;
    assert_true(reply->shard == 0 && reply->n_shards == 0 && reply->settings == 0);
    /* And it takes any key. */
    testpeer_insert(peer, "t", UINT64_C(5) << 56, 2, 1);
    testpeer_heartbeat(peer, 0, false);
    assert_int_equal(embed_table(embed, "t")->in.size, 2);
}

/* With a configured seed a run is repeatable, and its shards do not draw the same numbers all the same. */
TEST(shards_draw_different_numbers)
{
    uint64_t seeds[3];
    for (int i = 0; i < 3; i++) {
        struct embed embed;
        embed_start(&embed, "  - {name: t, max_size: 100}\n",
                    textf("seed: 5\nshards: [ipc:///tmp/a, ipc:///tmp/b]\nshard: %d\n", i % 2));
        seeds[i] = embed_table(&embed, "t")->seed;
        embed_stop(&embed);
    }
    assert_true(seeds[0] != seeds[1] && seeds[0] == seeds[2]);
}

static rp_status folder_at(const char *keys, const char *folder)
{
    load(textf("%s" TABLES, keys));
    return config_check_folder(&embed_config, tempdir_at(folder), NULL);
}

static rp_status folder_of(const char *keys)
{
    return folder_at(keys, "tables");
}

/* An item stays with its shard: another number of shards would leave tables behind without a word. */
TEST(tables_of_other_shards_are_refused, tempdir_enter, tempdir_leave)
{
    assert_int_equal(folder_of("shards: 2\n"), RP_OK); /* nothing is there yet */
    assert_int_equal(mkdir(tempdir_at("tables"), 0755), 0);
    file_put(tempdir_at("tables/checkpoint-00000001.replay"), "");
    assert_int_equal(folder_of("shards: 1\n"), RP_OK);
    assert_int_equal(folder_of("shards: 2\n"), RP_FAILED_PRECONDITION);
    assert_int_equal(remove(tempdir_at("tables/checkpoint-00000001.replay")), 0);
    assert_int_equal(mkdir(tempdir_at("tables/shard-0"), 0755), 0);
    assert_int_equal(mkdir(tempdir_at("tables/shard-1"), 0755), 0);
    assert_int_equal(folder_of("shards: 3\n"), RP_OK); /* shards have started, and written nothing */
    file_put(tempdir_at("tables/shard-1/segment-00000001.replay"), "");
    assert_int_equal(folder_of("shards: 2\n"), RP_OK);
    assert_int_equal(folder_of("shards: 1\n"), RP_FAILED_PRECONDITION);
    assert_int_equal(folder_of("shards: 3\n"), RP_FAILED_PRECONDITION);
    assert_int_equal(folder_of("shards: 3\ncheckpoint: {load: none}\n"), RP_OK);
    /* A start that fails before all shards have written is one of all shards. */
    load("shards: 3\n" TABLES);
    config_make_parts(&embed_config, tempdir_at("new/tables"));
    file_put(tempdir_at("new/tables/shard-0/segment-00000001.replay"), "");
    assert_int_equal(folder_at("shards: 3\n", "new/tables"), RP_OK);
    assert_int_equal(folder_at("shards: 2\n", "new/tables"), RP_FAILED_PRECONDITION);
    /* A listed broker may be the first of several. Data of more shards, or of none, would be left behind. */
    static const char *const lists[] = {"shards: [ipc://a]\n", "shards: [ipc://a, ipc://b]\nshard: 1\n",
                                        "shards: [ipc://a, ipc://b, ipc://c]\nshard: 1\n"};
    assert_int_equal(folder_of(lists[2]), RP_OK);
    assert_int_equal(folder_of(lists[1]), RP_OK);
    assert_int_equal(folder_of(lists[0]), RP_FAILED_PRECONDITION);
    assert_int_equal(folder_at(lists[2], "new/tables"), RP_OK);
    assert_int_equal(folder_at(lists[1], "new/tables"), RP_FAILED_PRECONDITION);
    file_put(tempdir_at("tables/checkpoint-00000001.replay"), "");
    assert_int_equal(folder_of(lists[2]), RP_FAILED_PRECONDITION);
}
