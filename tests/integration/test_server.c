/* A broker inside the process, through the public interface alone. */
#include <pthread.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>

#include <zmq.h>

#include "replay/server.h"
#include "tests/support/asked.h"
#include "tests/support/numbers.h"
#include "tests/support/tempdir.h"

ENDS(rp_server, rp_server_stop(self))

#define ANY_PORTS "service: tcp://127.0.0.1:0\ningest: tcp://127.0.0.1:0\nevents: tcp://127.0.0.1:0\n"

static rp_server *start(const char *yaml)
{
    return must(rp_server_start(yaml, NULL, &err));
}

static rp_client *connect_to(const rp_server *server)
{
    return CONNECT(rp_server_endpoint(server));
}

static void write_items(rp_client *client, uint32_t n)
{
    numbers_insert(client, "replay", 0, n, NULL);
}

static uint64_t table_size(rp_client *client)
{
    return asked_table(client, "replay", "size");
}

TEST(default)
{
    rp_server *server = start(NULL);
    rp_client *client = connect_to(server);
    assert_string_equal(rp_client_table(client, 0), "replay");
    write_items(client, 100);
    assert_int_equal(table_size(client), 100);
    rp_client_destroy(&client);
    rp_server_stop(&server);
    assert_null(server);
    rp_server_stop(&server);
}

TEST(two_at_once)
{
    SCOPED(rp_server) b = start(NULL);
    rp_server *a = start(NULL);
    assert_string_not_equal(rp_server_endpoint(a), rp_server_endpoint(b));
    SCOPED(rp_client) to_b = connect_to(b);
    rp_client *to_a = connect_to(a);
    write_items(to_a, 3);
    write_items(to_b, 5);
    assert_int_equal(table_size(to_a), 3);
    assert_int_equal(table_size(to_b), 5);
    rp_client_destroy(&to_a);
    rp_server_stop(&a);
    assert_int_equal(table_size(to_b), 5);
}

/* Inserts items that no codec makes smaller. */
static void write_noise(rp_client *client, const char *table, uint32_t n)
{
    static uint32_t noise[16384];
    rp_column column = {.name = "x", .dtype = RP_DTYPE_UINT32, .rank = 1, .shape = {16384}};
    SCOPED(rp_writer) writer = WRITER(client, &column, 1);
    for (uint32_t i = 0; i < n; i++) {
        const void *values[] = {noise};
        for (uint32_t k = 0; k < 16384; k++)
            noise[k] = (i * 16384 + k + 1) * UINT32_C(2654435761);
        ok(rp_writer_append(writer, values, WAIT, &err));
        ok(rp_writer_item_last(writer, table, 1, 1, WAIT, NULL, &err));
    }
}

/* Inside one process, a reply is unread until the client has let go of it. A sampler of two sources that keeps the replies of one
 * until the other answers would wait for ever. */
TEST(large_replies_of_two_sources)
{
    void *context = zmq_ctx_new();
    rp_server *server =
        must(rp_server_start("service: inproc://service\ningest: inproc://ingest\nevents: inproc://events\n"
                             "peer_backlog_bytes: 1MiB\n"
                             "tables:\n  - {name: a, max_size: 100}\n  - {name: b, max_size: 100}\n",
                             context, &err));
    rp_client *client = CONNECT(rp_server_endpoint(server), .zmq_context = context);
    write_noise(client, "a", 40);
    write_noise(client, "b", 40);
    rp_source sources[] = {{client, "a", 0.5}, {client, "b", 0.5}};
    rp_sampler *sampler = must(rp_sampler_new_mixed(sources, 2, OPTIONS(rp_sampler, .batch_size = 64), &err));
    batches_pass(sampler, 12);
    rp_sampler_destroy(&sampler);
    rp_client_destroy(&client);
    rp_server_stop(&server);
    zmq_ctx_term(context);
}

static void check_field(const rp_info *field, const char *members)
{
    char *json = NULL;
    ok(rp_info_json(field, &json, &err));
    assert_has(json, members);
    rp_string_free(&json);
}

