/* The broker's configuration: defaults, every mistake at once with its place, and what is printed reads back. */

#include "broker/config/config.h"
#include "proto/base/clock.h"
#include "tests/support/embed.h"

TEST(defaults_are_those_of_the_reference)
{
    assert_string_equal(embed_problems("tables: [{name: a}]\n"), "");
    assert_string_equal(embed_config.service, "tcp://127.0.0.1:7600");
    assert_int_equal(embed_config.memory_limit, INT64_C(4) << 30);
    assert_int_equal(config_ingest_budget(&embed_config), INT64_C(512) << 20);
    assert_int_equal(embed_config.expiry_ns, 30 * NS_PER_S);
    assert_int_equal(embed_config.tables.count, 1);
    const struct table_config *table = embed_config.tables.data;
    assert_int_equal(table->max_size, 1000000);
    assert_string_equal(table->sampler.kind, "uniform");
    assert_string_equal(table->remover.kind, "fifo");
    assert_int_equal(table->limiter.kind, LIMITER_MIN_SIZE);
    assert_string_equal(embed_problems(broker_default_yaml), "");
}

/* A broker without keys that can be reached does not start, and says where. */
TEST(the_open_endpoint_is_named)
{
    static const char *const open[] = {"service: tcp://*:1", "ingest: tcp://10.0.0.5:2", "events: tcp://0.0.0.0:3",
                                       "http: 0.0.0.0:4", "shards: [tcp://10.0.0.6:7600, tcp://127.0.0.1:7610]"};
    static const char *const named[] = {"service: tcp://*:1", "ingest: tcp://10.0.0.5:2", "events: tcp://0.0.0.0:3",
                                        "http: 0.0.0.0:4", "shards: tcp://10.0.0.6:7600"};
    for (size_t i = 0; i < sizeof open / sizeof *open; i++) {
        assert_string_equal(embed_problems(textf("%s\ntables: [{name: a}]\n", open[i])), "");
        err = (rp_error){0};
        assert_int_equal(config_check_keys(&embed_config, &err), RP_FAILED_PRECONDITION);
        assert_has(err.text, named[i]);
    }
}

/* A value of a key at the top, which is refused at its place, or not. */
static void check_value(const char *key, const char *value, bool right)
{
    const char *problems = embed_problems(textf("%s: %s\ntables: [{name: a}]\n", key, value));
    assert_int_equal(problems[0] == '\0', right);
    if (!right)
        assert_has(problems, textf(":1:%zu: %s: ", strlen(key) + 3, key));
}

TEST(hosts_and_endpoints_are_checked)
{
    static const char *const wrong_hosts[] = {"'tcp://a:1'", "'a:7600'", "'a b'"};
    static const char *const hosts[] = {"10.0.0.5", "broker.lab", "'[fe80::1]'", "''"};
    static const char *const wrong[] = {"host:7600",     "tcp://host",  "tcp://host:port", "tcp://:7600",
                                        "tcp://h:65536", "http://h:80", "'tcp://h:7600 '"};
    static const char *const right[] = {"tcp://host:7600",  "'tcp://*:0'",       "'tcp://eth0:*'",
                                        "ipc:///tmp/a.ipc", "inproc://anything", "'tcp://[::1]:7600'"};
    for (size_t i = 0; i < sizeof wrong_hosts / sizeof *wrong_hosts; i++)
        check_value("advertise", wrong_hosts[i], false);
    for (size_t i = 0; i < sizeof hosts / sizeof *hosts; i++)
        check_value("advertise", hosts[i], true);
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++)
        check_value("ingest", wrong[i], false);
    for (size_t i = 0; i < sizeof right / sizeof *right; i++)
        check_value("service", right[i], true);
}

/* Mistakes that concern several keys are found when every key by itself is right. */
TEST(keys_are_checked_against_each_other)
{
    static const char yaml[] = "storage: {memory: 5GiB}\n"                                         /* 1 */
                               "folder: a\ncheckpoint: {keep: 0}\n"                                /* 2 */
                               "tables:\n"                                                         /* 4 */
                               "  - name: a\n"                                                     /* 5 */
                               "    sampler: {kind: priritized}\n"                                 /* 6 */
                               "  - name: a\n"                                                     /* 7 */
                               "    limiter: {kind: min_size, min_size: 5000000}\n"                /* 8 */
                               "  - name: c\n"                                                     /* 9 */
                               "    limiter: {kind: none, batch: 2}\n"                             /* 10 */
                               "    signature: {x: float23, y: [int8, 2, 0]}\n"                    /* 11 */
                               "    remover: {kind: prioritized, exponnt: 1}\n"                    /* 12 */
                               "  - name: d\n"                                                     /* 13 */
                               "    limiter: {kind: sample_to_insert_ratio, error_buffer: 0.5}\n"; /* 14 */
    HAS(embed_problems(yaml), "test.yaml:1:", "at most memory_limit", "checkpoint.keep: a journal starts",
        "test.yaml:6:", "(did you mean 'prioritized'?)", "test.yaml:7:", "'a' is taken by tables[0]",
        "test.yaml:8:", "can never be reached", "test.yaml:10:", "kind: lag", "test.yaml:11:", "float23",
        "must be positive", "test.yaml:12:", "exponnt", "test.yaml:14:", "error_buffer 0.5 is too small");
}

