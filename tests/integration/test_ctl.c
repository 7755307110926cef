/* replay-ctl as people run it: output, JSON and exit codes against a real broker. */
#include <sys/stat.h>

#include "tests/support/asked.h"
#include "tests/support/parsed.h"
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
    SCOPED(rp_writer) writer = WRITER(f->client, columns, 2, .name = "actor-7", .keep_alive = 4);
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
}

static void set_up(struct fixture *f)
{
    served_start(f, tables, NULL, NULL);
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
/* Checks the exit status, and that the output, or the errors if it failed, have this text. */
#define EXPECT(f, status, says, ...)                                                                                   \
    do {                                                                                                               \
        assert_int_equal(RUN(f, __VA_ARGS__), status);                                                                 \
        assert_has((status) ? (f)->err : (f)->out, says);                                                              \
    } while (0)

static const char *decimal(uint64_t key)
{
    return textf("%llu", (unsigned long long)key);
}

static const char *hex(uint64_t key)
{
    return textf("0x%llx", (unsigned long long)key);
}

/* ---- looking ---- */

CASE(info)
{
    EXPECT(f, 0, "memory", "info");
    assert_has(f->out, "prioritized");
    assert_has(f->out, "steps");
    assert_string_equal(f->err, "");
    EXPECT(f, 0, "needs 4 more inserts", "info", "spi");
    assert_has(f->out, "episodes"); /* and all other numbers that have a row */
    assert_int_equal(RUN(f, "--json", "info"), 0);
    assert_int_equal(parsed_count(parsed(f->out), "/tables"), 2);
    assert_string_equal(parsed_text(parsed(f->out), "/tables/0/name"), "replay");
    assert_string_equal(parsed_text(parsed(f->out), "/tables/0/size"), "30");
    assert_string_equal(parsed_text(parsed(f->out), "/server/chunk_count"), "30");
    const char *instance = parsed_text(parsed(f->out), "/server/instance");
    EXPECT(f, 0, instance, "info");
}

CASE(items_and_item)
{
    EXPECT(f, 0, "and more", "items", "replay", "--limit", "5");
    EXPECT(f, 0, "empty", "items", "spi");
    assert_int_equal(RUN(f, "--json", "items", "replay", "--limit", "0"), 0);
    assert_int_equal(parsed_count(parsed(f->out), "/items"), 30);
    assert_string_equal(parsed_text(parsed(f->out), "/items/0/key_text"), decimal(f->keys[0]));
    assert_string_equal(parsed_text(parsed(f->out), "/items/0/key"), decimal(f->keys[0]));
    assert_string_equal(parsed_text(parsed(f->out), "/more"), "false");

    EXPECT(f, 0, "in table replay", "item", decimal(f->keys[29]));
    assert_has(f->out, "float32[1,4,5] [29, 29.01,");
    assert_has(f->out, "... 8 more]");
    assert_has(f->out, "done: bool[1] [true]");
    assert_int_equal(RUN(f, "--json", "item", hex(f->keys[3]), "--table", "replay", "--values", "3"), 0);
    assert_string_equal(parsed_text(parsed(f->out), "/item/key"), decimal(f->keys[3]));
    assert_string_equal(parsed_text(parsed(f->out), "/item/key_text"), decimal(f->keys[3]));
    assert_int_equal(parsed_count(parsed(f->out), "/item/fields/obs/values"), 3);
    assert_string_equal(parsed_text(parsed(f->out), "/item/fields/obs/truncated"), "true");
    assert_int_equal(parsed_count(parsed(f->out), "/item/fields/obs/shape"), 3);
    EXPECT(f, 1, "no table has an item 99", "item", "99");
    assert_int_equal(RUN(f, "item", "nine"), 2);
}

CASE(sessions_counters_params)
{
    EXPECT(f, 0, "42", "info");
    assert_has(f->out, "policy");
    assert_int_equal(RUN(f, "params", "policy", "--save", "-"), 0);
    assert_string_equal(f->out, "weights");
    const char *path = file_in(f->broker.dir, "saved"), *link = file_in(f->broker.dir, "saved.link");
    assert_int_equal(RUN(f, "params", "policy", "--save", path), 0);
    assert_string_equal(file_text(path), "weights");
    /* What a link points to gets the new content, and nothing of the old stays behind it. */
    file_put(path, "weights of before");
    assert_int_equal(symlink(path, link), 0);
    assert_true(RUN(f, "--json", "params", "policy", "--save", link) == 0 && !f->out[0]); /* no sentence among JSON */
    assert_string_equal(file_text(path), "weights");
    unlink(link);
    unlink(path);
    assert_int_equal(RUN(f, "params", "policy"), 2);
    assert_int_equal(RUN(f, "params", "nope", "--save", "-"), 1);
    EXPECT(f, 1, "/nowhere/at/all", "params", "policy", "--save", "/nowhere/at/all");

    rp_column column = {.name = "x", .dtype = RP_DTYPE_INT8};
    SCOPED(rp_writer) writer = WRITER(f->client, &column, 1, .name = "actor-8\x1b[2J");
    EXPECT(f, 0, "actor-8?[2J", "sessions"); /* a name can do nothing to the terminal */
    assert_null(strchr(f->out, '\x1b'));
    assert_int_equal(RUN(f, "--json", "sessions"), 0);
    assert_true(parsed_count(parsed(f->out), "/sessions") >= 1);
}

CASE(why)
{
    assert_int_equal(RUN(f, "why"), 0);
    assert_ptr_equal(strstr(f->out, "nothing waits\n"), f->out);
    SCOPED(rp_sampler) sampler = SAMPLER(f->client, "spi", .in_flight = 1, .batch_size = 2);
    wait_until(asked_waits(f->client, NULL, NULL, 0) == 1);
    EXPECT(f, 0, "sample", "why");
    assert_has(f->out, "spi");
    assert_has(f->out, "needs 4 more inserts");
    assert_int_equal(RUN(f, "--json", "why"), 0);
    assert_string_equal(parsed_text(parsed(f->out), "/waits/0/kind"), "sample");
    assert_string_equal(parsed_text(parsed(f->out), "/waits/0/table"), "spi");
    assert_string_equal(parsed_text(parsed(f->out), "/waits/0/count"), "2");
    /* Waits that differ in their clients alone are one line. */
    SCOPED(rp_sampler) second = SAMPLER(f->client, "spi", .in_flight = 1, .batch_size = 2);
    SCOPED(rp_sampler) third = SAMPLER(f->client, "spi", .in_flight = 1, .batch_size = 2);
    wait_until(asked_waits(f->client, NULL, NULL, 0) == 3);
    assert_int_equal(RUN(f, "why"), 0);
    const char *line = strstr(f->out, " and 2 more  sample");
    if (!line || strstr(line + 20, "  sample  "))
        fail_msg("%s", f->out);
}

/* ---- changing ---- */

CASE(delete)
{
    const char *const key[] = {textf("%024llu", (unsigned long long)f->keys[0]), hex(f->keys[1])}; /* not octal */
    assert_int_equal(RUN(f, "delete", "replay"), 2);
    assert_int_equal(RUN(f, "delete", "replay", "first"), 2);
    assert_int_equal(RUN(f, "delete", "replay", " -1"), 2);
    assert_int_equal(RUN(f, "delete", "replay", "0x"), 2);
    assert_int_equal(RUN(f, "delete", "none", key[0]), 1);
    assert_int_equal(RUN(f, "delete", "replay", key[0], key[1]), 0);
    assert_int_equal(RUN(f, "item", key[0], "--table", "replay"), 1);
    assert_int_equal(RUN(f, "--json", "delete", "replay", key[0]), 1);
    assert_string_equal(parsed_text(parsed(f->out), "/applied"), "0");
    assert_string_equal(parsed_text(parsed(f->out), "/missing"), "1");
    assert_int_equal(RUN(f, "--json", "items", "replay", "--limit", "0"), 0);
    assert_int_equal(parsed_count(parsed(f->out), "/items"), 28);
}

CASE(limiter_and_reset)
{
    EXPECT(f, 0, "no ratio", "limiter", "replay");
    assert_null(strstr(f->out, "cursor"));
    EXPECT(f, 0, "no ratio", "info", "replay");
    EXPECT(f, 0, "SPI 2", "top", "--count", "1");
    assert_null(strstr(f->out, "SPI 1"));
    EXPECT(f, 0, "min_size             4 ", "limiter", "spi");
    EXPECT(f, 0, "min_size             6 ", "limiter", "spi", "min_size=6", "error_buffer=30");
    assert_has(f->out, "max_diff             42 ");
    assert_int_equal(RUN(f, "--json", "limiter", "spi", "max_diff=50"), 0);
    assert_string_equal(parsed_text(parsed(f->out), "/max_diff"), "50");
    assert_int_equal(RUN(f, "limiter", "spi", "error_buffer=0.01"), 1);
    assert_true(strlen(f->err) > 20);
    EXPECT(f, 0, "'replay-ctl limiter TABLE go' ends that", "limiter", "spi", "pause");
    assert_int_equal(RUN(f, "limiter", "spi", "go"), 0);
    assert_null(strstr(f->out, "ends that"));
    assert_int_equal(RUN(f, "limiter", "spi", "pause=1"), 2);
    EXPECT(f, 2, "did you mean 'min_size'", "limiter", "spi", "min_siz=6");
    assert_int_equal(RUN(f, "limiter", "spi", "min_size=six"), 2);
    EXPECT(f, 0, "30 items removed", "reset", "replay");
    assert_int_equal(RUN(f, "--json", "reset", "replay"), 0);
    assert_string_equal(parsed_text(parsed(f->out), "/applied"), "0");
}

/* ---- exit codes and help ---- */

CASE(refusals)
{
    EXPECT(f, 1, "replai", "items", "replai");
    assert_string_equal(f->out, "");
    assert_has(f->err, "'replay'"); /* the tables that there are */
    EXPECT(f, 1, "'replay'", "reset", "nope");
    assert_int_equal(RUN(f, "key", "list", "/nowhere"), 1);
    assert_int_equal(RUN(f, "--timeout", "0s", "info"), 2);
    assert_int_equal(RUN(f, "--json", "info", "nope"), 1);
    assert_string_equal(parsed_text(parsed(f->out), "/error/status"), "NOT_FOUND");
    EXPECT(f, 2, "did you mean 'info'", "inof");
    assert_int_equal(RUN(f, "items"), 2);
    assert_int_equal(RUN(f, "why", "because"), 2);
    assert_int_equal(RUN(f, "info", "--limit", "3"), 2);
    assert_int_equal(RUN(f, "--no-such-option"), 2);
    EXPECT(f, 2, "unit", "--timeout", "3", "info");
}

CASE(no_broker)
{
    const char *argv[] = {
        process_env("RP_CTL"), "-e", "ipc:///tmp/replay-test-nobody", "--timeout", "200ms", "why", NULL};
    assert_int_equal(process_run(argv, f->out, sizeof f->out, f->err, sizeof f->err), 3);
    assert_string_equal(f->out, "");
    assert_has(f->err, "no broker answers at ipc:///tmp/replay-test-nobody within 0.2 s: is");
    assert_has(f->err, "service endpoint?");
    argv[2] = "tcp://127.0.0.1:65536";
    int rc = process_run(argv, f->out, sizeof f->out, f->err, sizeof f->err);
    assert_true(rc == 2 || rc == 3);
    assert_has(f->err, "is not an endpoint");
}

/* Writes the folder of a run whose broker does not answer any more, and asks it: returns the exit status. */
static int ask_dead_run(struct fixture *f, const char *status, const char *timeout)
{
    const char *path = file_in(f->broker.dir, "run");
    mkdir(path, 0777);
    const char *argv[] = {process_env("RP_CTL"), "--run", path, "--timeout", timeout, "--json", "why", NULL};
    file_put(file_in(path, "endpoints"), "service ipc:///tmp/replay-test-nobody\n");
    file_put(file_in(path, "status.json"), status);
    return process_run(argv, f->out, sizeof f->out, f->err, sizeof f->err);
}

CASE(run_that_has_ended)
{
    static const char *const ended[] = {"done", "stopped", "failed"};
    for (int i = 0; i < 3; i++) {
        const char *status = textf("{\"phase\": \"%s\", \"unix_s\": 1794828833.5, \"reason\": \"because\"}", ended[i]);
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
    static const char *const names[] = {"info",    "why",   "top",    "items",   "item",
                                        "limiter", "reset", "params", "sessions"};
    EXPECT(f, 0, "Exit status", "--help");
    char all[8192];
    snprintf(all, sizeof all, "%s", f->out);
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        assert_has(all, names[i]);
        EXPECT(f, 0, "Usage: replay-ctl", names[i], "--help");
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
    for (uint32_t line = 0; line < 2; line++) {
        assert_int_equal(parsed_count(parsed(f->out), "/info/tables"), 2);
        char *second = strchr(f->out, '\n');
        assert_non_null(second);
        memmove(f->out, second + 1, strlen(second));
    }
}
