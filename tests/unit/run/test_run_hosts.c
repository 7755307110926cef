/* The hosts of a run's file: what patterns of names stand for, which roles run where, and mistakes. */
#include "agent/config/config.h"

#include "proto/base/need.h"
#include "tests/support/runtext.h"
#include "tests/support/test.h"

#define TABLES "broker: {tables: [{name: replay}]}\n"

/* ---- names ---- */

/* The names with spaces between them; "": a mistake. */
static const char *expanded(const char *pattern, uint32_t most)
{
    const char *out = "";
    char why[160];
    char **names = run_config_host_names(pattern, most, why, sizeof why);
    assert_int_equal(names != NULL, why[0] == '\0');
    for (uint32_t i = 0; names && names[i]; i++)
        out = textf("%s%s%s", out, i ? " " : "", names[i]);
    words_free(&names);
    return out;
}

TEST(patterns)
{
    static const struct {
        const char *pattern, *names;
    } rows[] = {{"gpu1", "gpu1"},
                {"cpu[1-4]", "cpu1 cpu2 cpu3 cpu4"},
                {"cpu[08-11]", "cpu08 cpu09 cpu10 cpu11"},
                {"n[1,3-5]", "n1 n3 n4 n5"},
                {"n[7]", "n7"},
                {"me@n[1-2].lan", "me@n1.lan me@n2.lan"},
                {"r[1-2]n[1,2]", "r1n1 r1n2 r2n1 r2n2"},
                {"ssh://me@[::1]:22", "ssh://me@[::1]:22"},
                {"ssh://[fe80::1]:220[1-2]", "ssh://[fe80::1]:2201 ssh://[fe80::1]:2202"}};
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++)
        assert_string_equal(expanded(rows[i].pattern, 100), rows[i].names);
}

TEST(wrong_patterns)
{
    static const char *const wrong[] = {"",        "cpu[",       "cpu[1",    "cpu[]",
                                        "cpu[a]",  "cpu[1-]",    "cpu[-2]",  "cpu[2-1]",
                                        "cpu[1,]", "cpu[1--2]",  "cpu[1;2]", "cpu[1-9999999999]",
                                        "a[1-5]",  "[1-2]b[0-2]"};
    for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++)
        assert_string_equal(expanded(wrong[i], 4), "");
    assert_string_not_equal(expanded("a[1-5]", 5), "");
    const char *longest = textf("%063d", 0);
    assert_string_equal(expanded(longest, 1), longest);
    assert_string_equal(expanded(textf("%064d", 0), 1), "");
}

/* ---- checks ---- */

TEST(mistakes)
{
    runtext_expect("hosts: [{name: gpu1, cores: 16, roles: [learner]}, {name: 'cpu[1-4]', cores: 32}]\n" TABLES, "");
    runtext_expect("hosts: [{command: [docker, exec, -i, a, sh, -c]}, {command: [sh, -c]}, {name: local}]\n" TABLES,
                   "");
    runtext_expect("hosts: [{cores: 2}]\n" TABLES, "run.yaml:1:9 hosts[0]\n");
    runtext_expect("hosts: [{name: 'b[1-2]', command: [sh, -c]}]\n" TABLES, "run.yaml:1:16 hosts[0].name\n");
    runtext_expect("hosts: [{name: a}, {name: 'b[1-2]'}, {name: b2}]\n" TABLES, "run.yaml:1:45 hosts[2].name 'b2'\n");
    runtext_expect("hosts: [{name: a, roles: [actor, evaluator]}]\n" TABLES,
                   "run.yaml:1:34 hosts[0].roles[1] 'evaluator'\n");
    runtext_expect("hosts: [{name: local}, {name: local}]\n" TABLES, "run.yaml:1:24 hosts[1]\n");
    runtext_expect("hosts: [{name: 'a[1-x]'}]\n" TABLES,
                   "run.yaml:1:16 hosts[0].name '[1-x]' cpu[1-4] cpu[01-12] cpu[1,3-5]\n");
    runtext_expect("hosts: [{name: 'a[1-1024]'}]\n" TABLES, "run.yaml:1:16 hosts[0].name 1023\n");
    runtext_expect("hosts: [{command: [sh, -c], name: b}, {command: [sh, -c], name: b}]\n" TABLES,
                   "run.yaml:1:65 hosts[1].name 'b'\n");
    runtext_expect("hosts: [{name: a}]\nlaunch: {engine: slurm}\n" TABLES, "run.yaml:1:1 launch.engine\n");
    runtext_expect("hosts: [{name: a}]\nbroker: {service: 'ipc:///tmp/x', tables: [{name: replay}]}\n",
                   "run.yaml:2:19 broker.service ipc:///tmp/x tcp://*:7600\n");
}