/* A table tells what it was configured with and what is stored there. */
TEST(signature_and_metadata)
{
    SCOPED(rp_server)
    server = start(ANY_PORTS "tables:\n"
                             "  - {name: replay, max_size: 10, metadata: '{\"env\": \"CartPole-v1\"}'}\n"
                             "  - {name: strict, max_size: 10, signature: {y: [int8, 0, 3]}}\n");
    SCOPED(rp_client) client = connect_to(server);
    SCOPED(rp_info) info = asked_info(client, NULL);
    assert_string_equal(rp_info_text(info, "tables.0.metadata"), "{\"env\": \"CartPole-v1\"}");
    assert_int_equal(rp_info_count(info, "tables.0.signature"), 0);
    assert_string_equal(rp_info_text(info, "tables.1.metadata"), "");
    assert_int_equal(rp_info_u64(info, "tables.1.prescribed"), 1);
    assert_int_equal(rp_info_count(info, "tables.1.signature"), 1);
    check_field(rp_info_at(info, "tables.1.signature", 0), "\"name\": \"y\", \"dtype\": \"int8\", \"shape\": [0, 3]");

    rp_column columns[] = {{.name = "observation", .dtype = RP_DTYPE_FLOAT32, .rank = 1, .shape = {4}},
                           {.name = "action", .dtype = RP_DTYPE_INT64}};
    rp_writer *writer = WRITER(client, columns, 2, .keep_alive = 2);
    float observation[4] = {0};
    int64_t action = 1;
    const void *step[] = {observation, &action};
    rp_slice slices[] = {{.column = 0, .start = -2, .count = 2},
                         {.field = "last", .column = 1, .start = -1, .count = 1, .squeeze = 1}};
    uint64_t key;
    for (uint32_t i = 0; i < 2; i++)
        ok(rp_writer_append(writer, step, WAIT, &err));
    ok(rp_writer_item(writer, "replay", 1, slices, 2, WAIT, &key, &err));
    ok(rp_writer_destroy(&writer, WAIT, &err));
    SCOPED(rp_info) found = asked_info(client, NULL);
    assert_int_equal(rp_info_u64(found, "tables.0.prescribed"), 0);
    assert_int_equal(rp_info_count(found, "tables.0.signature"), 2);
    check_field(rp_info_at(found, "tables.0.signature", 0),
                "\"name\": \"observation\", \"dtype\": \"float32\", \"shape\": [2, 4]");
    check_field(rp_info_at(found, "tables.0.signature", 1), "\"name\": \"last\", \"dtype\": \"int64\", \"shape\": []");

    /* The item goes, and the signature stays until a reset. */
    ok(rp_items_delete(client, "replay", &key, 1, WAIT, NULL, &err));
    SCOPED(rp_info) kept = asked_info(client, NULL);
    assert_int_equal(rp_info_count(kept, "tables.0.signature"), 2);
    ok(rp_admin_reset(client, "replay", WAIT, NULL, &err));
    SCOPED(rp_info) reset = asked_info(client, NULL);
    assert_int_equal(rp_info_count(reset, "tables.0.signature"), 0);
    assert_string_equal(rp_info_text(reset, "tables.0.metadata"), "{\"env\": \"CartPole-v1\"}");
}

TEST(mistakes)
{
    must_fail_new(rp_server_start("tables: [{name: a, max_sise: 3}]\n", NULL, &err), RP_INVALID_ARGUMENT,
                  "max_size"); /* the key that is meant */
    err = (rp_error){0};
    assert_null(rp_server_start("service: tcp://256.0.0.1:1\ntables: [{name: a, max_size: 3}]\n", NULL, &err));
    assert_int_not_equal(err.status, RP_OK);
    assert_true(err.text[0]);
    assert_null(rp_server_start("service: tcp://256.0.0.1:1\ntables: [{name: a, max_size: 3}]\n", NULL, NULL));
    /* Metrics are served by the program alone. */
    must_fail_new(rp_server_start("http: 127.0.0.1:0\ntables: [{name: a, max_size: 3}]\n", NULL, &err), RP_UNSUPPORTED,
                  NULL);
}

/* A broker that listens everywhere is reached by the endpoint that the call gives. */
TEST(every_interface)
{
    SCOPED(rp_server)
    server = start("service: tcp://*:0\ningest: tcp://127.0.0.1:0\nevents: tcp://127.0.0.1:0\n"
                   "security: {mode: none}\ntables: [{name: replay, max_size: 10}]\n");
    assert_null(strchr(rp_server_endpoint(server), '*'));
    SCOPED(rp_client) client = connect_to(server);
}

