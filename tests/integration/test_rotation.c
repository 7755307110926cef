/* The broker's key is rotated under a writer and a sampler of the library, over tcp: nothing is lost, and clients that know only
 * the old key are told what to do. */

#include <arpa/inet.h>
#include <netinet/in.h>
#include <pthread.h>
#include <stdatomic.h>
#include <sys/socket.h>
#include <time.h>

#include "replay/replay.h"
#include "tests/support/process.h"
#include "tests/support/tempdir.h"

#define TABLES                                                                                                         \
    "  - {name: log, max_size: 1000000, sampler: {kind: fifo}, max_times_sampled: 1, limiter: {kind: none}}\n"

struct scene {
    struct broker_process broker;
    char keys[96], disk[96], writer_key[96], sampler_key[96];
    atomic_bool stop, ended; /* the writer is to end; it has ended */
    atomic_ullong written, sampled, wrong;
    char text[512]; /* first problem of a thread */
};

static void pause_ms(long ms)
{
    nanosleep(&(struct timespec){ms / 1000, ms % 1000 * 1000000}, NULL);
}

/* Runs replay-ctl key; copies what it prints. */
static int ctl_key(char *out, size_t size, const char *a, const char *b, const char *c)
{
    const char *const argv[] = {process_env("RP_CTL"), "key", a, b, c, NULL};
    return process_run(argv, out, size, NULL, 0);
}

static void new_key(const struct scene *self, const char *path, const char *role)
{
    const char *const argv[] = {process_env("RP_CTL"), "key", "new", path, "--keys", self->keys, "--role", role, NULL};
    assert_int_equal(process_run(argv, NULL, 0, NULL, 0), 0);
}

/* Returns a port that nobody has, below the range from which the system takes ports for others: nobody takes it while the broker is
 * away. */
static int free_port(void)
{
    static unsigned seed;
    seed = seed ? seed : (unsigned)getpid();
    for (;;) {
        struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
        int port = 20000 + rand_r(&seed) % 12000, probe = socket(AF_INET, SOCK_STREAM, 0);
        address.sin_port = htons((uint16_t)port);
        bool bound = bind(probe, (const struct sockaddr *)&address, sizeof address) == 0;
        close(probe);
        if (bound)
            return port;
    }
}

static void scene_start(struct scene *self)
{
    char more[512];
    *self = (struct scene){0};
    snprintf(self->keys, sizeof self->keys, "%s/keys", tempdir);
    snprintf(self->disk, sizeof self->disk, "%s/disk", tempdir);
    snprintf(self->writer_key, sizeof self->writer_key, "%s/writer.key", tempdir);
    snprintf(self->sampler_key, sizeof self->sampler_key, "%s/sampler.key", tempdir);
    new_key(self, self->writer_key, "actor");
    new_key(self, self->sampler_key, "learner");
    snprintf(more, sizeof more,
             "service: tcp://127.0.0.1:%d\ningest: tcp://127.0.0.1:%d\nevents: tcp://127.0.0.1:%d\n"
             "security: {mode: curve, keys: %s}\nfolder: %s\n",
             free_port(), free_port(), free_port(), self->keys, self->disk);
    broker_process_start(&self->broker, TABLES, more);
}

static rp_client *connect_to(const struct scene *self, const char *key_file, int64_t timeout_ms, rp_error *error)
{
    rp_client_options options = {
        .struct_size = sizeof options, .backoff_min_ms = 5, .backoff_max_ms = 40, .key_file = key_file};
    return rp_client_connect(self->broker.service, &options, timeout_ms, error);
}

static void complain(struct scene *self, const char *what, const rp_error *error)
{
    snprintf(self->text, sizeof self->text, "%s: %s", what, error->text);
    atomic_store(&self->stop, true);
}

/* Writes 0, 1, 2 ... until it is stopped. */
static void *write_steps(void *ctx)
{
    struct scene *self = ctx;
    rp_column column = {.name = "x", .dtype = RP_DTYPE_UINT64};
    rp_client *client = connect_to(self, self->writer_key, WAIT, &err);
    rp_writer *writer = client ? rp_writer_new(client, &column, 1, NULL, WAIT, &err) : NULL;
    if (!writer)
        complain(self, "writer", &err);
    for (uint64_t i = 0; writer && !atomic_load(&self->stop); i++) {
        const void *values[] = {&i};
        if (rp_writer_append(writer, values, WAIT, &err) != RP_OK ||
            rp_writer_item_last(writer, "log", 1, 1, WAIT, NULL, &err) != RP_OK)
            complain(self, "append", &err);
        else
            atomic_store(&self->written, i + 1);
        while (i % 20 == 0 && i > atomic_load(&self->sampled) + 2000 && !atomic_load(&self->stop))
            pause_ms(1); /* a sampler that stalled catches up */
        if (i % 20 == 0)
            pause_ms(1);
    }
    if (writer && rp_writer_destroy(&writer, WAIT, &err) != RP_OK)
        complain(self, "close", &err);
    atomic_store(&self->ended, true);
    rp_client_destroy(&client);
    return NULL;
}

