/* replay-ctl as people run it: output, JSON and exit codes against a real broker. */
#include <sys/stat.h>

#include <json-c/json.h>

#include "replay/admin.h"
#include "replay/client.h"
#include "replay/collective.h"
#include "replay/params.h"
#include "replay/sampler.h"
#include "replay/writer.h"
#include "tests/support/asked.h"
#include "tests/support/process.h"
#include "tests/support/tempdir.h"

static const char tables[] = "  - {name: replay, max_size: 100, sampler: {kind: prioritized}}\n"
                             "  - {name: spi, max_size: 100, sampler: {kind: uniform}, limiter: {kind:\n"
                             "     sample_to_insert_ratio, samples_per_insert: 2, min_size: 4, error_buffer: 10}}\n";

struct fixture {
    SERVED;
    uint64_t keys[30];
    char out[65536], err[4096];
};

static void fill(struct fixture *f)
{
    rp_column columns[] = {{.name = "obs", .dtype = RP_DTYPE_FLOAT32, .rank = 2, .shape = {4, 5}},
                           {.name = "done", .dtype = RP_DTYPE_BOOL}};
    rp_writer_options with = {.struct_size = sizeof with, .name = "actor-7", .keep_alive = 4};
    rp_writer *writer = must(rp_writer_new(f->client, columns, 2, &with, WAIT, &err));
    for (uint32_t i = 0; i < 30; i++) {
        float obs[20];
        uint8_t done = i == 29;
        for (uint32_t k = 0; k < 20; k++)
            obs[k] = (float)i + (float)k / 100;
        const void *values[] = {obs, &done};
        ok(rp_writer_append(writer, values, WAIT, &err));
        ok(rp_writer_item_last(writer, "replay", i, 1, WAIT, &f->keys[i], &err));
    }
    ok(rp_writer_flush(writer, 0, WAIT, &err));
    ok(rp_writer_destroy(&writer, WAIT, &err));
}

static void set_up(struct fixture *f)
{
    served_start(f, tables, NULL);
    fill(f);
    ok(rp_params_put(f->client, "policy", "weights", 7, WAIT, NULL, &err));
    ok(rp_counter_add(f->client, "steps", 42, WAIT, NULL, &err));
}

FIXTURE(struct fixture, set_up, served_stop)

/* Runs replay-ctl with the broker's endpoint and up to six arguments. */
static int run(struct fixture *f, const char *const *arguments)
{
    const char *argv[16] = {process_env("RP_CTL"), "-e", f->broker.service};
    uint32_t n = 3;
    for (; *arguments; arguments++)
        argv[n++] = *arguments;
    argv[n] = NULL;
    return process_run(argv, f->out, sizeof f->out, f->err, sizeof f->err);
}

#define RUN(f, ...) run(f, (const char *const[]){__VA_ARGS__, NULL})

static struct json_object *parse(const char *text)
{
    enum json_tokener_error error;
    struct json_object *root = json_tokener_parse_verbose(text, &error);
    if (error != json_tokener_success)
        fail_msg("%s: %s", json_tokener_error_desc(error), text);
    return root;
}

static struct json_object *get(struct json_object *object, const char *name)
{
    struct json_object *value = NULL;
    if (!json_object_object_get_ex(object, name, &value))
        fail_msg("no member '%s' in %s", name, json_object_get_string(object));
    return value;
}

/* ---- looking ---- */

CASE(info)
{
    assert_int_equal(RUN(f, "info"), 0);
    assert_has(f->out, "memory");
    assert_has(f->out, "replay");
    assert_has(f->out, "prioritized");
    assert_has(f->out, "policy");
    assert_has(f->out, "steps");
    assert_string_equal(f->err, "");
    assert_int_equal(RUN(f, "info", "spi"), 0);
    assert_has(f->out, "needs 4 more inserts");
    assert_has(f->out, "episodes"); /* and all other numbers that have a row */
    assert_int_equal(RUN(f, "--json", "info"), 0);
    struct json_object *root = parse(f->out);
    assert_int_equal(json_object_array_length(get(root, "tables")), 2);
    struct json_object *table = json_object_array_get_idx(get(root, "tables"), 0);
    assert_string_equal(json_object_get_string(get(table, "name")), "replay");
    assert_int_equal(json_object_get_int(get(table, "size")), 30);
    assert_true(json_object_get_int64(get(get(root, "server"), "chunk_count")) > 0);
    json_object_put(root);
}

