/* A broker inside the process, through the public interface alone. */
#include <dirent.h>
#include <pthread.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>

#include <zmq.h>

#include "replay/replay.h"
#include "replay/server.h"
#include "tests/support/asked.h"
#include "tests/support/tempdir.h"

static rp_server *start(const char *yaml)
{
    return must(rp_server_start(yaml, NULL, &err));
}

static rp_client *connect_to(const rp_server *server)
{
    return must(rp_client_connect(rp_server_endpoint(server), NULL, WAIT, &err));
}

static void write_items(rp_client *client, uint32_t n)
{
    rp_column column = {.name = "x", .dtype = RP_DTYPE_FLOAT32};
    rp_writer *writer = must(rp_writer_new(client, &column, 1, NULL, WAIT, &err));
    for (uint32_t i = 0; i < n; i++) {
        float value = (float)i;
        const void *values[] = {&value};
        assert_int_equal(rp_writer_append(writer, values, WAIT, &err), RP_OK);
        assert_int_equal(rp_writer_item_last(writer, "replay", 1, 1, WAIT, NULL, &err), RP_OK);
    }
    assert_int_equal(rp_writer_destroy(&writer, WAIT, &err), RP_OK);
}

static uint64_t table_size(rp_client *client)
{
    rp_sampler_options options = {.struct_size = sizeof options, .batch_size = 1};
    rp_sampler *sampler = must(rp_sampler_new(client, "replay", &options, &err));
    rp_batch *batch;
    assert_int_equal(rp_sampler_next(sampler, &batch, WAIT, &err), RP_OK);
    rp_batch_info info = {.struct_size = sizeof info};
    rp_batch_get_info(batch, &info);
    rp_batch_release(&batch);
    rp_sampler_destroy(&sampler);
    return info.table_size;
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
    rp_server *a = start(NULL), *b = start(NULL);
    assert_string_not_equal(rp_server_endpoint(a), rp_server_endpoint(b));
    rp_client *to_a = connect_to(a), *to_b = connect_to(b);
    write_items(to_a, 3);
    write_items(to_b, 5);
    assert_int_equal(table_size(to_a), 3);
    assert_int_equal(table_size(to_b), 5);
    rp_client_destroy(&to_a);
    rp_server_stop(&a);
    assert_int_equal(table_size(to_b), 5);
    rp_client_destroy(&to_b);
    rp_server_stop(&b);
}

/* Inserts items that no codec makes smaller. */
static void write_noise(rp_client *client, const char *table, uint32_t n)
{
    static uint32_t noise[16384];
    rp_column column = {.name = "x", .dtype = RP_DTYPE_UINT32, .rank = 1, .shape = {16384}};
    rp_writer *writer = must(rp_writer_new(client, &column, 1, NULL, WAIT, &err));
    for (uint32_t i = 0; i < n; i++) {
        const void *values[] = {noise};
        for (uint32_t k = 0; k < 16384; k++)
            noise[k] = (i * 16384 + k + 1) * UINT32_C(2654435761);
        assert_int_equal(rp_writer_append(writer, values, WAIT, &err), RP_OK);
        assert_int_equal(rp_writer_item_last(writer, table, 1, 1, WAIT, NULL, &err), RP_OK);
    }
    assert_int_equal(rp_writer_destroy(&writer, WAIT, &err), RP_OK);
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
    rp_client_options with = {.struct_size = sizeof with, .zmq_context = context};
    rp_client *client = must(rp_client_connect(rp_server_endpoint(server), &with, WAIT, &err));
    write_noise(client, "a", 40);
    write_noise(client, "b", 40);
    rp_sampler_options options = {.struct_size = sizeof options, .batch_size = 64};
    rp_source sources[] = {{client, "a", 0.5}, {client, "b", 0.5}};
    rp_sampler *sampler = must(rp_sampler_new_mixed(sources, 2, &options, &err));
    for (uint32_t i = 0; i < 12; i++) {
        rp_batch *batch = NULL;
        assert_int_equal(rp_sampler_next(sampler, &batch, WAIT, &err), RP_OK);
        rp_batch_release(&batch);
    }
    rp_sampler_destroy(&sampler);
    rp_client_destroy(&client);
    rp_server_stop(&server);
    zmq_ctx_term(context);
}