static const int signals[] = {SIGINT, SIGTERM, SIGHUP, SIGUSR1, SIGPIPE};
#define N_SIGNALS (sizeof signals / sizeof signals[0])

/* Threads of this process that would run a handler for SIGTERM or SIGXFSZ. */
static uint32_t open_threads(void)
{
    const unsigned long long mask = 1ull << (SIGTERM - 1) | 1ull << (SIGXFSZ - 1);
    uint32_t n, open = 0;
    char **tasks = files_like("/proc/self/task/*/status", &n);
    for (uint32_t i = 0; i < n; i++) {
        const char *at = strstr(file_text(tasks[i]), "SigBlk:"); /* NULL: the thread has ended */
        open += at && (strtoull(at + 7, NULL, 16) & mask) != mask;
    }
    return open;
}

/* With a journal there are czmq actors, which would catch signals if they were let. */
TEST(signals_stay, tempdir_enter, tempdir_leave)
{
    char yaml[512];
    snprintf(yaml, sizeof yaml, ANY_PORTS "folder: %s\ntables: [{name: replay, max_size: 1000}]\n", tempdir);
    struct sigaction before[N_SIGNALS], after;
    for (uint32_t i = 0; i < N_SIGNALS; i++)
        sigaction(signals[i], NULL, &before[i]);
    uint32_t threads = open_threads();
    SCOPED(rp_server) server = start(yaml);
    /* A thread of libzmq blocks signals as the first thing that it does: it may not have got that far yet. */
    wait_until(open_threads() == threads);
    SCOPED(rp_client) client = connect_to(server);
    write_items(client, 20);
    for (uint32_t i = 0; i < N_SIGNALS; i++) {
        sigaction(signals[i], NULL, &after);
        assert_ptr_equal(before[i].sa_handler, after.sa_handler);
    }
    rp_client_destroy(&client);
    rp_server_stop(&server);
    server = start(yaml);
    client = connect_to(server);
    assert_int_equal(table_size(client), 20);
}

struct sampling {
    rp_sampler *sampler;
    rp_status status;
};

static void *sample_one(void *ctx)
{
    struct sampling *self = ctx;
    rp_batch *batch;
    do
        self->status = rp_sampler_next(self->sampler, &batch, 200, &err);
    while (self->status == RP_OK);
    return NULL;
}

/* Nothing is in the table: the sample waits at the broker, which stops all the same. */
TEST(stop_ends_waits)
{
    rp_server *server = start(NULL);
    SCOPED(rp_client) client = connect_to(server);
    struct sampling sampling = {.sampler = rp_sampler_new(client, "replay", NULL, &err)};
    assert_non_null(sampling.sampler);
    pthread_t thread;
    assert_int_equal(pthread_create(&thread, NULL, sample_one, &sampling), 0);
    rp_server_stop(&server);
    pthread_join(thread, NULL);
    assert_true(sampling.status == RP_CANCELLED || sampling.status == RP_UNAVAILABLE ||
                sampling.status == RP_DEADLINE_EXCEEDED);
    rp_sampler_destroy(&sampling.sampler);
}

struct lines {
    pthread_mutex_t lock;
    uint32_t n;
    int32_t lowest;
    char last[256];
};

static void keep_line(void *ctx, int32_t level, const char *line)
{
    struct lines *self = ctx;
    pthread_mutex_lock(&self->lock);
    self->n++;
    self->lowest = level < self->lowest ? level : self->lowest;
    snprintf(self->last, sizeof self->last, "%s", line);
    pthread_mutex_unlock(&self->lock);
}

TEST(log)
{
    struct lines lines = {.lock = PTHREAD_MUTEX_INITIALIZER, .lowest = RP_LOG_OFF};
    rp_log_set(keep_line, &lines, RP_LOG_INFO);
    rp_server *server = start(NULL);
    rp_client *client = connect_to(server);
    write_items(client, 1);
    rp_client_destroy(&client);
    rp_server_stop(&server); /* "draining" is logged at level info */
    assert_true(lines.n > 0);
    assert_int_equal(lines.lowest, RP_LOG_INFO);
    assert_null(strchr(lines.last, '\n'));
    rp_log_set(NULL, NULL, RP_LOG_OFF);
    uint32_t n = lines.n;
    server = start(NULL);
    rp_server_stop(&server);
    assert_int_equal(lines.n, n);
}