CASE(items_and_item)
{
    char key[32];
    assert_int_equal(RUN(f, "items", "replay", "--limit", "5"), 0);
    assert_has(f->out, "and more");
    assert_int_equal(RUN(f, "items", "spi"), 0);
    assert_has(f->out, "empty");
    assert_int_equal(RUN(f, "--json", "items", "replay", "--limit", "0"), 0);
    struct json_object *root = parse(f->out);
    assert_int_equal(json_object_array_length(get(root, "items")), 30);
    struct json_object *row = json_object_array_get_idx(get(root, "items"), 0);
    assert_true(strtoull(json_object_get_string(get(row, "key_text")), NULL, 10) ==
                json_object_get_uint64(get(row, "key")));
    assert_false(json_object_get_boolean(get(root, "more")));
    json_object_put(root);

    snprintf(key, sizeof key, "%llu", (unsigned long long)f->keys[29]);
    assert_int_equal(RUN(f, "item", key), 0);
    assert_has(f->out, "in table replay");
    assert_has(f->out, "float32[1,4,5] [29, 29.01,");
    assert_has(f->out, "... 8 more]");
    assert_has(f->out, "done: bool[1] [true]");
    snprintf(key, sizeof key, "0x%llx", (unsigned long long)f->keys[3]);
    assert_int_equal(RUN(f, "--json", "item", key, "--table", "replay", "--values", "3"), 0);
    root = parse(f->out);
    struct json_object *item = get(root, "item"), *obs = get(get(item, "fields"), "obs");
    assert_true(json_object_get_uint64(get(item, "key")) == f->keys[3]);
    assert_true(strtoull(json_object_get_string(get(item, "key_text")), NULL, 10) == f->keys[3]);
    assert_int_equal(json_object_array_length(get(obs, "values")), 3);
    assert_true(json_object_get_boolean(get(obs, "truncated")));
    assert_int_equal(json_object_array_length(get(obs, "shape")), 3);
    json_object_put(root);
    assert_int_equal(RUN(f, "item", "99"), 1);
    assert_has(f->err, "no table has an item 99");
    assert_int_equal(RUN(f, "item", "nine"), 2);
}

CASE(sessions_counters_params)
{
    assert_int_equal(RUN(f, "counters"), 0);
    assert_has(f->out, "42");
    assert_int_equal(RUN(f, "--json", "counters"), 0);
    struct json_object *root = parse(f->out);
    assert_int_equal(json_object_get_int(get(root, "steps")), 42);
    json_object_put(root);

    assert_int_equal(RUN(f, "params"), 0);
    assert_has(f->out, "policy");
    assert_int_equal(RUN(f, "params", "policy", "--save", "-"), 0);
    assert_string_equal(f->out, "weights");
    char path[128];
    snprintf(path, sizeof path, "%s/saved", f->broker.dir);
    assert_int_equal(RUN(f, "params", "policy", "--save", path), 0);
    assert_string_equal(file_text(path), "weights");
    char link[160]; /* what a link points to gets the new content, and nothing of the old stays behind it */
    snprintf(link, sizeof link, "%s.link", path);
    file_put(path, "weights of before");
    assert_int_equal(symlink(path, link), 0);
    assert_int_equal(RUN(f, "params", "policy", "--save", link), 0);
    assert_string_equal(file_text(path), "weights");
    unlink(link);
    unlink(path);
    assert_int_equal(RUN(f, "params", "nope"), 1);
    assert_int_equal(RUN(f, "params", "nope", "--save", "-"), 1);
    assert_int_equal(RUN(f, "params", "policy", "--save", "/nowhere/at/all"), 1);
    assert_has(f->err, "/nowhere/at/all");

    rp_column column = {.name = "x", .dtype = RP_DTYPE_INT8};
    rp_writer_options with = {.struct_size = sizeof with, .name = "actor-8\x1b[2J"};
    rp_writer *writer = must(rp_writer_new(f->client, &column, 1, &with, WAIT, &err));
    assert_int_equal(RUN(f, "sessions"), 0);
    assert_has(f->out, "actor-8?[2J"); /* a name can do nothing to the terminal */
    assert_null(strchr(f->out, '\x1b'));
    assert_int_equal(RUN(f, "--json", "sessions"), 0);
    root = parse(f->out);
    assert_true(json_object_array_length(get(root, "sessions")) >= 1);
    json_object_put(root);
    ok(rp_writer_destroy(&writer, WAIT, &err));
}