static void check_field(const rp_info *field, const char *members)
{
    char *json = NULL;
    assert_int_equal(rp_info_json(field, &json, &err), RP_OK);
    if (!strstr(json, members))
        fail_msg("%s is not in %s", members, json);
    rp_string_free(&json);
}

/* A table tells what it was configured with and what is stored there. */
TEST(signature_and_metadata)
{
    rp_server *server = start("service: tcp://127.0.0.1:0\ningest: tcp://127.0.0.1:0\nevents: tcp://127.0.0.1:0\n"
                              "tables:\n"
                              "  - {name: replay, max_size: 10, metadata: '{\"env\": \"CartPole-v1\"}'}\n"
                              "  - {name: strict, max_size: 10, signature: {y: [int8, 0, 3]}}\n");
    rp_client *client = connect_to(server);
    rp_info *info = asked_info(client, NULL);
    assert_string_equal(rp_info_text(info, "tables.0.metadata"), "{\"env\": \"CartPole-v1\"}");
    assert_int_equal(rp_info_count(info, "tables.0.signature"), 0);
    assert_string_equal(rp_info_text(info, "tables.1.metadata"), "");
    assert_int_equal(rp_info_u64(info, "tables.1.prescribed"), 1);
    assert_int_equal(rp_info_count(info, "tables.1.signature"), 1);
    check_field(rp_info_at(info, "tables.1.signature", 0), "\"name\": \"y\", \"dtype\": \"int8\", \"shape\": [0, 3]");
    rp_info_free(&info);

    rp_column columns[] = {{.name = "observation", .dtype = RP_DTYPE_FLOAT32, .rank = 1, .shape = {4}},
                           {.name = "action", .dtype = RP_DTYPE_INT64}};
    rp_writer_options options = {.struct_size = sizeof options, .keep_alive = 2};
    rp_writer *writer = rp_writer_new(client, columns, 2, &options, WAIT, &err);
    float observation[4] = {0};
    int64_t action = 1;
    const void *step[] = {observation, &action};
    rp_slice slices[] = {{.column = 0, .start = -2, .count = 2},
                         {.field = "last", .column = 1, .start = -1, .count = 1, .squeeze = 1}};
    uint64_t key;
    for (uint32_t i = 0; i < 2; i++)
        assert_int_equal(rp_writer_append(writer, step, WAIT, &err), RP_OK);
    assert_int_equal(rp_writer_item(writer, "replay", 1, slices, 2, WAIT, &key, &err), RP_OK);
    assert_int_equal(rp_writer_destroy(&writer, WAIT, &err), RP_OK);
    info = asked_info(client, NULL);
    assert_int_equal(rp_info_u64(info, "tables.0.prescribed"), 0);
    assert_int_equal(rp_info_count(info, "tables.0.signature"), 2);
    check_field(rp_info_at(info, "tables.0.signature", 0),
                "\"name\": \"observation\", \"dtype\": \"float32\", \"shape\": [2, 4]");
    check_field(rp_info_at(info, "tables.0.signature", 1), "\"name\": \"last\", \"dtype\": \"int64\", \"shape\": []");
    rp_info_free(&info);

    /* The item goes, and the signature stays until a reset. */
    assert_int_equal(rp_items_delete(client, "replay", &key, 1, WAIT, NULL, &err), RP_OK);
    info = asked_info(client, NULL);
    assert_int_equal(rp_info_count(info, "tables.0.signature"), 2);
    rp_info_free(&info);
    assert_int_equal(rp_admin_reset(client, "replay", WAIT, NULL, &err), RP_OK);
    info = asked_info(client, NULL);
    assert_int_equal(rp_info_count(info, "tables.0.signature"), 0);
    assert_string_equal(rp_info_text(info, "tables.0.metadata"), "{\"env\": \"CartPole-v1\"}");
    rp_info_free(&info);
    rp_client_destroy(&client);
    rp_server_stop(&server);
}

TEST(mistakes)
{
    assert_null(rp_server_start("tables: [{name: a, max_sise: 3}]\n", NULL, &err));
    assert_int_equal(err.status, RP_INVALID_ARGUMENT);
    assert_non_null(strstr(err.text, "max_size")); /* the key that is meant */
    err = (rp_error){0};
    assert_null(rp_server_start("service: tcp://256.0.0.1:1\ntables: [{name: a, max_size: 3}]\n", NULL, &err));
    assert_int_not_equal(err.status, RP_OK);
    assert_true(err.text[0]);
    assert_null(rp_server_start("service: tcp://256.0.0.1:1\ntables: [{name: a, max_size: 3}]\n", NULL, NULL));
    /* Metrics are served by the program alone. */
    assert_null(rp_server_start("http: 127.0.0.1:0\ntables: [{name: a, max_size: 3}]\n", NULL, &err));
    assert_int_equal(err.status, RP_UNSUPPORTED);
}

