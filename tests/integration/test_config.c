/* The broker program's command line and files: what it prints, its exit codes, and a log that cannot be written. */

#include "agent/launch/process/spawn.h"
#include "tests/support/process.h"
#include "tests/support/tempdir.h"
#include "tests/support/testpeer.h"

static char out[65536], said[16384];

static const char *write_file(const char *name, const char *text)
{
    const char *path = tempdir_at(name);
    file_put(path, text);
    return path;
}

static int run(const char *a, const char *b, const char *c)
{
    const char *const argv[] = {process_env("RP_BROKER"), a, b, c, NULL};
    return process_run(argv, out, sizeof out, said, sizeof said);
}

/* Checks the exit status, and that the output, or the errors if it failed, have this text. */
static void expect(int status, const char *says, const char *a, const char *b, const char *c)
{
    assert_int_equal(run(a, b, c), status);
    assert_has(status ? said : out, says);
}

TEST(a_bad_configuration_ends_with_2_and_starts_nothing)
{
    const char *bad = write_file("bad.yaml", "servce: x\nio_threads: 99\ntables:\n  - {name: a, max_siz: 3}\n");
    for (int check = 0; check < 2; check++) {
        assert_int_equal(run("-c", bad, check ? "--check" : NULL), 2);
        assert_string_equal(out, "");
        assert_has(said, "bad.yaml:1:1: servce: ");
        assert_has(said, "did you mean 'service'?");
        assert_has(said, "bad.yaml:2:13: io_threads: ");
        assert_has(said, "bad.yaml:4:15: tables[0].max_siz: ");
        assert_has(said, "did you mean 'max_size'?");
        assert_has(said, "3 mistakes in the configuration; nothing was started");
    }
    expect(2, "missing.yaml", "-c", tempdir_at("missing.yaml"), NULL);
    assert_int_equal(run("--nonsense", NULL, NULL), 2);
    expect(2, "-c good.yaml", "good.yaml", NULL, NULL);
}

/* --check finds tables that memory_limit cannot hold; a broker with such a file runs, evicts or waits, and says so. */
TEST(check_finds_memory_that_is_not_there)
{
    static const struct {
        const char *tables, *where, *numbers[3];
    } rows[] = {
        {"{name: a, max_size: 1000, signature: {x: [uint8, 100000]}}",
         "tables[0].max_size: ",
         {"1000 items", "95MiB", "56MiB"}},
        {"{name: a, max_size: 500, signature: {x: [uint8, 100000]}}", NULL, {NULL}},
        {"{name: a, max_size: 100, max_times_sampled: 1, limiter: {kind: queue}, signature: {x: [uint8, "
         "100000]}}",
         NULL,
         {NULL}},
        {"{name: a, max_bytes: 60MiB}", "tables[0].max_bytes: ", {"60MiB", "56MiB", "64MiB"}},
        {"{name: a, max_bytes: 30MiB}, {name: b, max_bytes: 31MiB}",
         "tables[1].max_bytes: ",
         {"31MiB", "61MiB", "56MiB"}},
        {"{name: a, max_bytes: 50MiB}", NULL, {NULL}},
        {"{name: a}", "tables[0].max_size: ", {"1000000 items", "75MiB", "56MiB"}}, /* without any data */
        {"{name: a, max_size: 700000}", NULL, {NULL}},
        {"{name: a, max_size: 700000, remover: {kind: min_heap}}",
         "tables[0].max_size: ",
         {"700000 items", "66MiB", "56MiB"}},
        {"{name: a, max_bytes: 30MiB, signature: {x: [uint8, 64]}}",
         "tables[0].max_bytes: ",
         {"491520 items", "67MiB", "56MiB"}},
    };
    for (uint32_t r = 0; r < sizeof rows / sizeof rows[0]; r++) {
        const char *file = write_file("bad.yaml", textf("memory_limit: 64MiB\ntables: [%s]\n", rows[r].tables));
        assert_int_equal(run("-c", file, "--check"), rows[r].where ? 2 : 0);
        for (uint32_t i = 0; rows[r].where && i < 3; i++)
            assert_has(said, rows[r].numbers[i]);
        if (rows[r].where)
            assert_has(said, rows[r].where);
        assert_int_equal(run("-c", file, "--print-config"), 0);
    }
}

TEST(check_says_that_all_is_well)
{
    const char *good = write_file("good.yaml", "tables:\n  - {name: a}\n  - {name: b}\n");
    expect(0, "no mistakes; 2 tables", "-c", good, "--check");
    assert_int_equal(run("--check", NULL, NULL), 0); /* the embedded one */
    expect(0, "Usage: replay-broker", "--help", NULL, NULL);
    assert_int_equal(run("--version", NULL, NULL), 0);
}