struct waits_wanted {
    rp_client *client;
    uint32_t n;
};

static int waits_are(void *ctx)
{
    const struct waits_wanted *wanted = ctx;
    return asked_waits(wanted->client, NULL, NULL, 0) == wanted->n;
}

CASE(why)
{
    assert_int_equal(RUN(f, "why"), 0);
    assert_ptr_equal(strstr(f->out, "nothing waits\n"), f->out);
    rp_sampler_options with = {.struct_size = sizeof with, .in_flight = 1, .batch_size = 2};
    rp_sampler *sampler = must(rp_sampler_new(f->client, "spi", &with, &err));
    assert_true(process_await(waits_are, &(struct waits_wanted){f->client, 1}));
    assert_int_equal(RUN(f, "why"), 0);
    assert_has(f->out, "sample");
    assert_has(f->out, "spi");
    assert_has(f->out, "needs 4 more inserts");
    assert_int_equal(RUN(f, "--json", "why"), 0);
    struct json_object *root = parse(f->out), *wait = json_object_array_get_idx(get(root, "waits"), 0);
    assert_string_equal(json_object_get_string(get(wait, "kind")), "sample");
    assert_string_equal(json_object_get_string(get(wait, "table")), "spi");
    assert_int_equal(json_object_get_int(get(wait, "count")), 2);
    json_object_put(root);
    /* Waits that differ in their clients alone are one line. */
    rp_sampler *others[2];
    for (uint32_t i = 0; i < 2; i++)
        assert_non_null(others[i] = rp_sampler_new(f->client, "spi", &with, &err));
    assert_true(process_await(waits_are, &(struct waits_wanted){f->client, 3}));
    assert_int_equal(RUN(f, "why"), 0);
    const char *line = strstr(f->out, " and 2 more  sample");
    if (!line || strstr(line + 20, "  sample  "))
        fail_msg("%s", f->out);
    rp_sampler_destroy(&sampler);
    rp_sampler_destroy(&others[0]);
    rp_sampler_destroy(&others[1]);
}

/* ---- changing ---- */

CASE(delete)
{
    char key[2][32];
    snprintf(key[0], sizeof key[0], "%024llu", (unsigned long long)f->keys[0]); /* not octal */
    snprintf(key[1], sizeof key[1], "0x%llx", (unsigned long long)f->keys[1]);
    assert_int_equal(RUN(f, "delete", "replay"), 2);
    assert_int_equal(RUN(f, "delete", "replay", "first"), 2);
    assert_int_equal(RUN(f, "delete", "replay", " -1"), 2);
    assert_int_equal(RUN(f, "delete", "replay", "0x"), 2);
    assert_int_equal(RUN(f, "delete", "none", key[0]), 1);
    assert_int_equal(RUN(f, "delete", "replay", key[0], key[1]), 0);
    assert_int_equal(RUN(f, "item", key[0], "--table", "replay"), 1);
    assert_int_equal(RUN(f, "--json", "delete", "replay", key[0]), 1);
    struct json_object *root = parse(f->out);
    assert_int_equal(json_object_get_int(get(root, "applied")), 0);
    assert_int_equal(json_object_get_int(get(root, "missing")), 1);
    json_object_put(root);
    assert_int_equal(RUN(f, "--json", "items", "replay", "--limit", "0"), 0);
    root = parse(f->out);
    assert_int_equal(json_object_array_length(get(root, "items")), 28);
    json_object_put(root);
}