/* What the file writes counts, even if it is the default: another machine cannot reach it. */
TEST(reach)
{
    static const struct {
        const char *head, *more;
        bool good;
    } rows[] = {{"hosts: [{name: a}]\n", "", false},
                {"hosts: [{name: a}]\n", "advertise: 10.0.0.1, ", true}, /* a tunnel of the user's */
                {"hosts: [{command: [sh, -c]}]\n", "", true},
                {"launch: {engine: slurm}\n", "", false},
                {"", "", true}};
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        struct run_config config = {0};
        struct schema_report *report = schema_report_new();
        const char *text = textf("%sbroker: {events: 'tcp://127.0.0.1:7602', %stables: [{name: replay}]}\n",
                                 rows[i].head, rows[i].more);
        bool good = run_config_read_text("run.yaml", text, NULL, &config, report);
        assert_int_equal(good, rows[i].good);
        assert_int_equal(schema_report_count(report), !good);
        if (good && run_config_is_spread(&config)) {
            run_config_open_broker(&config, report);
            assert_string_equal(config.broker.events, "tcp://127.0.0.1:7602");
            assert_string_equal(config.broker.service, "tcp://*:0");
        }
        schema_report_destroy(&report);
        if (good)
            run_config_free(&config);
    }
}

TEST(files_to_send)
{
    runtext_expect("launch: {send: [my_env.py, data/, ./a/b, ..c/d.py]}\n" TABLES,
                   "run.yaml:1:42 launch.send[3] '..c/d.py' my_env.py\n");
    runtext_expect("launch: {send: [/etc/passwd]}\n" TABLES, "run.yaml:1:17 launch.send[0] '/etc/passwd' my_env.py\n");
    runtext_expect("launch: {send: [a/../../b]}\n" TABLES, "run.yaml:1:17 launch.send[0] 'a/../../b' my_env.py\n");
}

/* ---- what it means ---- */

static void read_config(const char *text, struct run_config *out)
{
    struct schema_report *report = schema_report_new();
    *out = (struct run_config){0};
    assert_true(run_config_read_text("run.yaml", text, NULL, out, report));
    run_config_open_broker(out, report);
    schema_report_destroy(&report);
}

/* What home takes, as text: "al", "a", "l", "". */
static void expect_home(const char *text, bool spread, bool actors, bool learners)
{
    struct run_config config;
    read_config(text, &config);
    assert_int_equal(run_config_is_spread(&config), spread);
    assert_int_equal(run_config_home_takes(&config, "actor"), actors);
    assert_int_equal(run_config_home_takes(&config, "learner"), learners);
    run_config_free(&config);
}

TEST(home)
{
    expect_home(TABLES, false, true, true);
    expect_home("hosts: [{name: a}]\n" TABLES, true, false, true);
    expect_home("hosts: [{name: a, roles: [learner]}]\n" TABLES, true, true, false);
    expect_home("hosts: [{name: a, roles: [actor, learner]}]\n" TABLES, true, false, false);
    expect_home("hosts: [{name: a, roles: [learner]}, {name: local}]\n" TABLES, true, true, false);
    expect_home("hosts: [{name: local, roles: [actor, learner]}]\n" TABLES, false, true, true);
    expect_home("hosts: [{name: a}, {name: local}]\n" TABLES, true, true, true);
    expect_home("launch: {engine: slurm}\n" TABLES, true, false, true);
}

TEST(open_broker)
{
    struct run_config config;
    read_config(TABLES, &config);
    assert_false(config_is_open(&config.broker));
    assert_string_equal(config.broker.service, "tcp://127.0.0.1:0");
    run_config_free(&config);
    /* The own file of a run with one machine is resumed with others. */
    read_config("hosts: [{name: a}]\nbroker: {service: 'tcp://127.0.0.1:0', tables: [{name: replay}]}\n", &config);
    assert_string_equal(config.broker.service, "tcp://*:0");
    run_config_free(&config);
    read_config("hosts: [{name: a}]\n"
                "broker: {ingest: 'tcp://10.0.0.1:5', tables: [{name: replay}]}\n",
                &config);
    assert_string_equal(config.broker.service, "tcp://*:0");
    assert_string_equal(config.broker.ingest, "tcp://10.0.0.1:5");
    assert_string_equal(config.broker.events, "tcp://*:0");
    assert_true(config_uses_curve(&config.broker));
    run_config_free(&config);
}