/* ---- few descriptors: no call may abort the process of its caller ---- */

/* Runs in a process of its own. Returns the status of waitpid. */
static int run_apart(void (*run)(int), int number)
{
    pid_t pid = fork();
    assert_true(pid >= 0);
    int status = -1;
    if (pid == 0) {
        alarm(30);
        run(number);
        _exit(0);
    }
    assert_int_equal(waitpid(pid, &status, 0), pid);
    return status;
}

/* Leaves so many descriptors free. */
static void leave_free(int n)
{
    int lowest = dup(STDERR_FILENO);
    close(lowest);
    struct rlimit limit = {.rlim_cur = (rlim_t)(lowest + n), .rlim_max = (rlim_t)(lowest + n)};
    if (setrlimit(RLIMIT_NOFILE, &limit) != 0)
        _exit(9);
}

static void start_with_few(int n)
{
    err = (rp_error){0};
    leave_free(n);
    rp_server *server = rp_server_start(NULL, NULL, &err);
    if (!server && err.status != RP_RESOURCE_EXHAUSTED)
        _exit(3);
    if (!server && n >= 80)
        _exit(4);
    rp_server_stop(&server);
}

static const char *place;

static void connect_with_few(int n)
{
    err = (rp_error){0};
    leave_free(n);
    SCOPED(rp_client) client = rp_client_connect(place, NULL, WAIT, &err);
    if (!client && err.status != RP_RESOURCE_EXHAUSTED)
        _exit(3);
    if (!client && n >= 48)
        _exit(4);
    rp_column column = {.name = "x", .dtype = RP_DTYPE_FLOAT32};
    rp_writer *writers[16] = {0};
    for (int i = 0; client && i < 16; i++) /* takes all that are left */
        writers[i] = rp_writer_new(client, &column, 1, NULL, 200, &err);
    for (int i = 0; i < 16; i++)
        rp_writer_destroy(&writers[i], 200, NULL);
}

TEST(few_descriptors)
{
    for (int n = 0; n < 90; n += n < 16 ? 1 : 7)
        if (run_apart(start_with_few, n) != 0)
            fail_msg("a broker with %d descriptors", n);
    SCOPED(rp_server) server = start(NULL);
    place = rp_server_endpoint(server);
    for (int n = 0; n < 60; n += n < 16 ? 1 : 5)
        if (run_apart(connect_with_few, n) != 0)
            fail_msg("a client with %d descriptors", n);
}

/* A broker at an ipc path, in a process that has used up its descriptors when somebody connects. */
static void serve_without_descriptors(int unused)
{
    (void)unused;
    char yaml[600];
    snprintf(yaml, sizeof yaml,
             "service: ipc://%s/s\ningest: ipc://%s/i\nevents: ipc://%s/e\ntables:\n  - {name: replay, max_size: 9}\n",
             tempdir, tempdir, tempdir);
    rp_server *server = rp_server_start(yaml, NULL, &err);
    struct rlimit limit;
    int taken[4096], n = 0, last = dup(STDERR_FILENO);
    if (!server || getrlimit(RLIMIT_NOFILE, &limit) != 0)
        _exit(3);
    limit.rlim_cur = (rlim_t)last + 64;
    setrlimit(RLIMIT_NOFILE, &limit);
    int peer = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    while (n < 4096 && (taken[n] = dup(STDERR_FILENO)) >= 0)
        n++;
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    snprintf(address.sun_path, sizeof address.sun_path, "%s/s", tempdir);
    char end;
    if (connect(peer, (struct sockaddr *)&address, sizeof address) != 0 || read(peer, &end, 1) != 0)
        _exit(4); /* the broker closes the connection */
    for (int i = 0; i < n; i++)
        close(taken[i]);
    rp_client *client = rp_client_connect(rp_server_endpoint(server), NULL, WAIT, &err);
    if (!client)
        _exit(5);
    rp_client_destroy(&client);
    rp_server_stop(&server);
}

TEST(connection_without_descriptors, tempdir_enter, tempdir_leave)
{
    assert_int_equal(run_apart(serve_without_descriptors, 0), 0);
}
