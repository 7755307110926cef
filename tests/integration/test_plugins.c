/* Selectors and extensions from shared objects, in an embedded broker and in the real program. */

#include "tests/support/facts.h"
#include "tests/support/process.h"
#include "tests/support/testpeer.h"

#define TABLES                                                                                                         \
    "  - {name: t, max_size: 100, sampler: {kind: softmax, temperature: 0.5}, limiter: {kind: none}, "                 \
    "extensions: [{kind: sample_decay, factor: 0.5, after: 3, archive: often}]}\n"                                     \
    "  - {name: often, max_size: 100, sampler: {kind: fifo}, limiter: {kind: none}}\n"

static const char *plugins(void)
{
    const char *folder = process_env("RP_PLUGIN_DIR");
    return textf("plugins: [%s/selector_example.so, %s/extension_example.so]\n", folder, folder);
}

static double stat(const Replay__TableInfo *info, const char *name)
{
    for (size_t i = 0; i < info->n_stats; i++)
        if (strcmp(info->stats[i]->name, name) == 0)
            return info->stats[i]->value;
    fail_msg("no figure '%s'", name);
    return 0;
}

/* The same for an embedded broker and for one in its own process. */
static void exercise(struct testpeer *peer)
{
    testpeer_open(peer, false);
    testpeer_insert(peer, "t", 1, 1, 4);
    testpeer_insert(peer, "t", 2, 1, 0);
    testpeer_await_resolved(peer, 0, 2);
    struct testpeer_answer *answer = testpeer_sampled(peer, "t", 1);
    /* exp(4 / 0.5) against exp(0) */
    assert_int_equal(answer->reply->sample->key[0], 1);
    assert_true(fabs(answer->reply->sample->probability[0] - 1 / (1 + exp(-8))) < 1e-9);
    assert_true(answer->reply->sample->priority[0] == 4);
    answer = testpeer_fetch(peer, "t", 1, (const uint64_t[]){1});
    assert_true(answer->reply->sample->priority[0] == 2);
    testpeer_update(peer, "t", 1, (const uint64_t[]){1}, (const double[]){400});
    testpeer_sampled(peer, "t", 2);
    answer = testpeer_fetch(peer, "often", 1, (const uint64_t[]){1});
    assert_int_equal(answer->status, RP_OK);
    sampled_check(answer, 0);
    const Replay__TableInfo *info = testpeer_table_info(peer, "t");
    assert_string_equal(info->sampler, "softmax");
    assert_true(stat(info, "decay_inserted") == 2);
    assert_true(stat(info, "decay_lowered") == 3);
    assert_true(stat(info, "decay_archived") == 1);
    /* It has no pick_distinct. */
    answer = testpeer_await(peer, testpeer_sample(peer, "t", 2, 0, DISTINCT));
    assert_int_equal(answer->status, RP_UNSUPPORTED);
    assert_non_null(strstr(answer->text, "softmax"));
    testpeer_delete(peer, "t", 2, (const uint64_t[]){1, 2});
    assert_int_equal(testpeer_reset(peer, "t")->status, RP_OK);
    assert_true(stat(testpeer_table_info(peer, "t"), "decay_inserted") == 0);
}

TEST(plugins_work_in_an_embedded_broker)
{
    struct embed embed;
    embed_start(&embed, TABLES, plugins());
    exercise(testpeer_new(&embed));
    embed_stop(&embed);
}

TEST(plugins_work_in_the_real_program)
{
    struct broker_process broker;
    broker_process_start(&broker, TABLES, plugins());
    struct testpeer *peer = testpeer_connect(broker.service);
    exercise(peer);
    testpeer_close(peer);
    broker_process_stop(&broker, SIGTERM);
    broker_process_fini(&broker);
}

static void refused(const char *tables, const char *more, const char *part)
{
    err = (rp_error){0};
    char problems[1000];
    const char *yaml =
        textf("service: inproc://a\ningest: inproc://b\nevents: inproc://c\n%stables:\n%s", more, tables);
    struct broker_config config;
    assert_true(embed_read_config(yaml, &config, problems, sizeof problems));
    assert_null(broker_new(&config, clock_system(), NULL, &err));
    facts_said(err.text, part);
    schema_free(&broker_schema, &config);
}

TEST(what_can_not_be_loaded_is_named)
{
    refused("  - {name: t}\n", "plugins: [/nowhere/at_all.so]\n", "/nowhere/at_all.so");
    refused("  - {name: t}\n", "plugins: [libm.so.6]\n", "rp_plugin_entry");
    refused("  - {name: t, sampler: {kind: softmix}}\n", plugins(), "no selector 'softmix'");
    refused("  - {name: t, extensions: [{kind: sample_delay}]}\n", plugins(), "no extension 'sample_delay'");
    refused("  - {name: t, sampler: {kind: softmax, heat: 1}}\n", plugins(), "no option 'heat'");
    refused("  - {name: t, extensions: [{kind: sample_decay, factor: 2}]}\n", plugins(), "'factor'");
}

/* A selector without a mass works at one broker, but not over shards. */
TEST(a_selector_works_without_a_mass)
{
    static const char table[] = "  - {name: t, max_size: 100, sampler: {kind: last}, limiter: {kind: none}}\n";
    const char *folder = process_env("RP_PLUGIN_DIR");
    const char *more = textf("plugins: [%s/selector_massless.so, %s/selector_example.so]\n", folder, folder);
    struct embed embed;
    embed_start(&embed, table, more);
    struct testpeer *peer = testpeer_opened(&embed, false);
    testpeer_insert(peer, "t", 1, 3, 1);
    embed_settle(&embed);
    const struct testpeer_answer *answer = testpeer_await(peer, testpeer_sample(peer, "t", 2, 0, PAID));
    assert_int_equal(answer->reply->sample->key[1], 3);
    assert_true(answer->reply->sample->mass == 3.0); /* the number of items */
    embed_stop(&embed);
    more = textf("%sshards: [tcp://127.0.0.1:1, tcp://127.0.0.1:2]\nshard: 0\n", more);
    refused(table, more, "'last'");
    refused("  - {name: t, sampler: {kind: softmax}}\n", more, "'softmax'");
}