CASE(limiter_and_reset)
{
    assert_int_equal(RUN(f, "limiter", "replay"), 0);
    assert_non_null(strstr(f->out, "no ratio"));
    assert_null(strstr(f->out, "cursor"));
    assert_int_equal(RUN(f, "info", "replay"), 0);
    assert_non_null(strstr(f->out, "no ratio"));
    assert_int_equal(RUN(f, "top", "--count", "1"), 0);
    assert_non_null(strstr(f->out, "SPI 2"));
    assert_null(strstr(f->out, "SPI 1"));
    assert_int_equal(RUN(f, "limiter", "spi"), 0);
    assert_has(f->out, "min_size             4 ");
    assert_int_equal(RUN(f, "limiter", "spi", "min_size=6", "error_buffer=30"), 0);
    assert_has(f->out, "min_size             6 ");
    assert_has(f->out, "max_diff             42 ");
    assert_int_equal(RUN(f, "--json", "limiter", "spi", "max_diff=50"), 0);
    struct json_object *root = parse(f->out);
    assert_true(json_object_get_double(get(root, "max_diff")) == 50);
    json_object_put(root);
    assert_int_equal(RUN(f, "limiter", "spi", "error_buffer=0.01"), 1);
    assert_true(strlen(f->err) > 20);
    assert_int_equal(RUN(f, "limiter", "spi", "pause"), 0);
    assert_has(f->out, "'replay-ctl limiter TABLE go' ends that");
    assert_int_equal(RUN(f, "limiter", "spi", "go"), 0);
    assert_null(strstr(f->out, "ends that"));
    assert_int_equal(RUN(f, "limiter", "spi", "pause=1"), 2);
    assert_int_equal(RUN(f, "limiter", "spi", "min_siz=6"), 2);
    assert_has(f->err, "did you mean 'min_size'");
    assert_int_equal(RUN(f, "limiter", "spi", "min_size=six"), 2);
    assert_int_equal(RUN(f, "reset", "replay"), 0);
    assert_has(f->out, "30 items removed");
    assert_int_equal(RUN(f, "--json", "reset", "replay"), 0);
    root = parse(f->out);
    assert_int_equal(json_object_get_int(get(root, "applied")), 0);
    json_object_put(root);
}

/* ---- exit codes and help ---- */

CASE(refusals)
{
    assert_int_equal(RUN(f, "items", "replai"), 1);
    assert_has(f->err, "replai");
    assert_string_equal(f->out, "");
    assert_has(f->err, "'replay'"); /* the tables that there are */
    assert_int_equal(RUN(f, "reset", "nope"), 1);
    assert_has(f->err, "'replay'");
    assert_int_equal(RUN(f, "key", "list", "/nowhere"), 1);
    assert_int_equal(RUN(f, "--timeout", "0s", "info"), 2);
    assert_int_equal(RUN(f, "--json", "info", "nope"), 1);
    struct json_object *root = parse(f->out);
    assert_string_equal(json_object_get_string(get(get(root, "error"), "status")), "NOT_FOUND");
    json_object_put(root);
    assert_int_equal(RUN(f, "inof"), 2);
    assert_has(f->err, "did you mean 'info'");
    assert_int_equal(RUN(f, "items"), 2);
    assert_int_equal(RUN(f, "why", "because"), 2);
    assert_int_equal(RUN(f, "info", "--limit", "3"), 2);
    assert_int_equal(RUN(f, "--no-such-option"), 2);
    assert_int_equal(RUN(f, "--timeout", "3", "info"), 2);
    assert_has(f->err, "unit");
}

CASE(no_broker)
{
    const char *argv[] = {
        process_env("RP_CTL"), "-e", "ipc:///tmp/replay-test-nobody", "--timeout", "200ms", "why", NULL};
    assert_int_equal(process_run(argv, f->out, sizeof f->out, f->err, sizeof f->err), 3);
    assert_string_equal(f->out, "");
    assert_has(f->err, "no broker answers at ipc:///tmp/replay-test-nobody (waited 200 ms)");
    assert_has(f->err, "service endpoint?");
    argv[2] = "not an endpoint";
    int rc = process_run(argv, f->out, sizeof f->out, f->err, sizeof f->err);
    assert_true(rc == 2 || rc == 3);
    assert_true(strlen(f->err) > 0);
}