/* Nothing that is asked for is dropped in silence. */
TEST(shards_are_a_number_and_replace_no_list)
{
    static const char *const wrong[] = {"auto", "0", "256", "-1", "x", ""};
    for (uint32_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++) {
        expect(2, "--shards", "--shards", wrong[i], "--check");
    }
    assert_int_equal(run("--shards", "255", "--check"), 0);
    const char *list = write_file("list.yaml", "shards: [tcp://127.0.0.1:1, tcp://127.0.0.1:2]\ntables: [{name: a}]\n");
    const char *config = textf("--config=%s", list);
    assert_int_equal(run(config, "--check", NULL), 0);
    expect(2, "--shards 4", config, "--shards=4", "--check");
    const char *whole = write_file("run.yaml", "seed: 3\nbroker: {tables: [{nam: a}]}\n");
    expect(2, "--section broker", "-c", whole, "--check");
}

TEST(what_print_config_prints_is_the_same_configuration)
{
    const char *good = write_file("good.yaml", "memory_limit: 123MiB\ntables: [{name: a, max_size: 7}]\n");
    expect(0, "memory_limit: 123MiB", "-c", good, "--print-config");
    char *first = strdup(out);
    assert_int_equal(run("-c", write_file("again.yaml", first), "--print-config"), 0);
    assert_string_equal(out, first);
    free(first);
}

/* ---- running ---- */

static FILE *output;

/* Starts the broker, and copies the service endpoint that it prints. */
static pid_t start(const char *config, char service[128])
{
    int ends[2];
    assert_int_equal(pipe(ends), 0);
    const char *const argv[] = {process_env("RP_BROKER"), "-c", config, "--endpoints-file",
                                tempdir_at("endpoints"),  NULL};
    pid_t pid = process_spawn(argv, ends[1], SPAWN_KEEP);
    close(ends[1]);
    output = fdopen(ends[0], "r");
    char ingest[128] = "", events[128] = "";
    assert_int_equal(fscanf(output, "service %127s ingest %127s events %127s", service, ingest, events), 3);
    return pid;
}

static void stop(pid_t pid)
{
    kill(pid, SIGTERM);
    assert_int_equal(spawn_reap(pid), 0);
    fclose(output);
}

static void use_it(const char *service)
{
    struct testpeer *peer = testpeer_connect(service);
    testpeer_open(peer, false);
    testpeer_insert(peer, "a", 1, 20, 1);
    testpeer_await_resolved(peer, 0, 20);
    struct testpeer_answer *answer = testpeer_sampled(peer, "a", 5);
    sampled_check(answer, 4);
    testpeer_close(peer);
}

#define ANY_PORTS                                                                                                      \
    "service: tcp://127.0.0.1:0\ningest: tcp://127.0.0.1:0\nevents: tcp://127.0.0.1:0\ntables: [{name: a}]\n"

TEST(port_0_gives_free_ports_that_are_printed_and_written)
{
    char service[128];
    pid_t broker = start(write_file("good.yaml", ANY_PORTS "log: {level: off}\n"), service);
    int port = 0;
    assert_int_equal(sscanf(service, "tcp://127.0.0.1:%d", &port), 1);
    assert_true(port > 0);
    const char *want = textf("service %s\n", service);
    assert_memory_equal(file_text(tempdir_at("endpoints")), want, strlen(want));
    use_it(service);
    stop(broker);
}

TEST(a_full_disk_for_the_log_does_not_stop_service)
{
    char service[128];
    pid_t broker = start(write_file("good.yaml", ANY_PORTS "log: {level: debug, file: /dev/full}\n"), service);
    use_it(service);
    use_it(service); /* the keys exist now: rejections, which would be logged */
    stop(broker);
}

/* A client gets to all three sockets by the name that the broker tells. */
TEST(an_advertised_host_is_what_clients_are_told)
{
    char service[128];
    pid_t broker =
        start(write_file("good.yaml", "service: 'tcp://*:0'\ningest: 'tcp://*:0'\nevents: tcp://127.0.0.1:0\n"
                                      "advertise: localhost\nsecurity: {mode: none}\ntables: [{name: a}]\n"),
              service);
    assert_int_equal(strncmp(service, "tcp://localhost:", 16), 0);
    use_it(service);
    stop(broker);
}

TEST(an_endpoint_in_use_is_named)
{
    void *context = zmq_ctx_new(), *socket = zmq_socket(context, ZMQ_REP);
    char endpoint[128];
    size_t size = sizeof endpoint;
    assert_int_equal(zmq_bind(socket, "tcp://127.0.0.1:*"), 0);
    zmq_getsockopt(socket, ZMQ_LAST_ENDPOINT, endpoint, &size);
    const char *yaml =
        textf("service: %s\ningest: tcp://127.0.0.1:0\nevents: tcp://127.0.0.1:0\ntables: [{name: a}]\n", endpoint);
    assert_int_equal(run("-c", write_file("good.yaml", yaml), NULL), 1);
    assert_has(said, endpoint);
    assert_has(said, "Another broker runs there");
    zmq_close(socket);
    zmq_ctx_term(context);
}

int main(void)
{
    return test_run(tempdir_enter, tempdir_leave);
}