TEST(a_table_of_dead_items_is_another_one)
{
    static const struct {
        const char *table, *problem;
    } rows[] = {
        {"max_times_sampled: 1, max_deliveries: 3, dead_table: dead", NULL},
        {"max_times_sampled: 1, max_deliveries: 3",
         "tables[0].max_deliveries: max_deliveries and dead_table belong together"},
        {"max_times_sampled: 1, dead_table: dead",
         "tables[0].dead_table: max_deliveries and dead_table belong together"},
        {"max_times_sampled: 1, max_deliveries: 3, dead_table: t", "tables[0].dead_table: must name another table"},
        {"max_times_sampled: 1, max_deliveries: 3, dead_table: ded", "'ded' is not one"},
        {"max_deliveries: 3, dead_table: dead", "write max_times_sampled: 1"},
    };
    for (uint32_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        const char *problems = embed_problems(textf("tables:\n  - {name: t, %s}\n  - {name: dead}\n", rows[i].table));
        assert_int_equal(problems[0] == '\0', !rows[i].problem);
        if (rows[i].problem)
            assert_has(problems, rows[i].problem);
    }
}

/* Reads n tables with metadata of so many bytes each. */
static const char *read_metadata(uint32_t n, size_t bytes)
{
    static char m[CONFIG_METADATA_MOST + 1];
    const char *yaml = "tables:\n";
    memset(m, 'm', sizeof m);
    for (uint32_t i = 0; i < n; i++)
        yaml = textf("%s  - {name: t%u, metadata: '%.*s'}\n", yaml, i, (int)bytes, m);
    const char *problems = embed_problems(yaml);
    if (!problems[0])
        assert_int_equal(strlen(((const struct table_config *)embed_config.tables.data)[0].metadata), bytes);
    return problems;
}

TEST(metadata_is_bounded)
{
    assert_string_equal(read_metadata(1, 0), "");
    assert_string_equal(read_metadata(1, CONFIG_METADATA_MOST), "");
    assert_has(read_metadata(1, CONFIG_METADATA_MOST + 1), "65537");
    assert_string_equal(read_metadata(15, CONFIG_METADATA_MOST), "");
    assert_has(read_metadata(16, CONFIG_METADATA_MOST), "1024 KiB"); /* the whole file */
}

TEST(what_is_printed_reads_back_to_the_same)
{
    static const char yaml[] =
        "service: ipc:///tmp/a b\nmemory_limit: 3GiB\nseed: 9\nlog: {level: warn}\nplugins: [./x.so, \"y: z.so\"]\n"
        "tables:\n  - name: 'odd: \"name\"'\n    max_times_sampled: 3\n    soft_capacity: true\n"
        "    sampler: {kind: prioritized, exponent: 0.6}\n"
        "    limiter: {kind: sample_to_insert_ratio, samples_per_insert: 2.5, min_size: 10, min_diff: -5, max_diff: "
        "1e9}\n"
        "    signature: {x: [float32, 0, 4]}\n"
        "    metadata: \"{'a': [1]}\\n\\x01 \\\"b\\\" # \\U0001F600\"\n"
        "    extensions: [{kind: statistics}, {kind: priority_diffusion, radius: 2}]\n  - name: b\n";
    assert_string_equal(embed_problems(yaml), "");
    const char *first = PRINTED(schema_print(&broker_schema, &embed_config, printing));
    assert_string_equal(embed_problems(first), "");
    assert_string_equal(first, PRINTED(schema_print(&broker_schema, &embed_config, printing)));
    const struct table_config *table = embed_config.tables.data;
    assert_string_equal(table->name, "odd: \"name\"");
    assert_string_equal(table->metadata, "{'a': [1]}\n\001 \"b\" # \xf0\x9f\x98\x80");
    assert_true(table->limiter.min_diff == -5.0);
    assert_int_equal(embed_config.plugins.count, 2);
}