/* Writes the folder of a run whose broker does not answer any more, and asks it: returns the exit status. */
static int ask_dead_run(struct fixture *f, const char *status, const char *timeout)
{
    char path[160];
    snprintf(path, sizeof path, "%s/run", f->broker.dir);
    mkdir(path, 0777);
    const char *argv[] = {process_env("RP_CTL"), "--run", path, "--timeout", timeout, "--json", "why", NULL};
    file_put(file_in(path, "endpoints"), "service ipc:///tmp/replay-test-nobody\n");
    file_put(file_in(path, "status.json"), status);
    return process_run(argv, f->out, sizeof f->out, f->err, sizeof f->err);
}

CASE(run_that_has_ended)
{
    static const char *const ended[] = {"done", "stopped", "failed"};
    char status[200];
    for (int i = 0; i < 3; i++) {
        snprintf(status, sizeof status, "{\"phase\": \"%s\", \"unix_s\": 1794828833.5, \"reason\": \"because\"}",
                 ended[i]);
        assert_int_equal(ask_dead_run(f, status, "60m"), 3); /* it does not wait */
        assert_has(f->out, "2026-11-16T11:33:53Z: because");
    }
    assert_int_equal(ask_dead_run(f, "{\"phase\": \"running\", \"unix_s\": 1794828833.5}", "100ms"), 3);
    assert_has(f->out, "(waited 100 ms)");
    assert_int_equal(ask_dead_run(f, "no JSON", "100ms"), 3);
}

CASE(endpoints)
{
    const char *by_file[] = {process_env("RP_CTL"), "--endpoints-file", file_in(f->broker.dir, "endpoints"), "why",
                             NULL};
    assert_int_equal(process_run(by_file, f->out, sizeof f->out, f->err, sizeof f->err), 0);
    const char *missing[] = {process_env("RP_CTL"), "--endpoints-file", "/nowhere", "why", NULL};
    assert_int_equal(process_run(missing, f->out, sizeof f->out, f->err, sizeof f->err), 2);
    setenv("REPLAY_ENDPOINT", f->broker.service, 1);
    const char *by_environment[] = {process_env("RP_CTL"), "why", NULL};
    assert_int_equal(process_run(by_environment, f->out, sizeof f->out, f->err, sizeof f->err), 0);
    unsetenv("REPLAY_ENDPOINT");
}

CASE(help)
{
    static const char *const names[] = {"info",    "why",   "top",    "items",    "item",
                                        "limiter", "reset", "params", "counters", "sessions"};
    assert_int_equal(RUN(f, "--help"), 0);
    assert_has(f->out, "Exit status");
    char all[8192];
    snprintf(all, sizeof all, "%s", f->out);
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        assert_has(all, names[i]);
        assert_int_equal(RUN(f, names[i], "--help"), 0);
        assert_has(f->out, "Usage: replay-ctl");
        assert_int_equal(RUN(f, "help", names[i]), 0);
    }
    assert_int_equal(RUN(f, "--version"), 0);
}

/* ---- top ---- */

CASE(top_plain)
{
    assert_int_equal(RUN(f, "top", "--count", "3", "--interval", "20ms"), 0);
    assert_null(strchr(f->out, '\x1b'));
    assert_has(f->out, "prioritized / fifo");
    assert_has(f->out, "30 of 100 items");
    uint32_t frames = 0;
    for (const char *at = f->out; (at = strstr(at, "replay-broker")) != NULL; at++)
        frames++;
    assert_int_equal(frames, 3);
    assert_int_equal(RUN(f, "--json", "top", "--count", "2", "--interval", "20ms"), 0);
    char *second = strchr(f->out, '\n');
    assert_non_null(second);
    *second = '\0';
    json_object_put(parse(f->out));
    struct json_object *root = parse(second + 1);
    assert_int_equal(json_object_array_length(get(get(root, "info"), "tables")), 2);
    json_object_put(root);
}