/* A broker that listens everywhere is reached by the endpoint that the call gives. */
TEST(every_interface)
{
    rp_server *server = start("service: tcp://*:0\ningest: tcp://127.0.0.1:0\nevents: tcp://127.0.0.1:0\n"
                              "security: {mode: none}\ntables: [{name: replay, max_size: 10}]\n");
    assert_null(strchr(rp_server_endpoint(server), '*'));
    rp_client *client = connect_to(server);
    rp_client_destroy(&client);
    rp_server_stop(&server);
}

static const int signals[] = {SIGINT, SIGTERM, SIGHUP, SIGUSR1, SIGPIPE};
#define N_SIGNALS (sizeof signals / sizeof signals[0])

/* Threads of this process that would run a handler for SIGTERM or SIGXFSZ. */
static uint32_t open_threads(void)
{
    uint32_t n = 0;
    DIR *tasks = opendir("/proc/self/task");
    assert_non_null(tasks);
    for (struct dirent *entry; (entry = readdir(tasks));) {
        char path[300], line[256];
        unsigned long long blocked = ~0ull;
        snprintf(path, sizeof path, "/proc/self/task/%s/status", entry->d_name);
        FILE *status = entry->d_name[0] == '.' ? NULL : fopen(path, "r");
        while (status && fgets(line, sizeof line, status))
            sscanf(line, "SigBlk: %llx", &blocked);
        if (status)
            fclose(status);
        const unsigned long long mask = 1ull << (SIGTERM - 1) | 1ull << (SIGXFSZ - 1);
        n += (blocked & mask) != mask;
    }
    closedir(tasks);
    return n;
}

/* A thread of libzmq blocks signals as the first thing that it does: it may not have got that far yet. */
static void await_open_threads(uint32_t want)
{
    for (uint32_t i = 0; i < 1000 && open_threads() != want; i++)
        usleep(1000);
    assert_int_equal(open_threads(), want);
}

/* With a journal there are czmq actors, which would catch signals if they were let. */
TEST(signals_stay, tempdir_enter, tempdir_leave)
{
    char yaml[512];
    snprintf(yaml, sizeof yaml,
             "service: tcp://127.0.0.1:0\ningest: tcp://127.0.0.1:0\nevents: tcp://127.0.0.1:0\n"
             "folder: %s\ntables: [{name: replay, max_size: 1000}]\n",
             tempdir);
    struct sigaction before[N_SIGNALS], after;
    for (uint32_t i = 0; i < N_SIGNALS; i++)
        sigaction(signals[i], NULL, &before[i]);
    uint32_t threads = open_threads();
    rp_server *server = start(yaml);
    await_open_threads(threads);
    rp_client *client = connect_to(server);
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
    rp_client_destroy(&client);
    rp_server_stop(&server);
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
    rp_client *client = connect_to(server);
    struct sampling sampling = {.sampler = rp_sampler_new(client, "replay", NULL, &err)};
    assert_non_null(sampling.sampler);
    pthread_t thread;
    assert_int_equal(pthread_create(&thread, NULL, sample_one, &sampling), 0);
    rp_server_stop(&server);
    pthread_join(thread, NULL);
    assert_true(sampling.status == RP_CANCELLED || sampling.status == RP_UNAVAILABLE ||
                sampling.status == RP_DEADLINE_EXCEEDED);
    rp_sampler_destroy(&sampling.sampler);
    rp_client_destroy(&client);
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
    rp_client *client = rp_client_connect(place, NULL, WAIT, &err);
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
    rp_client_destroy(&client);
}

TEST(few_descriptors)
{
    for (int n = 0; n < 90; n += n < 16 ? 1 : 7)
        if (run_apart(start_with_few, n) != 0)
            fail_msg("a broker with %d descriptors", n);
    rp_server *server = start(NULL);
    place = rp_server_endpoint(server);
    for (int n = 0; n < 60; n += n < 16 ? 1 : 5)
        if (run_apart(connect_with_few, n) != 0)
            fail_msg("a client with %d descriptors", n);
    rp_server_stop(&server);
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