/* Takes every item once, in order. */
static void *sample_steps(void *ctx)
{
    struct scene *self = ctx;
    rp_client *client = connect_to(self, self->sampler_key, WAIT, &err);
    rp_sampler_options options = {.struct_size = sizeof options, .batch_size = 16, .fill = RP_FILL_AT_ONCE};
    rp_sampler *sampler = client ? rp_sampler_new(client, "log", &options, &err) : NULL;
    if (!sampler)
        complain(self, "sampler", &err);
    for (uint64_t next = 0; sampler && (!atomic_load(&self->ended) || next < atomic_load(&self->written));) {
        rp_batch *batch = NULL;
        rp_status status = rp_sampler_next(sampler, &batch, 1000, &err);
        if (status == RP_DEADLINE_EXCEEDED)
            continue;
        if (status != RP_OK) {
            complain(self, "sample", &err);
            break;
        }
        const rp_field_view *field = rp_batch_find(batch, "x");
        rp_batch_info info = {.struct_size = sizeof info};
        rp_batch_get_info(batch, &info);
        const uint64_t *values = field->data;
        for (uint64_t i = 0; i < info.n; i++, next++)
            if (values[i] != next)
                atomic_fetch_add(&self->wrong, 1);
        atomic_store(&self->sampled, next);
        rp_batch_release(&batch);
    }
    rp_sampler_destroy(&sampler);
    rp_client_destroy(&client);
    return NULL;
}

/* The broker's log says that it has changed its key. */
static int has_changed_key(void *ctx)
{
    const struct scene *self = ctx;
    return strstr(file_text(file_in(self->broker.dir, "log")), "B0607") != NULL;
}

/* Both go on: each has passed this many more items. */
static void await_progress(struct scene *self, const char *when)
{
    uint64_t target = atomic_load(&self->written) + 200;
    for (int ms = 0; atomic_load(&self->sampled) < target && !self->text[0] && ms < WAIT; ms += 5)
        pause_ms(5);
    if (self->text[0])
        fail_msg("%s: %s", when, self->text);
    if (atomic_load(&self->sampled) < target)
        fail_msg("%s: no progress: %llu written, %llu sampled", when, (unsigned long long)self->written,
                 (unsigned long long)self->sampled);
}

/* A client with this key file gets in, or is told why not. */
static void check_client(const struct scene *self, const char *key_file, bool comes_in)
{
    err = (rp_error){0};
    rp_client *client = connect_to(self, key_file, WAIT, &err);
    if (comes_in && !client)
        fail_msg("%s", err.text);
    if (!comes_in) {
        assert_null(client);
        assert_int_equal(err.status, RP_PERMISSION_DENIED);
        assert_non_null(strstr(err.text, "'sampler'"));
    }
    rp_client_destroy(&client);
}

TEST(rotation_under_load, tempdir_enter, tempdir_leave)
{
    struct scene scene;
    pthread_t writer, sampler;
    char out[256], public_key[64] = "", old_key[96];
    scene_start(&scene);
    assert_int_equal(pthread_create(&writer, NULL, write_steps, &scene), 0);
    assert_int_equal(pthread_create(&sampler, NULL, sample_steps, &scene), 0);
    await_progress(&scene, "at first");
    assert_int_equal(ctl_key(out, sizeof out, "rotate", scene.keys, NULL), 0);
    assert_int_equal(sscanf(out, "next %63s", public_key), 1);
    pause_ms(9000); /* clients ask every 5 s, and may stall */
    assert_int_equal(ctl_key(out, sizeof out, "rotate", scene.keys, "finish"), 0);
    assert_true(process_await(has_changed_key, &scene));
    await_progress(&scene, "after the change");
    broker_process_stop(&scene.broker, SIGTERM);
    broker_process_again(&scene.broker, NULL);
    await_progress(&scene, "after a restart");
    broker_process_stop(&scene.broker, SIGKILL);
    broker_process_again(&scene.broker, NULL);
    await_progress(&scene, "after kill -9");
    snprintf(old_key, sizeof old_key, "%s", scene.sampler_key);
    check_client(&scene, old_key, false);
    assert_int_equal(ctl_key(NULL, 0, "trust", old_key, public_key), 0);
    check_client(&scene, old_key, true);
    atomic_store(&scene.stop, true);
    pthread_join(writer, NULL);
    pthread_join(sampler, NULL);
    assert_string_equal(scene.text, "");
    assert_int_equal(scene.wrong, 0);
    assert_int_equal(scene.sampled, scene.written);
    broker_process_fini(&scene.broker);
}
